"""What an aggregate shows: a row per key, and the difference when its buffers have changed."""

from __future__ import annotations

from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.aggregate_calls import BoundCall
from penstock.ops.aggregates.api import Buffers
from penstock.ops.api import Delta
from penstock.state.keys import words_column


class Results:
    """Rows of one aggregate out of keys and buffers."""

    def __init__(self, schema: pa.Schema, calls: list[BoundCall]) -> None:
        self._schema = schema
        self._calls = calls

    def rows(self, keys: list[pa.Array], buffers: list[Buffers]) -> pa.RecordBatch:
        """The key columns, then what each call makes of its buffers."""
        values = [
            bound.accumulator.finish(part) for bound, part in zip(self._calls, buffers, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*keys, *values], schema=self._schema)

    def changes(
        self,
        keys: list[pa.Array],
        old: list[Buffers],
        existed: npt.NDArray[np.bool_],
        new: list[Buffers],
        exists: npt.NDArray[np.bool_],
    ) -> list[Delta]:
        """The old results, taken back, then the new ones; nothing of keys that are as before."""
        if existed.any():
            changed = ~(existed & exists & _unchanged(old, new, len(existed)))
            existed, exists = existed & changed, exists & changed
        taken, given = existed.nonzero()[0], exists.nonzero()[0]
        if not len(taken) and not len(given):
            return []
        places = words_column(np.concatenate([taken, given]))
        buffers = [
            [np.concatenate([had[taken], has[given]]) for had, has in zip(*pair, strict=True)]
            for pair in zip(old, new, strict=True)
        ]
        batch = self.rows([key.take(places) for key in keys], buffers)
        if not len(taken):
            return [Delta(batch)]
        weights = np.ones(len(places), np.int64)
        weights[: len(taken)] = -1
        return [Delta(batch, weights)]


def _unchanged(old: list[Buffers], new: list[Buffers], count: int) -> npt.NDArray[np.bool_]:
    """Where all buffers are the same to the bit, and so is what they show."""
    same = np.ones(count, bool)
    for before, after in zip(old, new, strict=True):
        for had, has in zip(before, after, strict=True):
            same &= _same(had, has)
    return same


def _same(had: npt.NDArray[Any], has: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if object in (had.dtype, has.dtype):  # equal objects may hold zeros of different signs
        return np.fromiter(map(is_, had.tolist(), has.tolist()), bool, len(had))
    if had.dtype == has.dtype == np.float64:
        had, has = had.view(np.int64), has.view(np.int64)
    same: npt.NDArray[np.bool_] = had == has
    return same
