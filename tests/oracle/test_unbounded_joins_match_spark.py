"""Groups above a join without time bounds: its rows may find partners however late, and count."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_refused

from penstock.testing.oracle import Frames, assert_equal, plan_streaming, run_ours, run_spark

STAMP = pa.timestamp("us", "UTC")
#: No row is late in its own stream: all are at most 50 minutes behind, watermarks an hour.
DELAY = "1 hour"
GROUPS = [
    "SELECT date_trunc('HOUR', a.ts) AS h, count(*) AS c, sum(z.v2) AS s FROM {join} GROUP BY 1",
    "SELECT to_date(a.ts) AS h, a.k, count(*) AS c FROM {join} GROUP BY 1, 2",
    "SELECT window(a.ts, '1 hour').start AS h, count(*) AS c FROM {join}"
    " GROUP BY window(a.ts, '1 hour')",
    "SELECT window(w, '1 day').start AS d, sum(c) AS c FROM (SELECT window(a.ts, '1 hour') AS w,"
    " count(*) AS c FROM {join} GROUP BY window(a.ts, '1 hour')) GROUP BY window(w, '1 day')",
]
UNBOUNDED = "t a JOIN u z ON a.k = z.k"


def rows(seed: int, suffix: str) -> pa.Table:
    draw = random.Random(seed)
    time = datetime(2024, 1, 1, tzinfo=UTC)
    times, keys = [], []
    for _ in range(25):
        time += timedelta(minutes=draw.choice([1, 7, 31, 59, 240]))
        times.append(time - timedelta(minutes=draw.choice([0, 5, 50])))
        keys.append(draw.choice("ab"))
    values = list(range(25))
    return pa.table({f"ts{suffix}": pa.array(times, STAMP), "k": keys, f"v{suffix}": values})


TABLES = {"t": rows(1, ""), "u": rows(2, "2")}


def joined(query: str, join: str, watermarks: str = "tu") -> Any:
    def build(frames: Frames) -> Any:
        for name, time in (("t", "ts"), ("u", "ts2")):
            frame = frames[name]
            if name in watermarks:
                frame = frame.withWatermark(time, DELAY)
            frame.createOrReplaceTempView(name)
        return frames["t"].sparkSession.sql(query.format(join=join))

    return build


def assert_batch_sparks(spark: Any, build: Any, mode: Any) -> None:
    plan = plan_streaming(spark, build, TABLES, mode=mode)
    expected = run_spark(spark, build, TABLES)
    for seed in range(6):
        assert_equal(run_ours(plan, TABLES, random.Random(seed)), expected, f"seed {seed}")


@pytest.mark.parametrize("watermarks", ["tu", "t"])
@pytest.mark.parametrize("query", GROUPS)
def test_groups_stay_open_in_update_mode(spark: Any, query: str, watermarks: str) -> None:
    assert_batch_sparks(spark, joined(query, UNBOUNDED, watermarks), "update")


@pytest.mark.parametrize("watermarks", ["tu", "t"])
@pytest.mark.parametrize("query", GROUPS)
def test_append_mode_refuses_them_and_says_what_to_do(
    spark: Any, query: str, watermarks: str
) -> None:
    build = joined(query, UNBOUNDED, watermarks)
    assert_refused(spark, build, TABLES, "bound the join below it in event time", "append")


BOUNDED = f"{UNBOUNDED} AND z.ts2 BETWEEN a.ts - INTERVAL 3 HOURS AND a.ts + INTERVAL 3 HOURS"


@pytest.mark.parametrize("query", GROUPS)
def test_the_remedy_runs(spark: Any, query: str) -> None:
    assert_batch_sparks(spark, joined(query, BOUNDED), "append")


def test_a_side_that_is_bounded_alone_closes_its_own_times(spark: Any) -> None:
    """Old rows of t wait for ever, and meet rows of u that are new."""
    join = f"{UNBOUNDED} AND z.ts2 >= a.ts"
    hour = "window({0}, '1 hour')"
    by = f"SELECT {hour}.start AS h, count(*) AS c FROM {{{{join}}}} GROUP BY {hour}"
    assert_batch_sparks(spark, joined(by.format("z.ts2"), join), "append")
    assert_refused(spark, joined(by.format("a.ts"), join), TABLES, "bound the join", "append")
    assert_batch_sparks(spark, joined(by.format("a.ts"), join), "update")


def test_distinct_rows_and_joins_above_it_keep_what_they_need(spark: Any) -> None:
    distinct = "SELECT DISTINCT a.ts, z.v2 FROM {join}"
    assert_batch_sparks(spark, joined(distinct, UNBOUNDED), "update")
    again = (
        "SELECT x.ts, x.v2, b.v2 AS w FROM (SELECT a.ts, z.v2 FROM {join}) x JOIN u b"
        " ON x.v2 = b.v2 AND b.ts2 BETWEEN x.ts - INTERVAL 9 HOURS AND x.ts + INTERVAL 9 HOURS"
    )
    assert_batch_sparks(spark, joined(again, UNBOUNDED), "append")
