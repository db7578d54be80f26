"""NEXMark: every query, over 200,000 generated events, gives what batch Spark gives.

The same functions of nexmark/queries are built over streaming DataFrames that the Driver is fed
5,000 events at a time, in two tasks, with a restart half way, and over batch DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from nexmark_events import Events, generated
from penstock_bench.nexmark.queries import QUERIES, RHINO

from penstock.ops.driver import Driver
from penstock.plan.nodes import Scan
from penstock.spark.frontend import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.plan.nodes import Mode

EVENTS = 200_000
BATCH_EVENTS = 5_000
#: Structured Streaming has no plan for these; batch Spark does, and so do we.
REFUSED_BY_STREAMING = ["q4", "q6", "q9", "q15", "q16", "q18", "q19"]
#: Windows of arrival: only the log knows that time (tests/engine/test_metadata.py).
BY_ARRIVAL = "q12"


def run(events: Events, df: DataFrame, mode: Mode) -> pa.Table:
    planned = plan(df, mode=mode)
    statics = planned.static_rows()
    driver = Driver(planned.query, statics, tasks=2)
    for position, batch in enumerate(events.batches):
        if position == len(events.batches) // 2:
            outputs, kept = driver.outputs, driver.snapshot()
            driver = Driver(planned.query, statics, tasks=2, resume=kept)
            driver.outputs = outputs
        for kind, rows in batch.items():
            driver.feed(kind, rows)
    driver.finish()
    return driver.result()


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> Iterator[Events]:
    with generated(spark, EVENTS, BATCH_EVENTS) as made:
        yield made


@pytest.mark.parametrize("name", [name for name in QUERIES if name not in (BY_ARRIVAL, *RHINO)])
def test_every_query_equals_batch_spark(events: Events, name: str) -> None:
    df = events.build(name, events.streams)

    ours = run(events, df, "update")

    events.assert_equals_spark(name, df, ours)


@pytest.mark.parametrize("name", ["q0", "q3", "q5", "q7", "q8", "q11"])
def test_append_mode_gives_the_same_rows_once_they_are_final(events: Events, name: str) -> None:
    late = {kind: df.withWatermark("dateTime", "4 seconds") for kind, df in events.streams.items()}
    df = events.build(name, late)

    ours = run(events, df, "append")

    events.assert_equals_spark(name, df, ours)


def test_windows_of_processing_time_are_windows_of_arrival(events: Events) -> None:
    from pyspark.sql import functions as F

    bids = events.streams["bid"].withColumn("now", F.current_timestamp())
    df = bids.groupBy(F.window("now", "10 seconds")).count()

    (scan,) = [leaf for stage in plan(df).query.stages for leaf in stage.inputs][:1]
    assert isinstance(scan, Scan)
    assert scan.columns[-1] == "_time"


@pytest.mark.parametrize("name", REFUSED_BY_STREAMING)
def test_structured_streaming_refuses_what_runs_here(
    events: Events, name: str, tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException

    df = events.build(name, events.streams)
    start: Callable[[], Any] = (
        df.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path))
        .start
    )

    with pytest.raises(AnalysisException):
        start()
