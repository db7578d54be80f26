"""What people bring along from Structured Streaming: names left out, lists of queries, listeners.

A static table that has changed is here, too: what a running query and a new start see of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import wait_until
from pyspark.errors import AnalysisException
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from small_queries import BIDS, append_bids

import penstock
from penstock.errors import BadRequest, PlanChanged, QueryFailed

pytestmark = pytest.mark.usefixtures("interpreted")


class Heard(StreamingQueryListener):
    """As users write them for Spark's own engine."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.events.append(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.events.append(event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.events.append(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.events.append(event)
        raise RuntimeError("a listener that fails disturbs nobody")

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def heard(spark: Any) -> Iterator[Heard]:
    listener = Heard()
    penstock.queries(spark).addListener(listener)
    yield listener
    penstock.queries(spark).removeListener(listener)


def test_a_query_without_names_is_listed_listened_to_and_goes_on(
    spark: Any, log: penstock.Log, heard: Heard
) -> None:
    source = log.create_stream("habit_bids", BIDS)
    frame = source.df(spark).groupBy("auction").count()
    running = penstock.queries(spark)
    running.resetTerminated()
    append_bids(source, 0, 100)

    query = penstock.start(frame, workers=1)
    assert query.name == query.stream.name and query.name.startswith("query-")
    assert running.active == [query]
    assert running.get(query.name) is query and running.get(query.id) is query
    assert running.get("no-such") is None
    assert running.awaitAnyTermination(timeout=0.01) is False
    (started,) = heard.of(QueryStartedEvent)  # before start returned, as in Spark
    assert (str(started.id), str(started.runId), started.name) == (
        query.id, query.runId, query.name,
    )  # fmt: skip

    query.processAllAvailable()
    wait_until(lambda: heard.of(QueryProgressEvent), seconds=30)
    query.stop()
    assert running.active == [] and running.get(query.name) is None
    assert running.awaitAnyTermination() is None
    wait_until(lambda: heard.of(QueryTerminatedEvent), seconds=30)
    (ended,) = heard.of(QueryTerminatedEvent)
    assert (ended.id, ended.exception) == (started.id, None)
    progress = heard.of(QueryProgressEvent)[-1].progress
    assert isinstance(progress, StreamingQueryProgress)
    assert progress["numInputRowsTotal"] == 100
    assert progress.sources[0].description == "penstock stream habit_bids"
    assert query.lastProgress is not None and query.lastProgress.runId == started.runId

    append_bids(source, 100, 40)
    again = penstock.start(frame, workers=1)
    again.processAllAvailable()
    wait_until(lambda: (again.lastProgress or {}).get("numInputRowsTotal") == 140, seconds=30)
    again.stop()
    told = sum(report.numInputRows for report in again.recentProgress)
    assert told == 40, "what the run before has read is not told again"
    assert (again.name, again.id) == (query.name, query.id)
    assert sum(again.result().column("count").to_pylist()) == 140


def test_a_query_that_fails_is_told_to_whoever_waits_and_listens(
    spark: Any, log: penstock.Log, heard: Heard
) -> None:
    source = log.create_stream("habit_failing", BIDS)
    running = penstock.queries(spark)
    running.resetTerminated()
    query = penstock.start(
        source.df(spark).selectExpr("1 DIV (price - price) AS x"), to="habit.failed", mode="append",
        workers=1,
    )  # fmt: skip
    assert (query.name, query.stream.name) == ("habit_failed", "habit.failed")
    append_bids(source, 0, 1)

    with pytest.raises(QueryFailed):
        running.awaitAnyTermination(timeout=60)
    wait_until(lambda: heard.of(QueryTerminatedEvent), seconds=30)
    (ended,) = heard.of(QueryTerminatedEvent)
    assert "DIVIDE_BY_ZERO" in ended.exception
    running.resetTerminated()
    assert running.awaitAnyTermination(timeout=0) is False


class Stops(Heard):
    """Stops a query as soon as it hears of it."""

    def __init__(self, running: Any) -> None:
        super().__init__()
        self._running = running
        self.stopped: list[bool] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        query = self._running.get(event.name)
        query.stop()
        self.stopped.append(not query.isActive)


def test_a_listener_may_stop_a_query_that_it_hears_of(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("habit_stopped", BIDS)
    running = penstock.queries(spark)
    listener = Stops(running)
    running.addListener(listener)
    try:
        query = penstock.start(source.df(spark), name="habit-stopped", mode="append", workers=1)
        assert query.awaitTermination(30) is True
        assert listener.stopped == [True] and query not in running.active
        wait_until(lambda: listener.of(QueryTerminatedEvent), seconds=30)
    finally:
        running.removeListener(listener)


def test_a_listener_without_the_methods_is_refused(spark: Any) -> None:
    with pytest.raises(BadRequest, match=r"onQueryStarted.*StreamingQueryListener"):
        penstock.queries(spark).addListener(print)


def test_spark_refuses_to_show_a_stream_in_the_words_that_the_guide_quotes(
    spark: Any, log: penstock.Log, capsys: pytest.CaptureFixture[str]
) -> None:
    source = log.create_stream("habit_shown", BIDS)
    append_bids(source, 0, 3)
    frame = source.df(spark)
    quoted = "Queries with streaming sources must be executed with writeStream.start()"
    for action in (frame.count, frame.show, frame.collect, frame.where("price > 1").toArrow):
        with pytest.raises(AnalysisException, match=re.escape(quoted)):
            action()
    assert quoted in (penstock.Stream.df.__doc__ or "")

    source.show()
    assert len(capsys.readouterr().out.splitlines()) == 3 + 4


def write_items(spark: Any, path: str, item: str) -> None:
    rows = [{"id": n, "item": f"{item} {n}"} for n in range(7)]
    spark.createDataFrame(rows).coalesce(1).write.mode("overwrite").parquet(path)


def test_a_static_table_is_read_when_the_query_is_started(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    path = str(tmp_path / "items")
    source = log.create_stream("habit_static", BIDS)

    def start() -> penstock.StreamingQuery:
        bids, items = source.df(spark), spark.read.parquet(path)
        joined = bids.join(items, bids.auction == items.id).select("item", "price")
        return penstock.start(joined, to="habit_items", mode="append", workers=1)

    write_items(spark, path, "old")
    query = start()
    append_bids(source, 0, 7)
    query.processAllAvailable()
    write_items(spark, path, "new")
    append_bids(source, 7, 7)
    query.processAllAvailable()
    query.stop()
    assert {row[:3] for row in query.result().column("item").to_pylist()} == {"old"}

    again = start()
    append_bids(source, 14, 7)
    again.processAllAvailable()
    again.stop()
    items = [row[:3] for row in again.result().column("item").to_pylist()]
    assert (items.count("old"), items.count("new")) == (14, 7)


def test_a_table_through_which_rows_are_taken_back_must_be_as_it_was(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    path = str(tmp_path / "items")
    source = log.create_stream("habit_fixed", BIDS)

    def start(**options: Any) -> penstock.StreamingQuery:
        counts, items = source.df(spark).groupBy("auction").count(), spark.read.parquet(path)
        joined = counts.join(items, counts.auction == items.id).select("item", "count")
        return penstock.start(joined, to="habit_counts", workers=1, **options)

    def finish(query: penstock.StreamingQuery) -> dict[str, int]:
        append_bids(source, 0, 7)
        query.processAllAvailable()
        query.stop()
        return {row["item"]: row["count"] for row in query.result().to_pylist()}

    write_items(spark, path, "old")
    assert finish(start()) == {f"old {n}": 1 for n in range(7)}
    write_items(spark, path, "old")  # other files, the same rows
    assert finish(start()) == {f"old {n}": 2 for n in range(7)}

    write_items(spark, path, "new")
    with pytest.raises(PlanChanged, match="static table 0: id, item: its rows are others"):
        start()
    anew = start(on_change="restart_from_earliest")
    assert finish(anew) == {f"new {n}": 3 for n in range(7)}
