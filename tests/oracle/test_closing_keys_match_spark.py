"""Append mode for keys that are made of event time: batch Spark's rows, each once it is final."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.oracle import assert_refused, assert_same, session_setting, sql

from penstock.ops.driver import Driver
from penstock.ops.expressions import compile_expr
from penstock.plan.closing import closing_steps
from penstock.plan.explain import explain
from penstock.plan.exprs import Call, Column, columns
from penstock.plan.nodes import Project
from penstock.testing.oracle import Frames, plan_streaming

pytestmark = pytest.mark.usefixtures("interpreted")

STAMP = pa.timestamp("us", "UTC")
#: Keys that rise with event time.
KEYS = [
    "date_trunc('HOUR', ts)",
    "date_trunc('minute', ts)",
    "date_trunc('DAY', ts)",
    "date_trunc('WEEK', ts)",
    "date_trunc('MON', ts)",
    "date_trunc('QUARTER', ts)",
    "to_date(ts)",
    "CAST(ts - INTERVAL 3 HOURS AS DATE)",
    "trunc(ts, 'MM')",
    "trunc(ts, 'WEEK')",
    "date_add(to_date(ts), 2)",
    "date_trunc('YEAR', to_date(ts))",
    "date_format(ts, 'yyyy-MM-dd HH:00')",
    "date_format(ts, \"yyyy-MM-dd'T'HH:mm\")",
    "date_format(ts, 'yyyyMMdd')",
    "date_format(ts, 'yyyy')",
    "from_unixtime(unix_timestamp(ts), 'yyyy-MM-dd HH')",
    "unix_timestamp(ts) div 600",
    "unix_timestamp(ts) div 600 * 600 + 5",
    "unix_timestamp(ts) - unix_timestamp(ts) % 3600",
    "unix_millis(ts) div 60000",
    "CAST(ts AS LONG)",
    "CAST(unix_timestamp(ts) / 60 AS LONG)",
    "floor(unix_timestamp(ts) / 60)",
    "window(ts, '20 minutes', '20 minutes', '5 minutes').start",
    "timestamp_seconds(unix_timestamp(ts) div 60 * 60)",
]
#: In St. John's clocks were put back at one minute past midnight until 2011, on Lord Howe Island
#: by half an hour, in São Paulo at midnight, both ways.
ZONES = ["UTC", "America/New_York", "America/St_Johns", "Australia/Lord_Howe", "America/Sao_Paulo"]
#: Moments around which clocks were changed there.
CHANGES = [
    datetime(2024, 11, 3, 6, tzinfo=UTC),
    datetime(2024, 3, 10, 7, tzinfo=UTC),
    datetime(2010, 11, 7, 2, 31, tzinfo=UTC),
    datetime(2010, 3, 14, 3, 31, tzinfo=UTC),
    datetime(2024, 4, 6, 15, tzinfo=UTC),
    datetime(2024, 10, 5, 15, 30, tzinfo=UTC),
    datetime(2018, 2, 18, 2, tzinfo=UTC),
    datetime(2018, 11, 4, 3, tzinfo=UTC),
]


def watermarked(query: str) -> Any:
    """A query over `t`, whose rows may come an hour late: none comes later."""

    def build(frames: Frames) -> Any:
        return sql(query)({"t": frames["t"].withWatermark("ts", "1 hour")})

    return build


def make_rows(count: int, seed: int) -> pa.Table:
    """Event time moves on around a change of clocks; no row is later than the watermark allows."""
    rng = random.Random(seed)
    time = sorted(CHANGES)[seed % len(CHANGES)] - timedelta(hours=20)
    rows = []
    for number in range(count):
        time += timedelta(minutes=rng.choice([0, 1, 7, 31, 59, 240]))
        late = timedelta(minutes=rng.choice([0, 0, 5, 50]), microseconds=rng.randrange(10**6))
        rows.append((time - late, rng.choice("ab"), number))
    times, keys, values = zip(*rows, strict=True)
    return pa.table({"ts": pa.array(times, STAMP), "k": list(keys), "v": list(values)})


@pytest.mark.parametrize("zone", ZONES)
def test_groups_by_keys_made_of_event_time_match_spark(spark: Any, zone: str) -> None:
    """One key a run, each beside another that is none."""
    with session_setting(spark, "spark.sql.session.timeZone", zone):
        for place, key in enumerate(KEYS):
            if (place + ZONES.index(zone)) % len(ZONES):
                continue
            query = f"SELECT {key} AS h, k, count(*) AS c, sum(v) AS s FROM t GROUP BY 1, 2"
            rows = {"t": make_rows(120, place)}
            assert_same(spark, watermarked(query), rows, seed=place, mode="append")


QUERIES = [
    # distinct values, several at once, and functions that keep all rows
    "SELECT to_date(ts) AS d, count(DISTINCT k) AS a, count(DISTINCT v % 3) AS b, max(v) AS m, "
    "percentile(v, 0.5) AS p FROM t GROUP BY 1",
    # of another aggregation
    "SELECT to_date(h) AS d, max(c) AS m FROM "
    "(SELECT date_trunc('HOUR', ts) AS h, count(*) AS c FROM t GROUP BY 1) GROUP BY 1",
    "SELECT y, m, max(c) AS x FROM (SELECT year(ts) AS y, month(ts) AS m, day(ts) AS d, "
    "count(*) AS c FROM t GROUP BY 1, 2, 3) GROUP BY 1, 2",
    "SELECT h, c FROM (SELECT date_trunc('HOUR', ts) AS h, count(*) AS c FROM t GROUP BY 1) "
    "WHERE c > 1",
    "SELECT DISTINCT to_date(ts) AS d, k FROM t",
    "SELECT d, k, v, row_number() OVER (PARTITION BY d, k ORDER BY v) AS r FROM "
    "(SELECT to_date(ts) AS d, k, v FROM t)",
    "SELECT * FROM (SELECT d, v, row_number() OVER (PARTITION BY d ORDER BY v DESC) AS r FROM "
    "(SELECT to_date(ts) AS d, v FROM t)) WHERE r <= 2",
    "SELECT to_date(ts) AS d, name, count(*) AS c FROM t JOIN VALUES ('a', 'x'), ('b', 'y') "
    "AS n(k, name) USING (k) GROUP BY 1, 2",
    "SELECT to_date(ts) AS d, e, count(*) AS c FROM t LATERAL VIEW explode(array(k, 'z')) AS e "
    "GROUP BY 1, 2",
    "SELECT k, to_date(ts) AS d, count(*) AS c FROM t GROUP BY ROLLUP(k), to_date(ts)",
    "SELECT year(ts) AS y, month(ts) AS m, day(ts) AS d, hour(ts) AS h, count(*) AS c FROM t "
    "GROUP BY ALL",
    "SELECT k, hour(ts) AS h, month(ts) AS m, year(ts) AS y, max(v) AS c FROM t GROUP BY ALL",
    "SELECT to_date(at) AS d, count(*) AS c FROM "
    "(SELECT ts AS at, v FROM t UNION ALL SELECT ts, 1 FROM t WHERE k = 'a') GROUP BY 1",
]


@pytest.mark.parametrize("query", QUERIES)
def test_other_operators_close_such_keys(spark: Any, query: str) -> None:
    with session_setting(spark, "spark.sql.session.timeZone", "America/St_Johns"):
        assert_same(spark, watermarked(query), {"t": make_rows(150, 2)}, seed=7, mode="append")


@pytest.mark.parametrize("query", QUERIES)
def test_a_plan_reads_the_same_when_it_is_made_again(spark: Any, query: str) -> None:
    """Or else no query with such a key could be started again."""
    plans = [
        explain(plan_streaming(spark, watermarked(query), {"t": make_rows(1, 0)}, "append").query)
        for _ in range(2)
    ]
    assert plans[0] == plans[1]
    assert "the end of " in plans[0]


@pytest.mark.parametrize("zone", ZONES)
def test_no_moment_gives_a_key_that_has_closed(spark: Any, zone: str) -> None:
    """Over four days around each change of clocks."""
    around = np.arange(-2 * 86_400, 2 * 86_400, 30) * 1_000_000
    moments = np.concatenate([around + int(change.timestamp()) * 1_000_000 for change in CHANGES])
    chosen = ", ".join(f"{key} AS c{place}" for place, key in enumerate(KEYS))
    with session_setting(spark, "spark.sql.session.timeZone", zone):
        query = sql(f"SELECT ts, {chosen} FROM t")
        planned = plan_streaming(spark, query, {"t": make_rows(1, 0)})
    root = planned.query.stages[-1].root
    assert isinstance(root, Project)
    for key, made in zip(KEYS, root.exprs[1:], strict=True):
        steps = closing_steps(made, lambda column: column.name.startswith("ts#"))
        assert steps, key
        (time,) = columns(made)
        batch = pa.record_batch([pa.array(moments, STAMP)], [time])
        values = compile_expr(made, batch.schema)(batch)
        table = pa.table({"key": values, "last": moments}).group_by("key")
        lasts = table.aggregate([("last", "max")]).combine_chunks().to_batches()[0]
        end = Call("ClosesAt", (Column("key", made.type),), STAMP, (("steps", steps),))
        ends = compile_expr(end, lasts.schema)(lasts).cast(pa.int64()).to_numpy()
        behind = ends - lasts.column("last_max").to_numpy()
        assert (behind > 0).all(), key
        if "HOUR" in key or key == "to_date(ts)":  # later by what clocks go back, if at all
            assert (np.sort(behind)[: -2 * len(CHANGES)] <= 30_000_000).all(), key
            assert (np.sort(behind)[: -len(CHANGES)] <= 3_630_000_000).all(), key


def test_a_row_is_shown_when_its_day_has_passed_and_late_rows_are_counted(spark: Any) -> None:
    query = "SELECT to_date(ts) AS d, count(*) AS c FROM t GROUP BY 1"
    with session_setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        planned = plan_streaming(spark, watermarked(query), {"t": make_rows(1, 0)}, "append")
    driver = Driver(planned.query, {})

    def feed(*times: datetime) -> list[tuple[str, int]]:
        count = len(times)
        columns = [pa.array(times, STAMP), pa.array(["a"] * count), pa.array(range(count))]
        driver.feed("t", pa.record_batch(columns, ["ts", "k", "v"]))
        return [(str(row["d"]), row["c"]) for row in driver.read_new().to_pylist()]

    # The third of November 2024 has 25 hours in New York: it ends at 05:00 UTC.
    assert feed(datetime(2024, 11, 3, 4, tzinfo=UTC), datetime(2024, 11, 4, 4, tzinfo=UTC)) == []
    assert feed(datetime(2024, 11, 4, 5, 59, tzinfo=UTC)) == []
    assert feed(datetime(2024, 11, 4, 6, tzinfo=UTC)) == [("2024-11-03", 2)]
    assert feed(datetime(2024, 11, 4, 4, 59, tzinfo=UTC)) == []
    assert driver.late == {"aggregate": 1}
    driver.finish()
    assert [row["c"] for row in driver.read_new().to_pylist()] == [2]


def test_rows_without_event_time_are_never_final(spark: Any) -> None:
    query = watermarked("SELECT to_date(ts) AS d, count(*) AS c FROM t GROUP BY 1")
    rows = make_rows(4, 0)
    planned = plan_streaming(spark, query, {"t": rows}, "append")
    driver = Driver(planned.query, {})
    for times in ([None, None], rows["ts"].to_pylist()[:2]):
        columns = [pa.array(times, STAMP), pa.array(["a", "b"]), pa.array([1, 2])]
        driver.feed("t", pa.record_batch(columns, ["ts", "k", "v"]))
    driver.finish()
    assert driver.result()["c"].to_pylist() == [2]
    assert not driver.late


@pytest.mark.parametrize(
    "key",
    ["hour(ts)", "date_format(ts, 'dd.MM.yyyy')", "unix_timestamp(ts) % 60", "-unix_seconds(ts)",
     "to_date(ts2)", "CAST(unix_timestamp(ts) AS INT)", "month(ts)",
     "unix_micros(ts) * 1000000",  # beyond 64 bits, where Spark may be told to begin again
     "date_format(ts, \"yyyy''MM\")"],  # a quote, which nobody reads back
)  # fmt: skip
def test_a_key_that_comes_again_is_refused(spark: Any, key: str) -> None:
    rows = make_rows(1, 0)
    tables = {"t": rows.append_column("ts2", rows["ts"])}
    query = watermarked(f"SELECT {key} AS h, count(*) AS c FROM t GROUP BY 1")
    assert_refused(spark, query, tables, "append mode needs an aggregation by event time", "append")


@pytest.mark.parametrize(
    "keys",
    ["date_trunc('MONTH', ts) AS m, to_date(ts) AS d", "session_window(ts, '9 hours') AS w, "
     "to_date(ts) AS d", "window(ts, '50 hours', '1 hour') AS w, to_date(ts) AS d"],
)  # fmt: skip
def test_a_key_of_groups_that_close_after_it_is_refused(spark: Any, keys: str) -> None:
    """They are shown when it has closed: as late rows, which do not count."""
    grouped = f"SELECT {keys}, count(*) AS c FROM t GROUP BY 1, 2"
    query = watermarked(f"SELECT d, max(c) AS s FROM ({grouped}) GROUP BY d")
    reason = "append mode needs an aggregation by event time"
    assert_refused(spark, query, {"t": make_rows(1, 0)}, reason, "append")


def test_a_key_made_of_a_time_that_another_watermark_took_over_from_is_refused(spark: Any) -> None:
    """Then it is the later watermark that tells the time, and it may be far ahead of this one."""

    def build(frames: Frames) -> Any:
        shifted = (
            frames["t"].withWatermark("ts", "1 hour").selectExpr("*", "ts + INTERVAL 9 DAYS u")
        )
        return sql("SELECT to_date(ts) AS d, count(*) AS c FROM t GROUP BY 1")(
            {"t": shifted.withWatermark("u", "1 hour")}
        )

    reason = "append mode needs an aggregation by event time"
    assert_refused(spark, build, {"t": make_rows(1, 0)}, reason, "append")
