"""The result of a running query, delivered: after every transaction it is a committed result."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from harness.delivery_targets import MemoryTarget
from small_queries import BIDS, append_bids, by_batch, running

import penstock
from penstock.testing.oracle import assert_equal

pytestmark = pytest.mark.usefixtures("interpreted")


def build(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.groupBy("auction").agg(F.count("*").alias("n"), F.sum("price").alias("total"))


def test_the_result_of_a_query_is_a_table_by_its_grouping_columns(
    spark: Any, log: penstock.Log
) -> None:
    source = log.create_stream("delivered_in", BIDS)
    targets = [MemoryTarget(), MemoryTarget()]
    append_bids(source, 0, 200)

    with running(build(source.df(spark)), to="delivered_out", mode="update", workers=1) as query:
        query.processAllAvailable()
        with penstock.deliver(query, targets) as delivery:
            append_bids(source, 200, 300)
            query.processAllAvailable()
            delivery.processAllAvailable()
            assert delivery.lag.records == 0

    assert delivery.name == "delivered_out-MemoryTarget"
    found = [row for target in targets for row in table_of(target)]
    expected = by_batch(spark, build, source)
    assert_equal(pa.Table.from_pylist(found, schema=expected.schema), expected, "delivered")
    for target in targets:
        assert target.shard is not None
        assert (target.shard.key, target.shard.changing) == (("auction",), True)
        assert target.shard.schema.names == ["auction", "n", "total"]


def table_of(target: MemoryTarget) -> list[dict[str, Any]]:
    """The rows with weight one; at each transaction every key has at most one row."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for batch in target.transactions:
        for row in batch.rows.to_pylist():
            counts[tuple(row.values())[:-1]] += row["_weight"]
        rows = +counts
        assert set(rows.values()) <= {1} and -counts == Counter()
        assert len({row[0] for row in rows}) == len(rows)
    return [dict(zip(("auction", "n", "total"), row, strict=True)) for row in +counts]
