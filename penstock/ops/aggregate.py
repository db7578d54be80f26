"""Keyed aggregation: one row per key, kept up to date, or shown once when no more rows can come.

A batch costs one dictionary lookup per row, one pass per buffer column, and one row out (two, with
the one it replaces) per key whose result changed. State per key: the number of rows, and the buffer
of each call.

Laws: after any prefix of the input, the rows emitted so far, added up by weight, are the aggregates
of that prefix (emit = changes), or of the keys whose time has passed (emit = finals). A key whose
event time the watermark has passed is forgotten; rows for it that come later are late.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from penstock.ops.aggregate_calls import (
    BoundCall,
    Distinct,
    bind_calls,
    read_buffers,
    write_buffers,
)
from penstock.ops.aggregate_results import Results
from penstock.ops.aggregates.api import Buffers, Ints, fold_add
from penstock.ops.api import Delta, OnLate, Operator, Weights
from penstock.ops.partial import bind_merged
from penstock.ops.watermarks import Expiry, LateFilter
from penstock.plan import nodes as n
from penstock.plan.exprs import Column
from penstock.plan.stages import partitioning
from penstock.state.api import Slots, State, Table
from penstock.state.equal_rows import group_numbers
from penstock.state.event_time import event_times_us
from penstock.state.keys import hash_columns, normalise_floats, words_column
from penstock.state.room import Room

_MARKED_SLOTS_MAX: Final = 1 << 20
_ROWS = "rows"
_TIME = "time_us"


class AggregateOperator(Operator):
    """Aggregation by functions that are fed row by row, and can take rows back if need be."""

    def __init__(self, node: n.Aggregate, state: State, on_late: OnLate) -> None:
        self._node = node
        self._finals = node.emit == "finals"
        self._state = state
        schema = node.child.schema
        self._key_at = [schema.get_field_index(key.name) for key in node.keys]
        self._calls = bind_merged(node) if node.merges else bind_calls(node.calls, schema)
        keys = pa.schema([(key.name, key.type) for key in node.keys])
        placed = partition_positions(node.child, [key.name for key in node.keys])
        columns: dict[str, pa.DataType] = {_ROWS: pa.int64()}
        for index, bound in enumerate(self._calls):
            columns |= {f"{index}.{k}": kind for k, kind in bound.accumulator.columns.items()}
        self._late: LateFilter | None = None
        self._time_key = -1
        if node.event_time is not None:
            columns[_TIME] = pa.int64()
            names = [key.name for key in node.keys]
            self._time_key = names.index(node.event_time)
            self._late = LateFilter("aggregate", self._key_at[self._time_key], on_late)
        self._table = state.table("groups", keys, columns, placed, is_by_key=self._late is None)
        self._results = Results(node.schema, self._calls)
        self._distinct = {
            index: self._distinct_table(index, bound, keys, placed)
            for index, bound in enumerate(self._calls)
            if bound.call.distinct
        }
        #: No key ends before; after a restart nothing is known of them until they are seen.
        self._expiry = Expiry(self._table, _TIME)
        self._groups = SlotGroups(state.room)

    def _distinct_table(
        self, index: int, bound: BoundCall, keys: pa.Schema, placed: list[int]
    ) -> Table:
        fields = list(keys) + [
            pa.field(f"arg{i}", arg.type) for i, arg in enumerate(bound.call.args)
        ]
        columns = {"count": pa.int64()}
        if self._late is not None:
            columns[_TIME] = pa.int64()
        return self._state.table(
            f"distinct{index}", pa.schema(fields), columns, placed, is_by_key=self._late is None
        )

    def on_start(self) -> list[Delta]:
        """Without keys there is a result before the first row."""
        if self._node.keys or len(self._table):
            return []
        if not self._state.owns(hash_columns([], 1))[0]:
            return []
        slots, _ = self._table.locate([])
        self._table.touch(slots)
        buffers = self._read(slots)
        return [Delta(self._results.rows([], buffers))]

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        if self._late is not None:
            delta = self._late.keep(delta)
        if not len(delta):
            return []
        batch, weights = delta.batch, delta.weights
        keys = [normalise_floats(batch.column(index)) for index in self._key_at]
        if keys:
            slots, _ = self._table.locate(keys)
            unique, first, groups = self._groups.split(slots)
        else:
            unique, _ = self._table.locate([])
            first, groups = np.zeros(1, np.int64), np.zeros(len(delta), np.int64)
        places = words_column(first)
        shown = [key.take(places) for key in keys]
        before = self._table.read(_ROWS, unique).astype(np.int64)
        old = self._read(unique)
        new = self._feed(batch, weights, keys, old, groups, len(unique))
        after = before + row_counts(weights, groups, len(unique))
        self._write(unique, new, after)
        if self._late is not None:
            self._expiry.note(unique, event_times_us(shown[self._time_key]))
        gone = (after <= 0) if keys else np.zeros(len(unique), bool)
        out = []
        if not self._finals:
            existed = before > 0 if keys else np.ones(1, bool)
            out = self._results.changes(shown, old, existed, new, ~gone)
        if gone.any():
            self._table.delete(unique[gone])
        return out

    def _feed(
        self,
        batch: pa.RecordBatch,
        weights: Weights | None,
        keys: list[pa.Array],
        old: list[Buffers],
        groups: Ints,
        count: int,
    ) -> list[Buffers]:
        """The buffers of each group: the kept buffer, then the rows merged into it in order."""
        own = np.arange(count)
        merged = []
        for index, bound in enumerate(self._calls):
            table = self._distinct.get(index)
            distinct = None if table is None else self._distinct_rows(table, keys)
            rows, lifted = bound.lift(batch, weights, distinct)
            together = [np.concatenate(pair) for pair in zip(old[index], lifted, strict=True)]
            merged.append(
                bound.accumulator.merge(together, np.concatenate([own, groups[rows]]), count)
            )
        return merged

    def _distinct_rows(self, table: Table, keys: list[pa.Array]) -> Distinct:
        """Counts every (key, arguments), and gives the rows by which one appears or disappears."""

        def choose(
            values: list[pa.Array], rows: Ints, weights: Weights | None
        ) -> tuple[Ints, Weights | None]:
            if not len(rows):
                return rows, None
            own = [key.take(pa.array(rows)) for key in keys]
            slots, _ = table.locate([*own, *(normalise_floats(value) for value in values)])
            unique, first, groups = np.unique(slots, return_index=True, return_inverse=True)
            before = table.read("count", unique).astype(np.int64)
            after = before + row_counts(weights, groups, len(unique))
            table.write("count", unique, after)
            if self._late is not None:
                table.write(_TIME, unique, event_times_us(own[self._time_key])[first])
            table.touch(unique)
            steps = (after > 0).astype(np.int64) - (before > 0).astype(np.int64)
            if (after <= 0).any():
                table.delete(unique[after <= 0])
            chosen = np.flatnonzero(steps)
            order = np.argsort(first[chosen], kind="stable")
            chosen = chosen[order]
            signs = steps[chosen]
            return first[chosen], None if (signs == 1).all() else signs

        return choose

    # -- state

    def _read(self, slots: Slots) -> list[Buffers]:
        return read_buffers(self._table, self._calls, slots)

    def _write(self, slots: Slots, buffers: list[Buffers], rows: Ints) -> None:
        write_buffers(self._table, self._calls, slots, buffers)
        self._table.write(_ROWS, slots, rows)
        self._table.touch(slots)

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        if self._late is None:
            return []
        self._late.watermark_ms = watermark_ms
        bound_us = watermark_ms * 1000
        done = self._expiry.passed(bound_us)
        if not len(done):
            return []
        out = []
        if self._finals:
            out = [Delta(self._results.rows(self._table.keys(done), self._read(done)))]
        self._table.delete(done)
        for table in self._distinct.values():
            kept = table.slots()
            table.delete(kept[table.read(_TIME, kept).astype(np.int64) <= bound_us])
        return out


class SlotGroups:
    """Groups rows by slot as np.unique does, but marks places in an array instead of sorting.

    Where memory is short the array would be too large for it, and groups are found by hash.
    """

    def __init__(self, room: Room) -> None:
        self._slots_max = _MARKED_SLOTS_MAX if room.is_bounded else None
        self._marks = np.zeros(0, np.int64)

    def split(self, slots: Slots) -> tuple[Slots, Ints, Ints]:
        """The distinct slots, the first row of each, and each row's place among them."""
        needed = int(slots.max()) + 1
        if self._slots_max is not None and needed > self._slots_max:
            return _split_by_hash(slots)
        rows = np.arange(len(slots))
        if needed > len(self._marks):
            self._marks = np.zeros(2 * needed, np.int64)
        self._marks[slots[::-1]] = rows[::-1]  # the last assignment to a place stays
        leader = self._marks[slots]
        leads = leader == rows
        first = np.flatnonzero(leads)
        groups = (np.cumsum(leads) - 1)[leader]
        return slots[first], first, groups


def _split_by_hash(slots: Slots) -> tuple[Slots, Ints, Ints]:
    codes, leaders = group_numbers(slots)
    order = leaders.argsort()
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    first = leaders[order]
    return slots[first], first, places[codes]


def partition_positions(child: n.Node, names: list[str]) -> list[int]:
    """Positions of the key columns by whose hash the child's rows were sent to their task."""
    sits = partitioning(child)
    if sits is None:
        return list(range(len(names)))
    return [names.index(key.name) for key in sits if isinstance(key, Column) and key.name in names]


def row_counts(weights: Weights | None, groups: Ints, count: int) -> Ints:
    """How many rows each group gained."""
    if weights is None:
        return np.bincount(groups, minlength=count)
    return fold_add(weights, groups, count).astype(np.int64)
