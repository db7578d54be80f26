"""min and max, of everything that has an order."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate, has_values
from penstock.ops.aggregates.values import (
    buffer_keys,
    buffer_type,
    is_fixed,
    is_ordered,
    last_of_each,
    lift_values,
    show_values,
    take_rows,
)
from penstock.plan.nodes import AggregateCall

_INT_MIN: Final = np.iinfo(np.int64).min
_INT_MAX: Final = np.iinfo(np.int64).max


class _NumberExtreme(Accumulator):
    """Numbers, dates, times and booleans, as int64 or float64. NaN is larger than everything."""

    exact = True

    def __init__(self, kind: pa.DataType, largest: bool) -> None:
        self._type = kind
        self._is_float = pt.is_floating(kind)
        self._largest = largest
        self.columns = {"value": buffer_type(kind), "any": pa.bool_()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        return [lift_values(args[0]), has_values(args[0])]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        values, present = buffers
        if not present.all():
            present = present.astype(bool, copy=False)
            values, groups = values[present], groups[present]
        has_any = np.zeros(count, bool)
        has_any[groups] = True
        if self._is_float:
            best = np.full(count, -np.inf if self._largest else np.nan)
            with np.errstate(invalid="ignore"):  # NumPy warns of NaN; here it is a value
                (np.maximum if self._largest else np.fmin).at(best, groups, values)
        else:
            best = np.full(count, _INT_MIN if self._largest else _INT_MAX)
            (np.maximum if self._largest else np.minimum).at(best, groups, values)
        if not has_any.all():
            best[~has_any] = 0
        return [best, has_any]

    def may_lose(self, kept: Buffers, taken: Buffers) -> npt.NDArray[np.bool_] | None:
        lost = (taken[0] == kept[0]) | (taken[0] != taken[0])  # of NaNs too
        return lost & taken[1].astype(bool)

    def finish(self, buffers: Buffers) -> pa.Array:
        return show_values(buffers[0], buffers[1], self._type)


class _OrderedExtreme(Accumulator):
    """Text, binary, decimals, structs, arrays: the extreme is found by sorting."""

    exact = True

    def __init__(self, kind: pa.DataType, largest: bool) -> None:
        self._type = kind
        self._largest = largest
        self.columns = {"value": buffer_type(kind), "any": pa.bool_()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        return [lift_values(args[0]), has_values(args[0])]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        rows = np.flatnonzero(buffers[1])
        keys = buffer_keys(buffers[0][rows], self._type)
        order = np.argsort(keys if self._largest else ~keys, kind="stable")
        chosen = last_of_each(groups, count, rows[order])
        return [take_rows(part, chosen) for part in buffers]

    def finish(self, buffers: Buffers) -> pa.Array:
        return show_values(buffers[0], buffers[1], self._type)


def _build(call: AggregateCall, *, largest: bool) -> Accumulator:
    kind = call.args[0].type
    return _NumberExtreme(kind, largest) if is_fixed(kind) else _OrderedExtreme(kind, largest)


def _orderable(call: AggregateCall) -> str | None:
    kind = call.args[0].type
    return None if is_ordered(kind) else f"{call.function.lower()} of {kind}"


aggregate("Max", sql="max bool_or any some", accepts=_orderable)(partial(_build, largest=True))
aggregate("Min", sql="min bool_and every", accepts=_orderable)(partial(_build, largest=False))
