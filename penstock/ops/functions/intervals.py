"""Intervals: made from parts, taken apart, multiplied and divided by numbers.

A year-month interval is int32 months, a day-time interval is microseconds (a duration), a calendar
interval has months, days and nanoseconds apart (Spark's microseconds times 1000: more than 292
years of them do not fit, and fail).
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.ops.functions.alignment import Ints, Mask
from penstock.ops.functions.civil import MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MINUTE
from penstock.ops.functions.java_floats import to_longs
from penstock.ops.functions.operands import (
    CALENDAR_DTYPE,
    LONG_DIGITS,
    Operands,
    add_overflows,
    divide_toward_zero,
    multiply_overflows,
    remainder,
)
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.times import fail_ints
from penstock.plan.exprs import Call

#: Spark multiplies and divides decimals with this many digits and cuts the rest.
_DECIMALS: Final = decimal.Context(prec=39, rounding=decimal.ROUND_DOWN)

# -- parts


def _part(kinds: tuple[str, str], sql: str, compute: Callable[[Ints], Ints]) -> None:
    """Register the part of an ANSI interval, and the same of a calendar interval."""

    @function(kinds[0], sql=sql, raises=False)
    def of_ansi(call: Call, value: Datum) -> Datum:
        rows = Operands(value)
        return rows.result(compute(rows.vectors[0]), call.type)

    @function(kinds[1], raises=False)
    def of_calendar(call: Call, value: Datum) -> Datum:
        rows = Operands(value)
        calendar = rows.vectors[0]
        is_months = kinds[1] in ("ExtractIntervalYears", "ExtractIntervalMonths")
        counted = calendar["months"].astype(np.int64) if is_months else calendar["nanos"] // 1000
        return rows.result(compute(counted), call.type)


_part(
    ("ExtractANSIIntervalYears", "ExtractIntervalYears"),
    "",
    lambda months: divide_toward_zero(months, 12),
)
_part(
    ("ExtractANSIIntervalMonths", "ExtractIntervalMonths"),
    "",
    lambda months: remainder(months, 12),
)
_part(
    ("ExtractANSIIntervalHours", "ExtractIntervalHours"),
    "",
    lambda micros: divide_toward_zero(remainder(micros, MICROS_PER_DAY), MICROS_PER_HOUR),
)
_part(
    ("ExtractANSIIntervalMinutes", "ExtractIntervalMinutes"),
    "",
    lambda micros: divide_toward_zero(remainder(micros, MICROS_PER_HOUR), MICROS_PER_MINUTE),
)
_part(
    ("ExtractANSIIntervalSeconds", "ExtractIntervalSeconds"),
    "",
    lambda micros: remainder(micros, MICROS_PER_MINUTE),
)


@function("ExtractANSIIntervalDays", raises=False)
def interval_days(call: Call, value: Datum) -> Datum:
    rows = Operands(value)
    return rows.result(divide_toward_zero(rows.vectors[0], MICROS_PER_DAY), call.type)


@function("ExtractIntervalDays", raises=True)
def calendar_days(call: Call, value: Datum) -> Datum:
    rows = Operands(value)
    calendar = rows.vectors[0]
    days = calendar["days"] + divide_toward_zero(calendar["nanos"] // 1000, MICROS_PER_DAY)
    fail_ints(rows, days)
    return rows.result(days, call.type)


# -- from parts


def _time_total(parts: list[Ints], units: tuple[int, ...]) -> tuple[Ints, Mask]:
    """Microseconds of parts in these units, summed up in order, and where they do not fit."""
    total, wrong = parts[-1], np.zeros(1, bool)
    for part, unit in zip(parts[:-1], units, strict=True):
        product, beyond = multiply_overflows(part, np.array([unit], np.int64))
        total, over = add_overflows(total, product)
        wrong = wrong | beyond | over
    return total, wrong


@function("MakeDTInterval", sql="make_dt_interval", raises=True, strict=True)
def make_day_time(call: Call, *parts: Datum) -> Datum:
    rows = Operands(*parts)
    total, wrong = _time_total(rows.vectors, (MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MINUTE))
    rows.fail_where(wrong, "INTERVAL_ARITHMETIC_OVERFLOW")
    return rows.result(total, call.type)


@function("MakeYMInterval", sql="make_ym_interval", raises=True, strict=True)
def make_year_month(call: Call, years: Datum, months: Datum) -> Datum:
    rows = Operands(years, months)
    # Spark multiplies and adds in 32 bits, so it overflows on the way where the sum would fit.
    yearly = rows.vectors[0] * 12
    total = yearly + rows.vectors[1]
    wrong = (np.abs(yearly + 0.5) > 2**31) | (np.abs(total + 0.5) > 2**31)
    rows.fail_where(wrong, "INTERVAL_ARITHMETIC_OVERFLOW")
    return rows.result(total, call.type)


@function("MakeInterval", sql="make_interval try_make_interval", raises=True, strict=True)
def make_interval(call: Call, *parts: Datum) -> Datum:
    """Years, months, weeks, days, hours, minutes, seconds as decimal(18, 6)."""
    rows = Operands(*parts)
    years, months, weeks, days = rows.vectors[:4]
    yearly, weekly = years * 12, weeks * 7
    total, wrong = _time_total(rows.vectors[4:], (MICROS_PER_HOUR, MICROS_PER_MINUTE))
    for number in (yearly, weekly, yearly + months, weekly + days):
        wrong = wrong | (np.abs(number + 0.5) > 2**31)
    if call.is_ansi:
        rows.fail_where(wrong, "ARITHMETIC_OVERFLOW", "interval")
    wrong_nanos = _beyond_nanos(total) & ~wrong
    rows.fail_where(wrong_nanos, "ARITHMETIC_OVERFLOW", "more than 292 years of microseconds")
    made = _calendar(yearly + months, weekly + days, total)
    return rows.result(made, call.type, wrong)


def _beyond_nanos(micros: Ints) -> Mask:
    return np.abs(micros) > (2**63 - 1) // 1000


def _calendar(months: Ints, days: Ints, micros: Ints) -> np.ndarray:
    shape = np.broadcast_shapes(months.shape, days.shape, micros.shape)
    made = np.empty(shape, CALENDAR_DTYPE)
    made["months"], made["days"], made["nanos"] = months, days, micros * 1000
    return made


# -- times and divided by a number


def _multiply(kind: str, low: int, high: int) -> None:
    @function(kind, sql="*", raises=True, accepts=_short_decimal, strict=True)
    def multiply(call: Call, intervals: Datum, numbers: Datum) -> Datum:
        rows = Operands(intervals, numbers)
        amounts, by = rows.vectors
        if pa.types.is_decimal(numbers.type):
            return _exactly(call, rows, numbers.type.scale, _DECIMALS.multiply, low, high)
        if pa.types.is_floating(numbers.type):
            with np.errstate(over="ignore", invalid="ignore"):
                return _rounded(call, rows, amounts * by, low, high)
        product, wrong = multiply_overflows(amounts, by)
        wrong = wrong | (product < low) | (product > high)
        rows.fail_where(wrong, "ARITHMETIC_OVERFLOW", "interval")
        return rows.result(product, call.type)


def _divide(kind: str, low: int, high: int) -> None:
    @function(kind, sql="/", raises=True, accepts=_short_decimal, strict=True)
    def divide(call: Call, intervals: Datum, numbers: Datum) -> Datum:
        rows = Operands(intervals, numbers)
        amounts, by = rows.vectors
        rows.fail_where(by == 0, "INTERVAL_DIVIDED_BY_ZERO")
        if pa.types.is_decimal(numbers.type):
            return _exactly(call, rows, numbers.type.scale, _DECIMALS.divide, low, high)
        by = np.where(by == 0, 1, by)  # only where the row is null
        if pa.types.is_floating(numbers.type):
            with np.errstate(over="ignore", invalid="ignore"):
                return _rounded(call, rows, amounts / by, low, high)
        rows.fail_where((amounts == low) & (by == -1), "ARITHMETIC_OVERFLOW", "interval")
        return rows.result(_divide_half_up(amounts, by), call.type)


def _short_decimal(call: Call) -> str | None:
    type = call.args[1].type
    if pa.types.is_decimal(type) and type.precision > LONG_DIGITS:
        return f"an interval and a number of {type}"
    return None


def _divide_half_up(amounts: Ints, by: Ints) -> Ints:
    """Rounded to the nearest, halves away from zero."""
    quotient = amounts // by
    rest = amounts - quotient * by  # has the sign of `by`, and is smaller
    # Twice the rest may not fit; the rest against what is missing to the next multiple does.
    missing = by - rest
    is_exact, is_negative = rest == 0, (amounts < 0) != (by < 0)
    up = np.where(is_negative, np.abs(rest) > np.abs(missing), np.abs(rest) >= np.abs(missing))
    return quotient + (up & ~is_exact)


def _rounded(call: Call, rows: Operands, exact: np.ndarray, low: int, high: int) -> Datum:
    """To the nearest, halves away from zero; what does not fit fails."""
    finite = np.isfinite(exact)
    safe = np.where(finite, exact, 0)
    cut = np.trunc(safe)
    nearest = cut + np.where(np.abs(safe - cut) >= 0.5, np.sign(safe), 0)
    # The largest long is no double; a double equal to 2**63 does not fit.
    wrong = ~finite | (nearest < low) | (nearest > high) | (nearest >= 2.0**63)
    rows.fail_where(wrong, "ARITHMETIC_OVERFLOW", "interval")
    return rows.result(to_longs(nearest), call.type)


def _exactly(
    call: Call,
    rows: Operands,
    scale: int,
    operate: Callable[[decimal.Decimal, decimal.Decimal], decimal.Decimal],
    low: int,
    high: int,
) -> Datum:
    amounts, numbers = np.broadcast_arrays(*rows.vectors)
    results = np.zeros(len(amounts), np.int64)
    wrong = np.zeros(len(amounts), bool)
    unit = decimal.Decimal(1)
    rounding = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)
    present = np.ones(len(amounts), bool) if rows.nulls is None else ~rows.nulls
    # Numbers of more than 64 bits and their rounding: no column kernel has both.
    for row in np.flatnonzero(np.broadcast_to(present, len(amounts))):
        by = decimal.Decimal(int(numbers[row])).scaleb(-scale, context=rounding)
        exact = operate(decimal.Decimal(int(amounts[row])), by)
        value = int(exact.quantize(unit, context=rounding))
        wrong[row] = not low <= value <= high
        results[row] = 0 if wrong[row] else value
    rows.fail_where(wrong, "ARITHMETIC_OVERFLOW", "interval")
    return rows.result(results, call.type)


_multiply("MultiplyYMInterval", -(2**31), 2**31 - 1)
_multiply("MultiplyDTInterval", -(2**63), 2**63 - 1)
_divide("DivideYMInterval", -(2**31), 2**31 - 1)
_divide("DivideDTInterval", -(2**63), 2**63 - 1)


@function("MultiplyInterval", raises=True, strict=True)
def multiply_calendar(call: Call, intervals: Datum, numbers: Datum) -> Datum:
    rows = Operands(intervals, numbers)
    calendar, by = rows.vectors
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [calendar["months"] * by, calendar["days"] * by, calendar["nanos"] // 1000 * by]
    return _from_doubles(call, rows, parts, np.zeros(1, bool))


@function("DivideInterval", raises=True, strict=True)
def divide_calendar(call: Call, intervals: Datum, numbers: Datum) -> Datum:
    rows = Operands(intervals, numbers)
    calendar, by = rows.vectors
    zero = by == 0
    if call.is_ansi:
        rows.fail_where(zero, "INTERVAL_DIVIDED_BY_ZERO")
    by = np.where(zero, 1, by)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [calendar["months"] / by, calendar["days"] / by, calendar["nanos"] // 1000 / by]
    return _from_doubles(call, rows, parts, zero)


def _from_doubles(call: Call, rows: Operands, parts: list[np.ndarray], nulls: Mask) -> Datum:
    """Fractions of months are cut, those of days become microseconds."""
    with np.errstate(over="ignore", invalid="ignore"):
        months, days = (to_longs(part) for part in parts[:2])
        if call.is_ansi:
            fail_ints(rows, months, ~nulls)
            fail_ints(rows, days, ~nulls)
        days = np.clip(days, -(2**31), 2**31 - 1)
        exact = np.nan_to_num(parts[2] + MICROS_PER_DAY * (parts[1] - days), nan=0.0)
    floor = np.floor(exact)
    micros = to_longs(floor + (exact - floor >= 0.5))
    rows.fail_where(_beyond_nanos(micros) & ~nulls, "ARITHMETIC_OVERFLOW", "292 years")
    months = np.clip(months, -(2**31), 2**31 - 1)
    return rows.result(_calendar(months, days, micros), call.type, nulls)


# -- sums of calendar intervals, for the operators of numbers.py


def add_calendars(call: Call, left: Datum, right: Datum) -> Datum:
    """Part by part."""
    return _sum(call, left, right, 1)


def subtract_calendars(call: Call, left: Datum, right: Datum) -> Datum:
    """Part by part."""
    return _sum(call, left, right, -1)


def negate_calendar(call: Call, value: Datum) -> Datum:
    """Every part."""
    zero = pa.scalar(pa.MonthDayNano((0, 0, 0)), call.type)
    return _sum(call, zero, value, -1)


def _sum(call: Call, left: Datum, right: Datum, sign: int) -> Datum:
    rows = Operands(left, right)
    lefts, rights = rows.vectors
    months, days = (
        lefts[part].astype(np.int64) + sign * rights[part] for part in ("months", "days")
    )
    micros = lefts["nanos"] // 1000 + sign * (rights["nanos"] // 1000)
    wide = (np.abs(months + 0.5) > 2**31) | (np.abs(days + 0.5) > 2**31)
    nulls = wide if call.is_try else None
    if call.is_ansi:
        rows.fail_where(wide, "ARITHMETIC_OVERFLOW", "interval")
    rows.fail_where(_beyond_nanos(micros), "ARITHMETIC_OVERFLOW", "292 years")
    return rows.result(_calendar(months, days, micros), call.type, nulls)
