"""Dates, timestamps, intervals and zones: our functions against batch Spark's.

What Python cannot show (years beyond 9999) is compared as numbers: unix_micros, unix_date.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails, session_setting
from pyspark.errors import PySparkException

from penstock.testing.oracle import Failed, plan_streaming, run_ours

ZONE = "spark.sql.session.timeZone"
ROWS = 150
ZONED, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
#: Moments at which something happens to calendars or clocks.
EDGES = [
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(1970, 1, 1),
    datetime(1900, 2, 28, 23, 59, 59),
    datetime(2000, 2, 29, 12),
    datetime(2021, 3, 28, 0, 59, 59, 999999),
    datetime(2021, 3, 28, 1),
    datetime(2021, 3, 28, 2, 30),
    datetime(2021, 10, 31, 0, 30),
    datetime(2021, 10, 31, 1, 30),
    datetime(2021, 10, 31, 2, 30),
    datetime(2021, 11, 7, 4, 30),
    datetime(2021, 11, 7, 5, 30),
    datetime(2021, 11, 7, 6, 30),
    datetime(2021, 3, 14, 5, 30),
    datetime(2021, 3, 14, 7, 30),
    datetime(2024, 12, 30, 8),
    datetime(2020, 12, 31, 23),
    datetime(1883, 11, 18, 12, 3, 58),
]
ZONES = ["Europe/Berlin", "America/Havana", "Asia/Kolkata", "+05:30", "Australia/Lord_Howe"]
SPELLINGS = ["PST", "EST", "GMT+2", "UTC-03:30", "UT+1", "Z", "+5:30", "-03:5", "UTC", "-00:30"]
LEVELS = ["year", "yyyy", "YY", "quarter", "Month", "MM", "mon", "week", "day", "DD", "hour"]
LEVELS += ["minute", "second", "millisecond", "microsecond", "decade", ""]
UNITS = ["year", "quarter", "month", "week", "day", "hour", "minute", "second"]
UNITS += ["millisecond", "microsecond"]
DATE_FIELDS = ["year", "quarter", "month", "day", "dayofmonth", "dayofweek", "weekday"]
DATE_FIELDS += ["dayofyear", "weekofyear"]
TIME_FIELDS = ["hour", "minute", "second"]
PARTS = ["year", "month", "day", "hour", "minute", "second"]


def moment(rng: random.Random) -> datetime:
    """A moment of an edge, near one, of our days, or of any year."""
    edge = rng.choice(EDGES)
    match rng.randrange(4):
        case 0:
            return edge
        case 1 if 2 < edge.year < 9998:
            return edge + timedelta(microseconds=rng.randint(-(10**11), 10**11))
        case 2:
            return datetime(1950, 1, 1) + timedelta(microseconds=rng.randrange(10**16))
        case _:
            return datetime(1, 1, 2) + timedelta(seconds=rng.randrange(9990 * 365 * 86400))


def column(rng: random.Random, type: pa.DataType, make: Callable[[], object]) -> pa.Array:
    """Made values and nulls."""
    return pa.array([None if rng.random() < 0.1 else make() for _ in range(ROWS)], type)


def times(seed: int) -> pa.Table:
    """Timestamps and dates that Python can show, and what is added to them."""
    rng = random.Random(seed)

    def moments(type: pa.DataType) -> pa.Array:
        return column(rng, LOCAL, lambda: moment(rng)).cast(pa.int64()).cast(type)

    def dates() -> pa.Array:
        return column(rng, pa.date32(), lambda: moment(rng).date())

    def micros() -> timedelta:
        return timedelta(microseconds=rng.choice([rng.randint(-(10**12), 10**12), 0, 5, -5]))

    weekdays = ["Mon", "tuesday", "FR", "SU", "sat"]
    decimals = [Decimal("0.5"), Decimal("-1.25"), Decimal("3.333"), Decimal("1000")]
    return pa.table(
        {
            "t": moments(ZONED),
            "u": moments(ZONED),
            "n": moments(LOCAL),
            "o": moments(LOCAL),
            "d": dates(),
            "e": dates(),
            "i": column(
                rng, pa.int32(), lambda: rng.choice([1, -1, *range(-40, 0), *range(2, 40)])
            ),
            "b": column(rng, pa.int8(), lambda: rng.choice([1, -1, 3, -7])),
            "l": column(rng, pa.int64(), lambda: rng.choice([rng.randint(1, 10**5), -3, -1])),
            "x": column(rng, pa.float64(), lambda: rng.choice([0.5, -2.5, 1e-3, 3.0, 1.4999])),
            "c": column(rng, pa.decimal128(10, 3), lambda: rng.choice(decimals)),
            "v": column(rng, pa.duration("us"), micros),
            "w": column(rng, pa.string(), lambda: rng.choice(weekdays)),
            "f": column(rng, pa.string(), lambda: rng.choice(LEVELS)),
            "z": column(rng, pa.string(), lambda: rng.choice(ZONES + SPELLINGS)),
        }
    )


def numbers(seed: int) -> pa.Table:
    """Numbers that stand for timestamps and dates far away."""
    rng = random.Random(seed)
    days = [2**31 - 1, -(2**31), 2**31 - 400, -(2**31) + 400, 0, -1, 2_932_896, 3_000_000]
    micros = [2**63 - 1, -(2**63), 2**62, -(2**62), 0, -1, 253402300800000000]
    floats = [float("nan"), float("inf"), -float("inf"), 1e300, -1e300, 1.5, -0.0000015, 1e13]
    return pa.table(
        {
            "i": column(rng, pa.int32(), lambda: rng.choice([*days, rng.randint(-(2**31), 0)])),
            "l": column(rng, pa.int64(), lambda: rng.choice([*micros, rng.randint(0, 2**63)])),
            "x": column(rng, pa.float64(), lambda: rng.choice(floats)),
            "m": column(rng, pa.int32(), lambda: rng.randint(-1200, 1200)),
        }
    )


def parts(seed: int) -> pa.Table:
    """Parts of dates and times, some of them impossible."""
    rng = random.Random(seed)
    seconds = ["0", "59.999999", "60", "60.5", "61", "-1", "-0.000001", "4294.967296", "4295.5"]

    def among(*values: int) -> pa.Array:
        return column(rng, pa.int32(), lambda: rng.choice(values))

    return pa.table(
        {
            "y": among(2020, 2021, 1900, 0, -5, 1, 9999, 12000),
            "m": among(1, 2, 3, 4, 5, 6, 12, 13, 0, -1),
            "d": among(1, 28, 29, 30, 31, 32, 0, -1),
            "h": among(0, 1, 2, 3, 12, 23, 24, -1),
            "q": among(0, 30, 59, 60, -1),
            "s": column(rng, pa.decimal128(16, 6), lambda: Decimal(rng.choice(seconds))),
            "p": column(
                rng, pa.decimal128(18, 6), lambda: Decimal(rng.randint(-(10**14), 10**14)) / 10**6
            ),
            "z": column(rng, pa.string(), lambda: rng.choice(ZONES)),
        }
    )


@pytest.mark.parametrize("ansi", [True, False])
def test_fields_of_dates_and_timestamps(spark: Any, ansi: bool) -> None:
    expressions = [f"{name}(d)" for name in DATE_FIELDS]
    expressions += [f"{name}({column})" for name in TIME_FIELDS for column in "tn"]
    expressions += ["dayname(d)", "monthname(d)", "last_day(d)"]
    expressions += ["unix_date(next_day(d, w))"]
    fields = ["year", "yearofweek", "quarter", "month", "week", "day", "dow", "doy"]
    expressions += [f"extract({field} from d)" for field in fields]
    expressions += ["extract(second from t)", "date_part('second', n)", "datepart('minute', t)"]
    expressions += ["unix_seconds(t)", "unix_millis(t)", "unix_micros(t)", "unix_date(d)"]
    expressions += ["unix_timestamp(t)", "unix_timestamp(d)", "to_unix_timestamp(n)"]
    expressions += ["quarter(t)", "weekofyear(n)", "date_format(n, 'yyyy-MM-dd')"]
    assert_expressions(spark, expressions, times(1), ansi=ansi)


def test_fields_far_away(spark: Any) -> None:
    date, time = "date_from_unix_date(i)", "timestamp_micros(l)"
    expressions = [f"{name}({date})" for name in DATE_FIELDS]
    expressions += [f"{name}({time})" for name in TIME_FIELDS]
    expressions += [f"extract(second from {time})", f"unix_millis({time})", f"unix_seconds({time})"]
    expressions += [f"unix_date(date_add({date}, m))", f"unix_date(date_sub({date}, m))"]
    expressions += [f"unix_date(trunc({date}, '{unit}'))" for unit in ("year", "month", "week")]
    expressions += [f"unix_date(next_day({date}, 'tu'))", f"unix_date(last_day({date}))"]
    expressions += [f"datediff({date}, date_from_unix_date(m))", "unix_micros(timestamp_millis(m))"]
    expressions += ["unix_micros(timestamp_seconds(x))", "unix_micros(timestamp_seconds(m))"]
    expressions += [f"timestampdiff(year, {time}, timestamp_millis(m))"]
    assert_expressions(spark, expressions, numbers(2))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Havana", "+05:30"])
def test_calls_honour_the_zone_of_the_session(spark: Any, zone: str) -> None:
    expressions = [f"{name}(t)" for name in TIME_FIELDS]
    expressions += [f"unix_micros(date_trunc('{unit}', t))" for unit in UNITS]
    expressions += ["unix_micros(date_trunc(f, t))", "unix_date(trunc(d, f))", "unix_timestamp(d)"]
    expressions += ["unix_micros(t + v)", "unix_micros(t - interval '3' day)", "t - u", "n - o"]
    expressions += ["unix_micros(t + interval '1' month)", "unix_micros(n + interval '1' month)"]
    expressions += ["unix_micros(n + v)", "unix_micros(n + make_interval(0, i, 0, i, i))"]
    expressions += ["unix_micros(t + make_interval(0, i, 0, i, i))"]
    expressions += ["unix_micros(t - make_interval(0, i))"]
    expressions += ["months_between(t, u)", "months_between(t, u, false)"]
    expressions += [f"unix_micros(timestampadd({unit}, l, t))" for unit in UNITS]
    expressions += [f"timestampdiff({unit}, t, u)" for unit in UNITS]
    with session_setting(spark, ZONE, zone):
        assert_expressions(spark, expressions, times(3))


@pytest.mark.parametrize("ansi", [True, False])
def test_dates_and_zones_and_durations(spark: Any, ansi: bool) -> None:
    expressions = ["date_add(d, i)", "date_sub(d, i)", "d + i", "d - interval '7' day", "d - e"]
    expressions = [e if e == "d - e" else f"unix_date({e})" for e in expressions]
    expressions += ["unix_date(add_months(d, i))", "unix_date(d + interval '5' month)"]
    expressions += ["unix_date(dateadd(d, i))", "datediff(d, e)", "date_diff(e, d)"]
    expressions += ["unix_date(d + make_interval(0, i, i))"]
    for zone in ("z", "'America/Havana'"):
        expressions += [f"unix_micros(from_utc_timestamp(t, {zone}))"]
        expressions += [f"unix_micros(to_utc_timestamp(t, {zone}))"]
        expressions += [f"unix_micros(convert_timezone({zone}, 'Europe/Berlin', n))"]
    expressions += [f"v {operator} {by}" for operator in "*/" for by in "iblxc"]
    expressions += ["2 * v", "v / 2.5D", "-v", "v + v", "v - v", "abs(v)"]
    expressions += [f"extract({part} from v)" for part in PARTS[2:]]
    assert_expressions(spark, expressions, times(4), ansi=ansi)


@pytest.mark.parametrize("ansi", [True, False])
def test_intervals_of_months_and_of_the_calendar(spark: Any, ansi: bool) -> None:
    months = [f"make_ym_interval(i, b) {operator} {by}" for operator in "*/" for by in "iblxc"]
    months += ["make_ym_interval(i, b)"]
    expressions = [f"extract(month from {one}) + 12 * extract(year from {one})" for one in months]
    calendar = "make_interval(i, i, 0, i, i, i, c)"
    for one in (f"{calendar} + make_interval(0, i)", f"{calendar} - make_interval(0, 0, i, i)"):
        expressions += [f"extract({part} from {one})" for part in PARTS]
    for one in (f"-{calendar}", f"{calendar} * 1.7D", f"{calendar} / x", calendar):
        expressions += [f"extract({part} from {one})" for part in PARTS]
    expressions += ["unix_date(d - make_interval(0, i))"]
    expressions += ["make_dt_interval(i, i, i, c)", "extract(day from try_make_interval(i, i, i))"]
    assert_expressions(spark, expressions, times(5), ansi=ansi)


def test_impossible_parts_give_null_unless_in_ansi_mode(spark: Any) -> None:
    date_and_time = "y, m, d, h, q, s"
    expressions = ["unix_date(make_date(y, m, d))"]
    for made in (f"make_timestamp({date_and_time})", f"make_timestamp({date_and_time}, z)"):
        expressions += [f"unix_micros({made})", f"unix_micros(try_{made})"]
    expressions += [f"unix_micros(make_timestamp_ntz({date_and_time}))"]
    expressions += [f"unix_micros(try_make_timestamp_ntz({date_and_time}))"]
    expressions += [f"unix_micros(make_timestamp_ltz({date_and_time}, z))"]
    expressions += [f"unix_micros(try_make_timestamp_ltz({date_and_time}))"]
    expressions += [
        "make_dt_interval(d, h, q, p)",
        "extract(second from make_interval(y, m, 0, d))",
    ]
    for zone in ("UTC", "America/Havana"):
        with session_setting(spark, ZONE, zone):
            assert_expressions(spark, expressions, parts(6), ansi=False)
    assert_expressions(spark, [e for e in expressions if "try_" in e], parts(7))


def test_a_date_plus_hours_is_a_date_unless_in_ansi_mode(spark: Any) -> None:
    plus = "unix_date(d + make_interval(0, i, 0, 1, i))"
    with session_setting(spark, ZONE, "America/Havana"):
        assert_expressions(spark, [plus], times(8), ansi=False)
    assert_fails(spark, plus, times(8), "INVALID_INTERVAL_WITH_MICROSECONDS_ADDITION")


FAILURES = [
    ("make_date(m, 2, 30)", "DATETIME_FIELD_OUT_OF_BOUNDS", True),
    ("make_timestamp(2021, m, 1, 0, 0, 0)", "DATETIME_FIELD_OUT_OF_BOUNDS", True),
    ("make_timestamp_ntz(m, 1, 1, 0, 0, 60.5)", "INVALID_FRACTION_OF_SECOND", True),
    ("unix_date(add_months(date_from_unix_date(i), m))", "ARITHMETIC_OVERFLOW", False),
    ("unix_date(trunc(date_from_unix_date(i), 'quarter'))", "ARITHMETIC_OVERFLOW", False),
    ("next_day(date_from_unix_date(m), 'xx')", "ILLEGAL_DAY_OF_WEEK", True),
    ("timestamp_millis(l)", "DATETIME_OVERFLOW", False),
    ("timestamp_seconds(l)", "DATETIME_OVERFLOW", False),
    ("timestampadd(month, l, timestamp_micros(0))", "DATETIME_OVERFLOW", False),
    ("timestampadd(hour, l, timestamp_micros(0))", "DATETIME_OVERFLOW", False),
    ("make_dt_interval(i, i)", "INTERVAL_ARITHMETIC_OVERFLOW", False),
    ("extract(year from make_ym_interval(i, m))", "INTERVAL_ARITHMETIC_OVERFLOW", False),
    ("extract(month from make_interval(i, i))", "ARITHMETIC_OVERFLOW", True),
    ("extract(month from make_interval(m, m) * x)", "ARITHMETIC_OVERFLOW", True),
    ("extract(day from make_interval(0, m) / (m * 0))", "INTERVAL_DIVIDED_BY_ZERO", True),
    ("make_dt_interval(m) / (m * 0)", "INTERVAL_DIVIDED_BY_ZERO", False),
]


@pytest.mark.parametrize(("expression", "condition", "only_ansi"), FAILURES)
def test_what_fails_in_spark_fails_alike(
    spark: Any, expression: str, condition: str, only_ansi: bool
) -> None:
    """What fails in every mode is tried where errors are rare: not in ANSI mode."""
    assert_fails(spark, expression, numbers(9), condition, ansi=only_ansi)


BARE = [
    "unix_micros(timestamp_micros(l) + interval '1' day)",
    "unix_micros(timestamp_micros(l) + interval '1' month)",
    "timestamp_micros(l) - timestamp_micros(1000)",
    "date_from_unix_date(i) - date_from_unix_date(0)",
    "months_between(timestamp_micros(l), timestamp_micros(0))",
    "unix_micros(date_trunc('day', timestamp_micros(l)))",
    "unix_micros(from_utc_timestamp(timestamp_micros(l), 'Europe/Berlin'))",
    "make_dt_interval(m) * l",
]


@pytest.mark.parametrize("expression", BARE)
def test_where_java_itself_overflows_we_fail_too(spark: Any, expression: str) -> None:
    tables = {"t": numbers(10)}

    def build(frames: Any) -> Any:
        return frames["t"].selectExpr(f"{expression} AS c")

    frame = spark.createDataFrame(tables["t"])
    with pytest.raises(PySparkException, match="overflow"):
        build({"t": frame}).toArrow()
    actual = run_ours(plan_streaming(spark, build, tables), tables, random.Random(0))
    assert actual == Failed("ARITHMETIC_OVERFLOW")


def test_an_unknown_zone_fails(spark: Any) -> None:
    assert_fails(spark, "from_utc_timestamp(t, w)", times(11), "INVALID_TIMEZONE")
    assert_fails(spark, "to_utc_timestamp(t, w)", times(11), "INVALID_TIMEZONE", ansi=False)
