"""Session windows: rows of a key whose intervals overlap or touch become one, and so do sessions.

Each row comes with an interval [start, end) of its own, in the session column of the keys. A row
may extend a session, bridge several, or start one; what was shown of the sessions that it changes
is taken back. A session is closed, and forgotten, when the watermark reaches its end.

Law: after any prefix of the input, sessions of a key neither overlap nor touch, and their buffers
are those of the rows whose intervals they cover.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.aggregate import partition_positions
from penstock.ops.aggregate_calls import aggregate_rows, bind_calls, existing
from penstock.ops.aggregates.api import Buffers, Ints
from penstock.ops.api import Delta, OnLate, Operator, Weights
from penstock.ops.regroup import difference
from penstock.ops.watermarks import LateFilter
from penstock.plan import nodes as n
from penstock.state.api import Slots, State
from penstock.state.equal_rows import group_rows
from penstock.state.keys import normalise_floats

_STARTS = "starts"
_START = "start"
_END = "end"
_ALWAYS = np.iinfo(np.int64).min
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Merged:
    """Intervals merged: the session of each, and each session's key and bounds."""

    #: Position of each interval's session.
    of: Ints
    groups: Ints
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.groups)


def merge_intervals(groups: Ints, starts: Ints, ends: Ints) -> Merged:
    """The sessions of each group, by group and start. Intervals that touch belong together."""
    count = len(groups)
    if not count:
        return Merged(groups, groups, starts, ends)
    order = np.lexsort((starts, groups))
    by_group, by_start, by_end = groups[order], starts[order], ends[order]
    # The largest end so far within the group: ranks leave room for the group above them.
    sorted_ends = np.sort(by_end)
    rank = np.searchsorted(sorted_ends, by_end)
    reached = sorted_ends[np.maximum.accumulate(by_group * count + rank) - by_group * count]
    begins = np.ones(count, bool)
    begins[1:] = (by_group[1:] != by_group[:-1]) | (by_start[1:] > reached[:-1])
    of = np.empty(count, np.int64)
    of[order] = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    last = np.append(first[1:], count) - 1
    return Merged(of, by_group[first], by_start[first], reached[last])


class _Shape:
    """Where keys, session and event time stand in rows and in results."""

    def __init__(self, node: n.Aggregate, on_late: OnLate) -> None:
        schema = node.child.schema
        self._node = node
        self.keys = [key for key in node.keys if key.name != node.session]
        self.key_at = [schema.get_field_index(key.name) for key in self.keys]
        #: Positions in `keys` of those that place rows.
        self.placed = partition_positions(node.child, [key.name for key in self.keys])
        assert node.session is not None
        self.session_at = schema.get_field_index(node.session)
        self.late: LateFilter | None = None
        if node.event_time == node.session:
            self.late = LateFilter("session", self.session_at, on_late)

    def keys_of(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return [normalise_floats(rows.column(index)) for index in self.key_at]

    def bounds_of(self, rows: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Start and end of each row's own interval, in microseconds."""
        start, end = rows.column(self.session_at).flatten()
        return start.cast(pa.int64()).to_numpy(), end.cast(pa.int64()).to_numpy()

    def split(self, keys: list[pa.Array], rows: int) -> tuple[list[pa.Array], Ints]:
        """The distinct keys, and each row's place among them."""
        if not keys:
            return [], np.zeros(rows, np.int64)
        leaders, groups = group_rows(keys, rows)
        return [key.take(pa.array(leaders)) for key in keys], groups

    def result(
        self, keys: list[pa.Array], starts: Ints, ends: Ints, values: list[pa.Array]
    ) -> pa.RecordBatch:
        kind = self._node.schema.field(self._node.session).type
        fields = [kind.field(0), kind.field(1)]
        bounds = [
            pa.array(us, pa.int64()).cast(field.type)
            for us, field in zip((starts, ends), fields, strict=True)
        ]
        session = pa.StructArray.from_arrays(bounds, fields=fields)
        rest = iter(keys)
        shown = [
            session if key.name == self._node.session else next(rest) for key in self._node.keys
        ]
        return pa.RecordBatch.from_arrays([*shown, *values], schema=self._node.schema)


class SessionOperator(Operator):
    """Sessions of rows that are never taken back: a buffer per session, and the starts per key."""

    def __init__(self, node: n.Aggregate, state: State, on_late: OnLate) -> None:
        self._finals = node.emit == "finals"
        self._shape = _Shape(node, on_late)
        self._calls = bind_calls(node.calls, node.child.schema)
        fields = [pa.field(key.name, key.type) for key in self._shape.keys]
        columns = {_START: pa.int64(), _END: pa.int64()}
        for index, bound in enumerate(self._calls):
            columns |= {f"{index}.{k}": kind for k, kind in bound.accumulator.columns.items()}
        placed = self._shape.placed
        by_start = pa.schema([*fields, pa.field("at", pa.int64())])
        self._sessions = state.table("sessions", by_start, columns, placed)
        starts = {_STARTS: pa.list_(pa.int64())}
        self._starts = state.table("starts", pa.schema(fields), starts, placed)
        #: No session ends before; after a restart nothing is known of them until they are seen.
        self._earliest_us = _ALWAYS

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        if self._shape.late is not None:
            delta = self._shape.late.keep(delta)
        if not len(delta):
            return []
        batch = delta.batch
        keys, groups = self._shape.split(self._shape.keys_of(batch), len(delta))
        slots, _ = self._starts.locate(keys)
        owners, old = self._find(keys, slots)
        kept = len(old)
        starts, ends = self._shape.bounds_of(batch)
        old_starts, old_ends = self._bounds(old)
        merged = merge_intervals(
            np.concatenate([owners, groups]),
            np.concatenate([old_starts, starts]),
            np.concatenate([old_ends, ends]),
        )
        changed = np.zeros(len(merged), bool)
        changed[merged.of[kept:]] = True
        replaced = changed[merged.of[:kept]]
        new = self._feed(delta, self._read(old), merged, kept)
        out = [] if self._finals else [self._show(_take(keys, owners[replaced]), old[replaced])]
        self._sessions.delete(old[replaced])
        made = self._write(keys, merged, changed, new)
        self._write_starts(slots, merged)
        if not self._finals:
            out.append(self._show(_take(keys, merged.groups[changed]), made))
        return _as_delta(out)

    def _find(self, keys: list[pa.Array], slots: Slots) -> tuple[Ints, Slots]:
        """The sessions of these keys: the key of each, and its slot."""
        lists = [starts or [] for starts in self._starts.read(_STARTS, slots).tolist()]
        owners = np.repeat(np.arange(len(lists)), [len(starts) for starts in lists])
        flat = pa.array([start for starts in lists for start in starts], pa.int64())
        if not len(flat):
            return owners, np.zeros(0, np.int64)
        return owners, self._sessions.find([*_take(keys, owners), flat])

    def _bounds(self, slots: Slots) -> tuple[Ints, Ints]:
        starts, ends = (self._sessions.read(name, slots) for name in (_START, _END))
        return starts.astype(np.int64), ends.astype(np.int64)

    def _feed(self, delta: Delta, old: list[Buffers], merged: Merged, kept: int) -> list[Buffers]:
        """The buffers of all sessions: those of old sessions by start, then the rows in order."""
        results = []
        for bound, before in zip(self._calls, old, strict=True):
            rows, lifted = bound.lift(delta.batch, delta.weights, None)
            together = [np.concatenate(pair) for pair in zip(before, lifted, strict=True)]
            groups = np.concatenate([merged.of[:kept], merged.of[kept:][rows]])
            results.append(bound.accumulator.merge(together, groups, len(merged)))
        return results

    def _read(self, slots: Slots) -> list[Buffers]:
        return [
            [self._sessions.read(f"{index}.{name}", slots) for name in bound.accumulator.columns]
            for index, bound in enumerate(self._calls)
        ]

    def _write(
        self,
        keys: list[pa.Array],
        merged: Merged,
        changed: npt.NDArray[np.bool_],
        buffers: list[Buffers],
    ) -> Slots:
        own = _take(keys, merged.groups[changed])
        starts, ends = merged.starts[changed], merged.ends[changed]
        slots, _ = self._sessions.locate([*own, pa.array(starts)])
        self._sessions.write(_START, slots, starts)
        self._sessions.write(_END, slots, ends)
        for index, bound in enumerate(self._calls):
            for name, part in zip(bound.accumulator.columns, buffers[index], strict=True):
                self._sessions.write(f"{index}.{name}", slots, part[changed])
        self._sessions.touch(slots)
        self._earliest_us = min(self._earliest_us, int(ends.min()))
        return slots

    def _write_starts(self, slots: Slots, merged: Merged) -> None:
        """All starts of the touched keys; sessions come ordered by key, then start."""
        bounds = np.searchsorted(merged.groups, np.arange(len(slots) + 1)).tolist()
        listed = merged.starts.tolist()
        lists = (listed[a:b] for a, b in pairwise(bounds))
        self._starts.write(_STARTS, slots, np.fromiter(lists, object, len(slots)))
        self._starts.touch(slots)

    def _show(self, keys: list[pa.Array], slots: Slots) -> pa.RecordBatch:
        starts, ends = self._bounds(slots)
        values = [
            bound.accumulator.finish(part)
            for bound, part in zip(self._calls, self._read(slots), strict=True)
        ]
        return self._shape.result(keys, starts, ends, values)

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        if self._shape.late is None:
            return []
        self._shape.late.watermark_ms = watermark_ms
        bound_us = watermark_ms * 1000
        if self._earliest_us > bound_us:
            return []
        slots = self._sessions.slots()
        ends = self._sessions.read(_END, slots).astype(np.int64)
        closed = ends <= bound_us
        self._earliest_us = int(ends[~closed].min(initial=_NEVER))
        done = slots[closed]
        if not len(done):
            return []
        *keys, starts = self._sessions.keys(done)
        out = [Delta(self._show(keys, done))] if self._finals else []
        self._sessions.delete(done)
        self._forget(keys, starts)
        return out

    def _forget(self, keys: list[pa.Array], starts: pa.Array) -> None:
        keys, groups = self._shape.split(keys, len(starts))
        slots = self._starts.find(keys) if keys else self._starts.slots()
        gone: list[set[int]] = [set() for _ in slots]
        for group, start in zip(groups.tolist(), starts.to_pylist(), strict=True):
            gone[group].add(start)
        had = self._starts.read(_STARTS, slots).tolist()
        left = [[s for s in own if s not in ended] for own, ended in zip(had, gone, strict=True)]
        empty = np.array([not own for own in left], bool)
        self._starts.write(_STARTS, slots, np.fromiter(left, object, len(left)))
        self._starts.touch(slots[~empty])
        self._starts.delete(slots[empty])


class SessionRegroup(Operator):
    """Sessions of changing rows, or of distinct values: computed anew from kept rows."""

    def __init__(self, node: n.Aggregate, state: State, on_late: OnLate) -> None:
        self._finals = node.emit == "finals"
        self._shape = _Shape(node, on_late)
        self._calls = bind_calls(node.calls, node.child.schema)
        shape = self._shape
        placed = [shape.key_at[place] for place in shape.placed]
        self._rows = state.row_set(
            "rows", node.child.schema, shape.key_at, shape.session_at, placed
        )

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        if self._shape.late is not None:
            delta = self._shape.late.keep(delta)
        if not len(delta):
            return []
        if self._finals:
            self._rows.insert(delta.batch, delta.weights)
            return []
        keys, _ = self._shape.split(self._shape.keys_of(delta.batch), len(delta))
        old = self._results(*self._rows.fetch(keys))
        self._rows.insert(delta.batch, delta.weights)
        return difference(old, self._results(*self._rows.fetch(keys)))

    def _merge(self, groups: Ints, rows: pa.RecordBatch) -> Merged:
        return merge_intervals(groups, *self._shape.bounds_of(rows))

    def _results(self, groups: Ints, rows: pa.RecordBatch, weights: Weights) -> pa.RecordBatch:
        merged = self._merge(groups, rows)
        values = aggregate_rows(self._calls, rows, existing(weights), merged.of, len(merged))
        _, first = np.unique(merged.of, return_index=True)
        keys = _take(self._shape.keys_of(rows), first)
        return self._shape.result(keys, merged.starts, merged.ends, values)

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        if self._shape.late is None:
            return []
        self._shape.late.watermark_ms = watermark_ms
        bound_us = watermark_ms * 1000
        passed, _ = self._rows.expired(bound_us)
        if not passed.num_rows:
            return []
        keys, _ = self._shape.split(self._shape.keys_of(passed), passed.num_rows)
        groups, rows, weights = self._rows.fetch(keys)
        merged = self._merge(groups, rows)
        closed = merged.ends[merged.of] <= bound_us
        if not closed.any():
            return []
        groups, weights = groups[closed], weights[closed]
        rows = rows.filter(pa.array(closed))
        self._rows.insert(rows, -weights)
        return [Delta(self._results(groups, rows, weights))] if self._finals else []


def _take(columns: list[pa.Array], places: Ints) -> list[pa.Array]:
    return [pc.take(column, pa.array(places)) for column in columns]


def _as_delta(parts: list[pa.RecordBatch]) -> list[Delta]:
    """The old results, taken back, then the new ones."""
    if not parts:
        return []
    taken, given = parts
    if not taken.num_rows:
        return [Delta(given)]
    weights = np.ones(taken.num_rows + given.num_rows, np.int64)
    weights[: taken.num_rows] = -1
    return [Delta(pa.concat_batches(parts), weights)]
