"""Operators that keep all rows of a key and compute its result anew when one of them changes.

The general way for what cannot be kept up to date row by row, such as collected lists when rows are
taken back. A batch costs the rows of all keys that it touches, fetched once: the
rows before it and after it are two sets of groups, and one call computes both results.

Law: the output is a function of the key's rows alone; emitted is the difference between what that
function gives before and after the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.ops.aggregate import partition_positions
from penstock.ops.aggregate_calls import aggregate_rows, bind_calls, existing
from penstock.ops.aggregates.api import Ints
from penstock.ops.api import Delta, OnLate, Operator, Weights
from penstock.ops.watermarks import LateFilter
from penstock.plan import nodes as n
from penstock.state.api import RowSet, State
from penstock.state.equal_rows import add_up, group_rows, strike_out
from penstock.state.keys import hash_columns, normalise_floats, words_column

#: From (rows, weights, group of each row, number of groups) to the result's rows and their groups,
#: which never decrease. What a group gives depends on its own rows alone.
Compute = Callable[[pa.RecordBatch, Weights | None, Ints, int], tuple[pa.RecordBatch, Ints]]


class KeyedRows:
    """The rows that an operator keeps, by key; late ones are not let in."""

    def __init__(
        self,
        child: n.Node,
        keys: list[str],
        state: State,
        event_time: str | None,
        on_late: OnLate,
        name: str,
    ) -> None:
        schema = child.schema
        self._key_at = [schema.get_field_index(key) for key in keys]
        placed = [self._key_at[i] for i in partition_positions(child, keys)]
        time_at = None if event_time is None else schema.get_field_index(event_time)
        self.rows: RowSet = state.row_set("rows", schema, self._key_at, time_at, placed)
        self._late = None if time_at is None else LateFilter(name, time_at, on_late)

    def without_late(self, delta: Delta) -> Delta:
        """The rows that are not late."""
        return delta if self._late is None else self._late.keep(delta)

    def group(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], Ints]:
        """The distinct keys of a batch, in order of appearance, and which of them each row has."""
        columns = [normalise_floats(batch.column(index)) for index in self._key_at]
        if not columns:
            return [], np.zeros(batch.num_rows, np.int64)
        first, groups = group_rows(columns, batch.num_rows)
        places = words_column(first)
        return [column.take(places) for column in columns], groups

    def take_in(self, fetched: Grouped, own: Ints, delta: Delta) -> Grouped:
        """Take in the delta, whose rows are of these groups; what was fetched, as it is then."""
        if delta.weights is None or delta.weights.min() >= 0:
            self.rows.insert(delta.batch, delta.weights)
            return fetched.plus(own, delta)
        later = fetched.plus(own, delta)
        places, weights = strike_out(later.groups, later.rows, later.weights)
        left = np.zeros(len(later.groups), np.int64)
        left[places] = weights
        gained = left.copy()
        gained[: len(fetched.groups)] -= fetched.weights
        self._change(later.rows, gained, len(fetched.groups))
        return Grouped(later.groups[places], later.rows.take(pa.array(places)), weights)

    def _change(self, rows: pa.RecordBatch, gained: Ints, fetched: int) -> None:
        """Rows count so much more often; the first ones are those that were fetched."""
        lost = (gained[:fetched] < 0).nonzero()[0]
        self.rows.drop(rows.take(pa.array(lost)), lost, -gained[lost])
        gained[lost] = 0
        new = gained.nonzero()[0]
        self.rows.insert(rows.take(pa.array(new)), gained[new])

    def pass_time(self, watermark_ms: int) -> None:
        """Forget keys whose time has passed."""
        if self._late is not None:
            self._late.watermark_ms = watermark_ms
            self.rows.evict(watermark_ms * 1000)


class Regroup(Operator):
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
        self._state = state
        self._has_keys = bool(keys)
        self._kept = KeyedRows(child, keys, state, event_time, on_late, name)
        self._compute = compute

    def on_start(self) -> list[Delta]:
        """Without keys there may be a result before the first row."""
        if self._has_keys or not self._state.owns(hash_columns([], 1))[0]:
            return []
        groups, rows, weights = self._kept.rows.fetch([])
        result, _ = self._compute(rows, existing(weights), groups, 1)
        return [Delta(result)] if result.num_rows else []

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        delta = self._kept.without_late(delta)
        if not len(delta):
            return []
        keys, own = self._kept.group(delta.batch)
        groups, rows, weights = self._kept.rows.fetch(keys)
        count = len(keys[0]) if keys else 1
        # Before the batch, key k is group k; after it, group count + k.
        later = self._kept.take_in(Grouped(groups, rows, weights), own, delta)
        both = pa.concat_batches([rows, later.rows])
        result, of = self._compute(
            both,
            existing(np.concatenate([weights, later.weights])),
            np.concatenate([groups, later.groups + count]),
            2 * count,
        )
        split = int(np.searchsorted(of, count))
        return difference(result.slice(0, split), result.slice(split))

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        self._kept.pass_time(watermark_ms)
        return []


@dataclass(frozen=True, slots=True)
class Grouped:
    """Kept rows, and the group of each."""

    groups: Ints
    rows: pa.RecordBatch
    weights: Weights

    def plus(self, own: Ints, delta: Delta) -> Grouped:
        """With the delta's rows, which are of these groups, after them."""
        return Grouped(
            np.concatenate([self.groups, own]),
            pa.concat_batches([self.rows, delta.batch]),
            np.concatenate([self.weights, delta.all_weights()]),
        )


def difference(old: pa.RecordBatch, new: pa.RecordBatch) -> list[Delta]:
    """Takes back rows that are only in the old result, adds those that are only in the new one."""
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
    key_at = [node.child.schema.get_field_index(key.name) for key in node.keys]

    def compute(
        rows: pa.RecordBatch, weights: Weights | None, groups: Ints, count: int
    ) -> tuple[pa.RecordBatch, Ints]:
        present, first, dense = np.unique(groups, return_index=True, return_inverse=True)
        if not key_at:
            present, dense = np.arange(count), groups
        values = aggregate_rows(calls, rows, weights, dense, len(present))
        keys = [normalise_floats(rows.column(index)).take(pa.array(first)) for index in key_at]
        return pa.RecordBatch.from_arrays([*keys, *values], schema=node.schema), present

    return Regroup(
        node.child,
        [key.name for key in node.keys],
        state,
        compute,
        event_time=node.event_time,
        on_late=on_late,
        name="aggregate",
    )
