"""Sums and differences of dates, timestamps and intervals; dates and timestamps from their parts.

Adding days or months moves the calendar and keeps the clock, in the zone of the call; adding
microseconds moves along the line of time. Where a result does not fit, Spark fails in every mode.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions import civil
from penstock.ops.functions.alignment import Ints, Mask
from penstock.ops.functions.civil import (
    MICROS_PER_DAY,
    MICROS_PER_HOUR,
    MICROS_PER_MINUTE,
    MICROS_PER_SECOND,
)
from penstock.ops.functions.failures import arrow_errors
from penstock.ops.functions.operands import (
    Operands,
    add_overflows,
    divide_toward_zero,
    multiply_overflows,
)
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.times import fail_ints, fail_overflow
from penstock.ops.functions.zones import UTC_ZONE, Zone, knows_zone, zone_of, zones_named
from penstock.plan.exprs import Call

# -- dates


@function("DateAdd", sql="date_add dateadd", raises=False, strict=True)
def date_add(call: Call, dates: Datum, days: Datum) -> Datum:
    """Wraps around, as Spark's does."""
    rows = Operands(dates, days)
    return rows.result(rows.vectors[0] + rows.vectors[1], call.type)


@function("DateSub", sql="date_sub", raises=False, strict=True)
def date_sub(call: Call, dates: Datum, days: Datum) -> Datum:
    rows = Operands(dates, days)
    return rows.result(rows.vectors[0] - rows.vectors[1], call.type)


@function("DateDiff", sql="datediff date_diff", raises=False, strict=True)
def date_diff(call: Call, end: Datum, start: Datum) -> Datum:
    rows = Operands(end, start)
    return rows.result(rows.vectors[0] - rows.vectors[1], call.type)


@function("AddMonths", "DateAddYMInterval", sql="add_months", raises=True, strict=True)
def add_months(call: Call, dates: Datum, months: Datum) -> Datum:
    rows = Operands(dates, months)
    days = civil.add_months(*rows.vectors)
    fail_ints(rows, days)
    return rows.result(days, call.type)


def _no_legacy_interval(call: Call) -> str | None:
    if call.option("legacyInterval") is True:
        return f"{call.function} with spark.sql.legacy.interval.enabled"
    return None


@function("SubtractDates", raises=True, accepts=_no_legacy_interval, strict=True)
def subtract_dates(call: Call, left: Datum, right: Datum) -> Datum:
    rows = Operands(left, right)
    days = rows.vectors[0] - rows.vectors[1]
    micros, wrong = multiply_overflows(days, np.array([MICROS_PER_DAY], np.int64))
    fail_overflow(rows, wrong | (days < -(2**31)) | (days > 2**31 - 1))
    return rows.result(micros, call.type)


@function("DateAddInterval", raises=True, accepts=knows_zone, strict=True)
def date_add_interval(call: Call, dates: Datum, intervals: Datum) -> Datum:
    """With parts of a day only when not in ANSI mode, and then what is left of a day is cut."""
    rows = Operands(dates, intervals)
    days, calendar = rows.vectors
    micros = calendar["nanos"] // 1000
    if call.is_ansi:
        rows.fail_where(micros != 0, "INVALID_INTERVAL_WITH_MICROSECONDS_ADDITION")
    moved = civil.add_months(days, calendar["months"].astype(np.int64)) + calendar["days"]
    if not call.is_ansi and micros.any():
        zone = zone_of(call)
        starts, wrong = zone.day_starts(days)
        times, beyond = _add_calendar(zone, starts, calendar)
        fail_overflow(rows, (wrong | beyond) & (micros != 0))
        moved = np.where(micros != 0, zone.to_local(times)[0], moved)
    fail_ints(rows, moved)
    return rows.result(moved, call.type)


# -- timestamps


@function("TimestampAddInterval", sql="+ -", raises=True, accepts=knows_zone, strict=True)
def timestamp_add_interval(call: Call, times: Datum, intervals: Datum) -> Datum:
    zone = zone_of(call, times.type)
    if zone.is_utc and pa.types.is_duration(intervals.type):
        with arrow_errors("ARITHMETIC_OVERFLOW", "long overflow"):
            return pc.add_checked(times, intervals)
    rows = Operands(times, intervals)
    micros, amounts = rows.vectors
    if pa.types.is_duration(intervals.type):
        days = divide_toward_zero(amounts, MICROS_PER_DAY)
        moved, wrong = _add_days(zone, micros, days)
        moved, beyond = add_overflows(moved, amounts - days * MICROS_PER_DAY)
    else:
        moved, beyond = _add_calendar(zone, micros, amounts)
        wrong = np.zeros(1, bool)
    fail_overflow(rows, wrong | beyond)
    return rows.result(moved, call.type)


@function("TimestampAddYMInterval", raises=True, accepts=knows_zone, strict=True)
def timestamp_add_months(call: Call, times: Datum, months: Datum) -> Datum:
    rows = Operands(times, months)
    moved, wrong = _add_months(zone_of(call, times.type), *rows.vectors)
    fail_overflow(rows, wrong)
    return rows.result(moved, call.type)


def _add_months(zone: Zone, micros: Ints, months: Ints) -> tuple[Ints, Mask]:
    days, rest = zone.to_local(micros)
    return _at_clock(zone, micros, civil.add_months(days, months), rest)


def _add_days(zone: Zone, micros: Ints, amount: Ints) -> tuple[Ints, Mask]:
    days, rest = zone.to_local(micros)
    return _at_clock(zone, micros, days + amount, rest)


def _at_clock(zone: Zone, micros: Ints, days: Ints, rest: Ints) -> tuple[Ints, Mask]:
    """The moment of a local time; the offset of the moment it was made from is preferred."""
    return zone.from_local(days, rest, zone.offsets_at(micros // MICROS_PER_SECOND))


def _add_calendar(zone: Zone, micros: Ints, calendar: np.ndarray) -> tuple[Ints, Mask]:
    """Months, then days, then microseconds, each resolved in the zone."""
    moved, wrong = _add_months(zone, micros, calendar["months"].astype(np.int64))
    moved, beyond = _add_days(zone, moved, calendar["days"].astype(np.int64))
    moved, over = add_overflows(moved, calendar["nanos"] // 1000)
    return moved, wrong | beyond | over


def _zone_and_no_legacy(call: Call) -> str | None:
    return _no_legacy_interval(call) or knows_zone(call)


@function("SubtractTimestamps", raises=True, accepts=_zone_and_no_legacy, strict=True)
def subtract_timestamps(call: Call, left: Datum, right: Datum) -> Datum:
    """By what the clock shows: a day with 23 hours is a day."""
    zone = zone_of(call, left.type)
    if zone.is_fixed:
        with arrow_errors("ARITHMETIC_OVERFLOW", "long overflow"):
            return pc.subtract_checked(left, right)
    rows = Operands(left, right)
    micros, wrong = _clock_difference(zone, rows.vectors[1], rows.vectors[0])
    fail_overflow(rows, wrong)
    return rows.result(micros, call.type)


def _clock_difference(zone: Zone, start: Ints, end: Ints) -> tuple[Ints, Mask]:
    days, rest = zone.to_local(end)
    start_days, start_rest = zone.to_local(start)
    return civil.join_micros(days - start_days, rest - start_rest)


#: Of months, days and microseconds, how many one unit has.
_UNITS: Final = {
    "YEAR": (12, 0, 0),
    "QUARTER": (3, 0, 0),
    "MONTH": (1, 0, 0),
    "WEEK": (0, 7, 0),
    "DAY": (0, 1, 0),
    "DAYOFYEAR": (0, 1, 0),
    "HOUR": (0, 0, MICROS_PER_HOUR),
    "MINUTE": (0, 0, MICROS_PER_MINUTE),
    "SECOND": (0, 0, MICROS_PER_SECOND),
    "MILLISECOND": (0, 0, 1000),
    "MICROSECOND": (0, 0, 1),
}


def _known_unit(call: Call) -> str | None:
    unit = str(call.option("unit")).upper()
    if unit not in _UNITS or (call.function == "TimestampDiff" and unit == "DAYOFYEAR"):
        return f"{call.function} with the unit {unit}"
    return knows_zone(call)


@function("TimestampAdd", sql="timestampadd", raises=True, accepts=_known_unit, strict=True)
def timestamp_add(call: Call, amounts: Datum, times: Datum) -> Datum:
    rows = Operands(amounts, times)
    amount, micros = rows.vectors
    zone = zone_of(call, times.type)
    months, days, ticks = _UNITS[str(call.option("unit")).upper()]
    factor = np.array([months or days or ticks], np.int64)
    total, wrong = multiply_overflows(amount, factor)
    if ticks:
        moved, beyond = add_overflows(micros, total)
    else:
        wrong = wrong | (total < -(2**31)) | (total > 2**31 - 1)
        total = np.where(wrong, 0, total)
        add = _add_months if months else _add_days
        moved, beyond = add(zone, micros, total)
    rows.fail_where(wrong | beyond, "DATETIME_OVERFLOW", "timestampadd")
    return rows.result(moved, call.type)


@function("TimestampDiff", sql="timestampdiff", raises=True, accepts=_known_unit, strict=True)
def timestamp_diff(call: Call, start: Datum, end: Datum) -> Datum:
    """Whole units that the clock passes, cut toward zero."""
    rows = Operands(start, end)
    zone = zone_of(call, end.type)
    months, days, ticks = _UNITS[str(call.option("unit")).upper()]
    if ticks:
        micros, wrong = _clock_difference(zone, *rows.vectors)
        fail_overflow(rows, wrong)
        return rows.result(divide_toward_zero(micros, ticks), call.type)
    start_days, start_rest = zone.to_local(rows.vectors[0])
    end_days, end_rest = zone.to_local(rows.vectors[1])
    short = np.where(end_days > start_days, end_rest < start_rest, False)
    over = np.where(end_days < start_days, end_rest > start_rest, False)
    end_days = end_days - short + over
    if days:
        return rows.result(divide_toward_zero(end_days - start_days, days), call.type)
    packed = _packed(end_days) - _packed(start_days)
    return rows.result(divide_toward_zero(divide_toward_zero(packed, 32), months), call.type)


def _packed(days: Ints) -> Ints:
    """Months and days of the month in one number that orders like the date."""
    return civil.months_of(days) * 32 + civil.days_of_month(days)


@function("MonthsBetween", sql="months_between", raises=True, accepts=knows_zone, strict=True)
def months_between(call: Call, end: Datum, start: Datum, is_rounded: Datum) -> Datum:
    """A month has 31 days here; equal days of the month, and two last days, make whole months."""
    rows = Operands(end, start, is_rounded)
    zone = zone_of(call)
    parts = []
    wrong = np.zeros(1, bool)
    for micros in rows.vectors[:2]:
        days, _ = zone.to_local(micros)
        starts, beyond = zone.day_starts(days)
        rest = micros - starts  # since the start of the day, not what the clock shows
        wrong = wrong | beyond
        months = civil.months_of(days)
        day = days - civil.first_days(months) + 1
        is_last = day == civil.month_lengths(months)
        parts.append((months, day, is_last, rest // MICROS_PER_SECOND))
    (months1, day1, last1, second1), (months2, day2, last2, second2) = parts
    whole = (months1 - months2).astype(np.float64)
    seconds = (day1 - day2) * civil.SECONDS_PER_DAY + second1 - second2
    exact = whole + seconds / (31.0 * civil.SECONDS_PER_DAY)
    scaled = exact * 1e8
    floor = np.floor(scaled)
    rounded = (floor + (scaled - floor >= 0.5)) / 1e8
    result = np.where(rows.vectors[2].astype(bool), rounded, exact)
    is_whole = (day1 == day2) | (last1 & last2)
    fail_overflow(rows, wrong & ~is_whole)
    return rows.result(np.where(is_whole, whole, result), call.type)


# -- from parts


@function("MakeDate", sql="make_date", raises=True, strict=True)
def make_date(call: Call, years: Datum, months: Datum, days: Datum) -> Datum:
    rows = Operands(years, months, days)
    made, wrong = civil.date_of(*rows.vectors)
    if call.is_ansi:
        rows.fail_where(wrong, "DATETIME_FIELD_OUT_OF_BOUNDS", "no such date")
    fail_ints(rows, made, ~wrong)
    return rows.result(made, call.type, wrong)


@function(
    "make_timestamp",
    sql="make_timestamp make_timestamp_ltz make_timestamp_ntz try_make_timestamp"
    " try_make_timestamp_ltz try_make_timestamp_ntz",
    raises=True,
    accepts=knows_zone,
    strict=True,
)
def make_timestamp(call: Call, *parts: Datum) -> Datum:
    """Year, month, day, hour, minute, seconds as decimal(16, 6), and perhaps a zone.

    Spark cuts the seconds to 32 bits of microseconds, and takes 60 for the next minute.
    """
    rows = Operands(*parts)
    years, months, days, hours, minutes, seconds = rows.vectors[:6]
    made, wrong = civil.date_of(years, months, days)
    wrong = wrong | (hours < 0) | (hours > 23) | (minutes < 0) | (minutes > 59)
    micros = seconds.astype(np.int32).astype(np.int64)
    bad_fraction = ~wrong & (micros > 60 * MICROS_PER_SECOND) & (micros < 61 * MICROS_PER_SECOND)
    wrong = wrong | (micros < 0) | (micros >= 61 * MICROS_PER_SECOND)
    if call.is_ansi:
        rows.fail_where(wrong, "DATETIME_FIELD_OUT_OF_BOUNDS", "no such date or time")
        rows.fail_where(bad_fraction, "INVALID_FRACTION_OF_SECOND")
    wrong = wrong | bad_fraction
    rest = (hours * 60 + minutes) * 60 * MICROS_PER_SECOND + micros
    values = np.zeros(1, np.int64)
    for zone, chosen in _zones_of_rows(call, parts, rows):
        moments, beyond = zone.from_local(made, rest)
        fail_overflow(rows, beyond & ~wrong & chosen)
        values = np.where(chosen, moments, values)
    return rows.result(values, call.type, wrong)


def _zones_of_rows(call: Call, parts: tuple[Datum, ...], rows: Operands) -> list[tuple[Zone, Mask]]:
    """The zones to resolve local times in, each with its rows."""
    if call.type.tz is None:
        return [(UTC_ZONE, np.ones(1, bool))]
    if len(parts) == 7:
        return list(zones_named(parts[6], rows.nulls))
    return [(zone_of(call), np.ones(1, bool))]
