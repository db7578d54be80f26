"""Queries on real Spark over a real log, as a user runs them: results, positions, progress.

The answer of every query is batch Spark's over the same rows.
"""

from __future__ import annotations

import logging
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from embedded_server import kill_server
from harness.waiting import wait_until
from small_queries import BIDS, T0, append_bids, bids, by_batch, check, running

import penstock
from penstock.log.records import Kind
from penstock.protocol.markers import decode_marker
from penstock.protocol.names import TaskId
from penstock.spark import jobs
from penstock.stream.registration import stream_tag
from penstock.testing.oracle import assert_equal

pytestmark = pytest.mark.usefixtures("interpreted")

# -- results


def test_rows_are_filtered_and_changed_one_by_one(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("rows_in", BIDS)

    def build(frame: Any) -> Any:
        return frame.where("price > 50").selectExpr("auction", "price * 2 AS twice", "ts")

    append_bids(source, 0, 500)
    with running(build(source.df(spark)), to="rows_out", mode="append", workers=2) as query:
        query.processAllAvailable()
        assert query.result().num_rows > 0
        append_bids(source, 500, 500)
        check(spark, query, build, source)

    assert log.stream("rows_out").schema.names == ["auction", "twice", "ts"]
    assert log.stream("rows_out").read().num_rows == query.result().num_rows


def test_windows_close_when_the_watermark_has_passed(spark: Any, log: penstock.Log) -> None:
    from pyspark.sql import functions as F

    source = log.create_stream("windows_in", BIDS)

    def build(frame: Any) -> Any:
        window = F.window("ts", "10 seconds")
        timed = frame.withWatermark("ts", "1 second")
        counted = timed.groupBy(window, "auction").agg(
            F.count("*").alias("n"), F.sum("price").alias("sum")
        )
        return counted.selectExpr("auction", "window.end AS end", "n", "sum")

    append_bids(source, 0, 1000)
    with running(build(source.df(spark)), to="windows_out", mode="append", workers=2) as query:
        query.processAllAvailable()
        before = query.result()
        # Time has come to 99.9 s: windows that end at 90 s are closed, the next one is not.
        assert max(before.column("end").to_pylist()) == T0 + timedelta(seconds=90)
        source.append({"auction": 0, "price": 0, "ts": T0 + timedelta(seconds=200)})
        query.processAllAvailable()

    closed = by_batch(spark, lambda frame: build(frame).where("n > 1"), source)
    assert_equal(query.result(), closed, "windows")
    assert query.lastProgress is not None
    assert query.lastProgress["eventTime"]["watermark"].startswith("2026-01-01T00:03:19")


def test_an_aggregation_is_updated_and_its_stream_takes_rows_back(
    spark: Any, log: penstock.Log
) -> None:
    source = log.create_stream("updates_in", BIDS)

    def build(frame: Any) -> Any:
        return frame.groupBy("auction").agg({"price": "sum", "*": "count"})

    with running(build(source.df(spark)), to="updates_out", workers=2) as query:
        assert query.result().num_rows == 0
        for first in range(0, 600, 200):
            append_bids(source, first, 200)
            check(spark, query, build, source)

    changes = log.stream("updates_out").read()
    weights = changes.column("_weight").to_pylist()
    assert weights.count(1) - weights.count(-1) == 7
    assert weights.count(-1) >= 14, "each of three rounds replaced the rows of the one before"


def test_two_streams_are_joined(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("join_bids", BIDS)
    auctions = log.create_stream("join_auctions", "id long, item string")

    def build(bid: Any, auction: Any) -> Any:
        return bid.join(auction, bid.auction == auction.id).select("item", "price", "ts")

    frame = build(source.df(spark), auctions.df(spark))
    with running(frame, to="joined", mode="append", workers=2) as query:
        append_bids(source, 0, 200)
        auctions.append([{"id": n, "item": f"item {n}"} for n in range(4)])
        check(spark, query, build, source, auctions)
        auctions.append([{"id": n, "item": f"item {n}"} for n in range(4, 7)])
        append_bids(source, 200, 200)
        check(spark, query, build, source, auctions)


def test_a_complete_result_is_sorted_and_limited(spark: Any, log: penstock.Log) -> None:
    from pyspark.sql import functions as F

    source = log.create_stream("complete_in", BIDS)

    def build(frame: Any) -> Any:
        counted = frame.groupBy("auction").agg(F.sum("price").alias("sum"))
        return counted.orderBy(F.desc("sum"), "auction").limit(3)

    with running(build(source.df(spark)), to="complete", mode="complete", workers=1) as query:
        for first in (0, 300):
            append_bids(source, first, 300)
            query.processAllAvailable()
            assert query.result().to_pylist() == by_batch(spark, build, source).to_pylist()


def test_the_result_of_one_query_is_the_source_of_the_next(spark: Any, log: penstock.Log) -> None:
    from pyspark.sql import functions as F

    source = log.create_stream("chain_in", BIDS)

    def large(frame: Any) -> Any:
        return frame.where("price >= 20").select("auction", "price")

    def counted(frame: Any) -> Any:
        return frame.groupBy("auction").agg(F.count("*").alias("n"))

    append_bids(source, 0, 400)
    with running(large(source.df(spark)), to="chain_large", mode="append", workers=1) as first:
        frame = counted(log.stream("chain_large").df(spark))
        with running(frame, to="chain_counts", workers=1) as second:
            append_bids(source, 400, 400)
            first.processAllAvailable()
            check(spark, second, lambda frame: counted(large(frame)), source)


def test_python_functions_run_in_the_workers(spark: Any, log: penstock.Log) -> None:
    from pyspark.sql import functions as F

    source = log.create_stream("udf_in", BIDS)
    factor = 3
    label = F.udf(lambda price: f"<{price * factor}>", "string")
    half = F.pandas_udf(lambda price: price // 2, "long")

    def build(frame: Any) -> Any:
        return frame.select("auction", label("price").alias("label"), half("price").alias("half"))

    append_bids(source, 0, 300)
    with running(build(source.df(spark)), to="udf_out", mode="append", workers=2) as query:
        check(spark, query, build, source)


def test_what_python_functions_refer_to_is_shipped_with_them(spark: Any, log: penstock.Log) -> None:
    """Broadcast variables and large closures, also of classes, and of functions over groups."""
    import pandas as pd
    from pyspark.sql import functions as F

    source = log.create_stream("closures_in", BIDS)
    large = random.Random(1).randbytes(3 << 20)
    names = spark.sparkContext.broadcast({n: f"auction {n}" for n in range(7)})

    class Pieces:
        def eval(self, price: int):  # type: ignore[no-untyped-def]
            for digit in str(price):
                yield digit, len(large)

    def tell(key: Any, rows: pd.DataFrame) -> pd.DataFrame:
        told = [names.value[key[0]], len(rows), rows["size"].sum(), rows.name.min()]
        return pd.DataFrame([told], columns=["name", "n", "size", "least"])

    pieces = F.udtf(Pieces, returnType="digit string, size long")  # type: ignore[arg-type]
    name_of = F.udf(lambda auction: names.value[auction] + str(len(large)), "string")

    def build(frame: Any) -> Any:
        named = frame.withColumn("name", name_of("auction"))
        cut = named.lateralJoin(pieces(F.col("price").outer()))
        return cut.groupBy("auction").applyInPandas(
            tell, "name string, n long, size long, least string"
        )

    append_bids(source, 0, 200)
    with running(build(source.df(spark)), to="closures_out", workers=2) as query:
        check(spark, query, build, source)
        append_bids(source, 200, 100)
        check(spark, query, build, source)
    names.destroy()


def test_a_module_is_shipped_with_add_py_file(
    spark: Any, log: penstock.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as F

    module = tmp_path / "shipped_prices.py"
    module.write_text("def in_cents(price):\n    return price * 100\n")
    monkeypatch.syspath_prepend(tmp_path)
    import shipped_prices  # type: ignore[import-not-found,unused-ignore]

    spark.sparkContext.addPyFile(str(module))
    source = log.create_stream("shipped_in", BIDS)

    def build(frame: Any) -> Any:
        return frame.select(F.udf(shipped_prices.in_cents, "long")("price").alias("cents"))

    append_bids(source, 0, 100)
    with running(build(source.df(spark)), to="shipped_out", mode="append", workers=1) as query:
        check(spark, query, build, source)


def test_results_beyond_one_group_are_staged_and_read_back_whole(
    spark: Any, log: penstock.Log
) -> None:
    """One commit of 10 MB: more than the 4 MiB of a group."""
    from pyspark.sql import functions as F

    source = log.create_stream("large_in", "id long")

    def wide(frame: Any) -> Any:
        return frame.select("id", F.repeat(F.col("id").cast("string"), 150).alias("text"))

    def measured(frame: Any) -> Any:
        return frame.agg(F.count("*").alias("n"), F.sum(F.length("text")).alias("characters"))

    source.append(pa.table({"id": range(10_000, 26_000)}))
    with running(wide(source.df(spark)), to="large_out", mode="append", workers=1) as first:
        out = log.stream("large_out")
        with running(measured(out.df(spark)), to="large_measured", workers=1) as second:
            source.append(pa.table({"id": range(26_000, 40_000)}))
            first.processAllAvailable()
            check(spark, second, lambda frame: measured(wide(frame)), source)

    kinds = {entry.kind for entry in log.client.read([stream_tag("large_out")], start=0)}
    assert Kind.STAGED in kinds, "nothing was flushed early: the test tests nothing"
    assert_equal(out.read(), by_batch(spark, wide, source), "read back")


# -- positions


def test_a_query_starts_where_it_is_told(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("positions_in", "n long")
    source.append([{"n": 1}])
    second = source.append([{"n": 2}])
    time.sleep(0.01)
    moment = datetime.now(UTC)
    time.sleep(0.01)
    source.append([{"n": 3}])
    positions = {"earliest": [1, 2, 3, 4], "latest": [4], second.first_lsn: [2, 3, 4]}
    frame = source.df(spark)

    for number, (position, expected) in enumerate([*positions.items(), (moment, [3, 4])]):
        to = f"positions_{number}"
        with running(frame, to=to, mode="append", workers=1, start=position) as query:
            source.append([{"n": 4}])
            query.processAllAvailable()
            assert query.result().column("n").to_pylist()[: len(expected)] == expected


def test_each_stream_has_its_own_start(spark: Any, log: penstock.Log) -> None:
    one, two = (log.create_stream(name, "n long") for name in ("start_one", "start_two"))
    for stream in (one, two):
        stream.append([{"n": 1}])
    frame = one.df(spark).unionAll(two.df(spark).selectExpr("n + 10"))

    start = {"start_two": "latest"}
    with running(frame, to="start_out", mode="append", workers=2, start=start) as query:
        for stream in (one, two):
            stream.append([{"n": 2}])
        query.processAllAvailable()

    assert sorted(query.result().column(0).to_pylist()) == [1, 2, 12]


# -- time


def test_a_stream_without_rows_holds_a_join_back_until_it_counts_as_idle(
    spark: Any, log: penstock.Log
) -> None:
    from pyspark.sql import functions as F

    one = log.create_stream("idle_bids", BIDS)
    two = log.create_stream("idle_sales", "auction long, sold timestamp")
    append_bids(one, 0, 300)
    left = one.df(spark).withWatermark("ts", "1 second").alias("l")
    right = two.df(spark).withWatermark("sold", "1 second").alias("r")
    same = F.expr("l.auction = r.auction AND sold BETWEEN ts AND ts + INTERVAL 2 SECONDS")
    frame = left.join(right, same, "left_outer").select("l.auction", "price", "sold")

    with running(frame, to="held", mode="append", workers=2) as query:
        query.processAllAvailable()
        assert query.result().num_rows == 0
    with running(frame, to="let_go", mode="append", workers=2, idle_after=0.3) as query:
        wait_until(lambda: query.result().num_rows > 200, "the join did not go on")
        assert set(query.result().column("sold").to_pylist()) == {None}


def test_a_floor_between_two_commits_is_respected(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("interval_in", "n long")
    frame = source.df(spark)

    with running(frame, to="interval_out", mode="append", workers=1, commit_interval=0.3) as query:
        query.processAllAvailable()
        tag = TaskId("interval_out", 1, 0, 0).marker_tag
        first, began = log.bounds().tail, time.monotonic()
        commits = count = 0
        while commits < 6:
            source.append([{"n": count}])
            count += 1
            time.sleep(0.02)
            commits = len(log.client.read([tag], start=first))
        seconds = time.monotonic() - began
        query.processAllAvailable()

    # They begin so far apart, whoever is slow; one may have been on its way when we began.
    assert commits <= seconds / 0.3 + 2
    assert query.result().num_rows == count


# -- rows that fail


def test_rows_that_make_a_function_fail_become_dead_letters_once(
    spark: Any, log: penstock.Log
) -> None:
    from pyspark.sql import functions as F

    source = log.create_stream("letters_in", "n long")

    @F.udf("long")
    def picky(n):  # type: ignore[no-untyped-def]
        if n % 10 == 3:
            raise ValueError(f"I do not like {n}")
        return n * 2

    frame = source.df(spark).select(picky("n").alias("twice"))
    expected: list[int] = []
    for first in (0, 40):  # over a restart
        with running(
            frame, to="letters_out", mode="append", workers=1, dead_letter="letters"
        ) as query:
            for at in (first, first + 20):
                source.append([{"n": n} for n in range(at, at + 20)])
            query.processAllAvailable()
        expected += [2 * n for n in range(first, first + 40) if n % 10 != 3]
        assert query.result().column("twice").to_pylist() == expected

    letters = log.stream("letters").read().to_pylist()
    assert [letter["row"] for letter in letters] == [f'{{"n": {n}}}' for n in range(3, 80, 10)]
    assert {letter["origin"] for letter in letters} == {"letters_in"}
    assert {letter["error"] for letter in letters} == {"ValueError"}
    assert letters[0]["message"] == "I do not like 3"
    assert 'raise ValueError(f"I do not like' in letters[0]["traceback"]
    [entry] = log.client.read(
        [stream_tag("letters_in")], start=letters[0]["lsn"], end=letters[0]["lsn"] + 1
    )
    assert entry.rows == 20
    assert query.lastProgress is not None
    assert query.lastProgress["tasks"]["letters_out.1/0/0"]["dead_letters"] == 4


# -- the log goes away


def test_a_killed_log_server_pauses_the_query_and_nothing_is_lost(
    spark: Any, own_log: penstock.Log
) -> None:
    source = own_log.create_stream("bids", BIDS)

    def build(frame: Any) -> Any:
        return frame.groupBy("auction").count()

    producer = source.producer("test")
    with running(build(source.df(spark)), to="counts", workers=2) as query:
        for first in (0, 100):
            producer.append(bids(first, 100))
            kill_server(Path(own_log.target))
            producer.append(bids(first + 50, 50))
        check(spark, query, build, source)


# -- the handle


def test_progress_tells_what_was_done(
    spark: Any, log: penstock.Log, capsys: pytest.CaptureFixture[str]
) -> None:
    source = log.create_stream("progress_in", BIDS)
    frame = source.df(spark).groupBy("auction").count()

    with running(frame, to="progress_out", workers=2) as query:
        assert query.status["message"].startswith("Starting") or query.status["isTriggerActive"]
        append_bids(source, 0, 1000)
        query.processAllAvailable()
        wait_until(lambda: _rows_seen(query) == 1000, "progress does not see all rows")
        wait_until(lambda: _lag(query) == 0 and _has_latency(query), "nor that all are done")
        assert query.isActive
        assert query.exception() is None
        assert query.awaitTermination(0.01) is False
        status = query.status
        cores = status.pop("cores")
        assert (cores["wanted"], cores["total"], cores["left"]) == (2, 3, 1)
        assert "waiting" not in cores
        assert status == {
            "message": "Waiting for data to arrive",
            "isDataAvailable": False,
            "isTriggerActive": True,
        }
        query.explain()
        progress = query.lastProgress
        run, id = query.runId, query.id
    assert "stage 1" in capsys.readouterr().out

    assert progress is not None
    assert (progress["name"], progress["id"], progress["runId"]) == ("progress_out", id, run)
    assert datetime.fromisoformat(progress["timestamp"]).tzinfo is not None
    [source_progress] = progress["sources"]
    assert source_progress["lag"] == {"records": 0, "seconds": 0.0}
    assert progress["sink"]["numOutputRows"] >= 7
    assert sum(one["numRowsTotal"] for one in progress["stateOperators"]) == 7
    assert progress["durationMs"]["commit"]["p50"] > 0
    assert 0 < progress["latencyMs"]["p50"] <= progress["latencyMs"]["p99"]
    numbers = [one["batchId"] for one in query.recentProgress]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert sum(one["inputRowsPerSecond"] or 0 for one in query.recentProgress) > 0
    assert not query.isActive
    assert query.awaitTermination(1) is True
    assert query.status["message"] == "Stopped"
    query.stop()  # once more changes nothing
    with running(frame, to="progress_out", workers=2) as again:
        assert again.id == id
        assert again.runId != run


def _has_latency(query: penstock.StreamingQuery) -> bool:
    progress = query.lastProgress or {}
    return None not in (progress["latencyMs"]["p50"], progress["durationMs"]["commit"]["p50"])


def _rows_seen(query: penstock.StreamingQuery) -> int:
    progress = query.lastProgress
    return 0 if progress is None else int(progress["numInputRowsTotal"])


def test_a_query_without_a_core_says_what_it_waits_for(
    spark: Any, log: penstock.Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark has three cores: the first query holds all of them."""
    monkeypatch.setattr(jobs, "WAIT_SECONDS", 1.0)
    caplog.set_level(logging.INFO, logger="penstock.spark.jobs")
    source = log.create_stream("cores_in", BIDS)
    append_bids(source, 0, 10)
    options: dict[str, Any] = {"mode": "append"}

    first = penstock.start(source.df(spark), to="cores_1", name="greedy", workers=3, **options)
    try:
        first.processAllAvailable()
        assert "query=greedy starts: its 3 workers hold one core each" in caplog.text
        assert "none is left" in caplog.text
        with running(source.df(spark), to="cores_2", workers=1, **options) as second:
            wait_until(lambda: "waiting" in _cores(second), "nobody says that it waits")
            assert second.status["message"].startswith("Waiting for cores: 1 worker of 1 waited")
            for text in (second.status["message"], caplog.text):
                assert "1 core wanted, 0 had; Spark has 3, 0 of them free" in text
                assert "greedy (3)" in text and "local[5]" in text
            first.stop()
            second.processAllAvailable()
            wait_until(lambda: _cores(second).get("held") == 1, "progress does not see its core")
            assert "waiting" not in _cores(second)
            assert _cores(second)["left"] == 2
            assert second.result().num_rows == 10
    finally:
        first.stop()
    levels = {record.levelname for record in caplog.records if "none is left" in record.message}
    assert levels == {"WARNING"}


def _cores(query: penstock.StreamingQuery) -> dict[str, Any]:
    found: dict[str, Any] = (query.lastProgress or {}).get("cores", {})
    return found


def test_lag_is_told_while_rows_wait(spark: Any, log: penstock.Log, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    source = log.create_stream("lag_in", "n long")
    brake = tmp_path / "brake"
    brake.touch()

    slow = F.udf(lambda n: time.sleep(0.2 if brake.exists() else 0) or n, "long")
    frame = source.df(spark).select(slow("n"))
    with running(frame, to="lag_out", mode="append", workers=1) as query:
        query.processAllAvailable()
        began, count = time.monotonic(), 0

        def is_told() -> bool:
            """The rows take 0.2 s each: ten a second are always too many."""
            nonlocal count
            if count < min(120, 12 + 10 * (time.monotonic() - began)):
                source.append([{"n": count}])
                count += 1
            return _lag(query) > 0

        wait_until(is_told, "no lag was told")
        assert query.status["isDataAvailable"]
        brake.unlink()
        query.processAllAvailable()
        wait_until(lambda: _lag(query) == 0, "the lag stayed")


def _lag(query: penstock.StreamingQuery) -> int:
    sources = (query.lastProgress or {}).get("sources", [])
    return sum(one.get("lag", {}).get("records", 0) for one in sources)


def test_markers_count_the_rows_of_all_instances(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("counting_in", "n long")
    for round in range(2):
        with running(source.df(spark), to="counting_out", mode="append", workers=1) as query:
            source.append([{"n": round}] * 5)
            query.processAllAvailable()
    last = log.client.read_last(TaskId("counting_out", 1, 0, 0).marker_tag)

    assert last is not None
    assert (decode_marker(last.payload).rows_in, decode_marker(last.payload).rows_out) == (10, 10)
