"""count, sum, avg: what can be added up, and so taken back."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import EvaluationFailed
from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate, fold_add, has_values
from penstock.plan.nodes import AggregateCall
from penstock.state.keys import decimal_words

_LOW: Final = np.int64(0xFFFF_FFFF)
_BITS: Final = np.int64(32)


class _Count:
    """Rows in which no argument is null."""

    exact = True

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


class _IntegerSum:
    """Sums of integers in two halves, so that only the final total can overflow.

    The order of rows then never decides whether there is an error.
    """

    exact = True

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        self._mode = call.option("evalMode", "LEGACY")
        self.columns = {"high": pa.int64(), "low": pa.int64(), "count": pa.int64()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        values = _to_int64(args[0])
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


class _FloatSum:
    exact = False

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        self.columns = {"sum": pa.float64(), "count": pa.int64()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        return [_to_float64(args[0]), has_values(args[0]).astype(np.int64)]

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


class _IntegerAverage:
    """Averages of whole numbers: exact sums, so that rows can be taken back."""

    exact = True

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
            return pa.array(total / counted, mask=counted == 0)


class _DurationAverage(_IntegerSum):
    """Averages of intervals, to whole microseconds, half of one away from zero."""

    def finish(self, buffers: Buffers) -> pa.Array:
        sums = super().finish(buffers).cast(pa.int64()).to_pylist()
        counted = buffers[2].tolist()
        means = [
            None if total is None else _divide_half_up(total, rows)
            for total, rows in zip(sums, counted, strict=True)
        ]
        return pa.array(means, pa.int64()).cast(self._type)


class _DecimalSum:
    """Sums of decimals in four limbs of 32 bits, exact."""

    exact = True

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
        counted = buffers[4].tolist()
        bound = 10**self._type.precision
        totals = self.totals(buffers)
        if self._mode == "ANSI" and any(abs(total) >= bound for total in totals):
            raise EvaluationFailed("NUMERIC_VALUE_OUT_OF_RANGE", "sum does not fit its decimal")
        shown = [
            total if rows and abs(total) < bound else None
            for total, rows in zip(totals, counted, strict=True)
        ]
        return unscaled_decimals(shown, self._type)


class _DecimalAverage(_DecimalSum):
    def finish(self, buffers: Buffers) -> pa.Array:
        shift = 10 ** (self._type.scale - self._scale)
        bound = 10**self._type.precision
        shown: list[int | None] = []
        for total, rows in zip(self.totals(buffers), buffers[4].tolist(), strict=True):
            if not rows:
                shown.append(None)
                continue
            quotient = _divide_half_up(total * shift, rows)
            if abs(quotient) >= bound and self._mode == "ANSI":
                raise EvaluationFailed("NUMERIC_VALUE_OUT_OF_RANGE", "avg does not fit")
            shown.append(quotient if abs(quotient) < bound else None)
        return unscaled_decimals(shown, self._type)

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self._scale = call.args[0].type.scale


def _divide_half_up(dividend: int, divisor: int) -> int:
    quotient, rest = divmod(abs(dividend), divisor)
    if 2 * rest >= divisor:
        quotient += 1
    return quotient if dividend >= 0 else -quotient


def unscaled_decimals(values: list[int | None], type: pa.DataType) -> pa.Array:
    """Decimals from their unscaled integers."""
    data = b"".join(
        (0 if value is None else value).to_bytes(16, "little", signed=True) for value in values
    )
    mask = pa.array([value is not None for value in values], pa.bool_())
    validity = mask.buffers()[1]
    return pa.Array.from_buffers(type, len(values), [validity, pa.py_buffer(data)])


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


def _to_int64(column: pa.Array) -> Ints:
    if pt.is_temporal(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def _to_float64(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if column.null_count:
        column = column.fill_null(0.0)
    return column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
