"""Dates and timestamps: their fields, their numbers since 1970, truncation, zones.

Everything is computed over NumPy vectors of days and microseconds (civil.py), so that years beyond
9999 are as good as others; UTC costs no more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions import civil
from penstock.ops.functions.alignment import Ints, Mask, on_arrays
from penstock.ops.functions.civil import (
    MICROS_PER_DAY,
    MICROS_PER_HOUR,
    MICROS_PER_MINUTE,
    MICROS_PER_SECOND,
)
from penstock.ops.functions.java_floats import to_longs
from penstock.ops.functions.operands import LONG_DIGITS, Operands, multiply_overflows
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.time_patterns import DAYS, MONTHS
from penstock.ops.functions.zones import Zone, find_zone, knows_zone, zone_of, zones_named
from penstock.plan.exprs import Call, Literal

_DAY_NAMES: Final = pa.array([name[:3] for name in DAYS])
_MONTH_NAMES: Final = pa.array([name[:3] for name in MONTHS])

# -- fields of a date


def _date_field(kind: str, sql: str, compute: Callable[[Ints], Ints]) -> None:
    @function(kind, sql=sql, raises=False)
    def field(call: Call, value: Datum) -> Datum:
        rows = Operands(value)
        return rows.result(compute(rows.vectors[0]), call.type)


_date_field("Year", "year extract date_part datepart", civil.years_of)
_date_field("Quarter", "quarter", lambda days: civil.months_of(days) % 12 // 3 + 1)
_date_field("Month", "month", lambda days: civil.months_of(days) % 12 + 1)
_date_field("DayOfMonth", "day dayofmonth", civil.days_of_month)
_date_field("DayOfYear", "dayofyear", civil.days_of_year)
_date_field("DayOfWeek", "dayofweek", lambda days: (civil.weekdays(days) + 1) % 7 + 1)
_date_field("WeekDay", "weekday", civil.weekdays)
_date_field(
    "WeekOfYear",
    "weekofyear",
    lambda days: (civil.days_of_year(civil.iso_thursdays(days)) - 1) // 7 + 1,
)
_date_field("YearOfWeek", "", lambda days: civil.years_of(civil.iso_thursdays(days)))


@function("DayName", sql="dayname", raises=False)
def day_name(call: Call, value: Datum) -> Datum:
    rows = Operands(value)
    return rows.answer(_DAY_NAMES.take(_index(civil.weekdays(rows.vectors[0]), rows)))


@function("MonthName", sql="monthname", raises=False)
def month_name(call: Call, value: Datum) -> Datum:
    rows = Operands(value)
    return rows.answer(_MONTH_NAMES.take(_index(civil.months_of(rows.vectors[0]) % 12, rows)))


def _index(places: Ints, rows: Operands) -> pa.Array:
    return pa.array(places, mask=rows.nulls)


# -- fields of a timestamp


def _time_field(kind: str, sql: str, unit: int, count: int) -> None:
    """`unit` microseconds make one; `count` of them make the next larger unit."""

    @function(kind, sql=sql, raises=False, accepts=knows_zone)
    def field(call: Call, value: Datum) -> Datum:
        rows = Operands(value)
        zone, micros = zone_of(call, value.type), rows.vectors[0]
        if zone.is_utc:  # the hot case: two divisions by constants
            return rows.result(micros // unit % count, call.type)
        return rows.result(zone.to_local(micros)[1] // unit % count, call.type)


_time_field("Hour", "hour", MICROS_PER_HOUR, 24)
_time_field("Minute", "minute", MICROS_PER_MINUTE, 60)
_time_field("Second", "second", MICROS_PER_SECOND, 60)
_time_field("SecondWithFraction", "", 1, MICROS_PER_MINUTE)


# -- numbers since 1970


def _floor_field(kind: str, sql: str, unit: int) -> None:
    @function(kind, sql=sql, raises=False)
    def since_epoch(call: Call, value: Datum) -> Datum:
        rows = Operands(value)
        return rows.result(rows.vectors[0] // unit, call.type)


_floor_field("UnixSeconds", "unix_seconds", MICROS_PER_SECOND)
_floor_field("CastTimestampNTZToLong", "", MICROS_PER_SECOND)
_floor_field("UnixMillis", "unix_millis", 1000)


@function(
    *("UnixMicros", "UnixDate", "MicrosToTimestamp", "DateFromUnixDate"),
    sql="unix_micros unix_date timestamp_micros date_from_unix_date",
    raises=False,
)
@on_arrays
def same_number(call: Call, value: pa.Array) -> pa.Array:
    """The same numbers under another type; narrow integers are widened."""
    if value.type.bit_width != call.type.bit_width:
        value = value.cast(pa.int64())
    return value.view(call.type)


@function("MillisToTimestamp", sql="timestamp_millis", raises=True)
def millis_to_timestamp(call: Call, value: Datum) -> Datum:
    return _scale_up(call, value, 1000)


def _plain_seconds(call: Call) -> str | None:
    type = call.args[0].type
    if pa.types.is_decimal(type) and (type.precision > LONG_DIGITS or type.scale > 6):
        return f"timestamp_seconds of {type}"
    return None


@function("SecondsToTimestamp", sql="timestamp_seconds", raises=True, accepts=_plain_seconds)
def seconds_to_timestamp(call: Call, value: Datum) -> Datum:
    """Fractions of floating point numbers are cut; what is no number, or infinite, gives null."""
    if pa.types.is_decimal(value.type):
        return _scale_up(call, value, 10 ** (6 - value.type.scale))
    if not pa.types.is_floating(value.type):
        return _scale_up(call, value, MICROS_PER_SECOND)
    rows = Operands(value)
    seconds = rows.vectors[0]
    finite = np.isfinite(seconds)
    return rows.result(
        to_longs(np.where(finite, seconds, 0) * MICROS_PER_SECOND), call.type, ~finite
    )


def _scale_up(call: Call, value: Datum, factor: int) -> Datum:
    rows = Operands(value)
    micros, wrong = multiply_overflows(rows.vectors[0], np.array([factor], np.int64))
    rows.fail_where(wrong, "DATETIME_OVERFLOW", "the timestamp is out of range")
    return rows.result(micros, call.type)


# -- truncation, and days beside a date


def _following(days: Ints, weekday: Ints | int) -> Ints:
    """The first day after each that is this day of the week; in 32 bits, which may wrap."""
    ahead = ((weekday + 4) % 7 - 1 - days).astype(np.int32).astype(np.int64) % 7
    return days + 1 + ahead


_DATE_LEVELS: Final[dict[str, Callable[[Ints], Ints]]] = {
    "WEEK": lambda days: _following((days - 7).astype(np.int32).astype(np.int64), 0),
    "MONTH": lambda days: civil.first_days(civil.months_of(days)),
    "QUARTER": lambda days: civil.first_days(civil.months_of(days) // 3 * 3),
    "YEAR": lambda days: civil.first_days(civil.months_of(days) // 12 * 12),
}
_TIME_LEVELS: Final = {
    "MICROSECOND": 1,
    "MILLISECOND": 1000,
    "SECOND": MICROS_PER_SECOND,
    "MINUTE": MICROS_PER_MINUTE,
    "HOUR": MICROS_PER_HOUR,
    "DAY": MICROS_PER_DAY,
}
_LEVEL_NAMES: Final = {"DD": "DAY", "MON": "MONTH", "MM": "MONTH", "YYYY": "YEAR", "YY": "YEAR"}


def _truncated(levels: Datum, truncate: Callable[[str], Ints | None]) -> tuple[Ints, Mask]:
    """Each row truncated to the level that it names, and where that is no level."""
    names = pa.repeat(levels, 1) if isinstance(levels, pa.Scalar) else levels
    codes = names.dictionary_encode()
    places = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    values, unknown = np.zeros(1, np.int64), np.ones(len(names), bool)
    for place, name in enumerate(codes.dictionary.to_pylist()):
        upper = name.upper()
        truncated = truncate(_LEVEL_NAMES.get(upper, upper))
        if truncated is not None:
            values = np.where(places == place, truncated, values)
            unknown &= places != place
    return values, unknown


@function("TruncDate", sql="trunc", raises=True, strict=True, order=(1, 0))
def trunc_date(call: Call, dates: Datum, levels: Datum) -> Datum:
    """Wraps around before the first date of 32 bits, except for quarters."""
    rows = Operands(dates, levels)

    def truncate(level: str) -> Ints | None:
        compute = _DATE_LEVELS.get(level)
        if compute is None:
            return None
        days = compute(rows.vectors[0])
        return days if level == "QUARTER" else days.astype(np.int32).astype(np.int64)

    values, unknown = _truncated(levels, truncate)
    fail_ints(rows, values, ~unknown)
    return rows.result(values, call.type, unknown)


@function("TruncTimestamp", sql="date_trunc", raises=True, accepts=knows_zone, strict=True)
def trunc_timestamp(call: Call, levels: Datum, times: Datum) -> Datum:
    rows = Operands(times, levels)
    zone = zone_of(call)

    def truncate(level: str) -> Ints | None:
        if level in _TIME_LEVELS:
            return _trunc_time(rows, zone, _TIME_LEVELS[level])
        compute = _DATE_LEVELS.get(level)
        return None if compute is None else _trunc_days(rows, zone, compute)

    values, unknown = _truncated(levels, truncate)
    return rows.result(values, call.type, unknown)


def _trunc_time(rows: Operands, zone: Zone, unit: int) -> Ints:
    micros = rows.vectors[0]
    if zone.is_utc or unit <= MICROS_PER_SECOND:
        truncated = micros - micros % unit
        fail_overflow(rows, truncated > micros)
        return truncated
    days, rest = zone.to_local(micros)
    offsets = zone.offsets_at(micros // MICROS_PER_SECOND)
    truncated, wrong = zone.from_local(days, rest - rest % unit, offsets)
    fail_overflow(rows, wrong)
    return truncated


def _trunc_days(rows: Operands, zone: Zone, compute: Callable[[Ints], Ints]) -> Ints:
    """Midnight with the offset of the timestamp itself, if that was the offset then."""
    micros = rows.vectors[0]
    days = compute(zone.to_local(micros)[0])
    starts, wrong = zone.day_starts(days)
    if not zone.is_fixed:
        offsets = zone.offsets_at(micros // MICROS_PER_SECOND)
        same, beyond = civil.join_micros(days, -offsets * MICROS_PER_SECOND)
        holds = ~beyond & (zone.offsets_at(same // MICROS_PER_SECOND) == offsets)
        starts, wrong = np.where(holds, same, starts), wrong & ~holds
    fail_overflow(rows, wrong)
    return starts


def fail_overflow(rows: Operands, wrong: Mask) -> None:
    """Spark fails here with Java's own exception, which has no condition."""
    rows.fail_where(wrong, "ARITHMETIC_OVERFLOW", "long overflow")


def fail_ints(rows: Operands, values: Ints, where: Mask | None = None) -> None:
    """Fail where days or months do not fit 32 bits."""
    wrong = (values < -(2**31)) | (values > 2**31 - 1)
    rows.fail_where(wrong if where is None else wrong & where, "ARITHMETIC_OVERFLOW", "integer")


@function("LastDay", sql="last_day", raises=False)
def last_day(call: Call, dates: Datum) -> Datum:
    rows = Operands(dates)
    return rows.result(civil.first_days(civil.months_of(rows.vectors[0]) + 1) - 1, call.type)


_DAYS_OF_WEEK: Final = {
    name: number
    for number, day in enumerate(name.upper() for name in DAYS)
    for name in (day, day[:3], day[:2])
}


@function("NextDay", sql="next_day", strict=True)
def next_day(call: Call, dates: Datum, names: Datum) -> Datum:
    """The first date after this one that has the named day of the week."""
    array = pa.repeat(names, 1) if isinstance(names, pa.Scalar) else names
    codes = array.dictionary_encode()
    numbers = [_DAYS_OF_WEEK.get(name.upper()) for name in codes.dictionary.to_pylist()]
    wanted = pa.array(numbers, pa.int64()).take(codes.indices)
    unknown = pc.and_(wanted.is_null(), array.is_valid()).to_numpy(zero_copy_only=False)
    rows = Operands(dates, names)
    days = rows.vectors[0]
    if call.is_ansi:
        rows.fail_where(unknown, "ILLEGAL_DAY_OF_WEEK", "no day of the week")
    target = wanted.fill_null(0).to_numpy(zero_copy_only=False)
    return rows.result(_following(days, target), call.type, unknown)


# -- the same clock in another zone


def _literal_zones(call: Call) -> str | None:
    """A constant zone that does not exist fails in Spark before any row is read."""
    for arg in call.args:
        if isinstance(arg, Literal) and pa.types.is_string(arg.type):
            name = arg.value.as_py()
            if name is not None and find_zone(name) is None:
                return f"{call.function} with the unknown time zone {name}"
    return None


@function(
    "FromUTCTimestamp", sql="from_utc_timestamp", raises=True, accepts=_literal_zones, strict=True
)
def from_utc(call: Call, times: Datum, zones: Datum) -> Datum:
    """What the zone's clock shows, as if that were UTC."""
    return _shift(call, times, zones, _show_clock)


@function(
    "ToUTCTimestamp", sql="to_utc_timestamp", raises=True, accepts=_literal_zones, strict=True
)
def to_utc(call: Call, times: Datum, zones: Datum) -> Datum:
    """The moment at which the zone's clock shows this."""
    return _shift(call, times, zones, _read_clock)


@function(
    "ConvertTimezone", sql="convert_timezone", raises=True, accepts=_literal_zones, strict=True
)
def convert_timezone(call: Call, sources: Datum, targets: Datum, times: Datum) -> Datum:
    """What the target's clock shows when the source's clock shows this."""
    moments = _shift(call, times, sources, _read_clock)
    return _shift(call, moments, targets, _show_clock)


def _show_clock(zone: Zone, micros: Ints) -> tuple[Ints, Mask]:
    return civil.join_micros(*zone.to_local(micros))


def _read_clock(zone: Zone, micros: Ints) -> tuple[Ints, Mask]:
    return zone.from_local(*civil.split_micros(micros))


def _shift(
    call: Call,
    times: Datum,
    zones: Datum,
    shift: Callable[[Zone, Ints], tuple[Ints, Mask]],
) -> Datum:
    """Each row shifted by the zone that it names."""
    rows = Operands(times, zones)
    values = np.zeros(1, np.int64)
    for zone, named in zones_named(zones, rows.nulls):
        shifted, wrong = shift(zone, rows.vectors[0])
        fail_overflow(rows, wrong & named)
        values = np.where(named, shifted, values)
    return rows.result(values, call.type)
