"""Window functions and top-n over rows that are only ever added.

A batch is sorted together with what its partitions have kept, once: what the functions said before
and what they say now are two readings of the same sorted rows, and a row is known by its position,
never compared. A top-n keeps no row that its limit has cut: later rows can only push it further
down. Its state is bounded by n rows per partition (rank and dense_rank keep all peers of the last).

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
        old_groups, kept, weights = self._kept.rows.fetch(keys)
        kept, old_groups = repeat_rows(kept, weights, old_groups)
        rows = pa.concat_batches([kept, added])
        everything = self._functions.sort(rows, np.concatenate([old_groups, groups]))
        after = self._functions.limit(everything)
        before = everything.where(everything.places < kept.num_rows)
        if self._cuts:
            before, after = _changed_partitions(before, after, kept.num_rows)
        self._keep(rows, before, after, kept.num_rows)
        return self._difference(rows, before, after)

    def _keep(
        self, rows: pa.RecordBatch, before: SortedRows, after: SortedRows, kept_count: int
    ) -> None:
        added = np.sort(after.places[after.places >= kept_count])
        cut = np.setdiff1d(before.places, after.places, assume_unique=True)
        changed = np.concatenate([added, cut])
        weights = np.ones(len(changed), np.int64)
        weights[len(added) :] = -1
        self._kept.rows.insert(rows.take(pa.array(changed)), weights)

    def _difference(
        self, rows: pa.RecordBatch, before: SortedRows, after: SortedRows
    ) -> list[Delta]:
        """Takes back rows that are cut or whose values changed, adds the rows as they are now."""
        old, new = self._functions.values(rows, before), self._functions.values(rows, after)
        place = np.full(rows.num_rows, -1)
        place[before.places] = np.arange(len(before.places))
        stayed = np.flatnonzero(place[after.places] >= 0)
        were = place[after.places[stayed]]
        same = np.ones(len(stayed), bool)
        for had, has in zip(old, new, strict=True):
            same &= _equal(had.take(pa.array(were)), has.take(pa.array(stayed)))
        gone = np.ones(len(before.places), bool)
        gone[were[same]] = False
        fresh = np.ones(len(after.places), bool)
        fresh[stayed[same]] = False
        taken = self._rows(rows, before, old, gone)
        given = self._rows(rows, after, new, fresh)
        if not taken.num_rows:
            return [Delta(given)] if given.num_rows else []
        signs = np.repeat([-1, 1], [taken.num_rows, given.num_rows])
        return [Delta(pa.concat_batches([taken, given]), signs)]

    def _rows(
        self,
        rows: pa.RecordBatch,
        chosen: SortedRows,
        values: list[pa.Array],
        mask: npt.NDArray[np.bool_],
    ) -> pa.RecordBatch:
        filtered = [value.filter(pa.array(mask)) for value in values]
        return self._functions.show(rows, chosen.where(mask), filtered)

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        self._kept.pass_time(watermark_ms)
        return []


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
