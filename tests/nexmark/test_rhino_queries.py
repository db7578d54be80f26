"""Rhino's variants of NEXMark give what batch Spark gives, over a day of event time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from penstock_bench.nexmark import model
from penstock_bench.nexmark.generator import Generator, rhino_parameters
from penstock_bench.nexmark.queries import QUERIES, RHINO

from penstock.ops.driver import Driver
from penstock.spark.frontend import plan
from penstock.testing.oracle import assert_equal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS = 4_000
BATCH_EVENTS = 500
#: 22 hours of event time: windows of 4 h and of 12 h end, and sessions with each of the gaps.
EVENTS_PER_S = 0.05

Site = tuple[list[dict[str, pa.RecordBatch]], dict[str, "DataFrame"]]


@pytest.fixture(scope="module")
def site(spark: SparkSession) -> Site:
    generator = Generator(replace(rhino_parameters(), events_per_s=EVENTS_PER_S))
    batches = []
    for start in range(0, EVENTS, BATCH_EVENTS):
        ids = np.arange(start, start + BATCH_EVENTS)
        made = (generator.persons(ids), generator.auctions(ids), generator.bids(ids))
        batches.append(dict(zip(model.KINDS, made, strict=True)))
    frames = {
        kind: spark.createDataFrame(pa.Table.from_batches([batch[kind] for batch in batches]))
        for kind in model.KINDS
    }
    return batches, frames


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", RHINO)
def test_rhinos_queries_equal_batch_spark(
    spark: SparkSession, site: Site, name: str, tmp_path: Path
) -> None:
    batches, frames = site
    expected = QUERIES[name].build(*(frames[kind] for kind in model.KINDS)).toArrow()

    actual = _run(spark, batches, name, tmp_path)

    assert expected.num_rows
    assert_equal(actual, expected, name)
    if name == "nbqx":  # every part has rows, and each gap makes others
        parts = expected.column("part").to_pylist()
        counts = {part: parts.count(part) for part in parts}
        assert len(set(counts.values())) == len(counts) == 5


def _run(
    spark: SparkSession, batches: list[dict[str, pa.RecordBatch]], name: str, directory: Path
) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    streams, paths = [], {}
    for kind, schema in model.KINDS.items():
        paths[kind] = str(directory / kind)
        Path(paths[kind]).mkdir()
        stream = spark.readStream.schema(from_arrow_schema(schema)).parquet(paths[kind])
        streams.append(stream.withWatermark("dateTime", "0 seconds"))
    planned = plan(QUERIES[name].build(*streams), mode="append")
    driver = Driver(planned.query, planned.static_rows(), tasks=2)
    for batch in batches:
        for kind, rows in batch.items():
            driver.feed(paths[kind], rows)
    driver.finish()
    return driver.result()
