"""The examples of Spark's Structured Streaming programming guide, on streams of the log.

They are the guide's own queries; format and options are what differs. Each result is compared with
batch Spark's over the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_queries import BIDS, append_bids, by_batch, running

import penstock
from penstock.connector.tuned import (
    FILE_MANAGER,
    LOADED_WORKERS,
    RAW_FILES,
    SHUFFLE_PARTITIONS,
    UNIX_SOCKETS,
)
from penstock.testing.oracle import assert_equal

pytestmark = pytest.mark.usefixtures("interpreted")

T0 = datetime(2026, 1, 1, 12, tzinfo=UTC)
#: Beyond every window, so that all of them are closed.
LATER = T0 + timedelta(days=1)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def streaming(spark: Any, log: penstock.Log, stream: str) -> Any:
    """One append of the tests is one trigger: queries see their input in several."""
    reader = spark.readStream.format("penstock").option("maxRowsPerTrigger", 1)
    return reader.option("log", log.target).option("stream", stream).load()


def batch(spark: Any, log: penstock.Log, stream: str, **options: str) -> Any:
    reader = spark.read.format("penstock").options(**options)
    return reader.option("log", log.target).option("stream", stream).load()


def finish(writer: Any, place: Path) -> int:
    """Run the query over what is there; how many batches it took."""
    writer = writer.option("checkpointLocation", str(place)).trigger(availableNow=True)
    query = writer.start()
    assert query.awaitTermination(120), "the query does not end"
    assert query.exception() is None
    return int(query.lastProgress["batchId"]) + 1


def to_stream(frame: Any, log: penstock.Log, stream: str, place: Path) -> int:
    writer = frame.writeStream.format("penstock").outputMode("append")
    return finish(writer.option("log", log.target).option("stream", stream), place)


# ---- word count


@pytest.fixture(scope="module")
def lines(log: penstock.Log) -> penstock.Stream:
    made = log.create_stream("lines", "value string")
    for text in ("apache spark", "apache hadoop", "spark spark owl", "dog cat owl dog"):
        made.append([{"value": text}, {"value": "and " + text}])
    return made


def word_counts(lines: Any) -> Any:
    from pyspark.sql.functions import explode, split

    words = lines.select(explode(split(lines.value, " ")).alias("word"))
    return words.groupBy("word").count()


@pytest.mark.soak
def test_word_count_in_complete_mode(
    spark: Any, log: penstock.Log, lines: penstock.Stream, tmp_path: Path
) -> None:
    """Each batch appends the whole result, atomically: the newest one has the highest `_lsn`."""
    counts = word_counts(streaming(spark, log, "lines"))
    writer = counts.writeStream.outputMode("complete")

    batches = finish(
        writer.foreachBatch(penstock.foreach_batch_writer("complete_counts", log=log)), tmp_path
    )

    found = batch(spark, log, "complete_counts", metadata="_lsn")
    places = sorted(row[0] for row in found.select("_lsn").distinct().collect())
    newest = found.where(found["_lsn"] == places[-1]).drop("_lsn")
    assert len(places) == batches == 4
    assert_equal(newest.toArrow(), by_batch(spark, word_counts, lines), "complete")


def test_word_count_in_update_mode(
    spark: Any, log: penstock.Log, lines: penstock.Stream, tmp_path: Path
) -> None:
    """The last row of a word is its count."""
    counts = word_counts(streaming(spark, log, "lines"))
    writer = counts.writeStream.outputMode("update")

    batches = finish(
        writer.foreachBatch(penstock.foreach_batch_writer("update_counts", log=log)), tmp_path
    )

    found = batch(spark, log, "update_counts", metadata="_lsn")
    newest = found.groupBy("word").agg({"_lsn": "max"}).withColumnRenamed("max(_lsn)", "_lsn")
    last = found.join(newest, ["word", "_lsn"]).select("word", "count")
    assert batches == 4
    assert found.count() > last.count()
    assert_equal(last.toArrow(), by_batch(spark, word_counts, lines), "update")


# ---- event time


@pytest.fixture(scope="module")
def words(log: penstock.Log) -> penstock.Stream:
    made = log.create_stream("words", "timestamp timestamp, word string")
    for first in range(0, 1800, 300):
        made.append(
            [
                {"timestamp": after(first + 17 * n), "word": ("dog", "cat", "owl")[n % 3]}
                for n in range(30)
            ]
        )
    made.append([{"timestamp": LATER, "word": "end"}])
    return made


def windowed_counts(words: Any) -> Any:
    from pyspark.sql.functions import window

    # The guide names columns of the DataFrame before it has a watermark: Spark 4.3 refuses that,
    # with its own sources too.
    words = words.withWatermark("timestamp", "10 minutes")
    return words.groupBy(window(words.timestamp, "10 minutes", "5 minutes"), words.word).count()


def test_windowed_count_with_a_watermark(
    spark: Any, log: penstock.Log, words: penstock.Stream, tmp_path: Path
) -> None:
    batches = to_stream(windowed_counts(streaming(spark, log, "words")), log, "windows", tmp_path)

    found = batch(spark, log, "windows").toArrow()

    def closed(rows: Any) -> Any:
        return windowed_counts(rows).where("word <> 'end'")

    expected = by_batch(spark, closed, words)
    assert expected.num_rows > 20
    assert batches >= 7
    assert_equal(found, expected, "windows")


@pytest.mark.soak
def test_stream_static_join(
    spark: Any, log: penstock.Log, words: penstock.Stream, tmp_path: Path
) -> None:
    static = spark.createDataFrame([("dog", 4), ("owl", 2)], "word string, legs int")

    def joined(rows: Any) -> Any:
        return rows.join(static, "word", "left_outer")

    to_stream(joined(streaming(spark, log, "words")), log, "joined", tmp_path)

    assert_equal(
        batch(spark, log, "joined").toArrow(), by_batch(spark, joined, words), "stream-static"
    )


def test_deduplication_with_a_watermark(spark: Any, log: penstock.Log, tmp_path: Path) -> None:
    events = log.create_stream("events", "guid string, eventTime timestamp")
    for first in range(0, 60, 20):
        own = [{"guid": f"g{n}", "eventTime": after(n)} for n in range(first, first + 20)]
        again = [{"guid": f"g{n}", "eventTime": after(n)} for n in range(max(0, first - 5), first)]
        events.append(own + own[:3] + again)

    def deduplicated(rows: Any) -> Any:
        return rows.withWatermark("eventTime", "10 seconds").dropDuplicates(["guid", "eventTime"])

    to_stream(deduplicated(streaming(spark, log, "events")), log, "deduplicated", tmp_path)

    found = batch(spark, log, "deduplicated").toArrow()
    assert found.num_rows == 60
    assert_equal(found, by_batch(spark, deduplicated, events), "dropDuplicates")


def test_stream_stream_join_with_a_time_bound(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    impressions = log.create_stream("impressions", "adId long, impressionTime timestamp")
    clicks = log.create_stream("clicks", "adId long, clickTime timestamp")
    for first in range(0, 40, 20):
        ads = range(first, first + 20)
        impressions.append([{"adId": n, "impressionTime": after(n)} for n in ads])
        # Some click within the hour, some too late, some before they saw it.
        delays = {n: (5.0, 3_599.0, 3_601.0, -1.0)[n % 4] for n in ads}
        clicks.append([{"adId": n, "clickTime": after(n + delays[n])} for n in ads])

    def joined(impressions: Any, clicks: Any) -> Any:
        from pyspark.sql.functions import expr

        shown = impressions.selectExpr("adId AS impressionAdId", "impressionTime")
        clicked = clicks.selectExpr("adId AS clickAdId", "clickTime")
        return shown.withWatermark("impressionTime", "2 hours").join(
            clicked.withWatermark("clickTime", "3 hours"),
            expr(
                "clickAdId = impressionAdId AND clickTime >= impressionTime"
                " AND clickTime <= impressionTime + interval 1 hour"
            ),
        )

    both = [streaming(spark, log, name) for name in ("impressions", "clicks")]
    to_stream(joined(*both), log, "matched", tmp_path)

    found = batch(spark, log, "matched").toArrow()
    assert found.num_rows == 20
    assert_equal(found, by_batch(spark, joined, impressions, clicks), "stream-stream join")


# ---- both engines on the same streams


def test_real_time_query_then_micro_batches_then_batch(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    """What the real-time engine wrote is read by Spark's own, both ways, and is the same."""
    bids = log.create_stream("bids", BIDS)
    append_bids(bids, 0, 400)

    def dear(frame: Any) -> Any:
        return frame.where("price > 50").selectExpr("auction", "price * 2 AS twice", "ts")

    def again(frame: Any) -> Any:
        return frame.selectExpr("auction + 1 AS next", "twice", "ts")

    with running(dear(streaming(spark, log, "bids")), to="dear", mode="append", workers=1) as query:
        query.processAllAvailable()
        append_bids(bids, 400, 100)
        query.processAllAvailable()
    to_stream(again(streaming(spark, log, "dear")), log, "dear_again", tmp_path)

    expected: pa.Table = by_batch(spark, dear, bids)
    assert expected.num_rows > 100
    assert_equal(batch(spark, log, "dear").toArrow(), expected, "real-time, read by batch")
    twice = by_batch(spark, lambda frame: again(dear(frame)), bids)
    assert_equal(batch(spark, log, "dear_again").toArrow(), twice, "micro-batches, read by batch")
    assert_equal(log.stream("dear_again").read(), twice, "the log's own client")


# ---- docs/spark.md


@pytest.mark.soak
def test_three_streams_of_one_batch_are_written_together(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    bids = log.create_stream("three_in", BIDS)
    append_bids(bids, 0, 150)

    def route(batch: Any, batch_id: int) -> dict[str, Any]:
        dear, cheap = batch.where("price > 50"), batch.where("price <= 50")
        return {"bids_all": batch, "bids_dear": dear, "bids_cheap": cheap}

    writer = streaming(spark, log, "three_in").writeStream
    batches = finish(writer.foreachBatch(penstock.foreach_batch_writer(route, log=log)), tmp_path)

    assert batches == 3
    places = []
    for name, rows in route(batch(spark, log, "three_in"), 0).items():
        found = batch(spark, log, name, metadata="_lsn")
        places.append({row[0] for row in found.select("_lsn").distinct().collect()})
        assert_equal(found.drop("_lsn").toArrow(), rows.toArrow(), name)
    assert places[0] == places[1] == places[2], "one marker a batch, the same for all"
    assert len(places[0]) == batches


@pytest.mark.soak
def test_spark_s_own_sources_and_sinks_with_ours(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    """Files to a stream, and the stream to files again."""
    rows = spark.range(100).selectExpr("id", "concat('v', id) AS v")
    rows.repartition(3).write.parquet(str(tmp_path / "in"))
    files = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)

    batches = to_stream(files.parquet(str(tmp_path / "in")), log, "of_files", tmp_path / "one")
    out = streaming(spark, log, "of_files").writeStream.format("parquet")
    finish(out.option("path", str(tmp_path / "out")), tmp_path / "two")

    assert batches == 3
    assert_equal(batch(spark, log, "of_files").toArrow(), rows.toArrow(), "files to a stream")
    assert_equal(spark.read.parquet(str(tmp_path / "out")).toArrow(), rows.toArrow(), "and back")


# ---- settings


def test_every_setting_of_tuned_is_one_that_spark_knows(spark: Any) -> None:
    known: Callable[[str], Any] = spark._jvm.org.apache.spark.internal.config.ConfigEntry.findEntry
    settings = RAW_FILES | UNIX_SOCKETS | LOADED_WORKERS | {SHUFFLE_PARTITIONS: "2"}
    hadoop = "spark.hadoop.fs.file.impl"

    unknown = [name for name in settings if name != hadoop and known(name) is None]

    assert unknown == []
    assert known("spark.python.unix.domain.socket.on") is None
    # These two are read as plain text; what they name must be there.
    for name in (settings[hadoop], *FILE_MANAGER.values()):
        assert spark._jvm.java.lang.Class.forName(name) is not None
