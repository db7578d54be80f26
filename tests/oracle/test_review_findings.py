"""Queries that once gave other results than batch Spark, each with the cause in its name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_refused, assert_same, session_setting
from plan_strategies import make_tables

from penstock.ops.driver import Driver
from penstock.plan import nodes as n
from penstock.plan.nodes import Mode
from penstock.testing.oracle import plan_streaming

#: Delays that no row of make_tables exceeds, and that the watermark overtakes while rows come.
_WATERMARKS = (("t", "ts", "5 seconds"), ("u", "ts2", "8 seconds"))
_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def _build(spark: Any, sql: str, *, timed: bool = False) -> Callable[[Mapping[str, Any]], Any]:
    def build(frames: Mapping[str, Any]) -> Any:
        marked = dict(frames)
        for name, column, delay in _WATERMARKS if timed else ():
            marked[name] = marked[name].withWatermark(column, delay)
        return spark.sql(sql, **marked)

    return build


def _check(spark: Any, sql: str, *, mode: Mode = "update", timed: bool = False) -> None:
    some, none = make_tables(3, 30, 20), make_tables(3, 0, 0)
    assert_same(spark, _build(spark, sql, timed=timed), some, none, runs=6, seed=3, mode=mode)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT max(c) AS m FROM (SELECT count(*) AS c FROM {t})",
        "SELECT sum(c) AS s, count(*) AS n FROM (SELECT count(*) AS c FROM {t})",
        "SELECT sum(c) AS s, max(c) AS m FROM"
        " (SELECT count(*) AS c FROM {t} UNION ALL SELECT count(*) AS c FROM {u})",
    ],
)
def test_a_total_of_totals_starts_before_the_totals_below_it(spark: Any, sql: str) -> None:
    _check(spark, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g, count(*) AS c FROM (SELECT a.g FROM {t} a LEFT SEMI JOIN {u} z ON a.k = z.k)"
        " GROUP BY g",
        "SELECT count(*) AS c FROM (SELECT a.g FROM {t} a LEFT SEMI JOIN {u} z ON a.k = z.k)",
    ],
)
def test_equal_rows_of_a_semi_join_are_repeated_not_weighed(spark: Any, sql: str) -> None:
    _check(spark, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS c FROM (SELECT k, count(*) AS c FROM {t} GROUP BY k)",
        "SELECT max(1) AS m, count(*) AS c FROM (SELECT k, count(*) AS c FROM {t} GROUP BY k)",
        "SELECT count(*) AS c FROM {t} CROSS JOIN {u}",
        "SELECT count(*) AS c FROM (SELECT DISTINCT k FROM {t}) CROSS JOIN"
        " (SELECT max(w) AS w FROM {u})",
        "SELECT first('x') AS f FROM {t}",
    ],
)
def test_rows_without_columns_are_still_rows(spark: Any, sql: str) -> None:
    _check(spark, sql)


def test_rows_of_a_static_table_without_columns_are_still_rows(spark: Any) -> None:
    static = spark.createDataFrame([(1,), (2,), (3,)], "q int")

    def build(frames: Mapping[str, Any]) -> Any:
        return frames["t"].crossJoin(static).groupBy().count()

    assert_same(spark, build, make_tables(3, 30, 0), runs=3)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(g) FILTER (WHERE id = 0) AS c FROM"
        " (SELECT g, grouping_id() AS id FROM {t} GROUP BY GROUPING SETS ((g), (g)))",
        "SELECT first(c) FILTER (WHERE id = 1) AS c FROM"
        " (SELECT k, count(*) AS c, grouping_id() AS id FROM {t} GROUP BY GROUPING SETS ((k), ()))",
    ],
)
def test_grouping_sets_are_not_taken_for_several_distincts(spark: Any, sql: str) -> None:
    _check(spark, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT cast(d + 0.0D AS string) AS a, cast(d + (-0.0D) AS string) AS z FROM {t}",
        "SELECT cast(v.d AS string) AS s, c FROM"
        " (SELECT struct(d, g) AS v, count(*) AS c FROM {t} GROUP BY 1)",
        "SELECT cast(v AS string) AS s, c FROM"
        " (SELECT array(d) AS v, count(*) AS c FROM {t} GROUP BY 1)",
    ],
)
def test_zeros_differ_as_constants_and_are_one_as_keys(spark: Any, sql: str) -> None:
    _check(spark, sql)


@pytest.mark.parametrize("kind", ["LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "JOIN"])
@pytest.mark.parametrize(("low", "high"), [(-30, -20), (20, 30), (-2, 3)])
def test_rows_wait_for_partners_that_come_before_or_after_them(
    spark: Any, kind: str, low: int, high: int
) -> None:
    sql = (
        "SELECT a.k, a.i, a.ts, z.w, z.ts2 FROM (SELECT * FROM {t} WHERE ts IS NOT NULL) a"
        f" {kind} {{u}} z ON a.k = z.k AND z.ts2 BETWEEN a.ts + INTERVAL {low} SECONDS"
        f" AND a.ts + INTERVAL {high} SECONDS"
    )
    tables = make_tables(3, 30, 20)
    assert_same(spark, _build(spark, sql, timed=True), tables, runs=8, seed=3, mode="append")


@pytest.mark.parametrize("kind", ["LEFT JOIN", "JOIN"])
@pytest.mark.parametrize("mode", ["append", "update"])
def test_rows_that_waited_in_a_join_are_not_late_above_it(
    spark: Any, kind: str, mode: Mode
) -> None:
    sql = (
        "SELECT window(ts, '10 seconds').end AS e, count(*) AS c, count(w) AS w FROM"
        f" (SELECT a.ts, z.w FROM {{t}} a {kind} {{u}} z ON a.k = z.k AND z.ts2 BETWEEN"
        " a.ts - INTERVAL 3 SECONDS AND a.ts + INTERVAL 9 SECONDS)"
        " GROUP BY window(ts, '10 seconds')"
    )
    tables = make_tables(3, 30, 20)
    assert_same(spark, _build(spark, sql, timed=True), tables, runs=12, seed=3, mode=mode)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ts, session_window.end AS e, count(*) AS c FROM {t} WHERE ts IS NOT NULL"
        " GROUP BY ts, session_window(ts, '3 seconds')",
        "SELECT window.end AS e, max(c) AS m FROM (SELECT k, window, count(*) AS c FROM {t}"
        " GROUP BY k, window(ts, '10 seconds')) GROUP BY window",
        "SELECT window.end AS e, count(DISTINCT k) AS a, count(DISTINCT g) AS b FROM {t}"
        " GROUP BY window(ts, '10 seconds')",
    ],
)
def test_windows_close_once_though_tasks_and_keys_carry_several_times(spark: Any, sql: str) -> None:
    _check(spark, sql, mode="append", timed=True)


def _rows(*seconds: int) -> pa.RecordBatch:
    times = [_START + dt.timedelta(seconds=second) for second in seconds]
    return pa.record_batch([pa.array(times, pa.timestamp("us", tz="UTC"))], ["ts"])


def _counted(spark: Any) -> tuple[Any, dict[str, pa.Table]]:
    """Rows of two streams, each with a watermark, counted by window."""
    tables = {name: pa.Table.from_batches([_rows()]) for name in ("one", "two")}

    def build(frames: Mapping[str, Any]) -> Any:
        both = [frames[name].withWatermark("ts", "0 seconds") for name in ("one", "two")]
        sql = "SELECT window.end AS e, count(*) AS c FROM {rows} GROUP BY window(ts, '10 seconds')"
        return spark.sql(sql, rows=both[0].union(both[1]))

    return plan_streaming(spark, build, tables, "append").query, tables


def test_an_idle_stream_steps_aside_in_a_join_too(spark: Any) -> None:
    tables = {name: pa.Table.from_batches([_rows()]) for name in ("one", "two")}

    def build(frames: Mapping[str, Any]) -> Any:
        one, two = (frames[name].withWatermark("ts", "0 seconds") for name in ("one", "two"))
        sql = "SELECT a.ts, z.ts AS r FROM {one} a LEFT JOIN {two} z ON a.ts = z.ts"
        return spark.sql(sql, one=one, two=two)

    driver = Driver(plan_streaming(spark, build, tables, "append").query, {})
    driver.feed("two", _rows(1))
    driver.feed("one", _rows(2, 3))
    assert not driver.result().num_rows
    driver.idle.add("two")
    driver.feed("one", _rows(9))
    assert driver.result().num_rows == 3


def test_time_does_not_go_back_at_a_restart_after_an_idle_stream_stepped_aside(spark: Any) -> None:
    query, _ = _counted(spark)
    driver = Driver(query, {})
    driver.idle.add("two")
    driver.feed("one", _rows(1, 30))
    assert driver.result().column("c").to_pylist() == [1]
    resumed = Driver(query, {}, resume=driver.snapshot())
    resumed.outputs[:0] = driver.outputs
    resumed.feed("two", _rows(2))
    resumed.finish()
    assert resumed.late["aggregate"] == 1
    assert sorted(resumed.result().column("c").to_pylist()) == [1, 1]


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_the_slowest_task_tells_the_time_after_virtual_nodes_moved(spark: Any, tasks: int) -> None:
    query, _ = _counted(spark)
    driver = Driver(query, {}, tasks=2)
    driver.idle.add("two")
    driver.feed("one", _rows(5))
    driver.feed("one", _rows(30))
    resumed = Driver(query, {}, tasks=tasks, resume=driver.snapshot().spread(tasks))
    resumed.idle.add("two")
    for _ in range(tasks):
        resumed.feed("one", _rows(7))
    resumed.finish()
    assert not resumed.late
    assert sorted(resumed.result().column("c").to_pylist()) == [1, 1 + tasks]


def test_a_join_bounded_by_days_is_bounded_only_where_days_have_24_hours(spark: Any) -> None:
    sql = (
        "SELECT a.i, z.w FROM {t} a JOIN {u} z ON a.k = z.k"
        " AND z.ts2 BETWEEN a.ts AND a.ts + INTERVAL 1 DAY"
    )
    bounded = {}
    for name in ("UTC", "America/New_York"):
        with session_setting(spark, "spark.sql.session.timeZone", name):
            tables = make_tables(3, 0, 0)
            query = plan_streaming(spark, _build(spark, sql, timed=True), tables).query
            nodes = (node for stage in query.stages for node in stage.root.walk())
            (join,) = (node for node in nodes if isinstance(node, n.Join))
            bounded[name] = join.left_time is not None
    assert bounded == {"UTC": True, "America/New_York": False}


def test_calendar_intervals_as_keys_are_refused(spark: Any) -> None:
    sql = "SELECT count(*) AS c FROM {t} GROUP BY make_interval(0, 0, 0, i)"
    assert_refused(spark, _build(spark, sql), make_tables(3, 0, 0), "calendar interval")
