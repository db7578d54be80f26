"""Rounding: round, bround, truncate, ceil, floor.

Floating point numbers are rounded as the decimals that Java prints them as: round(2.675, 2) is
2.68. Law: that is computed with doubles only where no rounding error can change the result.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.ops.functions import decimals
from penstock.ops.functions.alignment import arrays, nulls, on_arrays, to_numpy
from penstock.ops.functions.failures import fail
from penstock.ops.functions.java_floats import print_double, to_longs
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.rows import each
from penstock.plan.exprs import Call, Literal

#: By Catalyst's name: Arrow's name of the rounding mode, and Python's.
_MODES: Final = {
    "Round": ("half_towards_infinity", decimal.ROUND_HALF_UP),
    "BRound": ("half_to_even", decimal.ROUND_HALF_EVEN),
    "Truncate": ("towards_zero", decimal.ROUND_DOWN),
    "ceil": ("up", decimal.ROUND_CEILING),
    "floor": ("down", decimal.ROUND_FLOOR),
    "Ceil": ("up", decimal.ROUND_CEILING),
    "Floor": ("down", decimal.ROUND_FLOOR),
}
_NEAREST: Final = frozenset({decimal.ROUND_HALF_UP, decimal.ROUND_HALF_EVEN})
#: Powers of ten up to this one are doubles without error.
_EXACT_POWERS: Final = 22


def _accepts(call: Call) -> str | None:
    return None if isinstance(call.args[1], Literal) else "rounding to a varying number of digits"


def _may_overflow(call: Call) -> bool:
    return call.is_ansi or pa.types.is_decimal(call.type)


@function(
    *("Round", "BRound", "Truncate", "ceil", "floor"),
    sql="round bround",
    raises=_may_overflow,
    accepts=_accepts,
)
def round_(call: Call, value: Datum, scale: pa.Scalar) -> Datum:
    """Catalyst's names of RoundCeil and RoundFloor are `ceil` and `floor`."""
    digits = scale.as_py()
    if digits is None:
        return pa.scalar(None, call.type)
    if pa.types.is_integer(value.type) and digits >= 0:
        return value
    (array,) = arrays(value)
    if pa.types.is_floating(value.type):
        result = _round_floats(array, digits, _MODES[call.function][1])
    elif digits >= 0:
        result = decimals.fit(array, call.type, is_ansi=False, mode=_MODES[call.function][0])
    else:
        result = _round_whole(call, array, digits)
    return result[0] if isinstance(value, pa.Scalar) else result


def _round_whole(call: Call, array: pa.Array, digits: int) -> pa.Array:
    """Before the point: exact, and each distinct value once, because it is rare."""
    unit, mode, type = Decimal(f"1E{-digits}"), _MODES[call.function][1], call.type
    is_decimal = pa.types.is_decimal(type)
    most = 10**type.precision if is_decimal else 2 ** (type.bit_width - 1)

    def round_one(value: Decimal | int) -> Decimal | int:
        whole = int(Decimal(value).quantize(unit, mode, decimals.EXACT))
        if is_decimal:
            if abs(whole) >= most:
                fail(decimals.CONDITION, f"a rounded decimal does not fit {type}")
            return Decimal(whole)
        if call.is_ansi and not -most <= whole < most:
            fail("ARITHMETIC_OVERFLOW", f"a rounded number does not fit {type}")
        return (whole + most) % (2 * most) - most

    return each(type, round_one, array)


def _round_floats(array: pa.Array, digits: int, mode: str) -> pa.Array:
    values = to_numpy(array).astype(np.float64)
    result = values.copy()
    todo = np.isfinite(values)
    if 0 <= digits <= _EXACT_POWERS and mode in _NEAREST:
        unit = 10.0**digits
        with np.errstate(all="ignore"):
            scaled = np.abs(values) * unit
            whole = np.floor(scaled + 0.5)
            # A tie may be only near: then the digits decide. All else is far from one.
            is_clear = np.abs(scaled - np.floor(scaled) - 0.5) > scaled * 2.0**-50
            is_clear &= todo & (scaled < 2.0**51)
        result[is_clear] = np.copysign(whole[is_clear] / unit, values[is_clear]) + 0.0
        todo &= ~is_clear
    unit_decimal = Decimal(f"1E{-digits}")
    # Row by row: no kernel rounds the decimal digits of a double.
    for row in np.flatnonzero(todo & ~nulls(array)).tolist():
        printed = Decimal(print_double(float(values[row])))
        result[row] = float(printed.quantize(unit_decimal, mode, decimals.EXACT))
    return pa.array(result, mask=nulls(array)).cast(array.type, safe=False)


@function("Ceil", "Floor", sql="ceil ceiling floor", raises=_may_overflow)
@on_arrays
def ceil_or_floor(call: Call, array: pa.Array) -> pa.Array:
    """To a long, or to a decimal without decimal places."""
    if array.type == call.type:
        return array
    if pa.types.is_decimal(array.type):
        return decimals.fit(array, call.type, is_ansi=True, mode=_MODES[call.function][0])
    values = to_numpy(array)
    whole = np.ceil(values) if call.function == "Ceil" else np.floor(values)
    if call.is_ansi and ((whole < -(2.0**63)) | (whole >= 2.0**63)).any():
        fail("ARITHMETIC_OVERFLOW", "long overflow")
    return pa.array(to_longs(whole), pa.int64(), mask=nulls(array))
