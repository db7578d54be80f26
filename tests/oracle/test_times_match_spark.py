"""Dates, timestamps, intervals and zones: our functions against batch Spark's."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock.testing.oracle import assert_expressions

ROWS = 150
#: Moments at which something happens to calendars or clocks, in seconds since 1970.
EDGES = [
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(1970, 1, 1),
    datetime(1900, 2, 28, 23, 59, 59),
    datetime(2000, 2, 29, 12),
    datetime(2021, 3, 28, 0, 59, 59, 999999),
    datetime(2021, 3, 28, 2, 30),
    datetime(2021, 3, 28, 1),
    datetime(2021, 10, 31, 0, 30),
    datetime(2021, 10, 31, 1, 30),
    datetime(2021, 10, 31, 2, 30),
    datetime(2021, 11, 7, 5, 30),
    datetime(2021, 11, 7, 6, 30),
    datetime(2021, 3, 14, 5, 30),
    datetime(2021, 3, 14, 7, 30),
    datetime(2024, 12, 30, 8),
    datetime(2020, 12, 31, 23),
    datetime(1883, 11, 18, 12, 3, 58),
]
ZONES = ["Europe/Berlin", "America/Havana", "Asia/Kolkata", "+05:30", "Africa/Casablanca"]


def moment(rng: random.Random) -> datetime:
    """A moment of an edge, near one, of our days, or of any year."""
    edge = rng.choice(EDGES)
    match rng.randrange(4):
        case 0:
            return edge
        case 1:
            low, high = datetime(2, 1, 1), datetime(9998, 1, 1)
            near = (
                edge + timedelta(microseconds=rng.randint(-(10**11), 10**11))
                if low < edge < high
                else edge
            )
            return near
        case 2:
            return datetime(1950, 1, 1) + timedelta(
                microseconds=rng.randrange(100 * 365 * 86400 * 10**6)
            )
        case _:
            return datetime(1, 1, 2) + timedelta(seconds=rng.randrange(9990 * 365 * 86400))


def some(rng: random.Random, make: Any) -> list[Any]:
    """A column of made values and nulls."""
    return [None if rng.random() < 0.1 else make() for _ in range(ROWS)]


def times(seed: int) -> pa.Table:
    """Timestamps and dates that Python can show."""
    rng = random.Random(seed)
    zoned, local = pa.timestamp("us", "UTC"), pa.timestamp("us")
    return pa.table(
        {
            "t": pa.array(some(rng, lambda: moment(rng)), local).cast(pa.int64()).cast(zoned),
            "u": pa.array(some(rng, lambda: moment(rng)), local).cast(pa.int64()).cast(zoned),
            "n": pa.array(some(rng, lambda: moment(rng)), local),
            "o": pa.array(some(rng, lambda: moment(rng)), local),
            "d": pa.array(some(rng, lambda: moment(rng).date()), pa.date32()),
            "e": pa.array(some(rng, lambda: moment(rng).date()), pa.date32()),
            "i": pa.array(some(rng, lambda: rng.randint(-40, 40)), pa.int32()),
            "l": pa.array(some(rng, lambda: rng.randint(-(10**5), 10**5)), pa.int64()),
            "v": pa.array(
                some(rng, lambda: timedelta(microseconds=rng.randint(-(10**12), 10**12))),
                pa.duration("us"),
            ),
            "w": pa.array(some(rng, lambda: rng.choice(["Mon", "tuesday", "FR", "SU", "sat"]))),
            "f": pa.array(
                some(
                    rng,
                    lambda: rng.choice(
                        [
                            "year",
                            "yyyy",
                            "YY",
                            "quarter",
                            "Month",
                            "MM",
                            "mon",
                            "week",
                            "day",
                            "DD",
                            "hour",
                            "minute",
                            "second",
                            "millisecond",
                            "microsecond",
                            "decade",
                            "x",
                        ]
                    ),
                )
            ),
            "z": pa.array(some(rng, lambda: rng.choice(ZONES))),
        }
    )


def extremes(seed: int) -> pa.Table:
    """Numbers that stand for timestamps and dates far away."""
    rng = random.Random(seed)
    far = [2**31 - 1, -(2**31), 2**31 - 400, -(2**31) + 400, 0, -1, 2_932_896, 3_000_000]
    long = [2**63 - 1, -(2**63), 2**62, -(2**62), 0, -1, 253402300800000000]
    return pa.table(
        {
            "i": pa.array(
                some(rng, lambda: rng.choice([*far, rng.randint(-(2**31), 2**31 - 1)])), pa.int32()
            ),
            "l": pa.array(
                some(rng, lambda: rng.choice([*long, rng.randint(-(2**63), 2**63 - 1)])), pa.int64()
            ),
            "x": pa.array(
                some(
                    rng,
                    lambda: rng.choice(
                        [
                            float("nan"),
                            float("inf"),
                            -float("inf"),
                            1e300,
                            -1e300,
                            1.5,
                            -0.0000015,
                            1e13,
                        ]
                    ),
                ),
                pa.float64(),
            ),
            "m": pa.array(some(rng, lambda: rng.randint(-1200, 1200)), pa.int32()),
        }
    )


DATE_FIELDS = [
    "year",
    "quarter",
    "month",
    "day",
    "dayofmonth",
    "dayofweek",
    "weekday",
    "dayofyear",
    "weekofyear",
]
TIME_FIELDS = ["hour", "minute", "second"]


@pytest.mark.parametrize("ansi", [True, False])
def test_fields_of_dates_and_timestamps(spark: Any, ansi: bool) -> None:
    expressions = [f"{name}(d)" for name in DATE_FIELDS]
    expressions += [f"{name}({column})" for name in TIME_FIELDS for column in "tn"]
    expressions += ["dayname(d)", "monthname(d)", "last_day(d)"]
    parts = ["year", "yearofweek", "quarter", "month", "week", "day", "dow", "doy"]
    expressions += [f"extract({part} from d)" for part in parts]
    expressions += ["extract(second from t)", "date_part('second', n)", "datepart('minute', t)"]
    expressions += ["unix_seconds(t)", "unix_millis(t)", "unix_micros(t)", "unix_date(d)"]
    expressions += ["unix_timestamp(t)", "unix_timestamp(d)", "to_unix_timestamp(n)"]
    assert_expressions(spark, expressions, times(1), ansi=ansi)


def test_fields_far_away(spark: Any) -> None:
    expressions = [f"{name}(date_from_unix_date(i))" for name in DATE_FIELDS]
    expressions += [f"{name}(timestamp_micros(l))" for name in TIME_FIELDS]
    expressions += ["extract(second from timestamp_micros(l))", "unix_millis(timestamp_micros(l))"]
    expressions += ["unix_date(date_add(date_from_unix_date(i), m))"]
    expressions += ["unix_date(date_sub(date_from_unix_date(i), m))"]
    expressions += ["datediff(date_from_unix_date(i), date_from_unix_date(m))"]
    expressions += ["unix_micros(timestamp_seconds(x))", "unix_micros(timestamp_seconds(m))"]
    expressions += ["unix_micros(timestamp_seconds(cast(m as decimal(8, 0)) / 1000))"]
    expressions += ["unix_micros(timestamp_millis(m))", "unix_seconds(timestamp_micros(l))"]
    assert_expressions(spark, expressions[:-3], extremes(2))
    assert_expressions(spark, expressions[-2:], extremes(2))


@pytest.mark.parametrize("zone", ["UTC", *ZONES])
def test_every_function_honours_the_zone_of_the_session(spark: Any, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    units = [
        "year",
        "quarter",
        "month",
        "week",
        "day",
        "hour",
        "minute",
        "second",
        "millisecond",
        "microsecond",
    ]
    recent = times(3)
    try:
        expressions = [f"{name}(t)" for name in TIME_FIELDS]
        expressions += [f"unix_micros(date_trunc('{unit}', t))" for unit in units]
        expressions += ["unix_micros(t + v)", "unix_micros(t - interval '3' day)", "t - u"]
        expressions += ["unix_micros(t + interval '1' month)", "n - o", "unix_timestamp(d)"]
        expressions += ["months_between(t, u)", "months_between(t, u, false)"]
        expressions += [f"unix_micros(timestampadd({unit}, i, t))" for unit in units[:6]]
        expressions += [f"timestampdiff({unit}, t, u)" for unit in units]
        expressions += ["unix_micros(t + make_interval(0, i, 0, i, i))"]
        expressions += ["unix_micros(make_timestamp(2021, 3, 28, 2, abs(i), 1.5))"]
        expressions = [e for e in expressions if "abs(" not in e]
        assert_expressions(spark, expressions, recent)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
