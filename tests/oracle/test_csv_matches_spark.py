"""CSV functions give what batch Spark gives, for right, odd and damaged lines."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails, assert_refused, assert_same, sql

from penstock.testing.oracle import Failed, plan_streaming, run_ours, run_spark

pytestmark = pytest.mark.usefixtures("interpreted")

LINES = r"""
1,2,x
1,2,
,,
1
1,2,3,4
1,2,"x"
1,2,"x,y"
1,2,"x""y"
1,2,"x\"y"
1,2,"x\\"
1,2,"x\\",z
"1","2","3"
"1" ,2,3
"1" 5,2,3
"1"5,2,3
"1,2,3
1,"2,3
1,2,"3
1,2,""
"",2,""
1,2,x"y
1,2,x"y"
1,2,"x"y"
1,2,"x"y",z
1,2,"x" "y"
1,2,"x"  ,
1,2,a\"b
1,2,a\,b
1,2,"a\b"
1,2,"a\
 1, 2, x
#1,2,x
'1,2',3,4
+1,-2,+x
01,1.5,007
1.0,1e3,1e3
2147483648,9223372036854775808,x
-2147483648,NaN,Inf
-1,Infinity,-Inf
1,0x1p3,1d
1e-2147483647,1e-2147483647,1e-2147483647
1,nan,inf
1,١,x
a,b,c
NULL,null,N/A
é,日本,😀
1,,""
,"",
"
""
,
|1|2|3|
1;2;3
1	2	3
true,TRUE,false
yes,1,t
""".strip("\n").split("\n")
MORE = [None, "", "1,2\nx,3", "1\n2,3,4", "a\nb", "\n1,2,3", "\n", '"a\nb",2,3', "1,2,3\r\n"]
# Blanks alone are not behind a line that ends with quotes: of that, Spark's reader forgets nothing.
MORE += [" ", "\t1,2,3", "1 ,2 ,x ", '"""']
TABLE = pa.table({"j": pa.array([*LINES, *MORE], pa.string())})
SCHEMAS = [
    "a int, b double, c string",
    "a string, b string, c string",
    "a string, b string, c string, d string",
    "a string",
    "a bigint, _corrupt_record string, b float, c string",
    "a smallint, b tinyint, c boolean",
    "a boolean, b boolean, c binary",
    "a decimal(6,2), b decimal(38,10), c decimal(3,0)",
    "_corrupt_record string",
]
OPTIONS = [
    "'sep', ';'",
    "'sep', '\\t'",
    "'delimiter', '|'",
    "'quote', '\\''",
    "'quote', ''",
    "'escape', '\"'",
    "'escape', ''",
    "'charToEscapeQuoteEscaping', '#'",
    "'comment', '#'",
    "'ignoreLeadingWhiteSpace', 'true'",
    "'ignoreTrailingWhiteSpace', 'true'",
    "'ignoreLeadingWhiteSpace', 'true', 'ignoreTrailingWhiteSpace', 'true', 'nullValue', 'x'",
    "'nullValue', 'x'",
    "'nullValue', '1', 'emptyValue', 'EMPTY'",
    "'emptyValue', 'EMPTY'",
    "'nanValue', 'b', 'positiveInf', '2', 'negativeInf', '-2'",
    "'header', 'true', 'inferSchema', 'true', 'lineSep', '2', 'multiLine', 'true'",
    "'columnNameOfCorruptRecord', 'c'",
    "'locale', 'en-US', 'mode', 'permissive'",
]


@pytest.mark.parametrize("ansi", [True, False])
def test_from_csv(spark: Any, ansi: bool) -> None:
    assert_expressions(spark, [f"from_csv(j, '{schema}')" for schema in SCHEMAS], TABLE, ansi=ansi)


def test_options_of_from_csv(spark: Any) -> None:
    schema = "a string, b double, c string"
    calls = [f'from_csv(j, "{schema}", map({options}))' for options in OPTIONS]
    assert_expressions(spark, calls, TABLE)


def test_single_fields(spark: Any) -> None:
    """Of which Spark prunes the schema, and then does not count the values of a line."""
    whole = "a int, b double, c string"
    assert_expressions(spark, [f"from_csv(j, '{whole}').{name}" for name in "abc"], TABLE)


TIMES = """2024-01-02T03:04:05Z|2024-01-02 03:04:05|2024-01-02T03:04:05.123456|2024-01-02
2024-02-30|2024-02-30T00:00:00|2024-01-02T03:04:05+01:00|2024-01-02T03:04:05GMT+01:00|2024
2024-1-2|02/01/2024|02/01/2024 03:04|2024-01-02T25:00:00|0002-01-01|9998-12-31T23:59:59.999999
2024-03-31T02:30:00|2024-10-27T02:30:00|abc|123|-5| 2024-01-02 |1582-10-10|T""".replace(
    "\n", "|"
).split("|")


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_dates_and_times(spark: Any, zone: str) -> None:
    table = pa.table({"j": [f"{text},{text},{text}" for text in TIMES]})
    schema = "t timestamp, d date, n timestamp_ntz"
    named = f"map('timeZone', '{zone}')"
    by_pattern = (
        f"map('timeZone', '{zone}', 'timestampFormat', 'dd/MM/yyyy HH:mm',"
        " 'dateFormat', 'dd/MM/yyyy', 'timestampNTZFormat', 'yyyy-MM-dd')"
    )
    calls = [f"from_csv(j, '{schema}', {options})" for options in (named, by_pattern)]
    assert_expressions(spark, calls, table)


def test_failfast_fails_on_the_first_damaged_line(spark: Any) -> None:
    call = "from_csv(j, 'a int, b int', map('mode', 'FAILFAST'))"
    assert_expressions(spark, [call], pa.table({"j": ["1,2", None, ",3"]}))
    wrong = pa.table({"j": ["1,2", "1,x"]})
    build = sql(f"SELECT {call} FROM t")
    condition = "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION"
    with pytest.raises(Exception, match=condition):  # over local rows: an error of Java's own
        run_spark(spark, build, {"t": wrong}, methodcaller("collect"))
    planned = plan_streaming(spark, build, {"t": wrong})
    assert run_ours(planned, {"t": wrong}, random.Random(0)) == Failed(condition)


def test_blanks_at_the_start_are_too_much_for_sparks_reader(spark: Any) -> None:
    """It looks for their end before the start of the line: so it is in Spark, in any mode."""
    call = "from_csv(j, 'a string, b string', map('ignoreTrailingWhiteSpace', 'true'))"
    assert_fails(spark, call, pa.table({"j": ["1 ,2", " ,2"]}), "MALFORMED_CSV_RECORD")


def test_schemas_are_known_before_the_start(spark: Any) -> None:
    table = pa.table({"j": ["1,abc,2.5", ""]})
    schema = "schema_of_csv('1,abc,2.5,2024-01-02')"
    assert_expressions(spark, [schema, f"from_csv(j, {schema})"], table)


TEXTS = ("", " ", "x", "a,b", 'q"r', '"', '""', "a\\b", "a\\,b", '\\"', "#c", " x ", "\tx", "a\nb")
TEXTS += ("a\rb", "é日😀", "null", "'", ";", "a;b", "x ", '"q"', "\0x", 'a"b,c')


def make_values(rows: int, seed: int) -> pa.Table:
    """Values of all kinds that to_csv prints."""
    rng = random.Random(seed)

    def column(type: pa.DataType, *choices: object) -> pa.Array:
        drawn = [None if rng.random() < 0.2 else rng.choice(choices) for _ in range(rows)]
        return pa.array(drawn, type)

    moment = datetime(2024, 3, 31, 1, 30, 5, 120000, UTC)
    return pa.table(
        {
            "i": column(pa.int32(), 1, -5),
            "f": column(pa.float32(), 0.1, float("nan"), 1e10),
            "d": column(pa.float64(), 1.5, 1e-5, float("inf"), -0.0, 1e7),
            "b": column(pa.bool_(), True, False),
            "s": pa.array([TEXTS[row % len(TEXTS)] for row in range(rows)]),
            "s2": column(pa.string(), *TEXTS),
            "c": column(pa.decimal128(20, 8), Decimal("1.5"), Decimal("-0.00000001"), Decimal(0)),
            "y": column(pa.binary(), b"", b"hello"),
            "dt": column(pa.date32(), date(2024, 1, 2), date(1500, 1, 1)),
            "ts": column(pa.timestamp("us", tz="UTC"), moment, datetime(1970, 1, 1, tzinfo=UTC)),
        }
    )


WRITTEN = [
    "'sep', ';'",
    "'sep', '\\t'",
    "'quote', '\\''",
    "'escape', '\"'",
    "'quoteAll', 'true'",
    "'quoteAll', 'true', 'nullValue', 'NULL', 'emptyValue', 'EMPTY'",
    "'escapeQuotes', 'false'",
    "'charToEscapeQuoteEscaping', '#'",
    "'ignoreLeadingWhiteSpace', 'false'",
    "'ignoreTrailingWhiteSpace', 'false'",
    "'ignoreLeadingWhiteSpace', 'false', 'ignoreTrailingWhiteSpace', 'false'",
    "'nullValue', 'NULL', 'emptyValue', ''",
    "'nullValue', 'a,b'",
    "'comment', ';'",
]


def test_to_csv(spark: Any) -> None:
    table = make_values(len(TEXTS) * 3, 5)
    calls = [f"to_csv(struct(s, i, s2), map({options}))" for options in WRITTEN]
    calls += [
        "to_csv(struct(s, s2))",
        "to_csv(struct(s))",
        "to_csv(struct(i, f, d, b, c, s))",
        "to_csv(IF(i > 0, struct(i, s), NULL))",
        "to_csv(struct(y, s))",
        "from_csv(to_csv(struct(i, s, d)), 'i int, s string, d double')",
    ]
    for zone in ("UTC", "Europe/Berlin"):
        inside = f"'timeZone', '{zone}'"
        calls += [
            f"to_csv(struct(dt, ts, CAST(ts AS timestamp_ntz) AS n), map({inside}))",
            f"to_csv(struct(dt, ts), map({inside}, 'dateFormat', 'd,M', 'timestampFormat', 'HH'))",
        ]
    assert_expressions(spark, calls, table)


def test_in_a_query_of_two_stages(spark: Any) -> None:
    query = (
        "SELECT v.c, count(*) AS n, sum(v.a) AS total, max(to_csv(v)) AS most"
        " FROM (SELECT from_csv(j, 'a int, b double, c string') AS v FROM t) GROUP BY v.c"
    )
    assert_same(spark, sql(query), {"t": TABLE}, seed=3, runs=2)


REFUSED = [
    ("from_csv(j, 'i int', map('maxColumns', '5'))", "'maxcolumns'.*leave it out"),
    ("from_csv(j, 'i int', map('mode', 'DROPMALFORMED'))", "take PERMISSIVE or FAILFAST"),
    ("from_csv(j, 'i int', map('sep', '||'))", "take a single character"),
    ("from_csv(j, 'i int', map('locale', 'de-DE'))", "take en-US"),
    ("from_csv(j, 'i interval day to second')", "read it as a string and cast"),
    ("to_csv(struct(array(j)))", "write that with to_json"),
]


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_cannot_run_is_refused_with_a_remedy(spark: Any, expression: str, reason: str) -> None:
    build = sql(f"SELECT {expression} FROM t")
    assert_refused(spark, build, {"t": pa.table({"j": ["1"]})}, reason)
