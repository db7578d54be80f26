"""current_timestamp() and its kin are the time at which the log took a row.

A query that asks for it gives what batch Spark gives over rows that have that time in a column.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import ask_spark, assert_refused, session_setting, sql
from pyspark.sql import functions as F

from penstock.ops.driver import Driver
from penstock.plan.nodes import Mode
from penstock.spark.frontend import plan
from penstock.testing.oracle import assert_equal, plan_streaming, run_ours, streaming_frames

pytestmark = pytest.mark.usefixtures("interpreted")

_HOUR_US = 3_600_000_000
#: New York puts its clocks back at 06:00 UTC on this day.
_BEGIN_US = 1_730_610_000_000_000


def make_rows(count: int, seed: int) -> pa.Table:
    rng = random.Random(seed)
    times, time = [], _BEGIN_US
    for _ in range(count):
        times.append(time)
        time += rng.choice([0, 0, 1000, _HOUR_US // 2, 5 * _HOUR_US])  # never falls
    events = [
        None if rng.random() < 0.1 else time - rng.choice([0, _HOUR_US, 9 * _HOUR_US])
        for time in times
    ]
    stamp = pa.timestamp("us", "UTC")
    return pa.table(
        {
            "k": pa.array([rng.choice(["a", "é", None]) for _ in range(count)]),
            "v": pa.array([rng.choice([1, 2, 3, None]) for _ in range(count)], pa.int32()),
            "ts": pa.array(events, stamp),
            "n": pa.array([[1, 2][: rng.randrange(3)] for _ in range(count)], pa.list_(pa.int32())),
            "_time": pa.array(times, stamp),
        }
    )


ROWS = make_rows(60, 1)
QUERIES = [
    "SELECT k, {now} AS n, {date} AS d, {local} AS l, unix_timestamp({now}) AS u, "
    "date_format({now}, 'yyyy-MM-dd HH:mm:ss.SSS XXX') AS f FROM t",
    "SELECT k, v FROM t WHERE ts > {now} - INTERVAL 2 HOURS OR {date} < DATE'2024-11-04'",
    "SELECT date_trunc('HOUR', {now}) AS h, count(*) AS c, max({now}) AS last FROM t GROUP BY 1",
    "SELECT k, max({now}) AS seen, count(*) FILTER (WHERE {date} = DATE'2024-11-03') AS c "
    "FROM t GROUP BY k",
    "SELECT k, {now} AS n FROM t UNION ALL SELECT k, ts FROM t UNION ALL SELECT 'z', {now} FROM t",
    "SELECT x, {now} AS n, v FROM t LATERAL VIEW explode(n) AS x",
    "SELECT v, {now} AS n, id FROM t JOIN range(3) ON v = id AND id * 1000 < unix_seconds({now})",
    "SELECT v, {now} AS n, id FROM t LEFT JOIN range(3) ON v = id WHERE {now} IS NOT NULL",
    "SELECT a.v, a.n, b.n AS m FROM (SELECT v, {now} AS n FROM t) a JOIN "
    "(SELECT v, max({date}) AS n FROM t GROUP BY v) b ON a.v = b.v",
    "SELECT k, v, {now} AS n FROM t WHERE v IN (SELECT id FROM range(2)) OR k = 'a'",
    "SELECT DISTINCT k, {date} AS d FROM t",
    "SELECT k, row_number() OVER (PARTITION BY k ORDER BY n, v, ts) AS r FROM "
    "(SELECT k, v, ts, {now} AS n FROM t)",
]
OURS = {"now": "current_timestamp()", "date": "current_date()", "local": "localtimestamp()"}
SPARKS = {"now": "_time", "date": "to_date(_time)", "local": "CAST(_time AS TIMESTAMP_NTZ)"}


def assert_times(
    spark: Any,
    ours: Callable[[Any], Any],
    theirs: Callable[[Any], Any],
    mode: Mode = "update",
    seed: int = 0,
) -> None:
    frame = ours(streaming_frames(spark, {"t": ROWS.drop_columns("_time")}))
    planned = plan(frame, mode=mode)
    expected = ask_spark(spark, theirs, {"t": ROWS}, frame=frame)
    for run in range(seed, seed + 2):
        assert_equal(run_ours(planned, {"t": ROWS}, random.Random(run)), expected, f"seed {run}")


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_sees_when_the_log_took_each_row(spark: Any, query: str) -> None:
    with session_setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        ours, theirs = sql(query.format(**OURS)), sql(query.format(**SPARKS))
        assert_times(spark, ours, theirs, seed=len(query))


def test_windows_of_append_time_close_by_a_watermark(spark: Any) -> None:
    def count(frame: Any) -> Any:
        windows = frame.withWatermark("at", "0 seconds").groupBy(F.window("at", "1 hour"), "k")
        return windows.agg(F.count("*").alias("c"), F.sum("v").alias("s"))

    def ours(frames: Any) -> Any:
        return count(frames["t"].withColumn("at", F.current_timestamp()))

    def theirs(frames: Any) -> Any:
        return count(frames["t"].withColumn("at", F.col("_time")))

    assert_times(spark, ours, theirs, mode="append")


def test_python_functions_are_handed_it(spark: Any) -> None:
    def with_hour(now: str) -> Callable[[Any], Any]:
        hour = F.udf(lambda at: at.hour, "int")
        return lambda frames: frames["t"].select("k", hour(F.expr(now)).alias("h"), F.expr(now))

    def named(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda frames: build(frames).toDF("k", "h", "n")

    assert_times(spark, named(with_hour("now()")), named(with_hour("_time")))


def test_static_rows_have_the_time_of_planning(spark: Any) -> None:
    build = sql("SELECT v, s > TIMESTAMP'2026-01-01' AS is_new FROM t JOIN "
                "(SELECT id, current_timestamp() AS s FROM range(5)) ON v = id")  # fmt: skip
    planned = plan_streaming(spark, build, {"t": ROWS.drop_columns("_time")})
    result = run_ours(planned, {"t": ROWS}, random.Random(0))
    assert isinstance(result, pa.Table)
    assert set(result["is_new"].to_pylist()) == {True}


def test_without_a_column_the_clock_of_the_test_tells_it(spark: Any) -> None:
    rows = ROWS.drop_columns("_time")
    planned = plan_streaming(spark, sql("SELECT now() AS n FROM t"), {"t": rows})
    driver = Driver(planned.query, {}, now_ms=lambda: 5)
    driver.feed("t", rows.to_batches()[0])
    assert driver.result()["n"].cast(pa.int64()).unique().to_pylist() == [5000]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, count(*) AS c, current_timestamp() AS n FROM t GROUP BY k",
        "SELECT a.k, now() AS n FROM t a JOIN t b ON a.k = b.k",
        "SELECT a.k FROM t a JOIN t b ON a.k = b.k AND a.ts < current_timestamp()",
        "SELECT k, current_date() AS d FROM (SELECT DISTINCT k FROM t)",
    ],
)
def test_where_there_is_no_one_row_it_is_refused(spark: Any, query: str) -> None:
    tables = {"t": ROWS.drop_columns("_time")}
    assert_refused(spark, sql(query), tables, r"(?s)no row of one stream.*max\(seen\)")


def test_the_time_of_day_alone_is_refused(spark: Any) -> None:
    build = sql("SELECT current_time() AS n FROM t")
    assert_refused(spark, build, {"t": ROWS}, "(?s)current_time.*date_format")
