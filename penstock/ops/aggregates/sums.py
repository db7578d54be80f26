"""count, sum, avg: what can be added up, and so taken back; and product."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import EvaluationFailed
from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate, fold_add, has_values
from penstock.ops.aggregates.values import lift_values
from penstock.ops.functions.decimals import divide_half_up, from_unscaled
from penstock.plan.nodes import AggregateCall
from penstock.state.keys import canonical_ints, decimal_words

_LOW: Final = np.int64(0xFFFF_FFFF)
_BITS: Final = np.int64(32)


class _Count(Accumulator):
    """Rows in which no argument is null."""

    exact = True
    adds = True

    def __init__(self) -> None:
        self.columns = {"count": pa.int64()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        counted = np.ones(rows, bool)
        for arg in args:
            counted &= has_values(arg)
        return [counted.astype(np.int64)]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        return [fold_add(buffers[0], groups, count)]

    def finish(self, buffers: Buffers) -> pa.Array:
        return pa.array(buffers[0], pa.int64())

    def invert(self, buffers: Buffers) -> Buffers | None:
        return [-buffers[0]]


@aggregate("Count", sql="count count_if regr_count")
def count(call: AggregateCall) -> Accumulator:
    return _Count()


class _IntegerSum(Accumulator):
    """Sums of integers in two halves, so that only the final total can overflow.

    The order of rows then never decides whether there is an error.
    """

    exact = True
    adds = True

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        self._mode = call.option("evalMode", "LEGACY")
        self.columns = {"high": pa.int64(), "low": pa.int64(), "count": pa.int64()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        values = canonical_ints(args[0])
        counted = has_values(args[0]).astype(np.int64)
        return [values >> _BITS, values & _LOW, counted]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        return [fold_add(part, groups, count) for part in buffers]

    def invert(self, buffers: Buffers) -> Buffers | None:
        return [-part for part in buffers]

    def finish(self, buffers: Buffers) -> pa.Array:
        high, low, counted = (part.astype(np.int64) for part in buffers)
        high = high + (low >> _BITS)
        low = low & _LOW
        outside = (high < -(2**31)) | (high >= 2**31)
        empty = counted == 0
        if outside.any():
            if self._mode == "TRY":
                empty = empty | outside
            elif pt.is_duration(self._type):
                raise EvaluationFailed("INTERVAL_ARITHMETIC_OVERFLOW", "sum overflows")
            elif self._mode == "ANSI":
                raise EvaluationFailed("ARITHMETIC_OVERFLOW", "sum overflows long")
        with np.errstate(over="ignore"):
            total = (high << _BITS) | low
        return pa.array(total, mask=empty if empty.any() else None).cast(self._type)


class _FloatSum(Accumulator):
    exact = False

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        self.columns = {"sum": pa.float64(), "count": pa.int64()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        return [lift_values(args[0]), has_values(args[0]).astype(np.int64)]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        return [fold_add(part, groups, count) for part in buffers]

    def invert(self, buffers: Buffers) -> Buffers | None:
        # An infinity or NaN that was added cannot be subtracted again.
        return None

    def finish(self, buffers: Buffers) -> pa.Array:
        return pa.array(buffers[0], mask=buffers[1] == 0).cast(self._type)


class _FloatAverage(_FloatSum):
    def finish(self, buffers: Buffers) -> pa.Array:
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = buffers[0] / buffers[1]
        return pa.array(mean, mask=buffers[1] == 0).cast(self._type)


class _IntegerAverage(Accumulator):
    """Averages of whole numbers: exact sums, so that rows can be taken back."""

    exact = True
    adds = True

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        self.columns = {"high": pa.int64(), "low": pa.int64(), "count": pa.int64()}

    lift = _IntegerSum.lift
    merge = _IntegerSum.merge
    invert = _IntegerSum.invert

    def finish(self, buffers: Buffers) -> pa.Array:
        high, low, counted = (part.astype(np.int64) for part in buffers)
        high = high + (low >> _BITS)
        total = high.astype(np.float64) * 2.0**32 + (low & _LOW).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = total / counted
        is_empty = counted == 0
        return pa.array(means, mask=is_empty if is_empty.any() else None)


class _DurationAverage(_IntegerSum):
    """Averages of intervals, to whole microseconds, half of one away from zero."""

    def finish(self, buffers: Buffers) -> pa.Array:
        sums = super().finish(buffers).cast(pa.int64()).to_pylist()
        counted = buffers[2].tolist()
        means = [
            None if total is None else divide_half_up(total, rows)
            for total, rows in zip(sums, counted, strict=True)
        ]
        return pa.array(means, pa.int64()).cast(self._type)


class _DecimalSum(Accumulator):
    """Sums of decimals in four limbs of 32 bits, exact."""

    exact = True
    adds = True

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        self._mode = call.option("evalMode", "LEGACY")
        self.columns = {f"limb{i}": pa.int64() for i in range(4)} | {"count": pa.int64()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        words = decimal_words(args[0])
        low, high = words[:, 0], words[:, 1]
        unsigned = (low >> _BITS) & _LOW
        counted = has_values(args[0]).astype(np.int64)
        return [low & _LOW, unsigned, high & _LOW, high >> _BITS, counted]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        return [fold_add(part, groups, count) for part in buffers]

    def invert(self, buffers: Buffers) -> Buffers | None:
        return [-part for part in buffers]

    def totals(self, buffers: Buffers) -> list[int]:
        """Unscaled sums as Python integers, one per group."""
        limbs = [part.tolist() for part in buffers[:4]]
        return [a + (b << 32) + (c << 64) + (d << 96) for a, b, c, d in zip(*limbs, strict=True)]

    def finish(self, buffers: Buffers) -> pa.Array:
        return self._show(
            total if rows else None
            for total, rows in zip(self.totals(buffers), buffers[4].tolist(), strict=True)
        )

    def _show(self, totals: Iterable[int | None]) -> pa.Array:
        """Null or an error for what does not fit."""
        scale, is_ansi = self._type.scale, self._mode == "ANSI"
        return from_unscaled(list(totals), scale, self._type, is_ansi=is_ansi)


class _DecimalAverage(_DecimalSum):
    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self._shift = 10 ** (call.type.scale - call.args[0].type.scale)

    def finish(self, buffers: Buffers) -> pa.Array:
        return self._show(
            divide_half_up(total * self._shift, rows) if rows else None
            for total, rows in zip(self.totals(buffers), buffers[4].tolist(), strict=True)
        )


class _Product(_FloatSum):
    """Products of doubles, from left to right; a zero or NaN cannot be taken back."""

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        values, counted = super().lift(args, rows)
        return [np.where(counted > 0, values, 1.0), counted]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        product = np.ones(count, np.float64)
        # The buffer of a group without rows is zeros, and must change nothing.
        factors = np.where(buffers[1] > 0, buffers[0], 1.0)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.multiply.at(product, groups, factors)
        return [product, fold_add(buffers[1], groups, count)]


aggregate("Product", sql="product")(_Product)


def _no_months(call: AggregateCall) -> str | None:
    if pt.is_int32(call.type):
        return f"{call.function.lower()} of year-month intervals"
    return None


@aggregate("Sum", sql="sum try_sum", accepts=_no_months)
def sum_(call: AggregateCall) -> Accumulator:
    kind = call.args[0].type
    if pt.is_decimal(kind):
        return _DecimalSum(call)
    return _FloatSum(call) if pt.is_floating(kind) else _IntegerSum(call)


@aggregate("Average", sql="avg mean try_avg regr_avgx regr_avgy", accepts=_no_months)
def average(call: AggregateCall) -> Accumulator:
    kind = call.args[0].type
    if pt.is_decimal(kind):
        return _DecimalAverage(call)
    if pt.is_duration(kind):
        return _DurationAverage(call)
    return _FloatAverage(call) if pt.is_floating(kind) else _IntegerAverage(call)
