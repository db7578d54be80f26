"""How Java 17 prints float and double, and cuts them to integers.

Printed are the shortest digits that read back as the same number,
with exceptions that Java has until version 18: integers beyond the significand, powers of two, very
large and subnormal numbers get the digits of the old algorithm, which is redone here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from penstock.ops.functions.alignment import Ints, Values


@dataclass(frozen=True, slots=True)
class _Format:
    """The binary format: bits of the significand, exponent of the least normal number."""

    bits: int
    least_exponent: int


_DOUBLE = _Format(53, -1022)
_SINGLE = _Format(24, -126)
_LOG_2 = 0.301029995663981


def to_integers(values: Values, least: int, most: int) -> Ints:
    """Java's cast to an integer: NaN is 0, and what is too large is the largest."""
    with np.errstate(invalid="ignore"):
        longs = np.nan_to_num(np.trunc(values), nan=0.0, posinf=0.0, neginf=0.0)
        inside = np.where((longs >= 2.0**63) | (longs < -(2.0**63)), 0.0, longs).astype(np.int64)
        inside = np.where(values >= float(most), most, inside)
        return np.where(values <= float(least), least, inside).astype(np.int64)


def to_longs(values: Values) -> Ints:
    """Java's cast to long."""
    return to_integers(values, -(2**63), 2**63 - 1)


def print_double(value: float) -> str:
    """Java's Double.toString; where it needs no exponent, Python's repr is the same."""
    return repr(value) if 1e-3 <= abs(value) < 1e7 else _print(value, _DOUBLE)


def print_float(value: float) -> str:
    """Java's Float.toString of a value that is a float32."""
    return _print(value, _SINGLE)


def _print(value: float, format: _Format) -> str:
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if value == 0.0:
        return f"{sign}0.0"
    digits, exponent = _digits(abs(value), format)
    return sign + _layout(digits, exponent)


def _layout(digits: str, exponent: int) -> str:
    """Digits d.ddd times 10^exponent: plain from 10^-3 up to 10^7, else with an exponent."""
    if 0 <= exponent < 7:
        digits = digits.ljust(exponent + 2, "0")
        return f"{digits[: exponent + 1]}.{digits[exponent + 1 :]}"
    if -3 <= exponent < 0:
        return f"0.{'0' * (-exponent - 1)}{digits}"
    return f"{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _digits(value: float, format: _Format) -> tuple[str, int]:
    """Significant digits without trailing zeros, and the exponent of the first."""
    fraction, exponent = math.frexp(value)
    exponent -= 1
    if value.is_integer() and format.bits <= exponent < 63:
        return _integer_digits(int(value), exponent, format)
    is_odd = exponent >= 63 or exponent < format.least_exponent
    if is_odd or (fraction == 0.5 and exponent < -4):
        return _old_digits(value, fraction, exponent, format)
    if format is _DOUBLE:
        mantissa, _, power = f"{Decimal(repr(value)):E}".partition("E")
    else:
        mantissa, _, power = np.format_float_scientific(np.float32(value), trim="-").partition("e")
    return mantissa.replace(".", "").rstrip("0"), int(power)


def _integer_digits(value: int, exponent: int, format: _Format) -> tuple[str, int]:
    """All digits but those that the significand cannot tell apart anyhow."""
    spare = exponent - format.bits - 1
    dropped = int(spare * math.log10(2)) if spare > 1 else 0
    if dropped:
        value, rest = divmod(value, 10**dropped)
        value += rest >= 10**dropped // 2
    text = str(value)
    return text.rstrip("0"), len(text) - 1 + dropped


def _old_digits(value: float, fraction: float, exponent: int, format: _Format) -> tuple[str, int]:
    """Digits until the rest is less than half the distance to the neighbours.

    That distance is taken as equal on both sides, and a subnormal number's as if it had only the
    bits it has. b / s is the value scaled to its first digit, m / s half the distance.
    """
    significant = format.bits - max(0, format.least_exponent - exponent)
    bits = int(fraction * 2**53)
    bits //= bits & -bits
    width = bits.bit_length()
    tiny = max(0, width - exponent - 1)
    # Java's estimate of the first digit's exponent: right, or one too large.
    power = math.floor((fraction * 2 - 1.5) * 0.289529654 + 0.176091259 + exponent * _LOG_2)
    fives, s_fives = max(0, -power), max(0, power)
    twos, s_twos = fives + tiny + exponent, s_fives + tiny
    m_twos = twos - significant
    twos -= width - 1
    shared = min(twos, s_twos)
    twos, s_twos, m_twos = twos - shared, s_twos - shared, m_twos - shared
    m_twos -= width == 1
    below = min(m_twos, 0)
    twos, s_twos, m_twos = twos - below, s_twos - below, m_twos - below
    is_long = (
        width + twos + _bits_of_five(fives) < 64 and s_twos + 1 + _bits_of_five(s_fives + 1) < 64
    )
    return _develop(
        bits * 5**fives << twos, 5**s_fives << s_twos, 5**fives << m_twos, power, is_long
    )


def _bits_of_five(power: int) -> int:
    if power == 0:
        return 0
    return (5**power).bit_length() if power < 27 else power * 3


def _develop(b: int, s: int, m: int, power: int, is_long: bool) -> tuple[str, int]:
    """The digits. With longs, Java stops at the upper end a bit later, and lets m overflow."""
    digits: list[int] = []
    low = high = False
    is_first = True
    while not (low or high):
        digit, b = divmod(b, s)
        b, m = b * 10, m * 10
        if is_long:
            m = _wrap(m)
            low, high = (b < m, _wrap(b + m) > 10 * s) if m > 0 else (True, True)
        else:
            low, high = b < m, b + m >= 10 * s
        if is_first and digit == 0 and not high:
            power -= 1
        else:
            digits.append(digit)
        # In the form with an exponent the first digit never stands alone.
        if is_first and not -3 <= power < 8:
            low = high = False
        is_first = False
    beyond = 2 * b - 10 * s
    if high and (not low or beyond > 0 or (beyond == 0 and digits[-1] % 2)):
        rounded = int("".join(map(str, digits))) + 1
        text = str(rounded).zfill(len(digits))
        power += len(text) - len(digits)
    else:
        text = "".join(map(str, digits))
    return text.rstrip("0"), power


def _wrap(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
