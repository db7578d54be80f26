"""Operators that keep all rows of a key and compute its result anew when one of them changes.

The general way for whatever cannot be kept up to date row by row: min and max when rows are taken
back, window functions, ranks. A batch costs the rows of all keys that it touches.

Law: the output is a function of the key's rows alone; emitted is the difference between what that
function gives before and after the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.ops.aggregate import partition_positions
from penstock.ops.aggregate_calls import aggregate_rows, bind_calls, existing
from penstock.ops.aggregates.api import Ints
from penstock.ops.api import Delta, OnLate, Weights
from penstock.ops.watermarks import LateFilter
from penstock.plan import nodes as n
from penstock.state.api import State
from penstock.state.equal_rows import first_equal
from penstock.state.keys import hash_columns, normalise_floats
from penstock.state.memory_row_set import add_up

#: From (rows, weights, group of each row, number of groups) to the result's rows.
Compute = Callable[[pa.RecordBatch, Weights | None, Ints, int], pa.RecordBatch]


class Regroup:
    """Keeps rows by key in a row set; `compute` gives the result of the keys it is handed."""

    def __init__(
        self,
        child: n.Node,
        keys: list[str],
        state: State,
        compute: Compute,
        *,
        event_time: str | None = None,
        on_late: OnLate,
        name: str,
    ) -> None:
        schema = child.schema
        self._state = state
        self._key_at = [schema.get_field_index(key) for key in keys]
        placed = [self._key_at[i] for i in partition_positions(child, keys)]
        at = None if event_time is None else schema.get_field_index(event_time)
        self._rows = state.row_set("rows", schema, self._key_at, at, placed)
        self._compute = compute
        self._late = None if at is None else LateFilter(name, at, on_late)

    def on_start(self) -> list[Delta]:
        """Without keys there may be a result before the first row."""
        if self._key_at or not self._state.owns(hash_columns([], 1))[0]:
            return []
        result = self._results([])
        return [Delta(result)] if result.num_rows else []

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        if self._late is not None:
            delta = self._late.keep(delta)
        if not len(delta):
            return []
        keys = self._touched(delta.batch)
        old = self._results(keys)
        self._rows.insert(delta.batch, delta.weights)
        new = self._results(keys)
        return difference(old, new)

    def _touched(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The distinct keys of the batch, in order of appearance."""
        columns = [normalise_floats(batch.column(index)) for index in self._key_at]
        if not columns:
            return []
        places = pa.array(np.unique(first_equal(columns, batch.num_rows)))
        return [column.take(places) for column in columns]

    def _results(self, keys: list[pa.Array]) -> pa.RecordBatch:
        groups, rows, weights = self._rows.fetch(keys)
        count = len(keys[0]) if keys else 1
        return self._compute(rows, existing(weights), groups, count)

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        if self._late is not None:
            self._late.watermark_ms = watermark_ms
            self._rows.evict(watermark_ms * 1000)
        return []


def difference(old: pa.RecordBatch, new: pa.RecordBatch) -> list[Delta]:
    """Takes back what is no longer so, adds what is; rows in both are left alone."""
    if not old.num_rows and not new.num_rows:
        return []
    if not old.num_rows:
        return [Delta(new)]
    signs = np.ones(old.num_rows + new.num_rows, np.int64)
    signs[: old.num_rows] = -1
    rows, weights = add_up(pa.concat_batches([old, new]), signs)
    if not rows.num_rows:
        return []
    return [Delta(rows, None if (weights == 1).all() else weights)]


def build_regroup_aggregate(node: n.Aggregate, state: State, on_late: OnLate) -> Regroup:
    """Aggregation over rows that are taken back, with functions that cannot take rows back."""
    calls = bind_calls(node.calls, node.child.schema)
    at = [node.child.schema.get_field_index(key.name) for key in node.keys]

    def compute(
        rows: pa.RecordBatch, weights: Weights | None, groups: Ints, count: int
    ) -> pa.RecordBatch:
        present, first, dense = np.unique(groups, return_index=True, return_inverse=True)
        if not at:
            present, dense = np.zeros(1, np.int64), groups
        values = aggregate_rows(calls, rows, weights, dense, len(present))
        keys = [normalise_floats(rows.column(index)).take(pa.array(first)) for index in at]
        return pa.RecordBatch.from_arrays([*keys, *values], schema=node.schema)

    return Regroup(
        node.child,
        [key.name for key in node.keys],
        state,
        compute,
        event_time=node.event_time,
        on_late=on_late,
        name="aggregate",
    )
