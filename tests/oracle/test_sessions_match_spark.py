"""Session windows against batch Spark: merging, bridging, every kind of aggregate, both modes."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_refused, assert_same
from pyspark.sql import functions as F

from penstock.ops.api import Delta
from penstock.ops.driver import Driver
from penstock.plan.nodes import Mode
from penstock.testing.oracle import Build, Frames, plan_streaming

pytestmark = pytest.mark.usefixtures("interpreted")

_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
_CALLS = [
    *("count(*)", "sum(v)", "avg(d)", "min(s)", "max_by(s, struct(v, row))", "sum(d)", "max(t)"),
    *("stddev(d)", "max(struct(s, v))", "count(v) FILTER (WHERE v > 2)", "median(v)"),
]


def _table(rows: int, seed: int, *, ordered: bool = False, spread_s: int = 600) -> pa.Table:
    """Rows at random moments, often exactly one gap of five seconds apart."""
    rng = random.Random(seed)
    moments = [rng.choice([0, 0, 1]) + 5 * rng.randrange(spread_s // 5) for _ in range(rows)]
    if ordered:
        moments.sort()
    return pa.table(
        {
            "row": pa.array(range(rows), pa.int32()),
            "k": pa.array([rng.choice(["a", "b", "c", None]) for _ in range(rows)]),
            "v": pa.array([rng.choice([None, 1, 2, 3]) for _ in range(rows)], pa.int32()),
            "d": pa.array([rng.choice([None, -0.0, rng.random()]) for _ in range(rows)]),
            "s": pa.array([rng.choice(["", "x", "é", None]) for _ in range(rows)]),
            "t": pa.array(
                [
                    _START + dt.timedelta(seconds=s, microseconds=rng.choice([0, 0, 1]))
                    for s in moments
                ],
                pa.timestamp("us", tz="UTC"),
            ),
        }
    )


def _named(calls: list[str]) -> list[Any]:
    return [F.expr(text).alias(f"c{place}") for place, text in enumerate(calls)]


def _sessions(calls: list[str], *keys: str, gap: str = "5 seconds", late: str = "") -> Build:
    def build(frames: Frames) -> Any:
        rows = frames["t"]
        if late:
            rows = rows.withWatermark("t", late)
        return rows.groupBy(*keys, F.session_window("t", gap)).agg(*_named(calls))

    return build


def test_sessions_merge_in_any_order_of_rows(spark: Any) -> None:
    table = _table(400, 0, spread_s=2000)
    assert_same(spark, _sessions(_CALLS, "k"), {"t": table}, runs=4)


def test_sessions_without_a_key_and_with_several(spark: Any) -> None:
    table = _table(100, 11, spread_s=2000)
    assert_same(spark, _sessions(_CALLS), {"t": table}, seed=1)
    assert_same(spark, _sessions(["count(*)", "max(t)"], "k", "d", "s"), {"t": table}, seed=2)


def test_a_session_column_may_stand_before_the_keys(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        session = F.session_window("t", "7 seconds")
        return frames["t"].groupBy(session, "s", "k").agg(F.sum("v"), F.count("*"))

    assert_same(spark, build, {"t": _table(100, 12)}, seed=3)


@pytest.mark.parametrize("mode", ["append", "update"])
def test_closed_sessions_are_shown_once(spark: Any, mode: Mode) -> None:
    table = _table(300, 0, ordered=True, spread_s=2000)
    build = _sessions(_CALLS, "k", late="2 seconds")
    assert_same(spark, build, {"t": table}, runs=2, mode=mode)


def test_distinct_aggregates_over_sessions(spark: Any) -> None:
    one = ["count(DISTINCT v)", "sum(d)", "approx_count_distinct(s)", "size(collect_set(s))"]
    two = ["count(DISTINCT v)", "count(DISTINCT s)", "sum(v)"]
    table = _table(90, 13, ordered=True)
    for seed, calls in enumerate([one, two]):
        assert_same(spark, _sessions(calls, "k"), {"t": table}, seed=seed)
    build = _sessions(one, "k", late="2 seconds")
    assert_same(spark, build, {"t": table}, seed=2, mode="append")
    assert_same(spark, build, {"t": table}, seed=3, mode="update")


def test_every_row_may_have_a_gap_of_its_own(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        gap = F.expr(
            "CASE WHEN v = 1 THEN '20 seconds' WHEN v = 2 THEN '0 seconds' ELSE '3 seconds' END"
        )
        return frames["t"].groupBy("k", F.session_window("t", gap)).agg(*_named(_CALLS))

    assert_same(spark, build, {"t": _table(120, 14)}, seed=4)


def test_sessions_of_rows_that_change(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        changing = frames["t"].groupBy("k", "v").agg(F.max("t").alias("t"), F.sum("d").alias("d"))
        session = F.session_window("t", "30 seconds")
        return changing.groupBy(session).agg(F.count("*"), F.sum("d"), F.max("k"), F.min("v"))

    assert_same(spark, build, {"t": _table(120, 15)}, runs=2)


def test_what_is_computed_over_sessions_follows_their_changes(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        sessions = frames["t"].groupBy("k", F.session_window("t", "5 seconds")).count()
        return sessions.groupBy("k").agg(F.max("count"), F.count("*"), F.min("session_window.end"))

    assert_same(spark, build, {"t": _table(100, 17)}, seed=5)


def test_no_rows_give_no_sessions(spark: Any) -> None:
    assert_same(spark, _sessions(_CALLS, "k"), {"t": _table(0, 0)})
    assert_same(spark, _sessions(_CALLS), {"t": _table(0, 0)})


def test_sessions_that_cannot_close_are_refused_in_append_mode(spark: Any) -> None:
    tables = {"t": _table(1, 0)}
    assert_refused(spark, _sessions(_CALLS, "k"), tables, "with a watermark", "append")
    two = _sessions(["count(DISTINCT v)", "count(DISTINCT s)"], "k", late="1 second")
    assert_refused(spark, two, tables, "close at different times", "append")


def test_rows_of_a_time_that_has_passed_are_late(spark: Any) -> None:
    times = [_START + dt.timedelta(seconds=s) for s in (0, 3, 100, 4, 97)]
    table = pa.table({"t": pa.array(times, pa.timestamp("us", tz="UTC"))})
    planned = plan_streaming(
        spark, _sessions(["count(*)"], late="5 seconds"), {"t": table}, "append"
    )
    late: list[Delta] = []
    driver = Driver(planned.query, {}, on_late=lambda name, rows: late.append(rows))
    (stream,) = planned.query.streams
    for row in range(table.num_rows):
        driver.feed(stream, table.slice(row, 1).to_batches()[0])
    driver.finish()
    counts = driver.result().column("c0").to_pylist()
    assert counts == [2, 2]
    assert sum(len(rows) for rows in late) == 1


@pytest.mark.parametrize("by", ["session", "window"])
def test_what_was_open_before_a_restart_closes_in_time(spark: Any, by: str) -> None:
    times = [_START + dt.timedelta(seconds=s) for s in (0, 100, 102, 200)]
    table = pa.table({"t": pa.array(times, pa.timestamp("us", tz="UTC"))})

    def build(frames: Frames) -> Any:
        rows = frames["t"].withWatermark("t", "20 seconds")
        key = F.session_window("t", "5 seconds") if by == "session" else F.window("t", "5 seconds")
        return rows.groupBy(key).count()

    planned = plan_streaming(spark, build, {"t": table}, "append")
    (stream,) = planned.query.streams
    driver = Driver(planned.query, {})
    shown = []
    for row in range(table.num_rows):
        driver = Driver(planned.query, {}, resume=driver.snapshot())
        driver.feed(stream, table.slice(row, 1).to_batches()[0])
        shown.append(driver.result().num_rows)
    assert shown == [0, 1, 0, 1]
