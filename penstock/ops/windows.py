"""Window functions and top-n: every row of a partition, with what its neighbours make of it.

One new row may change the values of all rows of its partition, so a batch costs the rows of all
partitions that it touches. Which operator does the work depends on the input and the mode:

    rows are taken back    ChangingWindow (top_n.py): all rows are kept
    rows are only added    GrowingWindow (top_n.py): a top-n keeps what it can still show
    finals                 ClosingWindow: once, when the watermark has passed the partition

Law: the output is a function of the rows of each partition alone, however they came (ordering.py
decides between rows that the query's order leaves equal).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.aggregates.api import Ints
from penstock.ops.api import Delta, OnLate, Operator, Weights
from penstock.ops.frames import find_partitions
from penstock.ops.ordering import Ordering
from penstock.ops.regroup import KeyedRows
from penstock.ops.window_calls import RANKS, bind_window_call, ranks
from penstock.plan import nodes as n
from penstock.state.api import State
from penstock.state.keys import words_column


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows of a batch by position, sorted by group and order; their groups and keys of order."""

    places: Ints
    groups: Ints
    keys: list[Ints]

    def where(self, mask: npt.NDArray[np.bool_]) -> SortedRows:
        """The rows for which the mask is true."""
        return SortedRows(self.places[mask], self.groups[mask], [key[mask] for key in self.keys])

    def and_then(self, other: SortedRows) -> SortedRows:
        """These rows, then the others as rows of other groups."""
        beyond = 1 + int(self.groups[-1]) if len(self.groups) else 0
        pairs = zip(self.keys, other.keys, strict=True)
        return SortedRows(
            np.concatenate([self.places, other.places]),
            np.concatenate([self.groups, other.groups + beyond]),
            [np.concatenate(pair) for pair in pairs],
        )


class WindowFunctions:
    """The order, limit and functions of one node, computed over all rows of a partition."""

    def __init__(self, node: n.Window | n.TopN) -> None:
        schema = node.child.schema
        #: What the output has beyond the columns of the input.
        self._added = [node.schema.field(at) for at in range(len(schema), len(node.schema))]
        self._ordering = Ordering(node.order, schema)
        self._calls = [bind_window_call(call, schema) for call in node.calls]
        #: Whether any function looks at more of a row than its place.
        self._looks = any(call.function not in RANKS for call in node.calls)
        self._limit = (node.function, node.limit) if isinstance(node, n.TopN) else None

    def sort(self, rows: pa.RecordBatch, groups: Ints, sides: Ints | None = None) -> SortedRows:
        """All rows in order; see Ordering.sort."""
        places, keys = self._ordering.sort(rows, [groups], sides)
        return SortedRows(places, groups[places], keys)

    def limit(self, rows: SortedRows) -> SortedRows:
        """The rows that a top-n keeps; a window keeps all."""
        if self._limit is None:
            return rows
        function, limit = self._limit
        return rows.where(ranks(function, find_partitions(rows.groups, rows.keys)) <= limit)

    def values(self, batch: pa.RecordBatch, rows: SortedRows) -> list[pa.Array]:
        """The value of every function for every row."""
        if not self._calls:
            return []
        parts = find_partitions(rows.groups, rows.keys)
        ordered = batch.take(words_column(rows.places)) if self._looks else batch
        return [evaluate(ordered, parts) for evaluate in self._calls]

    def show(self, rows: pa.RecordBatch, values: list[pa.Array]) -> pa.RecordBatch:
        """The output: the rows, then their values."""
        for field, value in zip(self._added, values, strict=True):
            rows = rows.append_column(field, value)
        return rows

    def compute(
        self, rows: pa.RecordBatch, weights: Weights | None, groups: Ints
    ) -> pa.RecordBatch:
        """The whole output over all rows of some groups."""
        rows, groups = repeat_rows(rows, weights, groups)
        kept = self.limit(self.sort(rows, groups))
        return self.show(rows.take(pa.array(kept.places)), self.values(rows, kept))


def repeat_rows(
    rows: pa.RecordBatch, weights: Weights | None, groups: Ints
) -> tuple[pa.RecordBatch, Ints]:
    """Every row as often as its weight says."""
    if weights is None or (weights == 1).all():
        return rows, groups
    places = np.repeat(np.arange(len(groups)), weights)
    return rows.take(pa.array(places)), groups[places]


def keep_partitions(node: n.Window | n.TopN, state: State, on_late: OnLate) -> KeyedRows:
    """The rows that a window keeps, by partition."""
    keys = [key.name for key in node.partition]
    return KeyedRows(node.child, keys, state, node.event_time, on_late, "window")


class ClosingWindow(Operator):
    """Window functions over rows that are only added, shown when no more rows can come."""

    def __init__(self, node: n.Window | n.TopN, state: State, on_late: OnLate) -> None:
        self._functions = WindowFunctions(node)
        self._kept = keep_partitions(node, state, on_late)

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        delta = self._kept.without_late(delta)
        self._kept.rows.insert(delta.batch, delta.weights)
        return []

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        rows, weights = self._kept.rows.expired(watermark_ms * 1000)
        self._kept.pass_time(watermark_ms)
        if not rows.num_rows:
            return []
        _, groups = self._kept.group(rows)
        return [Delta(self._functions.compute(rows, weights, groups))]
