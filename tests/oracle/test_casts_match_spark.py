"""CAST gives what Spark gives, for every pair of types, in ANSI, LEGACY and TRY mode."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import (
    arrow_as_from_a_source,
    ask_spark,
    assert_expressions,
    assert_fails,
    session_setting,
)

from penstock.testing.oracle import Failed, Frames, assert_equal, plan_streaming, run_ours

_TEXTS = {
    "number": [
        *[
            "",
            " ",
            "1",
            " 12 ",
            "\t7\n",
            "+5",
            "-0",
            "1.5",
            "-1.99",
            ".5",
            "5.",
            ".",
            "-",
            "+",
            "1e3",
        ],
        *["127", "128", "-129", "32768", "2147483648", "-2147483648", "9223372036854775807"],
        *["9223372036854775808", "1e400", "-1E-400", "0x1F", "0x1.8p1", "1f", "2.5D", "1L", "NaN"],
        *["nan", "inf", "+Inf", "-INFINITY", "Infinity", "infinit", "1_000", "1,5", "٣", "１", "é"],
        *["12 34", "--1", "+-1", "1e", "e1", "1e+2", "00012", "\x7f1", "\x001", "1\u00a0", "0.1"],
        *["123456789.987654321", "1.17549435E-38", "16777217", "0.30000000000000004", "1E39"],
        *[
            "0E+100",
            "1E-100",
            "99999999999999999999999999999999999999",
            "9.995",
            "-9.995",
            "1e2147",
        ],
    ],
    "word": [
        *["t", "T", "true", "TRUE", " yes ", "y", "1", "f", "false", "n", "No", "0", "on", "off"],
        *["", "tru", "01", "null", "\tfalse\x7f"],
    ],
    "day": [
        *["2024-02-29", "2023-02-29", "2024-1-5", "2024-01", "2024", "0001-01-01", "9999-12-31"],
        *["2024-01-05 garbage", "2024-01-05T", "2024-01-05Tx", " 2024-01-05 ", "+2024-01-05", ""],
        *[
            "-0044-03-15",
            "12345-01-01",
            "1234567-12-31",
            "12345678-01-01",
            "24-01-05",
            "2024/01/05",
        ],
        *["2024-13-01", "2024-00-10", "2024-01-32", "2024-1-", "2024-", "20240105", "2024-01 x"],
        *["1970-01-01", "1582-10-10", "1900-02-29", "today", "0000-01-01"],
    ],
    "moment": [
        *["2024-02-29 12:34:56", "2024-02-29T12:34:56.789", "2024-02-29 12:34:56.123456789"],
        *["2024-02-29", "2024-02", "2024", "2024-02-29 12", "2024-02-29 12:34", "2024-2-9 1:2:3"],
        *["2024-02-29 12:34:56Z", "2024-02-29 12:34:56 UTC", "2024-02-29 12:34:56+01:00", " "],
        *["2024-02-29T12:34:56.5-08", "2024-02-29 12:34:56 America/New_York", "2024-02-29T"],
        *["2024-02-29 12:34:56+1:00", "2024-02-29 12:34:56 Nowhere/City", "2024-02-29 24:00:00"],
        *[
            "2024-02-29 12:60:00",
            "2024-02-29 12:34:60",
            "2024-02-30 00:00:00",
            "2024-02-29 12:34:56.",
        ],
        *["2024-02-29 123:00:00", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "x", ""],
        *[
            "-0001-01-01 00:00:00",
            "123456-01-01 00:00:00",
            "2024-02-29 12:34:56.1Z",
            "1234567-01-01",
        ],
        *[
            "2024-02-29 12:34Z",
            "2024-02-29  12:34:56",
            "2024-02-29 12:34:56.12.3",
            "2024-03-10 02:30:00",
        ],
        *["2024-02-29 12:34:56 GMT+2", "2024-02-29 12:34:56 EST", "2024-11-03 01:30:00"],
    ],
}
_TARGETS = {
    "number": [
        *["tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)"],
        *["decimal(38,18)", "decimal(38,0)", "decimal(5,5)", "binary"],
    ],
    "word": ["boolean"],
    "day": ["date"],
    "moment": ["timestamp", "timestamp_ntz", "date"],
}


@pytest.mark.parametrize("kind", list(_TEXTS))
def test_texts_are_read_as_spark_reads_them(spark: Any, kind: str) -> None:
    table = pa.table({"t": pa.array([*_TEXTS[kind], None], pa.string())})
    targets = _TARGETS[kind]
    # As text again, because Python has no dates beyond the year 9999.
    after = "{}" if kind == "number" else "string({})"
    tries = [after.format(f"try_cast(t as {target})") for target in targets]
    legacy = [after.format(f"cast(t as {target})") for target in targets]

    assert_expressions(spark, tries, table)
    assert_expressions(spark, legacy, table, ansi=False)


def test_texts_with_thousands_of_digits_are_read_at_once(spark: Any) -> None:
    """Python would refuse to read the digits, or take hours for what stands behind an e."""
    long = ["9" * 5000, "0" * 5000 + "7", "-0." + "0" * 5000 + "1", "1.004" + "9" * 2000]
    vast = ["1e-999999999", "-1e-99999999999999999999", "1e99999999999999", "1e" + "9" * 5000]
    floats = [f"try_cast(t as {target})" for target in ("float", "double")]
    others = [f"try_cast(t as {target})" for target in ("tinyint", "bigint", "decimal(10,2)")]
    assert_expressions(spark, [*floats, *others], pa.table({"t": pa.array(long)}))
    assert_expressions(spark, floats, pa.table({"t": pa.array(vast)}))


def test_plain_texts_are_read_in_ansi_mode(spark: Any) -> None:
    table = pa.table(
        {
            "i": pa.array(["1", " 22 ", "-3", None, "+4", "0"], pa.string()),
            "p": pa.array(["1", "22", "-3", None, "004", "0"], pa.string()),
            "d": pa.array(["1.5", "1e10", "-inf", None, "NaN", "0x1p3"], pa.string()),
            "e": pa.array(["1.5", "1e10", "-7", None, "0.1", "123456789012345"], pa.string()),
            "n": pa.array(["1.5", "1e3", "-7.005", None, "0.1", "7.994"], pa.string()),
            "b": pa.array(["t", "NO", "1", None, "false", "y"], pa.string()),
            "day": pa.array(["2024-02-29", "2024-1-5", "1999", None, "0001-01-01", "2020-02"]),
            "iso": pa.array(["2024-02-29", "2024-01-05", "1999-12-31", None, "0001-01-01", None]),
            "ts": pa.array(["2024-02-29 01:02:03", "2024-01-05T01:02:03.5", None] * 2),
        }
    )
    expressions = [f"cast(i as {type})" for type in ("tinyint", "smallint", "int", "bigint")]
    expressions += [f"cast(p as {type})" for type in ("tinyint", "int", "bigint", "decimal(9,1)")]
    expressions += [f"cast({c} as {type})" for c in "de" for type in ("float", "double")]
    expressions += ["cast(n as decimal(10,2))", "cast(n as decimal(38,5))", "cast(b as boolean)"]
    expressions += ["cast(day as date)", "cast(iso as date)", "cast(iso as timestamp)", "p + 1"]
    expressions += ["cast(ts as timestamp)", "cast(ts as timestamp_ntz)", "cast(day as timestamp)"]
    assert_expressions(spark, expressions, table)


def _floats(rng: random.Random) -> list[float]:
    edges = [0.0, -0.0, 1.0, -1.5, 127.9, 128.0, -128.9, -129.0, 32767.5, 2147483647.5, 2.0**31]
    edges += [
        2.0**63,
        -(2.0**63),
        9.007199254740993e15,
        1e7,
        9999999.0,
        1e-3,
        9.99e-4,
        1e16,
        5e-324,
    ]
    edges += [1.7976931348623157e308, 1e23, 1e22, 0.1, 1 / 3, 2.0**-44, 2.0**70, 123456.789, 1e38]
    edges += [rng.random() * 10.0 ** rng.randint(-12, 25) for _ in range(40)]
    return [*edges, float("nan"), float("inf"), -float("inf")]


def _numbers() -> pa.Table:
    rng = random.Random(5)
    doubles = _floats(rng)
    rows = len(doubles)

    def integers(bits: int) -> pa.Array:
        most = 2 ** (bits - 1)
        edges = [None, 0, 1, -1, most - 1, -most, rng.randrange(-most, most), 100, -100]
        return pa.array([rng.choice(edges) for _ in range(rows)], f"int{bits}")

    def decimals(precision: int, scale: int) -> pa.Array:
        made: list[Decimal | None] = []
        for _ in range(rows):
            most = 10 ** rng.randint(1, precision)
            unscaled = rng.choice([0, 5, -5, most - 1, 1 - most, rng.randrange(-most, most)])
            made.append(rng.choice([None, *[Decimal(f"{unscaled}E-{scale}")] * 7]))
        return pa.array(made, pa.decimal128(precision, scale))

    return pa.table(
        {
            "b": integers(8),
            "s": integers(16),
            "i": integers(32),
            "l": integers(64),
            "f": pa.array([rng.choice([None, value]) for value in doubles], pa.float32()),
            "d": pa.array(doubles, pa.float64()),
            "p": decimals(10, 2),
            "q": decimals(20, 9),
            "w": decimals(38, 10),
            "o": pa.array([rng.choice([None, True, False]) for _ in range(rows)], pa.bool_()),
        }
    )


_NUMERIC = [
    *["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string"],
    *["decimal(10,2)", "decimal(38,18)", "decimal(20,0)", "decimal(4,3)"],
]


@pytest.mark.parametrize("columns", ["bsilo", "fd", "pqw"])
def test_numbers_are_cast_as_spark_casts_them(spark: Any, columns: str) -> None:
    table = _numbers().select(list(columns))
    tries = [f"try_cast({column} as {target})" for column in columns for target in _NUMERIC]
    legacy = [f"cast({column} as {target})" for column in columns for target in _NUMERIC]

    assert_expressions(spark, [*tries, *(f"cast({c} as string)" for c in columns)], table)
    assert_expressions(spark, legacy, table, ansi=False)


def test_casts_that_cannot_fail_need_no_mode(spark: Any) -> None:
    expressions = ["cast(b as int)", "cast(i as bigint)", "cast(l as double)", "cast(i as float)"]
    expressions += ["cast(f as double)", "cast(d as float)", "cast(i as decimal(10,0))"]
    expressions += ["cast(p as decimal(20,4))", "cast(o as int)", "cast(l as string)", "i + d"]
    assert_expressions(spark, expressions, _numbers())


def _times() -> pa.Table:
    epoch = dt.datetime(1970, 1, 1)
    moments = [epoch, dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]
    moments += [
        dt.datetime(2024, 2, 29, 12, 34, 56, 120000),
        dt.datetime(1969, 12, 31, 23, 59, 59, 1),
    ]
    moments += [dt.datetime(2024, 3, 10, 9, 30), dt.datetime(2024, 11, 3, 8, 30), epoch]
    days = [moment.date() for moment in moments]
    spans = [moment - epoch for moment in moments[:-1]] + [dt.timedelta(microseconds=-1)]
    return pa.table(
        {
            "ts": pa.array([*moments, None], pa.timestamp("us", tz="UTC")),
            "ntz": pa.array([*moments, None], pa.timestamp("us")),
            "day": pa.array([*days, None], pa.date32()),
            "dur": pa.array([*spans, None], pa.duration("us")),
        }
    )


_TIME_CASTS = [
    *["cast(ts as string)", "cast(ntz as string)", "cast(day as string)", "cast(dur as string)"],
    *[
        "cast(ts as date)",
        "cast(ntz as date)",
        "cast(day as timestamp)",
        "cast(day as timestamp_ntz)",
    ],
    *[
        "cast(ts as timestamp_ntz)",
        "cast(ntz as timestamp)",
        "cast(ts as bigint)",
        "cast(ts as double)",
    ],
    *["cast(ts as float)", "cast(ts as decimal(20,6))", "cast(ts as decimal(16,2))"],
    *["try_cast(ts as int)", "try_cast(ts as smallint)", "try_cast(ts as decimal(8,2))"],
]


@pytest.mark.parametrize("ansi", [True, False])
def test_dates_and_timestamps_are_cast_as_spark_casts_them(spark: Any, ansi: bool) -> None:
    legacy = [] if ansi else ["cast(ts as int)", "cast(ts as tinyint)", "cast(ts as boolean)"]
    assert_expressions(spark, [*_TIME_CASTS, *legacy], _times(), ansi=ansi)


def test_timestamps_are_cast_in_the_zone_of_the_session(spark: Any) -> None:
    texts = pa.table({"t": pa.array(_TEXTS["moment"], pa.string())})
    with session_setting(spark, "spark.sql.session.timeZone", "America/Los_Angeles"):
        assert_expressions(spark, _TIME_CASTS, _times().slice(3))
        assert_expressions(spark, ["string(try_cast(t as timestamp))"], texts)


def test_numbers_become_timestamps_as_spark_makes_them(spark: Any) -> None:
    safe = pa.table({"d": pa.array([0.0, 1.5, -1.5, 1e9, 123456.789012, None])})
    assert_expressions(spark, ["cast(d as timestamp)"], safe)
    table = _numbers().select(["b", "s", "i", "o"])
    expressions = [f"cast({column} as timestamp)" for column in table.column_names]
    assert_expressions(spark, expressions, table, ansi=False)
    wide = pa.table(
        {"p": pa.array([Decimal("1.50"), Decimal("-0.01"), None], pa.decimal128(10, 2))}
    )
    assert_expressions(spark, ["cast(p as timestamp)", "cast(cast(p as float) as timestamp)"], wide)


def _nested() -> pa.Table:
    pair = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])
    return pa.table(
        {
            "l": pa.array([[1, None, 300], [], None, [-1]], pa.list_(pa.int32())),
            "t": pa.array([["1", "x"], None, [], [None, " 7"]], pa.list_(pa.string())),
            "r": pa.array(
                [{"a": 1, "b": "2"}, None, {"a": None, "b": None}, {"a": 3, "b": "z"}], pair
            ),
            "m": pa.array(
                [[("a", 1.5), ("b", None)], None, [], [("c", 2.0)]],
                pa.map_(pa.string(), pa.float64()),
            ),
            "x": pa.array([b"abc", None, b"", "é".encode()], pa.binary()),
            "d": pa.array([[1.0, None], [1e10], None, []], pa.list_(pa.float64())),
            "deep": pa.array([[[1], None], None, [], [[2, 3]]], pa.list_(pa.list_(pa.int32()))),
        }
    )


@pytest.mark.parametrize("ansi", [True, False])
def test_nested_values_are_cast_element_by_element(spark: Any, ansi: bool) -> None:
    expressions = [f"cast({column} as string)" for column in _nested().column_names]
    expressions += [
        "cast(l as array<bigint>)",
        "cast(l as array<string>)",
        "try_cast(l as array<tinyint>)",
        "try_cast(t as array<int>)",
        "try_cast(r as struct<a:string,b:int>)",
        "cast(m as map<string,string>)",
        "cast(m as map<string,decimal(5,1)>)",
        "cast(deep as array<array<double>>)",
        "cast(d as array<string>)",
    ]
    assert_expressions(spark, expressions, _nested(), ansi=ansi)


_BAD = pa.table(
    {
        "t": pa.array(["1", "1.5x"]),
        "big": pa.array(["1", "1" * 50]),
        "ten": pa.array(["1", "1" * 10]),
        "l": pa.array([1, 2**40], pa.int64()),
        "d": pa.array([1.0, float("nan")]),
        "e": pa.array([1.0, 1e300]),
        "p": pa.array([Decimal(1), Decimal(10**12)], pa.decimal128(20, 0)),
        "ts": pa.array([0, 2**55], pa.timestamp("us", tz="UTC")),
    }
)


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("cast(t as int)", "CAST_INVALID_INPUT"),
        ("cast(t as bigint)", "CAST_INVALID_INPUT"),
        ("cast(t as double)", "CAST_INVALID_INPUT"),
        ("cast(t as float)", "CAST_INVALID_INPUT"),
        ("cast(t as decimal(10,2))", "CAST_INVALID_INPUT"),
        ("cast(t as boolean)", "CAST_INVALID_INPUT"),
        ("cast(t as date)", "CAST_INVALID_INPUT"),
        ("cast(t as timestamp)", "CAST_INVALID_INPUT"),
        ("cast(t as timestamp_ntz)", "CAST_INVALID_INPUT"),
        ("t + 1", "CAST_INVALID_INPUT"),
        ("cast(big as decimal(38,0))", "NUMERIC_OUT_OF_SUPPORTED_RANGE"),
        ("cast(ten as decimal(4,0))", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("cast(ten as smallint)", "CAST_INVALID_INPUT"),
        ("cast(l as int)", "CAST_OVERFLOW"),
        ("cast(l as tinyint)", "CAST_OVERFLOW"),
        ("cast(l as decimal(5,2))", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("cast(d as int)", "CAST_OVERFLOW"),
        ("cast(e as bigint)", "CAST_OVERFLOW"),
        ("cast(e as decimal(10,2))", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("cast(d as timestamp)", "CAST_INVALID_INPUT"),
        ("cast(e as timestamp)", "CAST_OVERFLOW"),
        ("cast(p as int)", "CAST_OVERFLOW"),
        ("cast(p as decimal(5,0))", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("cast(ts as int)", "CAST_OVERFLOW"),
        ("cast(array(t) as array<int>)", "CAST_INVALID_INPUT"),
    ],
)
def test_casts_fail_where_spark_fails(spark: Any, expression: str, condition: str) -> None:
    assert_fails(spark, expression, _BAD, condition)


def test_a_time_without_a_date_fails_because_it_means_today(spark: Any) -> None:
    tables = {"t": pa.table({"t": pa.array(["2024-01-01 00:00:00", "12:30:00", "T12"])})}
    planned = plan_streaming(
        spark, lambda frames: frames["t"].selectExpr("try_cast(t as timestamp)"), tables
    )

    assert run_ours(planned, tables, random.Random(0)) == Failed("UNREPEATABLE_CAST")


def test_a_filter_of_its_own_keeps_spark_from_a_cast_that_fails(spark: Any) -> None:
    """Equality is asked of no row whose other side is null. From rows of Python, Spark would
    compute both sides before it finds that."""
    rows = pa.table({"d": pa.array([1e12]), "s": pa.array([None], pa.string())})

    def build(frames: Frames) -> Any:
        return frames["t"].where("cast(d AS int) = try_cast(s AS int)")

    tables = {"t": rows}
    with session_setting(spark, "spark.sql.ansi.enabled", "true"):
        expected = ask_spark(spark, build, tables, arrow_as_from_a_source)
        actual = run_ours(plan_streaming(spark, build, tables), tables, random.Random(0))
    assert_equal(actual, expected, "")
