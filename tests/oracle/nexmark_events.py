"""Generated NEXMark events: as batches to feed, as streams to be planned, and for batch Spark.

Spark is handed the events only if it must be asked: tests/harness/answers.py knows with which of
our results it has agreed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from harness.answers import ANSWERS, digest_of
from penstock_bench.nexmark import model
from penstock_bench.nexmark.generator import Generator
from penstock_bench.nexmark.queries import QUERIES

from penstock.testing.oracle import streaming_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, repr=False)
class Events:
    """Persons, auctions and bids. Streams are named by their kind."""

    spark: SparkSession
    batches: list[dict[str, pa.RecordBatch]]
    streams: dict[str, DataFrame]
    side_input: DataFrame
    #: Of all rows, the side input's too.
    digest: bytes
    #: What batch Spark gave, by query.
    answers: dict[str, pa.Table] = field(default_factory=dict)

    def build(self, name: str, frames: dict[str, DataFrame]) -> DataFrame:
        query = QUERIES[name]
        inputs = [frames[kind] for kind in model.KINDS]
        if query.takes_side_input:
            return query.build(*inputs, side_input=self.side_input)
        return query.build(*inputs)

    def assert_equals_spark(self, name: str, frame: DataFrame, ours: pa.Table) -> None:
        """Our result of a query over streams is batch Spark's over all rows, and is not empty."""
        assert ours.num_rows
        ANSWERS.agree(self.spark, frame, self.digest, ours, lambda: self._ask(name))

    def _ask(self, name: str) -> pa.Table:
        if name not in self.answers:
            self.answers[name] = self.build(name, self._cached).toArrow()
        return self.answers[name]

    @cached_property
    def _cached(self) -> dict[str, DataFrame]:
        return {
            kind: self.spark.createDataFrame(rows).cache()
            for kind, rows in tables_of(self.batches).items()
        }

    def forget(self) -> None:
        """Spark need not keep the rows."""
        for rows in self.__dict__.get("_cached", {}).values():
            rows.unpersist()


def tables_of(batches: list[dict[str, pa.RecordBatch]]) -> dict[str, pa.Table]:
    """All rows of each kind."""
    return {kind: pa.Table.from_batches([batch[kind] for batch in batches]) for kind in model.KINDS}


@contextmanager
def generated(spark: SparkSession, events: int, per_batch: int) -> Iterator[Events]:
    """The first so many events of the generator."""
    generator = Generator()
    batches = []
    for start in range(0, events, per_batch):
        ids = np.arange(start, start + per_batch)
        rows = (generator.persons(ids), generator.auctions(ids), generator.bids(ids))
        batches.append(dict(zip(model.KINDS, rows, strict=True)))
    tables, side = tables_of(batches), model.side_input()
    made = Events(
        spark,
        batches,
        streaming_frames(spark, tables),
        spark.createDataFrame(side),
        digest_of(*tables.values(), side),
    )
    yield made
    made.forget()
