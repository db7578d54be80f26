"""NEXMark: every query, over 200,000 generated events, gives what batch Spark gives.

The same functions of nexmark/queries are built twice: over cached batch DataFrames, and over
streaming ones that the Driver is fed 5,000 events at a time, in two tasks, with a restart half way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from penstock_bench.nexmark import model
from penstock_bench.nexmark.generator import Generator
from penstock_bench.nexmark.queries import QUERIES, RHINO

from penstock.errors import Unsupported
from penstock.ops.driver import Driver
from penstock.spark.frontend import plan
from penstock.testing.oracle import assert_equal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.plan.nodes import Mode

EVENTS = 200_000
BATCH_EVENTS = 5_000
#: Structured Streaming has no plan for these; batch Spark does, and so do we.
REFUSED_BY_STREAMING = ["q4", "q6", "q9", "q15", "q16", "q18", "q19"]
BY_PROCESSING_TIME = "q12"


@dataclass(frozen=True, repr=False)
class Site:
    """The events as rows by kind, as cached DataFrames, and as streams to be planned."""

    batches: list[dict[str, pa.RecordBatch]]
    cached: dict[str, DataFrame]
    streams: dict[str, DataFrame]
    paths: dict[str, str]
    side_input: DataFrame
    #: What batch Spark gave, by query.
    answers: dict[str, pa.Table] = field(default_factory=dict)

    def build(self, name: str, frames: dict[str, DataFrame]) -> DataFrame:
        query = QUERIES[name]
        inputs = [frames[kind] for kind in model.KINDS]
        if query.takes_side_input:
            return query.build(*inputs, side_input=self.side_input)
        return query.build(*inputs)

    def expected(self, name: str) -> pa.Table:
        if name not in self.answers:
            self.answers[name] = self.build(name, self.cached).toArrow()
        return self.answers[name]

    def run(self, name: str, frames: dict[str, DataFrame], mode: Mode) -> pa.Table:
        planned = plan(self.build(name, frames), mode=mode)
        statics = planned.static_rows()
        driver = Driver(planned.query, statics, tasks=2)
        for position, batch in enumerate(self.batches):
            if position == len(self.batches) // 2:
                outputs, kept = driver.outputs, driver.snapshot()
                driver = Driver(planned.query, statics, tasks=2, resume=kept)
                driver.outputs = outputs
            for kind, rows in batch.items():
                driver.feed(self.paths[kind], rows)
        driver.finish()
        return driver.result()


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    generator = Generator()
    batches = []
    for start in range(0, EVENTS, BATCH_EVENTS):
        ids = np.arange(start, start + BATCH_EVENTS)
        made = (generator.persons(ids), generator.auctions(ids), generator.bids(ids))
        batches.append(dict(zip(model.KINDS, made, strict=True)))
    cached, streams, paths = {}, {}, {}
    for kind, schema in model.KINDS.items():
        path: Path = tmp_path_factory.mktemp(kind)
        paths[kind] = str(path)
        streams[kind] = spark.readStream.schema(from_arrow_schema(schema)).parquet(str(path))
        rows = pa.Table.from_batches([batch[kind] for batch in batches])
        cached[kind] = spark.createDataFrame(rows).cache()
    yield Site(batches, cached, streams, paths, spark.createDataFrame(model.side_input()))
    for df in cached.values():
        df.unpersist()


@pytest.mark.parametrize(
    "name", [name for name in QUERIES if name not in (BY_PROCESSING_TIME, *RHINO)]
)
def test_every_query_equals_batch_spark(site: Site, name: str) -> None:
    expected = site.expected(name)

    actual = site.run(name, site.streams, "update")

    assert expected.num_rows
    assert_equal(actual, expected, name)


@pytest.mark.parametrize("name", ["q0", "q3", "q5", "q7", "q8", "q11"])
def test_append_mode_gives_the_same_rows_once_they_are_final(site: Site, name: str) -> None:
    late = {kind: df.withWatermark("dateTime", "4 seconds") for kind, df in site.streams.items()}
    expected = site.expected(name)

    actual = site.run(name, late, "append")

    assert_equal(actual, expected, name)


def test_windows_of_processing_time_are_refused_with_the_reason(site: Site) -> None:
    df = site.build(BY_PROCESSING_TIME, site.streams)

    with pytest.raises(Unsupported, match=r"current_timestamp.*planning would freeze them"):
        plan(df)


@pytest.mark.parametrize("name", REFUSED_BY_STREAMING)
def test_structured_streaming_refuses_what_runs_here(site: Site, name: str, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    df = site.build(name, site.streams)
    start: Callable[[], Any] = (
        df.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path))
        .start
    )

    with pytest.raises(AnalysisException):
        start()
