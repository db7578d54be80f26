"""Window functions and top-n that are shown as they change.

A batch is sorted together with what its partitions have kept, once: what the functions said before
and what they say now are two readings of the same sorted rows, and a row is known by its position,
never compared. If rows are only ever added, a top-n keeps no row that its limit has cut: later rows
can only push it further down. Its state is bounded by n rows per partition then (rank and
dense_rank keep all peers of the last).

Law: what is kept is what a later batch can still show; the output is the same as if all were kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.aggregates.api import Ints
from penstock.ops.api import Delta, OnLate, Operator
from penstock.ops.functions.ordering import order_keys
from penstock.ops.windows import SortedRows, WindowFunctions, keep_partitions, repeat_rows
from penstock.plan import nodes as n
from penstock.state.api import State
from penstock.state.equal_rows import strike_out
from penstock.state.keys import words_column


class _Difference:
    """What window functions say of rows before a batch and after it, and what of that differs."""

    def __init__(
        self,
        functions: WindowFunctions,
        rows: pa.RecordBatch,
        before: SortedRows,
        after: SortedRows,
    ) -> None:
        self._functions = functions
        self._rows = rows
        # Two sets of partitions, in one call.
        both = before.and_then(after)
        self._values = functions.values(rows, both)
        is_shown = np.ones(len(both.places), bool)
        split = len(before.places)
        place = np.full(rows.num_rows, -1)
        place[before.places] = np.arange(split)
        were = place[after.places]
        stayed = (were >= 0).nonzero()[0]
        if len(stayed):
            were, are = were[stayed], stayed + split
            same = _are_same(self._values, were, are)
            is_shown[were[same]] = False
            is_shown[are[same]] = False
        self._chosen = is_shown.nonzero()[0]
        #: The rows to be taken back, cut or with values that changed; then those to be shown now.
        self.places: Ints = both.places[self._chosen]
        #: How many are to be taken back.
        self.back = int(self._chosen.searchsorted(split))

    def shown(self) -> tuple[pa.RecordBatch, list[Delta]]:
        """The rows of the input at the places, and with their values and weights."""
        rows = self._rows.take(words_column(self.places))
        if not rows.num_rows:
            return rows, []
        chosen = words_column(self._chosen)
        batch = self._functions.show(rows, [value.take(chosen) for value in self._values])
        if not self.back:
            return rows, [Delta(batch)]
        weights = np.ones(rows.num_rows, np.int64)
        weights[: self.back] = -1
        return rows, [Delta(batch, weights)]


def _are_same(values: list[pa.Array], were: Ints, are: Ints) -> npt.NDArray[np.bool_]:
    """Where all values show the same at two lists of places: nulls alike, NaNs alike."""
    same = np.ones(len(were), bool)
    for value in values:
        numbers: Ints = order_keys(value)
        equal = numbers[were] == numbers[are]
        if value.null_count:
            absent = value.is_null().to_numpy(zero_copy_only=False)
            equal = np.where(absent[were] | absent[are], absent[were] & absent[are], equal)
        same &= equal
    return same


class GrowingWindow(Operator):
    """A Window or TopN whose input takes nothing back; it emits changes."""

    def __init__(self, node: n.Window | n.TopN, state: State, on_late: OnLate) -> None:
        self._functions = WindowFunctions(node)
        self._kept = keep_partitions(node, state, on_late)
        self._cuts = isinstance(node, n.TopN)

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        delta = self._kept.without_late(delta)
        if not len(delta):
            return []
        keys, groups = self._kept.group(delta.batch)
        added, groups = repeat_rows(delta.batch, delta.weights, groups)
        fetched = self._kept.rows.fetch(keys, in_order=False)  # all of it is sorted below
        origin, kept, old_groups = _repeated(*fetched)
        rows = pa.concat_batches([kept, added])
        everything = self._functions.sort(rows, np.concatenate([old_groups, groups]))
        after = self._functions.limit(everything)
        before = everything.where(everything.places < kept.num_rows)
        if self._cuts:
            before, after = _changed_partitions(before, after, kept.num_rows)
            if not len(after.places):
                return []
        found = _Difference(self._functions, rows, before, after)
        shown, out = found.shown()
        if self._cuts:
            # Whatever is cut is taken back, and whatever is new is shown: gathered once.
            places, back = found.places, found.back
            is_cut = ~_is_among(places[:back], after.places, rows.num_rows)
            self._drop(_where(shown.slice(0, back), is_cut), origin[places[:back][is_cut]])
            added = _where(shown.slice(back), places[back:] >= kept.num_rows)
        self._kept.rows.insert(added, None)
        return out

    def _drop(self, rows: pa.RecordBatch, places: Ints) -> None:
        """Forget rows that were fetched from these places, each as often as its place is given."""
        counts = np.ones(len(places), np.int64)
        if len(places) and np.bincount(places).max() > 1:
            places, first, counts = np.unique(places, return_index=True, return_counts=True)
            rows = rows.take(pa.array(first))
        self._kept.rows.drop(rows, places, counts)

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        self._kept.pass_time(watermark_ms)
        return []


class ChangingWindow(Operator):
    """A Window or TopN whose input takes rows back; it keeps all rows, and emits changes."""

    def __init__(self, node: n.Window | n.TopN, state: State, on_late: OnLate) -> None:
        self._functions = WindowFunctions(node)
        self._kept = keep_partitions(node, state, on_late)

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        delta = self._kept.without_late(delta)
        if not len(delta):
            return []
        keys, own = self._kept.group(delta.batch)
        old_groups, kept, weights = self._kept.rows.fetch(keys, in_order=False)
        rows = pa.concat_batches([kept, delta.batch])
        groups = np.concatenate([old_groups, own])
        # How often each row is there, before the batch and after it.
        before = np.concatenate([weights, np.zeros(len(own), np.int64)])
        after = np.concatenate([weights, delta.all_weights()])
        if delta.weights is not None and delta.weights.min() < 0:
            places, left = strike_out(groups, rows, after)
            after = np.zeros(len(groups), np.int64)
            after[places] = left
        self._keep(rows, after - before, kept.num_rows)
        rows, groups, sides = _apart(rows, groups, before, after)
        everything = self._functions.sort(rows, groups, sides)
        sides = sides[everything.places]
        old = self._functions.limit(everything.where(sides <= 0))
        new = self._functions.limit(everything.where(sides >= 0))
        return _Difference(self._functions, rows, old, new).shown()[1]

    def _keep(self, rows: pa.RecordBatch, gained: Ints, fetched: int) -> None:
        """Rows are there so much more often; the first ones are those that were fetched."""
        lost = (gained[:fetched] < 0).nonzero()[0]
        self._kept.rows.drop(rows.take(words_column(lost)), lost, -gained[lost])
        gained[lost] = 0
        new = gained.nonzero()[0]
        self._kept.rows.insert(rows.take(words_column(new)), gained[new])

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        self._kept.pass_time(watermark_ms)
        return []


def _apart(
    rows: pa.RecordBatch, groups: Ints, before: Ints, after: Ints
) -> tuple[pa.RecordBatch, Ints, Ints]:
    """Rows one by one, and their sides: -1 if a row is there only before, 1 if only after.

    Those that are neither there before nor after are left out.
    """
    most = np.maximum(before, after)
    if most.min() == most.max() == 1:
        return rows, groups, after - before
    origin = np.arange(len(most)).repeat(most)
    turn = np.arange(len(origin)) - (most.cumsum() - most)[origin]
    is_after, is_before = turn < after[origin], turn < before[origin]
    sides = is_after.astype(np.int64) - is_before
    return rows.take(words_column(origin)), groups[origin], sides


def _repeated(
    groups: Ints, rows: pa.RecordBatch, weights: Ints
) -> tuple[Ints, pa.RecordBatch, Ints]:
    """Fetched rows, every row as often as its weight says: where each was, rows, and groups."""
    origin = np.arange(len(groups))
    if (weights == 1).all():
        return origin, rows, groups
    origin = origin.repeat(weights)
    return origin, rows.take(pa.array(origin)), groups[origin]


def _is_among(places: Ints, others: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Which of the places, all below count, are among the others."""
    is_other = np.zeros(count, bool)
    is_other[others] = True
    among: npt.NDArray[np.bool_] = is_other[places]
    return among


def _where(rows: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    return rows if mask.all() else rows.filter(pa.array(mask))


def _changed_partitions(
    before: SortedRows, after: SortedRows, kept_count: int
) -> tuple[SortedRows, SortedRows]:
    """Both readings, without the partitions that got no new row."""
    entered = np.zeros(_groups_of(before, after), bool)
    entered[after.groups[after.places >= kept_count]] = True
    return before.where(entered[before.groups]), after.where(entered[after.groups])


def _groups_of(*readings: SortedRows) -> int:
    return 1 + max(int(rows.groups.max(initial=-1)) for rows in readings)
