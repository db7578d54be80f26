"""min and max, of everything that has an order."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate, any_of, has_values
from penstock.plan.nodes import AggregateCall
from penstock.state.keys import canonical_ints

_INT_MIN: Final = np.iinfo(np.int64).min
_INT_MAX: Final = np.iinfo(np.int64).max


class _NumberExtreme:
    """Numbers, dates, times and booleans, as int64 or float64. NaN is larger than everything."""

    exact = True

    def __init__(self, kind: pa.DataType, largest: bool) -> None:
        self._type = kind
        self._is_float = pt.is_floating(kind)
        self._largest = largest
        self.columns = {
            "value": pa.float64() if self._is_float else pa.int64(),
            "any": pa.bool_(),
        }

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        column = args[0]
        if self._is_float:
            values = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).astype(np.float64)
        else:
            values = canonical_ints(column)
        return [values, has_values(column)]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        values, present = buffers
        if not present.all():
            values, groups = values[present.astype(bool)], groups[present.astype(bool)]
        found = np.zeros(count, bool)
        found[groups] = True
        if self._is_float:
            best = np.full(count, -np.inf if self._largest else np.nan)
            (np.maximum if self._largest else np.fmin).at(best, groups, values)
        else:
            best = np.full(count, _INT_MIN if self._largest else _INT_MAX)
            (np.maximum if self._largest else np.minimum).at(best, groups, values)
        best[~found] = 0
        return [best, found]

    def finish(self, buffers: Buffers) -> pa.Array:
        values, present = buffers
        array = pa.array(values, mask=~present.astype(bool))
        if pt.is_date32(self._type):
            array = array.cast(pa.int32())
        return array.cast(self._type, safe=False)

    def invert(self, buffers: Buffers) -> Buffers | None:
        return None


class _OrderedExtreme:
    """Text, binary, decimals, structs, arrays: the extreme is found by sorting."""

    exact = True

    def __init__(self, kind: pa.DataType, largest: bool) -> None:
        self._type = kind
        self._largest = largest
        self.columns = {"value": kind, "any": pa.bool_()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        return [to_objects(args[0]), has_values(args[0])]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        values, present = buffers
        rows = np.flatnonzero(present)
        order = rows[sort_within(values[rows], groups[rows], self._type)]
        best = np.empty(count, object)
        # Later assignments win, so the wanted end of each group is written last.
        wanted = order if self._largest else order[::-1]
        best[groups[wanted]] = values[wanted]
        return [best, any_of(present, groups, count)]

    def finish(self, buffers: Buffers) -> pa.Array:
        return pa.array(buffers[0].tolist(), self._type)

    def invert(self, buffers: Buffers) -> Buffers | None:
        return None


def to_objects(column: pa.Array) -> npt.NDArray[np.object_]:
    """The column's values as Python objects, for buffers that no number can hold."""
    values = np.empty(len(column), object)
    values[:] = column.to_pylist()
    return values


def sort_within(values: npt.NDArray[np.object_], groups: Ints, kind: pa.DataType) -> Ints:
    """Positions ordered by group, then by value, earlier positions first among equals."""
    table = pa.table({"group": groups, "value": pa.array(values.tolist(), kind)})
    keys = [("group", "ascending"), ("value", "ascending")]
    order = pc.sort_indices(table, sort_keys=keys)
    return order.to_numpy().astype(np.int64)


def _is_number(kind: pa.DataType) -> bool:
    return pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_temporal(kind)


def build_extreme(kind: pa.DataType, *, largest: bool) -> Accumulator:
    """The accumulator of min or max over a type."""
    return _NumberExtreme(kind, largest) if _is_number(kind) else _OrderedExtreme(kind, largest)


def _orderable(call: AggregateCall) -> str | None:
    kind = call.args[0].type
    if pt.is_nested(kind):
        return f"{call.function.lower()} of {kind}"
    return None


@aggregate("Max", sql="max bool_or any some", accepts=_orderable)
def max_(call: AggregateCall) -> Accumulator:
    return build_extreme(call.args[0].type, largest=True)


@aggregate("Min", sql="min bool_and every", accepts=_orderable)
def min_(call: AggregateCall) -> Accumulator:
    return build_extreme(call.args[0].type, largest=False)
