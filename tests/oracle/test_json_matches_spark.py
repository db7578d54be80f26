"""JSON functions give what batch Spark gives, for right, odd and damaged texts."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_refused, assert_same, sql

from penstock.testing.oracle import Failed, plan_streaming, run_ours, run_spark

pytestmark = pytest.mark.usefixtures("interpreted")

#: Objects, one per line: right ones, and wrong ones of every kind.
OBJECTS = r"""
{"i":1,"l":2,"d":1.5,"s":"x","b":true}
{"i":1,"l":9223372036854775807,"d":1e308,"s":"","b":false,"more":[1,{"x":2}]}
{"i":null,"l":null,"d":null,"s":null,"b":null}
{}
{"i":1.0,"l":1e2,"d":1,"s":5,"b":"true"}
{"i":2147483648,"l":9223372036854775808,"d":-0,"s":1.10,"b":1}
{"i":-2147483648,"l":-0,"d":-0.0,"s":-0,"b":0}
{"i":"1","l":"2","d":"1.5","s":{"x": [1, 2.50, "y"], "z" : {}},"b":null}
{"d":"NaN","s":"NaN"}
{"d":"Infinity","s":[ ]}
{"d":"-INF","s":[1e3,1E-7,100000000000000000000,1.0]}
{"d":NaN,"s":NaN}
{"d":-Infinity,"s":+INF,"i":1}
{"d":+Infinity,"i":1}
{"d":INF,"i":1}
{"d":1e400,"s":1e400}
{"d":"nan"}
{"d":""}
{"i":"","s":""}
{"i":1,"i":2,"s":"first","s":"second"}
{"i":1,"i":"x"}
{"I":1,"S":"upper"}
{"i":1} trailing
{"i":1}{"i":2}
{"i":1}}
{"i":1
{"i":1,
{"i":1,}
{"i":1 "s":"x"}
{"i":,"s":"x"}
{"i" 1}
{i:1}
{'i':1,'s':'it"s'}
{"s":"it's","i":1}
{"i":01}
{"i":.5,"d":.5}
{"d":5.}
{"d":1e}
{"d":-}
{"i":tru,"s":"x"}
{"b":true1,"s":"x"}
{"b":nul}
{"s":"a\u0041\u00e9\ud83d\ude00"}
{"s":"half \ud800 of a pair"}
{"s":"half \udc00"}
{"s":"null \u0000 inside"}
{"s":"\b\f\n\r\t\"\\\/"}
{"s":"\q","i":1}
{"s":"\u12","i":1}
{"s":"\q,"i":1}
{"s":"unclosed
{"i":1,"s":"unclosed
{"s":"naïve 日本 😀"}
{"é":1,"i":3}
{"\u0069":7}
{"more":{"deep":[[[{"x":1}]]]},"i":4}
{"more":"\q","i":4}
{"more":tru,"i":4}
{"i":1/*c*/,"s":"x"}
[{"i":1}]
[]
[1,2]
"text"
5
5x
5 5
null
true
nul

x
{"o":{"x":1,"y":"a"},"a":[1,2,3],"m":{"k":1},"i":1}
{"o":{"x":"bad","y":"a"},"a":[1,"bad",3],"m":{"k":"bad","j":2},"i":1}
{"o":null,"a":null,"m":null}
{"o":[],"a":{},"m":[],"i":1}
{"o":{},"a":[],"m":{}}
{"a":[null,1],"m":{"k":null},"o":{"x":null}}
{"o":{"x":tru},"i":1}
{"i":1,"o":{"x":tru}}
{"i":1,"a":[1,tru],"s":"x"}
{"i":1,"a":[1,2,"s":"x"}
{"i":1,"m":{"k":1,"k":2}}
{"n":[{"x":1,"y":"p"},{"x":"bad","y":"q"},null],"i":1}
{"n":[{"x":1},5],"i":1}
{"c":12.345,"f":0.1,"t":200,"h":40000}
{"c":73e8517276002925517854,"i":1}
{"c":0e99999999999,"i":1}
{"c":1e-3000000000,"i":1}
{"c":"1e3000000000","i":1}
{"c":0.0e-2147483647,"i":1}
{"c":0e2147483647,"i":1}
{"c":1e-2147483647,"i":1}
{"c":"1e-536870930","i":1}
{"c":0e-536870930,"i":1}
{"c":0e-2147483647,"i":1}
{"c":-7.5e-99999,"i":1}
{"f":1e-999999999,"c":1}
{"f":-1e-99999999999999999999,"c":1}
{"f":1.00000005960464477539062500000000000000001,"c":1}
{"c":"1,234.5","f":16777217,"t":-128,"h":-32768}
{"c":12345678.9,"f":"NaN","t":256,"h":32767}
{"c":"abc","f":1e39,"t":-129,"h":1.5}
{"c":1e2,"f":3.4028236e38,"t":1}
{"c":"","f":0.30000001192092896}
{"c":" 1"}
{"y":"aGVsbG8=","u":1}
{"y":"aGVsbG8","u":"x"}
{"y":"","u":null}
{"y":5}
""".strip("\n").split("\n")
MORE = [None, "", " ", "\t\n", "\ufeff{}", '{"s":"tab\tinside","i":1}', '{\n "i": 1,\n "s": "x"\n}']
FLAT = "i int, l bigint, d double, s string, b boolean"
TABLE = pa.table({"j": pa.array([*OBJECTS, *MORE], pa.string())})

SCHEMAS = [
    FLAT,
    "i int",
    "s string",
    "map<string,string>",
    "map<string,int>",
    "array<int>",
    "array<string>",
    "array<struct<i:int,s:string>>",
    "map<string,struct<x:int,y:string>>",
    "o struct<x:int,y:string>, a array<int>, m map<string,int>, i int",
    "o struct<x:boolean>, i int, s string",
    "n array<struct<x:int,y:string>>, i int",
    "o string, a string, m string",
    "c decimal(6,2), f float, t tinyint, h smallint",
    "c decimal(38,10), d decimal(10,0)",
    "y binary, u void",
    "i int, _corrupt_record string, s string",
    "_corrupt_record string",
]


@pytest.mark.parametrize("ansi", [True, False])
def test_from_json(spark: Any, ansi: bool) -> None:
    calls = [f"from_json(j, '{schema}')" for schema in SCHEMAS]
    assert_expressions(spark, calls, TABLE, ansi=ansi)


BASE64 = (
    r"""
A|AA|AAA|AAAA|AA=|AA==|AAA=|AA==AAA=|AA==A|=|A=|A===|AAAA=|AA=A|AA=\u003d|\u003d|A\u003dAA
AA\u003d\u003d|AAA\u003d|AA A|AAAA AAAA| AAAA |\nAAAA\n|A\nAAA|AA\n==|\u0041AAA|AA*A|AA\"A
A\"|AA=\"|AAAA\qAAA|AAAA\u12|AA\/A|é|AAAé|-_AA|A,|AA=,=|AAAA"AAAA|AA=="=
""".strip("\n")
    .replace("\n", "|")
    .split("|")
)


@pytest.mark.parametrize("schema", ["y binary, i int, s string", "y array<binary>, i int"])
def test_where_a_reader_stands_after_what_is_not_base_64(spark: Any, schema: str) -> None:
    """It may have read the closing quote: then the rest of the text belongs to the string."""
    rng = random.Random(4)
    parts = ["A", "/", "=", " ", "\t", "\\n", "\\u003d", "*", ",", '"', "AAAA", "AA=="]
    chance = ["".join(rng.choices(parts, k=rng.randrange(9))) for _ in range(300)]
    rows = [
        ('{"i":1,"y":"', '","s":"x"}'), ('{"y":"', '","i":2}'), ('{"y":["AAAA","', '"],"i":3}'),
        ('{"y":"', ""),
    ]  # fmt: skip
    texts = [head + text + end for head, end in rows for text in (*BASE64, *chance)]
    texts += [f"{{'y':'{text}','i':4}}" for text in BASE64]
    assert_expressions(spark, [f"from_json(j, '{schema}')"], pa.table({"j": texts}))


def test_single_fields(spark: Any) -> None:
    """A damaged escape in a field that nobody asks for is left out: what Spark makes of it depends
    on whether its optimizer has pruned the schema, which it does for streams, not for local rows.
    """
    whole = [text for text in OBJECTS if "\\q" not in text and "\\u12" not in text]
    fields = [f"from_json(j, '{FLAT}').{name}" for name in "ilds"]
    nested = ["from_json(j, 'array<struct<i:int,s:string>>').i"]
    assert_expressions(spark, fields + nested, pa.table({"j": whole}))


TIMES = """2024-01-02T03:04:05Z|2024-01-02 03:04:05|2024-01-02T03:04:05.123456|2024-01-02
2024-02-30|2024-02-30T00:00:00|2024-01-02T03:04:05+01:00|2024-01-02T03:04:05GMT+01:00|2024
2024-1-2|02/01/2024|02/01/2024 03:04|2024-01-02T25:00:00|0002-01-01|9998-12-31T23:59:59.999999
2024-03-31T02:30:00|2024-10-27T02:30:00|abc|123|-5| 2024-01-02 |1582-10-10|T""".replace(
    "\n", "|"
).split("|")
TIME_TEXTS = [f'{{"t":"{text}","d":"{text}","n":"{text}"}}' for text in TIMES]
TIME_TEXTS += ['{"t":1700000000,"d":19000,"n":5}', '{"t":1.5}', '{"t":""}', '{"t":null}']
TIME_TEXTS += ['{"t":99999999999}', '{"t":{"x":1},"d":"2024-01-02"}', "{}"]
CLOCK = "t timestamp, d date, n timestamp_ntz"


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_dates_and_times(spark: Any, zone: str) -> None:
    table = pa.table({"j": pa.array(TIME_TEXTS)})
    named = f"map('timeZone', '{zone}')"
    by_pattern = (
        f"map('timeZone', '{zone}', 'timestampFormat', 'dd/MM/yyyy HH:mm',"
        " 'dateFormat', 'dd/MM/yyyy', 'timestampNTZFormat', 'yyyy-MM-dd')"
    )
    calls = [f"from_json(j, '{CLOCK}', {options})" for options in (named, by_pattern)]
    assert_expressions(spark, calls, table)


OPTIONS = [
    "'allowUnquotedFieldNames', 'true'",
    "'allowSingleQuotes', 'false'",
    "'allowNumericLeadingZeros', 'true'",
    "'allowNonNumericNumbers', 'false'",
    "'allowComments', 'true'",
    "'allowBackslashEscapingAnyCharacter', 'true'",
    "'allowUnquotedControlChars', 'true'",
    "'primitivesAsString', 'true'",
    "'mode', 'permissive'",
    "'columnNameOfCorruptRecord', 's'",
]


def test_options_of_from_json(spark: Any) -> None:
    calls = [f"from_json(j, '{FLAT}', map({options}))" for options in OPTIONS]
    assert_expressions(spark, calls, TABLE)


def test_failfast_fails_on_the_first_damaged_text(spark: Any) -> None:
    right = pa.table({"j": ['{"i":1}', None, "", '{"i":null,"x":2}']})
    call = "from_json(j, 'i int', map('mode', 'FAILFAST'))"
    assert_expressions(spark, [call], right)
    wrong = pa.table({"j": ['{"i":1}', '{"i":"x"}']})
    build = sql(f"SELECT {call} FROM t")
    condition = "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION"
    with pytest.raises(Exception, match=condition):  # over local rows: an error of Java's own
        run_spark(spark, build, {"t": wrong}, methodcaller("collect"))
    planned = plan_streaming(spark, build, {"t": wrong})
    assert run_ours(planned, {"t": wrong}, random.Random(0)) == Failed(condition)


PATHS = [
    "$",
    "$.i",
    "$.o",
    "$.o.x",
    "$.a",
    "$.a[0]",
    "$.a[*]",
    "$.a[1]",
    "$.a[9]",
    "$.n[*].x",
    "$.n[0].y",
    "$.n[*]",
    "$.*",
    "$['s']",
    "$.s",
    "$.d",
    "$[0]",
    "$[*]",
    "$[*].i",
    "bad",
    "$.",
    "$.m.k",
    "$.more.deep[*][*]",
    "$.more.deep[0][0][0].x",
    "$.more",
    "$.b",
    "$['o'].y",
    "$.o.*",
    "$.a[*][*]",
    "$.n[0]",
    "$[0].i",
    "$.a[-1]",
    "$.é",
]


def test_parts_of_a_text(spark: Any) -> None:
    paths = [f'get_json_object(j, "{path}")' for path in PATHS]
    whole = ["json_array_length(j)", "json_object_keys(j)"]
    assert_expressions(spark, [*paths, *whole], TABLE)


def test_json_tuple(spark: Any) -> None:
    query = "SELECT j, t.* FROM t LATERAL VIEW json_tuple(j, 'i', 's', 'o', 'i', 'zz') t"
    assert_same(spark, sql(query), {"t": TABLE}, seed=3)
    outer = "SELECT json_tuple(j, 'a', 'd') FROM t"
    assert_same(spark, sql(outer), {"t": TABLE}, seed=4)


def test_schemas_are_known_before_the_start(spark: Any) -> None:
    table = pa.table({"j": ['{"a":1,"b":["x"]}', "{}"]})
    schema = """schema_of_json('{"a":1,"b":["x"]}')"""
    assert_expressions(spark, [schema, f"from_json(j, {schema})"], table)


def make_values(rows: int, seed: int) -> pa.Table:
    """Values of all kinds that to_json prints."""
    rng = random.Random(seed)

    def maybe(value: object) -> object:
        return None if rng.random() < 0.2 else value

    def column(type: pa.DataType, *choices: object) -> pa.Array:
        return pa.array([maybe(rng.choice(choices)) for _ in range(rows)], type)

    texts = ("", "x", 'q"\\/', "\t\n\x01\x7f", "é日😀")
    point = pa.struct([("x", pa.int32()), ("y", pa.string())])
    points = [{"x": 1, "y": "a"}, {"x": None, "y": None}, {"x": 3, "y": '"'}, None]
    moment = datetime(2024, 3, 31, 1, 30, 5, 120000, UTC)
    return pa.table(
        {
            "i": column(pa.int32(), 1, -5),
            "f": column(pa.float32(), 0.1, float("nan"), 1e10),
            "d": column(pa.float64(), 1.5, 1e-5, float("inf"), -0.0, 1e7),
            "b": column(pa.bool_(), True, False),
            "s": column(pa.string(), *texts),
            "c": column(pa.decimal128(20, 8), Decimal("1.5"), Decimal("-0.00000001"), Decimal(0)),
            "y": column(pa.binary(), b"", b"hello"),
            "dt": column(pa.date32(), date(2024, 1, 2), date(1500, 1, 1)),
            "ts": column(pa.timestamp("us", tz="UTC"), moment, datetime(1970, 1, 1, tzinfo=UTC)),
            "p": column(point, *points[:3]),
            "a": column(pa.list_(pa.int32()), [], [1, None, 3]),
            "ap": column(pa.list_(point), points, []),
            "m": column(pa.map_(pa.string(), pa.int32()), [], [("k", 1), ('"', None)]),
            "mi": column(pa.map_(pa.int32(), point), [(1, points[0]), (2, None)]),
        }
    )


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_to_json(spark: Any, zone: str) -> None:
    inside = f"'timeZone', '{zone}'"
    calls = [
        f"to_json(struct(i, f, d, b, s, c, y), map({inside}))",
        f"to_json(struct(dt, ts, CAST(ts AS timestamp_ntz) AS n), map({inside}))",
        f"to_json(struct(dt, ts), map({inside}, 'dateFormat', 'dd/MM/yy',"
        " 'timestampFormat', 'HH'))",
        f"to_json(struct(i, s, p, a), map({inside}, 'ignoreNullFields', 'false'))",
        "to_json(p)",
        "to_json(struct(p, a, ap, m, mi))",
        "to_json(a)",
        "to_json(ap)",
        "to_json(m)",
        "to_json(mi)",
        "to_json(array(m))",
        "to_json(struct())",
        'to_json(struct(i AS `q"uote`, s AS `é`))',
        "from_json(to_json(p), 'x int, y string')",
        "from_json(to_json(struct(i, s, d)), 'i int, s string, d double')",
    ]
    assert_expressions(spark, calls, make_values(60, 5))


REFUSED = [
    ("from_json(j, 'i int', map('maxNestingDepth', '5'))", "'maxnestingdepth'.*leave it out"),
    ("from_json(j, 'i int', map('mode', 'DROPMALFORMED'))", "take PERMISSIVE or FAILFAST"),
    ("from_json(j, 'i interval day to second')", "read it as a string and cast"),
    ("to_json(struct(j), map('pretty', 'true'))", "'pretty'; leave it out"),
]


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_cannot_run_is_refused_with_a_remedy(spark: Any, expression: str, reason: str) -> None:
    build = sql(f"SELECT {expression} FROM t")
    assert_refused(spark, build, {"t": pa.table({"j": ["{}"]})}, reason)
