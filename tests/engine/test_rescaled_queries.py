"""Queries whose number of workers changes, while they run on Spark and between two runs."""

from __future__ import annotations

from typing import Any

import pytest
from harness.waiting import wait_until
from pyspark.sql import functions as F
from small_queries import BIDS, append_bids, by_batch, check, running

import penstock
from penstock.errors import BadRequest, QueryFailed
from penstock.testing.oracle import assert_equal

pytestmark = pytest.mark.usefixtures("interpreted")


def windows(frame: Any) -> Any:
    timed = frame.withWatermark("ts", "1 second")
    return timed.groupBy(F.window("ts", "2 seconds"), "auction").agg(F.count("*"), F.sum("price"))


def counts(frame: Any) -> Any:
    return frame.groupBy("auction").count()


def tasks(query: penstock.StreamingQuery) -> list[int]:
    found: list[int] = (query.lastProgress or {}).get("layout", {}).get("tasks", [])
    return found


def members(query: penstock.StreamingQuery) -> int:
    return len((query.lastProgress or {}).get("members", {}))


def test_a_query_is_rescaled_while_it_runs(spark: Any, log: penstock.Log) -> None:
    """2 workers, 3, and 2 again: the state goes along, and nothing is lost or done twice."""
    source = log.create_stream("rescaled_in", BIDS)
    with running(windows(source.df(spark)), to="rescaled", workers=2) as query:
        append_bids(source, 0, 300)
        query.processAllAvailable()

        for round, workers in enumerate((3, 2)):
            first = 300 * (round + 1)
            append_bids(source, first, 100)
            query.rescale(workers)
            append_bids(source, first + 100, 100)
            wait_until(lambda: tasks(query) == [workers, workers])  # noqa: B023
            append_bids(source, first + 200, 100)
            query.processAllAvailable()
            wait_until(lambda: members(query) == workers)  # noqa: B023
        assert (query.lastProgress or {})["layout"]["version"] == 2
        check(spark, query, windows, source)
        for wrong in (-1, True, 0.0, "2"):
            with pytest.raises(BadRequest, match="at least 1, or 0 to suspend"):
                query.rescale(wrong)  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match="each worker holds one"):  # as the log asks for it
            query._coordinator.rescale(900).result()
        assert (query.lastProgress or {})["workersWanted"] == 2
    with pytest.raises(QueryFailed, match="rescaled was stopped: start it again"):
        query.rescale(3)


def test_a_query_is_scaled_to_zero_and_back(
    spark: Any, log: penstock.Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds no core meanwhile; it comes back with its state, also when it was stopped so."""
    source = log.create_stream("asleep_in", BIDS)
    tracker = spark.sparkContext.statusTracker()

    def running_jobs() -> list[int]:
        return list(tracker.getActiveJobsIds())

    with running(windows(source.df(spark)), to="asleep", workers=2) as query:
        append_bids(source, 0, 300)
        query.processAllAvailable()
        for workers in (2, 3):
            query.rescale(0)
            wait_until(lambda: not running_jobs() and members(query) == 0)
            wait_until(lambda: "suspended" in (query.lastProgress or {}))
            assert query.isActive
            assert query.status["message"].startswith("Suspended: it holds no worker")
            query.explain()
            assert "Suspended: it holds no worker" in capsys.readouterr().out
            with pytest.raises(QueryFailed, match=r"is suspended .* query.rescale\(1\)"):
                query.processAllAvailable()
            progress = query.lastProgress or {}
            assert progress["workersWanted"] == 0
            assert "penstock query rescale asleep" in progress["suspended"]["resume"]
            assert not any(task["is_running"] for task in progress["tasks"].values())
            append_bids(source, 100 * workers + 100, 100)
            wait_until(lambda: query.status["isDataAvailable"])
            query.rescale(workers)
            query.processAllAvailable()
            wait_until(lambda: members(query) == workers)  # noqa: B023
            if workers == 2:  # else no core is left for batch Spark
                check(spark, query, windows, source)
        wait_until(lambda: tasks(query) == [3, 3])
        query.rescale(0)
        wait_until(lambda: not running_jobs())
    append_bids(source, 500, 100)
    with running(windows(source.df(spark)), to="asleep", workers=2) as query:
        check(spark, query, windows, source)
        assert (query.lastProgress or {})["workersWanted"] == 2, "as its start says"


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(counts, id="counts", marks=pytest.mark.soak),
        pytest.param(windows, id="windows"),
    ],
)
def test_a_query_is_started_again_with_another_number_of_workers(
    spark: Any, log: penstock.Log, build: Any
) -> None:
    name = f"again_{build.__name__}"
    source = log.create_stream(f"{name}_in", BIDS)
    for round, workers in enumerate((1, 3, 2)):
        append_bids(source, 200 * round, 100)
        with running(build(source.df(spark)), to=name, workers=workers) as query:
            append_bids(source, 200 * round + 100, 100)
            query.processAllAvailable()
            if round:
                wait_until(lambda: tasks(query) == [workers, workers])  # noqa: B023
            query.processAllAvailable()
    assert_equal(query.result(), by_batch(spark, build, source), name)
