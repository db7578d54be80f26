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
        with pytest.raises(BadRequest, match="at least 1"):
            query.rescale(0)
        with pytest.raises(BadRequest, match="each worker holds one"):  # as the log asks for it
            query._coordinator.rescale(900).result()
        assert (query.lastProgress or {})["workersWanted"] == 2
    with pytest.raises(QueryFailed, match="rescaled was stopped: start it again"):
        query.rescale(3)


@pytest.mark.parametrize("build", [counts, windows], ids=["counts", "windows"])
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
