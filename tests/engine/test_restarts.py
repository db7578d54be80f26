"""Queries that are started again: resumed, changed, taken over, recovered, after a trim."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.files import flip_bit
from harness.waiting import wait_until
from small_queries import BIDS, append_bids, by_batch, check, running

import penstock
from penstock.errors import BadRequest, PlanChanged, QueryFailed, SchemaMismatch, Trimmed
from penstock.protocol.markers import Marker, decode_marker
from penstock.protocol.names import TaskId
from penstock.runtime import coordinator
from penstock.runtime.results import check_whole
from penstock.spark import query as query_module
from penstock.testing.oracle import assert_equal

pytestmark = pytest.mark.usefixtures("interpreted")


def test_a_query_that_is_started_again_goes_on(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("again_in", BIDS)
    rows = source.df(spark).where("price % 2 = 0")
    counts = source.df(spark).groupBy("auction").count()

    for round in range(3):
        append_bids(source, round * 200, 100)
        with running(rows, to="again_rows", mode="append", workers=1) as query:
            append_bids(source, round * 200 + 100, 100)
            query.processAllAvailable()
        with running(counts, to="again_counts", workers=1) as second:
            second.processAllAvailable()

    assert_equal(
        query.result(), by_batch(spark, lambda frame: frame.where("price % 2 = 0"), source), "rows"
    )
    assert log.stream("again_rows").read().num_rows == query.result().num_rows
    counted = by_batch(spark, lambda frame: frame.groupBy("auction").count(), source)
    assert_equal(second.result(), counted, "counts")
    assert log.stream("again_counts").read().column("_weight").to_pylist().count(1) <= 21


def test_rows_that_came_while_nothing_ran_are_not_missed(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("away_in", "n long")
    frame = source.df(spark)

    for first in (0, 10):
        with running(frame, to="away_out", mode="append", workers=1, start="latest") as query:
            source.append([{"n": n} for n in range(first, first + 5)])
            query.processAllAvailable()
        source.append([{"n": n} for n in range(first + 5, first + 10)])

    # "latest" is where a new query begins, and this one was not new the second time.
    assert query.result().column("n").to_pylist() == list(range(15))


# -- changed plans


def test_a_changed_plan_is_refused_and_the_difference_is_shown(
    spark: Any, log: penstock.Log
) -> None:
    source = log.create_stream("changed_in", BIDS)
    frame = source.df(spark)
    with running(frame.where("price > 10"), to="changed", mode="append", workers=1) as query:
        query.processAllAvailable()

    with pytest.raises(PlanChanged) as refused:
        penstock.start(frame.where("price > 20"), to="changed", name="changed", mode="append")
    with pytest.raises(PlanChanged) as moved:
        penstock.start(frame.where("price > 10"), to="elsewhere", name="changed", mode="append")
    with pytest.raises(PlanChanged):  # also if the columns are others, which no stream takes
        penstock.start(frame.select("ts"), to="changed", name="changed", mode="append")

    lines = str(refused.value).splitlines()
    assert "restart_from_earliest" in lines[0]
    assert any(line.startswith("-") and "10" in line for line in lines), lines
    assert any(line.startswith("+") and "20" in line for line in lines), lines
    assert "result stream: was changed, is elsewhere" in str(moved.value)
    assert "elsewhere" not in [stream.name for stream in log.streams()]


def test_a_new_plan_may_take_over_and_its_result_is_all_there_is(
    spark: Any, log: penstock.Log
) -> None:
    source = log.create_stream("new_plan_in", BIDS)
    frame = source.df(spark)
    append_bids(source, 0, 300)
    options: dict[str, Any] = {"to": "new_plan", "name": "new_plan", "workers": 1}
    old = penstock.start(frame.groupBy("auction").count(), **options)
    old.processAllAvailable()

    def build(frame: Any) -> Any:
        return frame.where("price > 30").groupBy("auction").count()

    options["on_change"] = "restart_from_earliest"
    with running(build(frame), **options) as query:  # while the old one still runs
        append_bids(source, 300, 100)
        check(spark, query, build, source)
        with pytest.raises(QueryFailed, match="another driver"):
            old.awaitTermination(60)

    assert query.id == old.id
    assert_equal(query.result(), by_batch(spark, build, source), "after all have ended")
    zombies = log.client.read(["s/new_plan"], start=log.stream("new_plan").resolve("earliest"))
    assert {entry.producer.split("/")[0] for entry in zombies} == {"@new_plan.2"}
    with running(build(frame), **options) as query:  # the same plan again: it goes on
        query.processAllAvailable()
        assert_equal(query.result(), by_batch(spark, build, source), "again")


def test_two_queries_share_a_stream_if_they_are_told_to_and_each_has_its_own_result(
    spark: Any, log: penstock.Log
) -> None:
    source = log.create_stream("shared_in", BIDS)
    frame = source.df(spark)
    append_bids(source, 0, 100)
    options: dict[str, Any] = {"to": "shared", "workers": 1}

    def build(limit: int) -> Any:
        return lambda frame: frame.where(f"price > {limit}").groupBy("auction").count()

    with running(build(10)(frame), name="over_10", **options) as first:
        check(spark, first, build(10), source)
    with pytest.raises(PlanChanged, match="another name and with another `to=`"):
        penstock.start(build(20)(frame), name="over_10", **options)
    with pytest.raises(BadRequest, match="is the result of query over_10"):
        penstock.start(build(20)(frame), name="over_20", **options)

    with running(build(20)(frame), name="over_20", shared=True, **options) as second:
        check(spark, second, build(20), source)
    assert_equal(first.result(), by_batch(spark, build(10), source), "the first one's own")


def test_a_new_plan_with_other_columns_needs_another_stream(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("columns_in", BIDS)
    frame = source.df(spark)
    with running(frame.select("price"), to="columns_out", mode="append", workers=1) as query:
        query.processAllAvailable()

    with pytest.raises(SchemaMismatch, match="another stream"):
        penstock.start(
            frame.select("ts"), to="columns_out", name="columns_out", mode="append",
            on_change="restart_from_earliest",
        )  # fmt: skip

    with running(frame.select("price"), to="columns_out", mode="append", workers=1) as query:
        query.processAllAvailable()  # nothing was fenced, nothing forgotten


# -- two drivers


def test_a_second_start_of_a_name_takes_it_over(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("twice_in", BIDS)

    def build(frame: Any) -> Any:
        return frame.groupBy("auction").count()

    first = penstock.start(build(source.df(spark)), to="twice", name="twice", workers=1)
    append_bids(source, 0, 100)
    first.processAllAvailable()
    with running(build(source.df(spark)), to="twice", workers=1) as second:
        append_bids(source, 100, 100)
        with pytest.raises(QueryFailed, match="twice was started again, by this or another driver"):
            first.awaitTermination(60)
        check(spark, second, build, source)

    assert not first.isActive
    assert isinstance(first.exception(), QueryFailed)
    assert first.status["message"] == "Terminated with an error"
    with pytest.raises(QueryFailed, match="another driver"):
        first.processAllAvailable()
    first.stop()


def test_a_stop_right_after_the_start_does_not_wait_for_workers_to_come(
    spark: Any, log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "JOB_SECONDS", 60.0)
    source = log.create_stream("brief_in", BIDS)
    append_bids(source, 0, 100)

    def build(frame: Any) -> Any:
        return frame.groupBy("auction").count()

    with running(build(source.df(spark)), to="brief", workers=2):
        began = time.monotonic()
    assert time.monotonic() - began < 18.0, "they leave by themselves after 20 s or so"

    with running(build(source.df(spark)), to="brief", workers=2) as again:
        check(spark, again, build, source)


# -- checkpoints


def wide_counts(frame: Any) -> Any:
    """State that is worth a checkpoint: a row per key, and keys of 60 bytes."""
    from pyspark.sql import functions as F

    return frame.groupBy(F.repeat(F.col("n").cast("string"), 12).alias("key")).count()


def feed(source: penstock.Stream, rounds: int) -> None:
    """Every round changes every key once."""
    for _ in range(rounds):
        source.append(pa.table({"n": range(10_000, 30_000)}))


def last_marker(log: penstock.Log, task: TaskId) -> Marker:
    entry = log.client.read_last(task.marker_tag)
    assert entry is not None
    return decode_marker(entry.payload)


def run_until_checkpoints(
    log: penstock.Log, frame: Any, source: penstock.Stream, task: TaskId, count: int
) -> Marker:
    with running(frame, to="wide", workers=1, checkpoint_interval=0.1) as query:

        def are_written() -> bool:
            feed(source, 1)
            query.processAllAvailable()
            return len(last_marker(log, task).checkpoints) >= count

        wait_until(are_written, "no checkpoints", seconds=120)
    return last_marker(log, task)


def test_a_restart_uses_the_checkpoint_and_survives_damaged_ones(
    spark: Any, own_log: penstock.Log
) -> None:
    """First whole, then one copy of each increment damaged, then the newest manifest, then both:
    the state comes from what is left."""
    source = own_log.create_stream("numbers", "n long")
    frame = wide_counts(source.df(spark))
    task = TaskId("wide", 1, 1, 0)
    marker = run_until_checkpoints(own_log, frame, source, task, 2)
    files = [Path(own_log.target, "checkpoints", str(one["path"])) for one in marker.checkpoints]
    assert [int(one["bytes"]) > 1_000_000 for one in marker.checkpoints] == [True, True]
    copies = [path for file in files for path in file.parent.glob("*.inc")]
    assert copies

    def restart() -> None:
        with running(frame, to="wide", workers=1, checkpoint_interval=3600) as query:
            feed(source, 1)
            query.processAllAvailable()
        changes = own_log.stream("wide").read()
        counts = query.result().column("count").unique().to_pylist()
        assert counts == [source.read().num_rows // 20_000]
        assert query.result().num_rows == 20_000
        assert changes.column("_weight").to_numpy().sum() == 20_000

    restart()
    for path in set(copies):
        flip_bit(path)
    restart()
    for file in files:
        flip_bit(file)
        restart()


def test_the_log_is_trimmed_below_what_is_needed_and_a_restart_finds_all_it_needs(
    spark: Any, own_log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "PULSES_PER_TRIM", 2)
    source = own_log.create_stream("numbers", "n long")
    frame = wide_counts(source.df(spark))
    task = TaskId("wide", 1, 1, 0)
    run_until_checkpoints(own_log, frame, source, task, 2)
    assert own_log.bounds().trim_point == 0
    rounds = source.read().num_rows // 20_000

    with running(frame, to="wide", workers=1, trim_consumed=True) as query:
        query.processAllAvailable()
        wait_until(lambda: own_log.bounds().trim_point > 0, "nothing was trimmed")
    with running(frame, to="wide", workers=1, trim_consumed=True) as query:
        feed(source, 1)
        query.processAllAvailable()
        counts = query.result().column("count")

    assert counts.unique().to_pylist() == [rounds + 1], "it went on from the counts before"
    assert len(counts) == 20_000, "of what was trimmed, the image of the result is there"
    with pytest.raises(Trimmed, match="the first rows of query wide's result were trimmed"):
        check_whole(own_log, query._spec)
