"""RANGE frames with offsets: rows whose value of the order lies within a distance of one's own.

The order has one term. A row's bound is its value plus the offset, minus it in descending order;
rows whose value is null are within reach of each other and of no one else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import EvaluationFailed
from penstock.ops.expressions import compile_expr
from penstock.ops.frames import Partitions, find_frames
from penstock.ops.functions.alignment import as_array
from penstock.ops.functions.ordering import order_keys
from penstock.ops.ordering import Ints
from penstock.plan.nodes import WindowCall
from penstock.state.keys import canonical_ints

Frames: TypeAlias = Callable[[pa.RecordBatch, Partitions], tuple[Ints, Ints]]
#: What bounds are computed in, and must fit, as Spark's do.
_WIDTHS: Final = {pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32}


def bind_frames(call: WindowCall, schema: pa.Schema) -> Frames:
    """Each row's frame as [low, high), over rows of this schema."""
    if call.range_by is None:
        return lambda rows, parts: find_frames(call, parts)
    value = compile_expr(call.range_by.expr, schema)
    sign = -1 if call.range_by.descending else 1

    def evaluate(rows: pa.RecordBatch, parts: Partitions) -> tuple[Ints, Ints]:
        column = as_array(value(rows), len(parts))
        within = _Within(column, sign, parts)
        low = parts.start if call.lower is None else within.bound(call.lower, below=True)
        high = parts.end if call.upper is None else within.bound(call.upper, below=False)
        return low, np.maximum(low, high)

    return evaluate


class _Within:
    """The values of sorted rows, in which bounds are looked up."""

    def __init__(self, column: pa.Array, sign: int, parts: Partitions) -> None:
        self._column = column
        self._sign = sign
        self._parts = parts
        self._at = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        self._present = column.take(pa.array(self._at))

    def bound(self, offset: float, *, below: bool) -> Ints:
        """Positions of the first rows at or beyond the bound, or of the first ones beyond it."""
        places = (self._parts.peer_start if below else self._parts.peer_end).copy()
        if not len(self._at):
            return places
        bounds = _shift(self._present, self._sign * offset)
        numbers = order_keys(pa.concat_arrays([self._present, bounds]))
        if self._sign < 0:
            numbers = ~numbers
        count = len(self._at)
        partition = self._parts.start[self._at]
        # Bounds among values of their partition: before equal ones, or after them.
        is_bound = np.repeat([False, True], count)
        tie = is_bound != below
        order = np.lexsort((tie, numbers, np.tile(partition, 2)))
        smaller = np.empty(2 * count, np.int64)
        smaller[order] = np.cumsum(~is_bound[order])
        # Values that are not null lie next to each other, from the first of their partition on.
        _, first = np.unique(partition, return_index=True)
        begin = first[np.searchsorted(first, np.arange(count), "right") - 1]
        places[self._at] = self._at[begin] + smaller[count:] - begin
        return places


def _shift(column: pa.Array, offset: float) -> pa.Array:
    """The values plus the offset, in the column's own type."""
    kind = column.type
    if pt.is_floating(kind):
        values: npt.NDArray[np.floating] = column.to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            return pa.array(values + values.dtype.type(offset), kind)
    integers = canonical_ints(column)
    step = np.int64(offset)
    with np.errstate(over="ignore"):
        shifted = integers + step
    narrow = _WIDTHS.get(kind, np.int32 if pt.is_date32(kind) else np.int64)
    if ((shifted < integers) != (step < 0)).any() or (shifted != shifted.astype(narrow)).any():
        raise EvaluationFailed("ARITHMETIC_OVERFLOW", "the bound of a RANGE frame overflows")
    if pt.is_date32(kind):
        return pa.array(shifted, pa.int64()).cast(pa.int32()).cast(kind)
    return pa.array(shifted, pa.int64()).cast(kind)
