"""`spark.read` and `spark.readStream` of Penstock streams, by Spark itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.ids import Lsn
from penstock.log.records import Kind, NewEntry
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import naming_tag, stream_node_tag
from penstock.stream.batches import encode_batch
from penstock.stream.registration import stream_tag

ROWS = "k long NOT NULL, v string"


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"k": n, "v": f"v{n}"} for n in range(first, first + count)]


def stage(log: penstock.Log, stream: penstock.Stream, first: int, count: int, *nodes: int) -> Range:
    """Rows that no marker names yet."""
    batch = pa.RecordBatch.from_pylist(rows(first, count), schema=stream.schema)
    tags = (stream_tag(stream.name), *(stream_node_tag(stream.name, node) for node in nodes))
    done = log.client.append([NewEntry(encode_batch(batch), tags, Kind.STAGED, rows=count)])
    return Range(done.first_lsn, done.count)


def mark(log: penstock.Log, stream: penstock.Stream, *ranges: Range) -> None:
    made = Marker("q.1/0/0", 1, 0, Lsn(0), 0, ranges=ranges)
    tags = ("T/q.1/0/0", stream_tag(stream.name), naming_tag(stream.name))
    log.client.append([NewEntry(encode_marker(made), tags, Kind.MARKER)])


def source(reader: Any, log: penstock.Log, stream: str, **options: Any) -> Any:
    made = reader.format("penstock").option("log", log.target).option("stream", stream)
    return made.options(**options)


def run_now(frame: Any, checkpoint: Path) -> list[list[Any]]:
    """The query over what is there now; its batches."""
    batches: list[list[Any]] = []

    def keep(batch: Any, _: int) -> None:
        batches.append(batch.collect())

    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return batches


def keys(found: list[Any]) -> list[int]:
    return sorted(row["k"] for row in found)


def failure_of(run: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as failed:
        run()
    return str(failed.value)


# ---- streaming


def test_a_query_takes_what_counts_in_several_triggers_and_goes_on_where_it_was(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    """Limits, availableNow, staged rows with and without a marker, a restart in between."""
    stream = log.create_stream("several", ROWS)
    for n in range(4):
        stream.append(rows(10 * n, 10))
    stage(log, stream, 1000, 3)
    early = stage(log, stream, 40, 5)
    frame = source(spark.readStream, log, "several", maxRowsPerTrigger=20).load()

    first = run_now(frame, tmp_path / "c")
    assert [len(batch) for batch in first] == [20, 20]
    assert keys([row for batch in first for row in batch]) == list(range(40))

    mark(log, stream, early)
    stream.append(rows(45, 20))
    second = run_now(frame, tmp_path / "c")
    assert [keys(batch) for batch in second] == [list(range(40, 45)), list(range(45, 65))]
    assert run_now(frame, tmp_path / "c") == []


def test_a_first_batch_that_was_not_finished_is_the_same_after_a_restart(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    """Spark asks again where the query begins, and by then "latest" is beyond the batch's end."""
    stream = log.create_stream("first_batch", ROWS)
    stream.append(rows(0, 3))
    checkpoint = tmp_path / "c"
    frame = source(spark.readStream, log, "first_batch").load()
    assert [keys(batch) for batch in run_now(frame, checkpoint)] == [[0, 1, 2]]
    for path in (checkpoint / "commits").glob("*0*"):
        path.unlink()  # as if it had been killed before it was done
    stream.append(rows(3, 2))

    later = source(spark.readStream, log, "first_batch", startingPosition="latest").load()
    assert [keys(batch) for batch in run_now(later, checkpoint)] == [[0, 1, 2], [3, 4]]


def test_rows_arrive_while_a_query_runs_and_progress_is_told(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    stream = log.create_stream("live", ROWS)
    frame = source(spark.readStream, log, "live", metadata="_lsn,_time,_producer,_stream").load()
    seen: list[Any] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    query.processAllAvailable()
    assert seen == [], "an empty stream"
    done = stream.append(rows(0, 5))
    query.processAllAvailable()
    stream.append(rows(5, 5))
    deadline = time.monotonic() + 30
    while len(seen) < 10 and time.monotonic() < deadline:
        time.sleep(0.02)
    query.processAllAvailable()
    query.stop()

    assert keys(seen) == list(range(10))
    assert {row["_lsn"] for row in seen if row["k"] < 5} == {done.first_lsn}
    assert {row["_stream"] for row in seen} == {"live"}
    assert all(row["_producer"].startswith("anon-") for row in seen)
    told = [part for part in query.recentProgress if part["numInputRows"]][-1]["sources"][0]
    offset = (
        json.loads(told["endOffset"]) if isinstance(told["endOffset"], str) else told["endOffset"]
    )
    assert offset["lsn"] == max(row["_lsn"] for row in seen) + 1


def test_a_large_batch_is_read_by_tasks_and_each_key_by_one(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    """2,000 rows of 2 kB: too large to travel with its plan; by size, and by virtual node."""
    from pyspark.sql.functions import spark_partition_id

    stream = log.create_stream("large", ROWS)
    wide = [{"k": n, "v": str(n) * 500} for n in range(2000)]
    for node in range(8):
        mine = [row for row in wide if row["k"] % 8 == node]
        batch = pa.RecordBatch.from_pylist(mine, schema=stream.schema)
        tags = (stream_tag("large"), stream_node_tag("large", node))
        made = [NewEntry(encode_batch(batch), tags, rows=len(mine))]
        log.client.append(made)
    for by in ("size", "virtualNode"):
        reader = source(spark.readStream, log, "large", partitionBy=by, partitions=4)
        frame = reader.load().select("k", "v", spark_partition_id().alias("part"))
        (batch,) = run_now(frame, tmp_path / by)
        assert sorted((row["k"], row["v"]) for row in batch) == sorted(
            (row["k"], row["v"]) for row in wide
        )
        assert len({row["part"] for row in batch}) == 4
        if by == "virtualNode":
            assert len({(row["k"] % 8, row["part"]) for row in batch}) == 8


def test_only_the_columns_of_the_given_schema(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    log.create_stream("pruned", "a long, b string, c double").append([{"a": 1, "b": "x", "c": 0.5}])
    frame = source(spark.readStream, log, "pruned").schema("c double, a long").load()
    ((row,),) = run_now(frame, tmp_path / "c")
    assert row.asDict() == {"c": 0.5, "a": 1}
    assert source(spark.read, log, "pruned").schema("b string").load().collect() == [("x",)]
    told = failure_of(source(spark.read, log, "pruned").schema("b int").load().collect)
    assert "SchemaMismatch" in told and "column b: expected string, got int" in told


def test_a_batch_reads_a_range_and_what_was_committed_in_it(spark: Any, log: penstock.Log) -> None:
    stream = log.create_stream("range", ROWS)
    early = stage(log, stream, 0, 2)
    stream.append(rows(2, 2))
    start = log.bounds().tail
    stage(log, stream, 100, 1)
    mark(log, stream, early)
    stream.append(rows(4, 2))
    end = log.bounds().tail
    stream.append(rows(6, 2))

    def read(**options: Any) -> list[int]:
        return keys(source(spark.read, log, "range", **options).load().collect())

    assert read() == list(range(8))
    assert read(startingPosition=start, endingPosition=end, partitions=3) == [0, 1, 4, 5]
    assert read(endingPosition=start) == [2, 3]
    assert read(startingPosition=end, partitionBy="virtualNode") == [6, 7]
    assert read(startingPosition=end, endingPosition=end) == []
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert read(startingPosition=later) == []
    assert read(endingPosition=later, startingPosition=end) == [6, 7]


def test_filters_on_place_and_time_narrow_what_is_read(spark: Any, log: penstock.Log) -> None:
    """Each with a frame of its own: Spark plans a frame that pushes filters for one query only."""
    stream = log.create_stream("filters", ROWS)
    lsns = [stream.append(rows(n, 1)).first_lsn for n in range(6)]
    told = log.client.read([stream_tag("filters")])
    moment = penstock.stream.times.from_time_ms(told[3].time_ms).isoformat()
    times = [one.time_ms - told[3].time_ms for one in told]

    def read(condition: str) -> list[int]:
        reader = source(spark.read, log, "filters", metadata="_lsn,_time", pushFilters="true")
        return keys(reader.load().where(condition).collect())

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition, wanted in (
            (f"_lsn = {lsns[2]}", [2]),
            (f"_lsn > {lsns[2]}", [3, 4, 5]),
            (f"_lsn >= {lsns[2]} and _lsn < {lsns[4]}", [2, 3]),
            (f"_lsn <= {lsns[1]} and k > 0", [1]),
            (f"_lsn > {1 << 62}", []),
            ("_lsn < -1", []),
            (f"_lsn = {lsns[2]} or _lsn = {lsns[4]}", [2, 4]),
            (f"_time < timestamp'{moment}'", [n for n in range(6) if times[n] < 0]),
            (f"_time <= timestamp'{moment}'", [n for n in range(6) if times[n] <= 0]),
            (f"_time = timestamp'{moment}'", [n for n in range(6) if times[n] == 0]),
            (f"_time > timestamp'{moment}'", [n for n in range(6) if times[n] > 0]),
            (f"_time >= timestamp'{moment}'", [n for n in range(6) if times[n] >= 0]),
        ):
            assert read(condition) == wanted, condition
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.soak
def test_a_million_rows_and_an_empty_stream(spark: Any, log: penstock.Log, tmp_path: Path) -> None:
    from pyspark.sql.functions import count
    from pyspark.sql.functions import sum as total

    empty = log.create_stream("empty", ROWS)
    assert source(spark.read, log, "empty").load().collect() == []
    assert empty.read().num_rows == 0

    stream = log.create_stream("million", "k long, w double")
    k = pa.array(range(1_000_000), pa.int64())
    stream.append(pa.table({"k": k, "w": k.cast(pa.float64())}))
    expected = (1_000_000, 999_999 * 500_000, 999_999 * 500_000.0)

    def sums(frame: Any) -> list[Any]:
        return list(frame.agg(count("*"), total("k"), total("w")).collect())

    assert sums(source(spark.read, log, "million").load()) == [expected]
    batches: list[Any] = []
    frame = source(spark.readStream, log, "million", maxBytesPerTrigger=6 << 20).load()
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: batches.extend(sums(batch)))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert len(batches) >= 3
    assert tuple(sum(part) for part in zip(*batches, strict=True)) == expected


# ---- one clear error each


def test_each_refusal_says_what_to_do(spark: Any, own_log: penstock.Log, tmp_path: Path) -> None:
    log = own_log
    stream = log.create_stream("bids", ROWS)
    for n in range(4):
        stream.append(rows(n, 1))

    told = failure_of(source(spark.read, log, "bidz").load)
    assert "NotFound" in told and "did you mean bids" in told
    told = failure_of(source(spark.read, log, "bids", partitionBy="key").load)
    assert "option partitionBy is 'key': allowed are size, virtualNode, lane" in told
    told = failure_of(source(spark.readStream, log, "bids", nothing=1).load)
    assert "option nothing is not known" in told

    frame = source(spark.readStream, log, "bids", maxRowsPerTrigger=1).load()
    run_now(frame, tmp_path / "c")
    for path in [*(tmp_path / "c").glob("*/3"), *(tmp_path / "c").glob("*/.3.crc")]:
        path.unlink()  # as if the last batch had not been
    log.trim(log.bounds().tail)
    told = failure_of(lambda: run_now(frame, tmp_path / "c"))
    assert "Trimmed" in told and "failOnDataLoss=false" in told and "stream bids" in told
    lenient = source(spark.readStream, log, "bids", failOnDataLoss="false").load()
    assert run_now(lenient, tmp_path / "c") == []
    told = failure_of(source(spark.read, log, "bids", startingPosition="0").load().collect)
    assert "Trimmed" in told and "startingPosition" in told
