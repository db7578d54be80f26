"""Date and time patterns: printing and parsing against batch Spark's."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails, session_setting

PRINTED = [
    "yyyy-MM-dd",
    "HH:mm",
    "yyyy-MM-dd HH:mm:ss",
    "yyyy-MM-dd HH:mm:ss.SSS",
    "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "y M d H h k K m s S",
    "yy MMM dd",
    "EEE, d MMMM yyyy hh:mm a",
    "EEEE D DD DDD",
    "Q QQ QQQ QQQQ q qq qqq qqqq",
    "yyyyMMddHHmmss",
    "X XX XXX x xx xxx Z ZZ ZZZ",
    "yyyyy yyy yyyyyy",
    "LLL LLLL L LL",
    "SSSSSSSSS",
    "KK kk E EE",
    "'it''s' '' yyyy[ HH]",
    "ü年 yyyy",
    "",
]
PARSED = [
    "yyyy-MM-dd",
    "y-M-d",
    "yyyy-MM-dd HH:mm:ss",
    "yyyy-MM-dd H:m:s",
    "yyyyMMdd",
    "yyyyMMddHHmmss",
    "yyyyMMddHHmmssSSS",
    "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "yyyy-MM-dd'T'HH:mm:ss[.SSS]",
    "yyyy-MM-dd'T'HH:mm:ssX",
    "yyyy-MM-dd'T'HH:mm:ssXX",
    "yyyy-MM-dd'T'HH:mm:ssXXX",
    "yyyy-MM-dd'T'HH:mm:ssx",
    "yyyy-MM-dd'T'HH:mm:ssxxx",
    "yyyy-MM-dd'T'HH:mm:ssZ",
    "hh:mm a",
    "h:mm a",
    "K:mm a",
    "dd MMM yyyy",
    "d MMMM yyyy",
    "d MMM yy",
    "yyyy DDD",
    "yyyy D",
    "yyyyDDD",
    "yy",
    "yyyy",
    "y",
    "M",
    "MM",
    "d",
    "dd",
    "H",
    "HH",
    "k",
    "kk",
    "h",
    "K",
    "a",
    "m",
    "s",
    "S",
    "SSS",
    "SSSSSS",
    "yyyy-MM",
    "MM-dd",
    "MM-dd-yyyy",
    "yyyy/MM/dd",
    "yyyy年MM月dd日",
    "yyyy-MM-dd[ HH:mm[:ss]]",
    "[yyyy-MM-dd][ HH:mm:ss]",
    "yyyyM",
    "yyyyMM",
    "yMMdd",
    "yyMMdd",
    "LLL",
    "yyyyS",
    "HHmmss",
    "Hmm",
    "yyyyyy-MM-dd",
    "yyy-MM-dd",
    "yyyy-MM-dd HH:mm:ss.S",
    "yyyy-MM-dd HH:mm:ss.SSS",
]
#: Right and wrong in many ways.
TEXTS = """2021-03-28|2021-3-28|2021-02-29|2021-03-28 02:30:00|2021-10-31 02:30:00
2021-03-28 24:00:00|20210328|12021-03-28|+12021-03-28|-0001-03-28|-0000-01-01|0000-01-01
2021-03-28T02:30:00.123456|2021-03-28T02:30:00.1|2021-03-28T02:30:00.123456789|123456
2021-03-28T02:30:00Z|2021-03-28T02:30:00+01:00|2021-03-28T02:30:00-18:00|2021-03-28t02:30:00z
2021-03-28T02:30:00+19:00|2021-03-28T02:30:00+0130|2021-03-28T02:30:00+01|12:30 AM|12:30 pm
1:05 PM|0:05 AM|13:00 PM|28 Mar 2021|28 MARCH 2021|1 may 21|31 Apr 2021|7 Sept 2021|2021 366
2020 366|2021 1|2021 001|2021365|| 2021-03-28|2021-03-28 |abc|２０２１-03-28|21|99|2021|3|-5|02|2
12|24|0|2021-13-01|2021-00-10|2021-01-00|9999-12-31 23:59:59|0001-01-01 00:00:00|+99999-01-01
2021-03-28 02:30|2021-03|2021-03-28 2:3:4|2021-W10|ſep|AM|PM|pM|2021-03-28 02:30:60|2021/03/28
2021年03月28日|02-29|03-28-2021|1900-02-29|2000-02-29|+2021-03-28|20211|202112|-20210328
2021-03-28 02:30:00.000|2021-03-28 02:30:00.5|-290000-01-01|0230|230|023000|2021-03-28T02:30:00
7 Sep 2021|2021-04-31|210328|5"""
#: Patterns that take all digits for a year, and texts that are then years without timestamps.
GREEDY = ["y", "yyyy", "yyyyS"]
TOO_FAR = ["20210328", "-20210328", "2021365"]
LONG = ["20210328023000", "20210328023000123", "+120210328", "120210328", "99991231"]
ZONE = "spark.sql.session.timeZone"
ROWS = 120
LOCAL = pa.timestamp("us")


def texts() -> pa.Table:
    """Texts, and a null."""
    return pa.table({"s": pa.array([*TEXTS.replace("\n", "|").split("|"), None])})


def moments(seed: int) -> pa.Table:
    """Timestamps of all centuries, and microseconds of all years that there are."""
    rng = random.Random(seed)

    def moment() -> datetime:
        low, days = rng.choice([(1, 3_600_000), (1950, 36_500), (2021, 365)])
        return datetime(low, 1, 1) + timedelta(
            days=rng.randrange(days), microseconds=rng.randrange(86400 * 10**6)
        )

    far = [2**63 - 1, -(2**63), 0, -1, 253402300800000000, -62135596800000001]
    times = [None if rng.random() < 0.1 else moment() for _ in range(ROWS)]
    micros = [rng.choice([*far, rng.randint(-(2**63), 2**63 - 1)]) for _ in range(ROWS)]
    seconds = [rng.choice([None, rng.randint(-(10**11), 10**11), 2**62]) for _ in range(ROWS)]
    return pa.table(
        {
            "t": pa.array(times, pa.timestamp("us"))
            .cast(pa.int64())
            .cast(pa.timestamp("us", "UTC")),
            "l": pa.array(micros, pa.int64()),
            "k": pa.array(seconds, pa.int64()),
        }
    )


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns"])
def test_printing(spark: Any, zone: str) -> None:
    expressions = [f'date_format(t, "{pattern}")' for pattern in PRINTED]
    expressions += [f'date_format(timestamp_micros(l), "{pattern}")' for pattern in PRINTED[:12]]
    expressions += [f'from_unixtime(k, "{pattern}")' for pattern in PRINTED[:4]]
    expressions += ["from_unixtime(k)", "to_char(t, 'yyyy-MM')", "to_varchar(t, 'dd')"]
    with session_setting(spark, ZONE, zone):
        assert_expressions(spark, expressions, moments(1))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_parsing(spark: Any, zone: str) -> None:
    expressions = {p: f'unix_micros(try_to_timestamp(s, "{p}"))' for p in PARSED}
    greedy = [expressions.pop(pattern) for pattern in GREEDY]
    near = pa.table({"s": [text for text in texts()["s"].to_pylist() if text not in TOO_FAR]})
    with session_setting(spark, ZONE, zone):
        assert_expressions(spark, list(expressions.values()), texts())
        assert_expressions(spark, greedy, near)


@pytest.mark.parametrize("zone", ["Europe/Berlin"])
def test_parsing_to_seconds_and_to_times_without_zone(spark: Any, zone: str) -> None:
    expressions = [f'unix_timestamp(s, "{pattern}")' for pattern in PARSED[:16]]
    expressions += [f'unix_micros(to_timestamp_ntz(s, "{pattern}"))' for pattern in PARSED[:16]]
    expressions += [f'unix_micros(to_timestamp(s, "{pattern}"))' for pattern in PARSED[16:20]]
    expressions += ["unix_timestamp(s)", "to_unix_timestamp(s, 'yyyy/MM/dd')"]
    expressions += ["unix_micros(to_timestamp_ltz(s, 'yyyy-MM'))"]
    expressions += [
        "unix_date(to_date(s, 'yyyy-MM-dd'))",
        "unix_date(try_to_date(s, 'dd MMM yyyy'))",
    ]
    with session_setting(spark, ZONE, zone):
        assert_expressions(spark, expressions, texts(), ansi=False)


def test_numbers_in_a_row_leave_room_for_each_other(spark: Any) -> None:
    patterns = [p for p in PARSED if "y" not in p or len(p) > 6]
    table = pa.table({"s": pa.array(LONG)})
    tight = [p for p in patterns if p not in ("y-M-d", "yMMdd", "yyy-MM-dd", "yyyyS")]
    assert_expressions(spark, [f'unix_micros(try_to_timestamp(s, "{p}"))' for p in tight], table)


def test_what_does_not_parse_fails_in_ansi_mode(spark: Any) -> None:
    for call in ("to_timestamp(s, 'yyyy-MM-dd')", "unix_timestamp(s)", "to_timestamp_ntz(s, 'yy')"):
        assert_fails(spark, call, texts(), "CANNOT_PARSE_TIMESTAMP")
    right = pa.table({"s": pa.array(["2021-03-28", None, "2000-02-29"])})
    assert_expressions(spark, ["to_timestamp(s, 'yyyy-MM-dd')"], right)
