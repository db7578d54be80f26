"""Decimal arithmetic: exact, then rounded half up to the type that Spark gives the result.

Where Spark's type holds every result, Arrow's kernel gives exactly that type. Where Spark cut the
scale to fit 38 digits, the exact result is computed with 76 digits and rounded. Division has no
exact kernel in Arrow, so it is Python's, row by row.

Law: what does not fit the result's type fails in ANSI mode and is null otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.alignment import arrays
from penstock.ops.functions.failures import fail
from penstock.ops.functions.registry import Datum
from penstock.plan.exprs import Call

#: From two unscaled integers to the unscaled integer of the result.
_Operate: TypeAlias = Callable[[int, int], int]
_WIDEST: Final = 76
_JAVA_DIGITS: Final = 39
_JAVA_MOST: Final = 10**_JAVA_DIGITS
#: Enough digits for every double and every decimal written out in full.
EXACT: Final = Context(prec=1200, Emax=MAX_EMAX, Emin=MIN_EMIN)
#: How many digits a negation keeps.
NEGATED_DIGITS: Final = 34
#: Arrow's name of it.
HALF_UP: Final = "half_towards_infinity"
CONDITION: Final = "NUMERIC_VALUE_OUT_OF_RANGE"


def add(call: Call, left: Datum, right: Datum) -> Datum:
    return _by_kernel(call, left, right, pc.add)


def subtract(call: Call, left: Datum, right: Datum) -> Datum:
    return _by_kernel(call, left, right, pc.subtract)


def multiply(call: Call, left: Datum, right: Datum) -> Datum:
    if left.type.precision + right.type.precision + 1 > _WIDEST:
        scale = left.type.scale + right.type.scale
        return by_integers(call, left, right, lambda a, b: a * b, scale)
    return _by_kernel(call, left, right, pc.multiply)


def _by_kernel(
    call: Call, left: Datum, right: Datum, kernel: Callable[[Datum, Datum], Datum]
) -> Datum:
    type = call.type
    if type.precision < 38 and not call.is_try:
        exact = kernel(left, right)
        if exact.type == type:
            return exact
    wide = [
        each.cast(pa.decimal256(each.type.precision, each.type.scale)) for each in (left, right)
    ]
    return fit(kernel(*wide), type, is_ansi=call.is_ansi)


def divide(call: Call, left: Datum, right: Datum) -> Datum:
    type = call.type
    shift = type.scale - left.type.scale + right.type.scale

    def quotient(dividend: int, divisor: int) -> int:
        if shift >= 0:
            return divide_half_up(dividend * 10**shift, divisor)
        return divide_half_up(dividend, divisor * 10**-shift)

    return by_integers(call, left, right, quotient, type.scale)


def integral_divide(call: Call, left: Datum, right: Datum) -> Datum:
    """The whole part of the quotient as a long, of which Java keeps the low 64 bits."""
    one_up, two_up = _to_common_scale(left, right)
    digits = max(1, left.type.precision - left.type.scale + right.type.scale)
    wide = pa.decimal128(min(38, digits), 0)
    inner = Call(call.function, call.args, wide, call.options)
    whole = by_integers(inner, left, right, lambda a, b: _quotient(a * one_up, b * two_up), 0)
    return _low_bits(whole)


def remainder(call: Call, left: Datum, right: Datum) -> Datum:
    one_up, two_up = _to_common_scale(left, right)
    scale = max(left.type.scale, right.type.scale)
    return by_integers(call, left, right, lambda a, b: _remainder(a * one_up, b * two_up), scale)


def positive_remainder(call: Call, left: Datum, right: Datum) -> Datum:
    one_up, two_up = _to_common_scale(left, right)

    def pmod(dividend: int, divisor: int) -> int:
        rest = _remainder(dividend * one_up, divisor * two_up)
        return _remainder(rest + divisor * two_up, divisor * two_up) if rest < 0 else rest

    return by_integers(call, left, right, pmod, max(left.type.scale, right.type.scale))


def negate(value: Datum) -> Datum:
    """Spark's negation keeps 34 digits, rounded half to even; that may not fit, in every mode."""
    return _flip(value, lambda each: True)


def absolute(value: Datum) -> Datum:
    """Of negative values the negation, with its 34 digits."""
    return _flip(value, lambda each: each < 0)


def _flip(value: Datum, is_flipped: Callable[[int], bool]) -> Datum:
    (array,) = arrays(value)
    type = array.type
    made = [
        _round_digits(-each) if each is not None and is_flipped(each) else each
        for each in unscaled(array)
    ]
    result = from_unscaled(made, type.scale, type, is_ansi=True)
    return result[0] if isinstance(value, pa.Scalar) else result


def _round_digits(value: int) -> int:
    """The value with at most 34 digits other than zero, half to even: Java's DECIMAL128."""
    unit = 10 ** max(0, len(str(abs(value))) - NEGATED_DIGITS)
    quotient, rest = divmod(abs(value), unit)
    quotient += 2 * rest > unit or (2 * rest == unit and quotient % 2 == 1)
    return quotient * unit * (-1 if value < 0 else 1)


def _to_common_scale(left: Datum, right: Datum) -> tuple[int, int]:
    left_scale, right_scale = left.type.scale, right.type.scale
    return 10 ** max(0, right_scale - left_scale), 10 ** max(0, left_scale - right_scale)


def truncate(dividend: int, divisor: int) -> int:
    """The quotient without what is behind the point."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def _remainder(dividend: int, divisor: int) -> int:
    return dividend - _quotient(dividend, divisor) * divisor


def _quotient(dividend: int, divisor: int) -> int:
    """Without what is behind the point; Java has at most 39 digits for it, and trailing zeros."""
    quotient = truncate(dividend, divisor)
    if abs(quotient) >= _JAVA_MOST and int(str(abs(quotient))[_JAVA_DIGITS:]):
        fail("ARITHMETIC_EXCEPTION", "division impossible: the quotient has more than 39 digits")
    return quotient


def divide_half_up(dividend: int, divisor: int) -> int:
    """The quotient rounded to the nearest integer, away from zero if in doubt."""
    quotient = (2 * abs(dividend) + abs(divisor)) // (2 * abs(divisor))
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def by_integers(call: Call, left: Datum, right: Datum, operate: _Operate, scale: int) -> Datum:
    """Row by row, because Arrow's kernels truncate quotients or run out of digits."""
    lefts, rights = arrays(left, right)
    made = [
        None if a is None or b is None else operate(a, b)
        for a, b in zip(unscaled(lefts), unscaled(rights), strict=True)
    ]
    result = from_unscaled(made, scale, call.type, is_ansi=call.is_ansi)
    return result[0] if isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar) else result


def unscaled(array: pa.Array) -> list[int | None]:
    """The integers that a decimal array is made of."""
    count = len(array)
    if count == 0:
        return []
    words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)
    words = words[array.offset : array.offset + count]
    lows, highs = words[:, 0].tolist(), words[:, 1].view(np.int64).tolist()
    values: list[int | None] = [(high << 64) + low for low, high in zip(lows, highs, strict=True)]
    if array.null_count:
        for row in np.flatnonzero(array.is_null()).tolist():
            values[row] = None
    return values


def from_unscaled(
    values: list[int | None], scale: int, type: pa.DataType, *, is_ansi: bool
) -> pa.Array:
    """Decimals of the type out of integers of a scale: rounded half up, checked."""
    limit = 10**type.precision
    drop = scale - type.scale
    if drop > 0:
        values = [None if v is None else divide_half_up(v, 10**drop) for v in values]
    elif drop < 0:
        values = [None if v is None else v * 10**-drop for v in values]
    fitting = [None if v is None or abs(v) >= limit else v for v in values]
    if is_ansi and fitting != values:
        fail(CONDITION, f"a decimal does not fit {type}")
    is_valid = pa.array([value is not None for value in fitting], pa.bool_())
    words = b"".join([(value or 0).to_bytes(16, "little", signed=True) for value in fitting])
    return pa.Array.from_buffers(type, len(fitting), [is_valid.buffers()[1], pa.py_buffer(words)])


def from_decimals(values: list[Decimal | None], type: pa.DataType, *, is_ansi: bool) -> pa.Array:
    """Python's decimals of any scale in the type: rounded half up, checked."""
    return from_unscaled(
        [_rescale(v, type.scale) for v in values], type.scale, type, is_ansi=is_ansi
    )


def _rescale(value: Decimal | None, scale: int) -> int | None:
    if value is None:
        return None
    rounded = value.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP, EXACT)
    return int(rounded.scaleb(scale, EXACT))


def fractions(array: pa.Array) -> list[Fraction | None]:
    """The exact values."""
    unit = 10**array.type.scale
    return [None if value is None else Fraction(value, unit) for value in unscaled(array)]


def fit(value: Datum, type: pa.DataType, *, is_ansi: bool, mode: str = HALF_UP) -> Datum:
    """A decimal in another decimal type: rounded, checked."""
    (array,) = arrays(value)
    wide = array.cast(pa.decimal256(_WIDEST, array.type.scale))
    if array.type.scale > type.scale:
        wide = pc.round(wide, ndigits=type.scale, round_mode=mode)
        wide = wide.cast(pa.decimal256(_WIDEST, type.scale))
    limit = pa.scalar(Decimal(10) ** (type.precision - type.scale), wide.type)
    too_large = pc.greater_equal(pc.abs(wide), limit)
    if pc.any(too_large).as_py() is True:
        if is_ansi:
            fail(CONDITION, f"a decimal does not fit {type}")
        wide = pc.if_else(too_large, pa.scalar(None, wide.type), wide)
    result = wide.cast(type)
    return result[0] if isinstance(value, pa.Scalar) else result


def _low_bits(whole: Datum) -> Datum:
    """Integral decimals as longs, as Java narrows: the high bits are dropped."""
    (array,) = arrays(whole)
    low = [None if v is None else (v + 2**63) % 2**64 - 2**63 for v in unscaled(array)]
    result = pa.array(low, pa.int64())
    return result[0] if isinstance(whole, pa.Scalar) else result
