"""Columns that say where a row stands in the log, in queries: as batch Spark reads them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from penstock_bench.nexmark.generator import Generator
from penstock_bench.nexmark.queries import QUERIES, split_events
from small_queries import running

import penstock
from penstock.testing.oracle import assert_equal

METADATA = ["_lsn", "_time", "_producer", "_stream"]


def read_again(spark: Any, stream: penstock.Stream) -> Any:
    """By batch Spark, with the same columns."""
    reader = spark.read.format("penstock").option("stream", stream.name)
    return reader.options(log=stream._found_by["log"], metadata=",".join(METADATA)).load()


@pytest.mark.parametrize("workers", [1, 2])
def test_windows_of_arrival_equal_batch_spark(spark: Any, log: penstock.Log, workers: int) -> None:
    """NEXMark's q12, over rows that arrive for three seconds, in windows of one."""
    from pyspark.sql import functions as F

    generator = Generator()
    schema = generator.events(np.arange(1)).schema
    events = log.create_stream(f"arriving-{workers}", schema)
    bids = split_events(events.df(spark, metadata=["_time"]))[2].withWatermark("_time", "0 seconds")
    second = F.window("_time", "1 second")
    counts = bids.groupBy("bidder", second).agg(F.count("*").alias("bid_count"))
    with running(counts, to=f"arrived-{workers}", mode="append", workers=workers) as query:
        for first in range(0, 3_000, 100):
            rows = generator.events(np.arange(first, first + 100))
            events.append(pa.Table.from_batches([rows]))
            time.sleep(0.1)
        query.processAllAvailable()
        shown = query.result()

    ends = shown.column("window").combine_chunks().field("end")
    assert len(set(ends.to_pylist())) >= 2
    again = split_events(read_again(spark, events))[2]
    closed = again.groupBy("bidder", second).agg(F.count("*").alias("bid_count"))
    last = max(ends.to_pylist())
    expected = closed.where(F.col("window.end") <= F.lit(last)).toArrow()
    assert_equal(shown, expected, "windows of one second")
    assert QUERIES["q12"].build(*split_events(events.df(spark, metadata=["_time"])))


def test_every_metadata_column_is_what_batch_spark_reads(spark: Any, log: penstock.Log) -> None:
    from pyspark.sql import functions as F

    stream = log.create_stream("told", "k long")
    told = stream.df(spark, metadata=METADATA).withColumn("now", F.current_timestamp())
    with running(told, to="telling", mode="append") as query:
        for k in range(5):
            stream.append([{"k": k}, {"k": k}])
        with stream.producer("a-name") as producer:
            producer.append([{"k": 9}])
        query.processAllAvailable()
        shown = query.result()

    assert shown.num_rows == 11
    again = read_again(spark, stream).withColumn("now", F.col("_time"))
    assert_equal(shown, again.toArrow(), "metadata")


def test_a_stream_with_a_column_of_that_name_does_not_tell_the_present(
    spark: Any, log: penstock.Log
) -> None:
    from pyspark.sql import functions as F

    stream = log.create_stream("timed", "_time timestamp")
    with pytest.raises(penstock.Unsupported, match="a column of the stream is called _time"):
        penstock.explain(stream.df(spark).withColumn("now", F.current_timestamp()))


@pytest.mark.parametrize("workers", [1, 2])
def test_static_rows_are_shown_once_in_a_querys_life(
    spark: Any, log: penstock.Log, workers: int
) -> None:
    """In a union and in a join that keeps them, over a restart."""
    from pyspark.sql import functions as F

    stream = log.create_stream(f"beside-{workers}", "id long")
    rows = stream.df(spark).union(spark.range(3))
    kept = spark.range(2, 9).toDF("key").join(rows, F.col("key") == F.col("id"), "left")
    name = f"shown-{workers}"
    for ids in ([1, 7], [8, 8]):
        with running(kept, to=name, name=name, workers=workers) as query:
            stream.append([{"id": id} for id in ids])
            query.processAllAvailable()
            shown = query.result()

    alone = [(key, None) for key in (3, 4, 5, 6)]
    pairs = zip(*(shown.column(name).to_pylist() for name in ("key", "id")), strict=True)
    assert sorted(pairs, key=str) == [(2, 2), *alone, (7, 7), (8, 8), (8, 8)]
