"""What cannot run is refused before anything starts: every reason at once, each with a way out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_refused, assert_same, sql
from pyspark.errors import ArithmeticException
from pyspark.sql import functions as F

import penstock
from penstock.errors import BadRequest, Unsupported
from penstock.testing.oracle import plan_streaming

TABLES = {
    "t": pa.schema(
        [("k", pa.string()), ("v", pa.int32()), ("ts", pa.timestamp("us", tz="UTC"))]
    ).empty_table()
}


def reasons(spark: Any, sql: str, mode: Any = "update") -> list[str]:
    with pytest.raises(Unsupported) as caught:
        plan_streaming(spark, lambda frames: spark.sql(sql, **frames), TABLES, mode)
    assert all(reason.remedy and reason.node for reason in caught.value.reasons)
    for reason in caught.value.reasons:
        assert reason.problem in str(caught.value)
    return [reason.problem for reason in caught.value.reasons]


def test_all_reasons_come_at_once(spark: Any) -> None:
    problems = reasons(
        spark, "SELECT k, rand() AS r, uuid() AS u, current_time() AS now FROM {t} LIMIT 5"
    )
    assert len(problems) == 4
    assert any("current_time()" in problem for problem in problems)
    assert any("rand()" in problem for problem in problems)
    assert any("uuid()" in problem for problem in problems)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT spark_partition_id() AS i FROM {t}", "spark_partition_id()"),
        ("SELECT monotonically_increasing_id() AS i FROM {t}", "counts rows of Spark's partitions"),
        ("SELECT map() AS m FROM {t}", "map<void,...>"),
        ("SELECT * FROM {t} TABLESAMPLE (5 PERCENT)", "Sample"),
        ("SELECT * FROM {t} ORDER BY v", "no order"),
        ("SELECT * FROM {t} LIMIT 3", "no first ones"),
        ("SELECT make_ym_interval(v, 1) AS i FROM {t}", "year-month"),
        (
            "SELECT CAST(make_ym_interval(v, 1) AS STRING) AS s FROM {t}",
            "year-month interval in Cast",
        ),
        ("SELECT extract(month from -make_ym_interval(v, 1)) AS m FROM {t}", "in UnaryMinus"),
        ("SELECT parse_json(k) AS j FROM {t}", "variant"),
    ],
)
def test_each_is_told_by_name(spark: Any, sql: str, expected: str) -> None:
    assert any(expected in problem for problem in reasons(spark, sql)), reasons(spark, sql)


def test_a_rule_of_sparks_that_fails_is_told_without_its_trace(spark: Any) -> None:
    query = (
        "SELECT k, listagg(DISTINCT k, ',') WITHIN GROUP (ORDER BY k DESC) AS a, "
        "count(DISTINCT v) AS b, current_time() AS c FROM {t} GROUP BY k"
    )
    with pytest.raises(Unsupported) as caught:
        plan_streaming(spark, lambda frames: spark.sql(query, **frames), TABLES)
    by_node = {reason.node: reason for reason in caught.value.reasons}
    nodes = [node for node in by_node if "listagg(DISTINCT" in node]
    assert len(nodes) == 1, by_node
    assert "RewriteDistinctAggregates (ClassCastException: " in by_node[nodes[0]].problem
    assert "collect_set" in by_node[nodes[0]].remedy
    assert "the query" in by_node  # what else is in its way is told, too
    assert "\tat " not in str(caught.value) and "org.apache" not in str(caught.value)
    assert "RewriteDistinctAggregates.scala" in str(caught.value.__cause__)

    # The way out that is told.
    instead = (
        "SELECT k, array_join(sort_array(collect_set(k)), ',') AS a, count(DISTINCT v) AS b "
        "FROM {t} GROUP BY k"
    )
    plan_streaming(spark, lambda frames: spark.sql(instead, **frames), TABLES)


def test_what_spark_tells_its_user_is_told_in_its_words(spark: Any) -> None:
    with pytest.raises(ArithmeticException) as caught:
        plan_streaming(
            spark, lambda frames: spark.sql("SELECT 1/0 AS a FROM {t}", **frames), TABLES
        )
    assert caught.value.getCondition() == "DIVIDE_BY_ZERO"


SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("s", "u", "p")),
        *(("i", pa.int32()), ("l", pa.int64()), ("d", pa.float64()), ("m", pa.decimal128(12, 2))),
        *(("ts", pa.timestamp("us", "UTC")), ("n", pa.list_(pa.int32()))),
    ]
)
TEXT = "date_format(ts, 'yyyy')"
#: What has another meaning here and there, or would need what we do not have.
EXPRESSIONS = {
    "hash(make_interval(0, i))": "hash of a value",
    "from_utc_timestamp(ts, 'Nowhere')": "unknown time zone Nowhere",
    # texts
    "format_string('%e', d)": "%e",
    "format_string('%s', m)": "%s of decimal",
    "format_string(s, i)": "not constant",
    "format_number(d, '0.0E0')": "pattern",
    "encode(s, u)": "not constant",
    "parse_url(s, u)": "not constant",
    "parse_url(s, 'QUERY', '[')": "regular expression",
    "levenshtein(s, u, i)": "threshold",
    # patterns of dates and times
    "date_format(ts, 'yyyy G')": "the letters G",
    "date_format(ts, 'z')": "the letters z",
    "date_format(ts, concat(l, ''))": "not a literal|no function",
    f"to_timestamp({TEXT}, 'yyyy D dd')": "day of the year beside",
    f"to_timestamp({TEXT}, 'yyyy[yyyy]')": "more than one of the letters y",
    f"to_timestamp({TEXT}, 'HH a')": "half of the day beside",
    # intervals without all their fields
    "cast(make_ym_interval(1, cast(l as int)) as string)": "interval",
    "cast(cast(ts as date) - date'2020-01-01' as string)": "interval",
    "cast(l as interval day)": "interval",
    "cast(s as interval hour to second)": "interval",
    # regular expressions
    r"s rlike r'\b{g}foo'": "regular expression",
    "s rlike '(?x)^a'": "regular expression",
    "s rlike '(a*)*'": "regular expression",
    "s rlike '[a-z&&[b]c]'": "regular expression",
    r"s rlike r'\p{InGreek}'": "regular expression",
    "s rlike '(?d)b'": "regular expression",
    "s rlike '('": "regular expression",
    "s rlike p": "regular expression",
    "regexp_replace(s, 'x*', '-')": "regular expression|regexp_replace",
    "regexp_replace(s, p, 'a')": "regular expression|regexp_replace",
    "split(s, 'a?')": "regular expression",
    "regexp_extract(s, 'a', length(p))": "regular expression",
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_that_cannot_be_exact_is_refused(spark: Any, expression: str) -> None:
    tables = {"t": SCHEMA.empty_table()}
    build = sql(f"SELECT {expression} FROM t")
    assert_refused(spark, build, tables, EXPRESSIONS[expression])


WAYS_OUT: list[tuple[Callable[[Any], Any], str, str]] = [
    (lambda t: t.randomSplit([0.5, 0.5], 3)[0], "Sample", "pmod(xxhash64(key), 100) < 5"),
    (lambda t: t.observe("seen", F.count("*").alias("n")), "CollectMetrics", "df.agg(...)"),
    (lambda t: t.sortWithinPartitions("v"), "sortWithinPartitions", "leave it out"),
    (lambda t: t.select(F.uuid().alias("u")), "uuid()", "sha2(to_json(struct(*)), 256)"),
    (lambda t: t.select(F.rand(1).alias("r")), "rand()", "pmod(xxhash64(key), 1000) / 1000"),
]


@pytest.mark.parametrize(("build", "problem", "remedy"), WAYS_OUT)
def test_one_reason_and_what_to_do_instead(
    spark: Any, build: Callable[[Any], Any], problem: str, remedy: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        plan_streaming(spark, lambda frames: build(frames["t"]), TABLES)
    (reason,) = caught.value.reasons
    assert problem in reason.problem and remedy in reason.remedy


#: What reasons say to do, done.
INSTEAD = [
    # of sample
    "SELECT k, v FROM t WHERE pmod(xxhash64(k, v), 100) < 30",
    # of randomSplit
    "SELECT 'some' AS part, v FROM t WHERE pmod(xxhash64(v), 100) < 80"
    " UNION ALL SELECT 'others', v FROM t WHERE pmod(xxhash64(v), 100) >= 80",
    # of uuid(), rand(), spark_partition_id(), monotonically_increasing_id()
    "SELECT k, sha2(to_json(struct(*)), 256) AS u, pmod(xxhash64(k), 1000) / 1000 AS r,"
    " pmod(hash(k), 16) AS b, row_number() OVER (PARTITION BY k ORDER BY ts) AS n FROM t",
]


def _observed(frames: Any) -> Any:
    """The figures of an observe(), in a query of their own."""
    return frames["t"].agg(F.count("*").alias("n"), F.max("v").alias("top"))


@pytest.mark.parametrize("build", [*map(sql, INSTEAD), _observed])
def test_the_ways_out_run(spark: Any, build: Any) -> None:
    times = [datetime(2024, 1, 1, 0, minute, tzinfo=UTC) for minute in range(60)]
    rows = [["a", "b", None][at % 3] for at in range(60)], range(60), times
    columns = [pa.array(column, field.type)
               for column, field in zip(rows, TABLES["t"].schema, strict=True)]  # fmt: skip
    assert_same(spark, build, {"t": pa.table(columns, schema=TABLES["t"].schema)}, runs=3)


def test_a_query_without_a_stream_is_refused(spark: Any) -> None:
    assert_refused(spark, lambda frames: spark.range(3), {}, "reads no stream")


def test_append_mode_wants_a_watermark(spark: Any) -> None:
    (problem,) = reasons(spark, "SELECT k, count(*) AS c FROM {t} GROUP BY k", "append")
    assert "append mode needs an aggregation by event time" in problem


def test_an_unknown_function_inside_an_aggregate_is_found(spark: Any) -> None:
    (problem,) = reasons(spark, "SELECT max(from_xml(k, 'a int').a) AS m FROM {t}")
    assert "XmlToStructs" in problem


def test_a_session_setting_that_the_plan_does_not_show_is_refused(spark: Any) -> None:
    spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    try:
        (problem,) = reasons(spark, "SELECT k FROM {t}")
    finally:
        spark.conf.unset("spark.sql.mapKeyDedupPolicy")
    assert "LAST_WIN" in problem


def test_what_is_not_a_dataframe_of_classic_pyspark_is_told(spark: Any) -> None:
    with pytest.raises(BadRequest, match="expected a streaming DataFrame, got list"):
        penstock.explain([])
