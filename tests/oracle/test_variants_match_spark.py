"""Variants inside a query give what batch Spark gives."""

from __future__ import annotations

import random
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails, assert_refused, assert_same, sql

from penstock.testing.oracle import Failed, plan_streaming, run_ours, run_spark

pytestmark = pytest.mark.usefixtures("interpreted")

TEXTS = r"""
{"a":1,"b":{"c":"x","d":[1,2.5,"y",null,true]}}
{"a":"12","b":null,"z":1,"é":2,"B":3}
{"a":1.50,"b":[1,2,3]}
{"a":1e3,"b":{"c":1.0}}
{"a":true,"b":"2024-01-02"}
{"a":null}
{"a":"2024-01-02T03:04:05Z","b":{}}
{"a":9223372036854775807,"b":9223372036854775808}
{"a":-0.0,"b":-0,"c":0.10}
{"a":123456789012345678901234567890123456789012345678,"b":1e400}
{"a":"\u00e9😀\n\"","b":"\u0001/"}
{"a":[],"b":[{"c":1},{"c":"2"},{}]}
{"a":300,"b":"abc"}
{"a":1700000000,"b":1700000000.5}
{}
[]
[1,"x",null,{"a":5}]
"text"
5
1.5
null
true
 {"a" : 1} trailing
""".strip("\n").split("\n")
MALFORMED = [
    "",
    " ",
    "{",
    '{"a":1',
    '{"a":1,"a":2}',
    "{'a':1}",
    "{a:1}",
    "nul",
    "NaN",
    "01",
    "5x",
    '"\\ud800"',
    "[1,]",
    "{,}",
    "+1",
    ".5",
    "1.",
    '"x',
    "\t",
    '{"a":Infinity}',
]
TABLE = pa.table({"j": pa.array([*TEXTS, None], pa.string())})
DAMAGED = pa.table({"j": pa.array([*TEXTS, *MALFORMED, None], pa.string())})
PATHS = [
    "$",
    "$.a",
    "$.b",
    "$.b.c",
    "$.b[1]",
    "$['b']['d'][0]",
    "$.b.d[2]",
    "$[1]",
    "$[3].a",
    '$["é"]',
]
TYPES = "string int bigint double float smallint boolean decimal(10,2) timestamp date timestamp_ntz"
NESTED = ["array<int>", "array<string>", "map<string,string>", "struct<c:int,d:array<string>>"]


@pytest.mark.parametrize("ansi", [True, False])
def test_parts_as_values(spark: Any, ansi: bool) -> None:
    types = [*TYPES.split(), "binary", *NESTED]
    calls = [
        f"""try_variant_get(try_parse_json(j), '{path.replace("'", chr(34))}', '{type}')"""
        for path in PATHS
        for type in (types if path in ("$.a", "$.b") else ["string", "int"])
    ]
    assert_expressions(spark, calls, DAMAGED, ansi=ansi)


def test_whole_variants(spark: Any) -> None:
    calls = [
        "to_json(try_parse_json(j))",
        "to_json(try_parse_json(j):b)",
        "to_json(struct(try_parse_json(j):b AS x, j))",
        "is_variant_null(try_parse_json(j))",
        "is_variant_null(try_parse_json(j):a)",
        "try_cast(try_parse_json(j):a AS int)",
        "try_parse_json(j):b.c::string",
        "CAST(try_parse_json(j) AS string)",
        "try_variant_get(try_parse_json(j), '$.b', 'array<variant>') IS NULL",
        "transform(try_variant_get(try_parse_json(j), '$.b', 'array<variant>'), x -> to_json(x))",
        "coalesce(try_parse_json(j):a, try_parse_json(j):b)::string",
    ]
    assert_expressions(spark, calls, DAMAGED)
    assert_expressions(spark, ["to_json(parse_json(j))"], TABLE)


def test_what_is_no_value_of_the_type_fails(spark: Any) -> None:
    damaged = {"t": pa.table({"j": ["1", "{"]})}
    build = sql("SELECT to_json(parse_json(j)) FROM t")
    condition = "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION"
    with pytest.raises(Exception, match=condition):  # over local rows: an error of Java's own
        run_spark(spark, build, damaged, methodcaller("collect"))
    planned = plan_streaming(spark, build, damaged)
    assert run_ours(planned, damaged, random.Random(0)) == Failed(condition)
    one = pa.table({"j": ['{"a":1}', '{"a":"x"}']})
    for call in ("variant_get(parse_json(j), '$.a', 'int')", "parse_json(j):a::int"):
        assert_fails(spark, call, one, "INVALID_VARIANT_CAST")


def test_in_a_query_of_two_stages(spark: Any) -> None:
    query = (
        "SELECT v:a::string AS a, count(*) AS n, max(to_json(v)) AS most"
        " FROM (SELECT try_parse_json(j) AS v FROM t) WHERE v IS NOT NULL GROUP BY 1"
    )
    assert_same(spark, sql(query), {"t": DAMAGED}, seed=3, runs=2)


def test_elements_as_rows(spark: Any) -> None:
    inside = "try_variant_get(try_parse_json(j), '$.b', 'array<variant>')"
    query = f"SELECT j, to_json(x) AS x FROM t LATERAL VIEW explode({inside}) AS x"
    assert_same(spark, sql(query), {"t": DAMAGED}, seed=4)
    fields = (
        "SELECT j, f.key, f.value FROM t LATERAL VIEW explode(from_json(j, 'map<string,string>')) f"
    )
    assert_same(spark, sql(fields), {"t": DAMAGED}, seed=5)


REFUSED = [
    ("SELECT from_json(j, 'a variant').a IS NULL FROM t", "use parse_json"),
    ("SELECT from_csv(j, 'a variant').a IS NULL FROM t", "read a string"),
    ("SELECT parse_json(j) AS v FROM t", "a variant.*the result.*to_json"),
    ("SELECT j, to_json(first(parse_json(j))) FROM t GROUP BY j", "variant"),
    ("SELECT to_json(CAST(j AS variant)) FROM t", "use parse_json"),
    ("SELECT to_json(variant_get(parse_json(j), j, 'variant')) FROM t", "constant paths"),
    ("SELECT schema_of_variant(parse_json(j)) FROM t", r"look at its text, to_json\(v\)"),
    ("SELECT schema_of_variant_agg(parse_json(j)) FROM t", r"look at its text, to_json\(v\)"),
    (
        "SELECT v.pos FROM t, LATERAL variant_explode(parse_json(j)) v",
        "'array<variant>'.*from_json",
    ),
]


@pytest.mark.parametrize(("query", "reason"), REFUSED)
def test_what_cannot_run_is_refused_with_a_remedy(spark: Any, query: str, reason: str) -> None:
    assert_refused(spark, sql(query), {"t": pa.table({"j": ["{}"]})}, f"(?s){reason}")
