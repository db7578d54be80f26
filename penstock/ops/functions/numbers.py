"""Arithmetic on integers, floating point numbers and intervals; decimals are handed on.

In ANSI mode an overflow or a zero divisor fails; in LEGACY mode integers wrap around and a zero
divisor gives null; in TRY mode both give null. Law: the common case is one or two Arrow kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions import decimals, intervals
from penstock.ops.functions.alignment import Mask, Values, arrays, to_numpy
from penstock.ops.functions.failures import fail, fail_where
from penstock.ops.functions.registry import Datum, function
from penstock.plan.exprs import Call, Literal

_Kernel: TypeAlias = Callable[[Datum, Datum], Datum]
_Overflows: TypeAlias = Callable[[Values, Values, Values], Mask]


def _may_overflow(call: Call) -> bool:
    """Interval arithmetic is always checked; floating point never overflows."""
    if pa.types.is_floating(call.type):
        return False
    is_interval = pa.types.is_duration(call.type) or pa.types.is_interval(call.type)
    return call.is_ansi or is_interval or _loses_digits(call.type)


def _loses_digits(type: pa.DataType) -> bool:
    return pa.types.is_decimal(type) and type.precision > decimals.NEGATED_DIGITS


@function("Add", sql="+ try_add", raises=_may_overflow, strict=True)
def add(call: Call, left: Datum, right: Datum) -> Datum:
    if pa.types.is_decimal(call.type):
        return decimals.add(call, left, right)
    if pa.types.is_interval(call.type):
        return intervals.add_calendars(call, left, right)
    return _exact(call, left, right, pc.add, pc.add_checked, _add_overflows)


@function("Subtract", sql="- try_subtract", raises=_may_overflow, strict=True)
def subtract(call: Call, left: Datum, right: Datum) -> Datum:
    if pa.types.is_decimal(call.type):
        return decimals.subtract(call, left, right)
    if pa.types.is_interval(call.type):
        return intervals.subtract_calendars(call, left, right)
    return _exact(call, left, right, pc.subtract, pc.subtract_checked, _subtract_overflows)


@function("Multiply", sql="* try_multiply", raises=_may_overflow, strict=True)
def multiply(call: Call, left: Datum, right: Datum) -> Datum:
    if pa.types.is_decimal(call.type):
        return decimals.multiply(call, left, right)
    return _exact(call, left, right, pc.multiply, pc.multiply_checked, _multiply_overflows)


def _exact(
    call: Call,
    left: Datum,
    right: Datum,
    wrapping: _Kernel,
    checked: _Kernel,
    overflows: _Overflows,
) -> Datum:
    """Ints and day-time intervals; of the latter an overflow fails in LEGACY mode too."""
    is_interval = pa.types.is_duration(call.type)
    if pa.types.is_floating(call.type) or not (call.is_ansi or call.is_try or is_interval):
        return wrapping(left, right)
    try:
        return checked(left, right)
    except pa.ArrowInvalid:
        if not call.is_try:
            fail(overflow_condition(call.type), f"{call.type} overflow")
    return _null_where(call.type, left, right, wrapping, overflows)


def overflow_condition(type: pa.DataType) -> str:
    """What Spark calls an overflow of + - * in this type."""
    if pa.types.is_duration(type):
        return "INTERVAL_ARITHMETIC_OVERFLOW"
    if pa.types.is_int8(type) or pa.types.is_int16(type):
        return "BINARY_ARITHMETIC_OVERFLOW"
    return "ARITHMETIC_OVERFLOW"


def _null_where(
    type: pa.DataType, left: Datum, right: Datum, wrapping: _Kernel, overflows: _Overflows
) -> Datum:
    """The wrapped result, null where it is not the true one."""
    wrapped = wrapping(left, right)
    integers = pa.int64() if pa.types.is_duration(type) else type
    lefts, rights, result = (to_numpy(each.cast(integers)) for each in arrays(left, right, wrapped))
    with np.errstate(all="ignore"):
        mask = overflows(lefts, rights, result)
    null = pa.scalar(None, type)
    if isinstance(wrapped, pa.Scalar):
        return null if mask[0] else wrapped
    return pc.if_else(pa.array(mask), null, wrapped)


def _add_overflows(left: Values, right: Values, result: Values) -> Mask:
    return np.asarray(((left ^ result) & (right ^ result)) < 0)


def _subtract_overflows(left: Values, right: Values, result: Values) -> Mask:
    return np.asarray(((left ^ right) & (left ^ result)) < 0)


def _multiply_overflows(left: Values, right: Values, result: Values) -> Mask:
    """Dividing the product must give the factor back; NumPy cannot divide the least by -1."""
    least = np.iinfo(result.dtype).min
    divisor = np.where((right == 0) | (right == -1), 1, right)
    wrong = (right != 0) & (right != -1) & ((result // divisor != left) | (result % divisor != 0))
    return np.asarray(wrong | ((right == -1) & (left == least)))


# -- division

_ZERO_CONDITION: Final = {
    "Divide": "DIVIDE_BY_ZERO",
    "IntegralDivide": "DIVIDE_BY_ZERO",
    "Remainder": "REMAINDER_BY_ZERO",
    "Pmod": "REMAINDER_BY_ZERO",
}


def _may_fail_to_divide(call: Call) -> bool:
    """A constant divisor that is neither 0 nor -1 is safe. In every mode, the quotients of decimals
    may be too long for Java."""
    dividend, divisor = call.args
    if pa.types.is_decimal(dividend.type):
        return call.is_ansi or call.function != "Divide"
    if isinstance(divisor, Literal) and divisor.value.as_py() not in (None, 0, -1):
        return False
    return call.is_ansi


@function("Divide", sql="/ try_divide", raises=_may_fail_to_divide, strict=True, order=(1, 0))
def divide(call: Call, left: Datum, right: Datum) -> Datum:
    divisor = without_zeros(call, left, right)
    if pa.types.is_decimal(call.type):
        return decimals.divide(call, left, divisor)
    return pc.divide(left, divisor)


@function("IntegralDivide", sql="div", raises=_may_fail_to_divide, strict=True, order=(1, 0))
def integral_divide(call: Call, left: Datum, right: Datum) -> Datum:
    """Rounds towards zero; the result is a long, whatever the arguments are."""
    divisor = without_zeros(call, left, right)
    if pa.types.is_decimal(left.type):
        return decimals.integral_divide(call, left, divisor)
    dividend, whole_divisor = left.cast(pa.int64()), divisor.cast(pa.int64())
    if isinstance(whole_divisor, pa.Scalar) and whole_divisor.as_py() not in (None, -1):
        return pc.divide(dividend, whole_divisor)
    # Arrow answers 0 for the least long divided by -1; Spark wraps around, or fails.
    minus = pc.equal(whole_divisor, -1)
    if call.is_ansi and pa.types.is_integer(left.type):
        least = pc.and_(minus, pc.equal(dividend, np.iinfo(np.int64).min))
        fail_where(least, "ARITHMETIC_OVERFLOW", "long overflow")
    return pc.if_else(minus, pc.negate(dividend), pc.divide(dividend, whole_divisor))


@function("Remainder", sql="% mod try_mod", raises=_may_fail_to_divide, strict=True, order=(1, 0))
def remainder(call: Call, left: Datum, right: Datum) -> Datum:
    """The sign is the dividend's, as in Java."""
    divisor = without_zeros(call, left, right)
    if pa.types.is_decimal(call.type):
        return decimals.remainder(call, left, divisor)
    return pc.remainder(left, divisor)


@function("Pmod", sql="pmod", raises=_may_fail_to_divide, strict=True, order=(1, 0))
def positive_remainder(call: Call, left: Datum, right: Datum) -> Datum:
    divisor = without_zeros(call, left, right)
    if pa.types.is_decimal(call.type):
        return decimals.positive_remainder(call, left, divisor)
    if call.type.bit_width < 32:  # Java adds bytes and shorts as ints
        left, divisor = pc.cast(left, pa.int32()), pc.cast(divisor, pa.int32())
    rest = pc.remainder(left, divisor)
    moved = pc.remainder(pc.add(rest, divisor), divisor)
    positive = pc.if_else(pc.less(rest, pa.scalar(0, rest.type)), moved, rest)
    return pc.cast(positive, call.type)


def without_zeros(call: Call, left: Datum, right: Datum) -> Datum:
    """The divisor, null where it is zero; in ANSI mode a zero under a value fails instead."""
    zero = pa.scalar(0, right.type)
    if isinstance(right, pa.Scalar):
        if not right.is_valid or (right != zero and right.as_py() != 0):
            return right
        is_zero: Datum = pa.scalar(True)
    else:
        is_zero = pc.equal(right, zero)
        if pc.any(is_zero).as_py() is not True:
            return right
    if call.is_ansi:
        fail_where(pc.and_(is_zero, pc.is_valid(left)), _ZERO_CONDITION[call.function])
    return pc.if_else(is_zero, pa.scalar(None, right.type), right)


# -- sign


@function("UnaryMinus", sql="negative positive", raises=_may_overflow)
def negate(call: Call, value: Datum) -> Datum:
    """Of positive() nothing is left in a plan."""
    if pa.types.is_interval(call.type):
        return intervals.negate_calendar(call, value)
    if _loses_digits(call.type):
        return decimals.negate(value)
    return _exact_sign(call, value, pc.negate, pc.negate_checked, "INTERVAL_ARITHMETIC_OVERFLOW")


@function("Abs", sql="abs", raises=_may_overflow)
def absolute(call: Call, value: Datum) -> Datum:
    if _loses_digits(call.type):
        return decimals.absolute(value)
    return _exact_sign(call, value, pc.abs, pc.abs_checked, "ARITHMETIC_OVERFLOW")


def _exact_sign(
    call: Call,
    value: Datum,
    wrapping: Callable[[Datum], Datum],
    checked: Callable[[Datum], Datum],
    interval_condition: str,
) -> Datum:
    """Only the least integer has no counterpart."""
    is_interval = pa.types.is_duration(call.type)
    if not (is_interval or call.is_ansi) or not (is_interval or pa.types.is_integer(call.type)):
        return wrapping(value)
    try:
        # Arrow does not check intervals.
        return checked(value.cast(pa.int64())).cast(call.type) if is_interval else checked(value)
    except pa.ArrowInvalid:
        condition = interval_condition if is_interval else "ARITHMETIC_OVERFLOW"
        fail(condition, f"{call.type} overflow")


@function("PreciseTimestampConversion", raises=False)
def precise_timestamp(call: Call, value: Datum) -> Datum:
    """Between timestamps and microseconds: how window() computes."""
    return value.view(call.type) if isinstance(value, pa.Array) else value.cast(call.type)
