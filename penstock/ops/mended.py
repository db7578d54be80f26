"""Aggregation over rows that are taken back, by functions that may lose what they found: min, max.

All rows are kept, as Regroup keeps them. But a row that is taken back changes a maximum only if it
is the maximum: then, and only then, the key's rows are fetched, and its result is mended. All other
changes are made in the buffers, as AggregateOperator makes them.

The buffers are no state: they follow from the rows. After a restart, those of a key are computed
when its first row comes. Law: a key's buffers are what its kept rows give.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.aggregate import SlotGroups, row_counts
from penstock.ops.aggregate_calls import (
    BoundCall,
    bind_calls,
    existing,
    read_buffers,
    write_buffers,
)
from penstock.ops.aggregate_results import Results
from penstock.ops.aggregates.api import Buffers, Ints
from penstock.ops.api import Delta, OnLate, Operator
from penstock.ops.regroup import KeyedRows
from penstock.ops.watermarks import Expiry
from penstock.plan import nodes as n
from penstock.state.api import Slots, State
from penstock.state.event_time import event_times_us
from penstock.state.keys import hash_columns, normalise_floats
from penstock.state.memory_table import MemoryTable

Mask = npt.NDArray[np.bool_]
_ROWS = "rows"
_TIME = "time_us"


def can_mend(calls: list[BoundCall]) -> bool:
    """Whether every function takes rows back exactly, or tells when it cannot."""
    return all(not bound.call.distinct and _can_mend(bound) for bound in calls)


def _can_mend(bound: BoundCall) -> bool:
    accumulator = bound.accumulator
    nothing = accumulator.lift([pa.nulls(0, arg.type) for arg in bound.call.args], 0)
    if accumulator.invert(nothing) is not None:
        return accumulator.exact
    return accumulator.may_lose(nothing, nothing) is not None


class MendedAggregate(Operator):
    """See above; emits changes."""

    def __init__(self, node: n.Aggregate, state: State, on_late: OnLate) -> None:
        assert node.emit == "changes" and node.session is None
        names = [key.name for key in node.keys]
        schema = node.child.schema
        self._state = state
        self._key_at = [schema.get_field_index(name) for name in names]
        self._time_key = -1 if node.event_time is None else names.index(node.event_time)
        self._kept = KeyedRows(node.child, names, state, node.event_time, on_late, "aggregate")
        self._calls = bind_calls(node.calls, schema)
        self._results = Results(node.schema, self._calls)
        columns: dict[str, pa.DataType] = {_ROWS: pa.int64(), _TIME: pa.int64()}
        for index, bound in enumerate(self._calls):
            columns |= {f"{index}.{k}": kind for k, kind in bound.accumulator.columns.items()}
        #: At most as many keys as there are rows kept.
        self._table = MemoryTable(pa.schema([(k.name, k.type) for k in node.keys]), columns, ())
        self._expiry = Expiry(self._table, _TIME)
        self._groups = SlotGroups(state.room)

    def on_start(self) -> list[Delta]:
        """Without keys there is a result before the first row."""
        if self._key_at or not self._state.owns(hash_columns([], 1))[0]:
            return []
        slots, _ = self._table.locate([])
        return [Delta(self._results.rows([], self._read(slots)))]

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        delta = self._kept.without_late(delta)
        if not len(delta):
            return []
        keys, slots, groups = self._locate(delta.batch)
        self._kept.rows.insert(delta.batch, delta.weights)
        before, old = self._table.read(_ROWS, slots), self._read(slots)
        after = before + row_counts(delta.weights, groups, len(slots))
        new, lost = self._feed(delta, old, groups)
        if lost.any():
            self._mend(keys, new, np.flatnonzero(lost))
        self._write(slots, new, after)
        gone = (after <= 0) if keys else np.zeros(1, bool)
        existed = (before > 0) if keys else np.ones(1, bool)
        out = self._results.changes(keys, old, existed, new, ~gone)
        self._table.delete(slots[gone])
        self._table.forget_changes()
        return out

    def _locate(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], Slots, Ints]:
        """The distinct keys, their slots with the buffers of all kept rows, each row's group."""
        if not self._key_at:
            slots, is_new = self._table.locate([])
            groups = np.zeros(batch.num_rows, np.int64)
            keys = []
        else:
            columns = [normalise_floats(batch.column(index)) for index in self._key_at]
            of_rows, is_new = self._table.locate(columns)
            slots, first, groups = self._groups.split(of_rows)
            keys = [column.take(pa.array(first)) for column in columns]
            is_new = is_new[first]
        if is_new.any():
            self._recall(keys, slots, np.flatnonzero(is_new))
        return keys, slots, groups

    def _recall(self, keys: list[pa.Array], slots: Slots, new: Ints) -> None:
        """Compute the buffers of keys whose rows were kept before a restart, if there are any."""
        rows, buffers = self._compute(keys, new)
        self._write(slots[new], buffers, rows)
        if self._time_key >= 0:
            times = event_times_us(keys[self._time_key].take(pa.array(new)))
            self._expiry.note(slots[new], times)

    def _mend(self, keys: list[pa.Array], buffers: list[Buffers], lost: Ints) -> None:
        """Compute anew what the kept rows of these keys give."""
        _, mended = self._compute(keys, lost)
        for parts, right in zip(buffers, mended, strict=True):
            for part, values in zip(parts, right, strict=True):
                part[lost] = values

    def _compute(self, keys: list[pa.Array], chosen: Ints) -> tuple[Ints, list[Buffers]]:
        """How many rows are kept of the chosen keys, and the buffers of these."""
        groups, rows, weights = self._kept.rows.fetch([key.take(pa.array(chosen)) for key in keys])
        buffers = []
        for bound in self._calls:
            places, lifted = bound.lift(rows, existing(weights), None)
            buffers.append(bound.accumulator.merge(lifted, groups[places], len(chosen)))
        return row_counts(weights, groups, len(chosen)), buffers

    def _feed(self, delta: Delta, old: list[Buffers], groups: Ints) -> tuple[list[Buffers], Mask]:
        """The buffers after the batch, and which groups may have lost what made them."""
        count = len(old[0][0])
        lost = np.zeros(count, bool)
        new = []
        for bound, kept in zip(self._calls, old, strict=True):
            if bound.accumulator.may_lose(kept, kept) is None:
                rows, lifted = bound.lift(delta.batch, delta.weights, None)
                new.append(_merge(bound, kept, lifted, groups[rows]))
                continue
            rows, lifted = bound.lift(delta.batch, None, None)
            given = delta.all_weights()[rows] > 0
            own = groups[rows]
            best = _merge(bound, kept, [part[given] for part in lifted], own[given])
            new.append(best)
            lost[_losers(bound, best, [part[~given] for part in lifted], own[~given])] = True
        return new, lost

    def _read(self, slots: Slots) -> list[Buffers]:
        return read_buffers(self._table, self._calls, slots)

    def _write(self, slots: Slots, buffers: list[Buffers], rows: Ints) -> None:
        write_buffers(self._table, self._calls, slots, buffers)
        self._table.write(_ROWS, slots, rows)

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        self._kept.pass_time(watermark_ms)
        if self._time_key >= 0:
            self._table.delete(self._expiry.passed(watermark_ms * 1000))
            self._table.forget_changes()
        return []


def _merge(bound: BoundCall, kept: Buffers, lifted: Buffers, groups: Ints) -> Buffers:
    """The kept buffer of each group, then the lifted ones of these groups, in order."""
    count = len(kept[0])
    together = [np.concatenate(pair) for pair in zip(kept, lifted, strict=True)]
    return bound.accumulator.merge(together, np.concatenate([np.arange(count), groups]), count)


def _losers(bound: BoundCall, best: Buffers, taken: Buffers, groups: Ints) -> Ints:
    """The groups that may have lost what made their buffer."""
    lost = bound.accumulator.may_lose([part[groups] for part in best], taken)
    assert lost is not None
    return groups[lost]
