"""Window functions and top-n over rows that are only ever added.

A batch is sorted together with what its partitions have kept, once: what the functions said before
and what they say now are two readings of the same sorted rows, and a row is known by its position,
never compared. A top-n keeps no row that its limit has cut: later rows can only push it further
down. Its state is bounded by n rows per partition (rank and dense_rank keep all peers of the last).

Law: what is kept is what a later batch can still show; the output is the same as if all were kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.aggregates.api import Ints
from penstock.ops.api import Delta, OnLate, Operator
from penstock.ops.functions.ordering import order_keys
from penstock.ops.windows import SortedRows, WindowFunctions, keep_partitions, repeat_rows
from penstock.plan import nodes as n
from penstock.state.api import State


@dataclass(frozen=True, slots=True)
class _Reading:
    """Sorted rows, what the functions say of them, and which of them are to be shown."""

    rows: SortedRows
    values: list[pa.Array]
    mask: npt.NDArray[np.bool_]

    def places(self) -> Ints:
        """Where the rows to be shown are."""
        return self.rows.places[self.mask]

    def chosen(self) -> list[pa.Array]:
        """Their values."""
        return [value.filter(pa.array(self.mask)) for value in self.values]


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
        taken, given = self._difference(rows, before, after)
        places = np.concatenate([taken.places(), given.places()])
        shown = rows.take(pa.array(places))
        if self._cuts:
            # Whatever is cut is taken back, and whatever is new is shown: gathered once.
            back = len(taken.places())
            is_cut = ~_is_among(places[:back], after.places, rows.num_rows)
            self._drop(_where(shown.slice(0, back), is_cut), origin[places[:back][is_cut]])
            added = _where(shown.slice(back), places[back:] >= kept.num_rows)
        self._kept.rows.insert(added, None)
        return self._shown(shown, taken, given)

    def _drop(self, rows: pa.RecordBatch, places: Ints) -> None:
        """Forget rows that were fetched from these places, each as often as its place is given."""
        counts = np.ones(len(places), np.int64)
        if len(places) and np.bincount(places).max() > 1:
            places, first, counts = np.unique(places, return_index=True, return_counts=True)
            rows = rows.take(pa.array(first))
        self._kept.rows.drop(rows, places, counts)

    def _difference(
        self, rows: pa.RecordBatch, before: SortedRows, after: SortedRows
    ) -> tuple[_Reading, _Reading]:
        """Rows to be taken back, cut or with values that changed; and rows to be shown now."""
        old, new = self._functions.values(rows, before), self._functions.values(rows, after)
        place = np.full(rows.num_rows, -1)
        place[before.places] = np.arange(len(before.places))
        stayed = (place[after.places] >= 0).nonzero()[0]
        gone = np.ones(len(before.places), bool)
        fresh = np.ones(len(after.places), bool)
        if len(stayed):
            were = place[after.places[stayed]]
            same = np.ones(len(stayed), bool)
            for had, has in zip(old, new, strict=True):
                same &= _equal(had.take(pa.array(were)), has.take(pa.array(stayed)))
            gone[were[same]] = False
            fresh[stayed[same]] = False
        return _Reading(before, old, gone), _Reading(after, new, fresh)

    def _shown(self, rows: pa.RecordBatch, taken: _Reading, given: _Reading) -> list[Delta]:
        """The rows with their values, those to be taken back before the others."""
        if not rows.num_rows:
            return []
        pairs = zip(taken.chosen(), given.chosen(), strict=True)
        batch = self._functions.show(rows, [pa.concat_arrays(pair) for pair in pairs])
        back = len(taken.places())
        if not back:
            return [Delta(batch)]
        weights = np.ones(rows.num_rows, np.int64)
        weights[:back] = -1
        return [Delta(batch, weights)]

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        self._kept.pass_time(watermark_ms)
        return []


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


def _equal(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two columns show the same: nulls alike, NaNs alike."""
    together = pa.concat_arrays([left, right])
    numbers: Ints = order_keys(together)
    same = numbers[: len(left)] == numbers[len(left) :]
    if not together.null_count:
        return same
    absent = together.is_null().to_numpy(zero_copy_only=False)
    first, second = absent[: len(left)], absent[len(left) :]
    return np.where(first | second, first & second, same)
