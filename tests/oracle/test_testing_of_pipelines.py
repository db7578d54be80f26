"""`penstock.testing`, as a user's test calls it: rows in, rows out, batch Spark as the judge."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

import penstock
from penstock.log.records import NewEntry
from penstock.testing import MemoryLog, assert_matches_batch, run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BIDS = "auction long, price double, ts timestamp"


def bid(auction: int, price: float, second: int) -> dict[str, object]:
    return {"auction": auction, "price": price, "ts": NOON + timedelta(seconds=second)}


def windows(bids: DataFrame) -> DataFrame:
    counted = bids.withWatermark("ts", "5 seconds").groupBy(F.window("ts", "10 seconds"))
    return counted.agg(F.count("*").alias("bids")).select("window.start", "bids")


def test_rows_in_rows_out(spark: Any) -> None:
    rows = [bid(1, 3.0, 0), bid(1, 5.0, 1), bid(2, 4.0, 2)]

    result = run(
        spark,
        lambda bids: bids.groupBy("auction").agg(F.max("price").alias("highest")),
        inputs={"bids": (rows, BIDS)},
    )

    assert sorted(result) == [(1, 5.0), (2, 4.0)]
    assert {row.auction: row.highest for row in result} == {1: 5.0, 2: 4.0}


def test_a_row_that_comes_after_its_window_was_closed_is_late(spark: Any) -> None:
    rows = [bid(1, 1.0, 3), bid(1, 1.0, 25), bid(1, 1.0, 4)]
    inputs = {"bids": (rows, BIDS)}

    in_turn = run(spark, windows, inputs=inputs, mode="append")
    at_once = run(spark, windows, inputs=inputs, mode="append", batch_rows=3)

    assert in_turn == [(NOON, 1), (NOON + timedelta(seconds=20), 1)]
    assert sorted(at_once) == [(NOON, 2), (NOON + timedelta(seconds=20), 1)]


def test_without_an_end_open_windows_stay_open(spark: Any) -> None:
    inputs = {"bids": ([bid(1, 1.0, 3), bid(1, 1.0, 25)], BIDS)}

    assert run(spark, windows, inputs=inputs, mode="append", end=False) == [(NOON, 1)]


def test_inputs_take_turns_and_come_by_name(spark: Any) -> None:
    def join(bids: DataFrame, auctions: DataFrame) -> DataFrame:
        return bids.join(auctions, "auction", "left").select("auction", "price", "item")

    inputs = {
        "bids": ([bid(1, 3.0, 0), bid(2, 5.0, 1)], BIDS),
        "auctions": pa.table({"auction": [1], "item": ["vase"]}),
    }

    assert sorted(run(spark, join, inputs=inputs)) == [(1, 3.0, "vase"), (2, 5.0, None)]
    assert_matches_batch(spark, join, inputs=inputs)


def test_nested_values_are_rows_lists_and_dicts(spark: Any) -> None:
    shapes = [
        "struct(auction AS a, named_struct('p', price) AS n) s",
        "array(price)",
        "map('k', ts)",
    ]

    (row,) = run(
        spark,
        lambda bids: bids.selectExpr(*shapes),
        inputs={"bids": ([Row(**bid(1, 3.0, 0))], BIDS)},
    )

    assert row == (Row(a=1, n=Row(p=3.0)), [3.0], {"k": NOON})


def test_complete_mode_is_sorted(spark: Any) -> None:
    rows = [bid(auction, 1.0, 0) for auction in (1, 2, 2, 3, 3, 3)]

    result = run(
        spark,
        lambda bids: bids.groupBy("auction").count().orderBy(F.desc("count")).limit(2),
        inputs={"bids": (rows, BIDS)},
        mode="complete",
    )

    assert result == [(3, 3), (2, 2)]


def test_an_input_without_rows_is_an_input(spark: Any) -> None:
    assert run(spark, windows, inputs={"bids": ([], BIDS)}, mode="append") == []


def test_a_difference_from_batch_spark_is_an_assertion_error(spark: Any) -> None:
    """Late rows are dropped by a query, and by no batch: the judge must see it."""
    late = [bid(1, 1.0, second) for second in (3, 25, 4, 40, 5, 60, 6)]

    with pytest.raises(AssertionError, match="missing"):
        assert_matches_batch(spark, windows, inputs={"bids": (late, BIDS)}, mode="append", runs=20)


def test_a_pipeline_that_cannot_run_is_refused(spark: Any) -> None:
    with pytest.raises(penstock.Unsupported):
        run(spark, lambda bids: bids.limit(1), inputs={"bids": ([], BIDS)}, mode="append")


def test_a_wrong_row_is_named(spark: Any) -> None:
    with pytest.raises(penstock.BadRow, match="row 1"):
        run(spark, windows, inputs={"bids": ([bid(1, 1.0, 0), {"auction": "x"}], BIDS)})


def test_rows_without_a_schema_are_told_what_is_missing(spark: Any) -> None:
    with pytest.raises(penstock.Refused, match="DDL"):
        run(spark, windows, inputs={"bids": [bid(1, 1.0, 0)]})  # type: ignore[dict-item]


def test_the_log_in_memory_orders_and_reads_by_tag() -> None:
    async def story() -> list[bytes]:
        async with MemoryLog() as log:
            await log.append([NewEntry(b"a", ("x",)), NewEntry(b"b", ("y",))])
            await log.append([NewEntry(b"c", ("x",))])
            return [bytes(entry.payload) for entry in await log.read(["x"])]

    assert asyncio.run(story()) == [b"a", b"c"]


def test_a_column_says_when_the_log_took_a_row(spark: Any) -> None:
    rows = [{"k": 1, "_time": NOON}, {"k": 2, "_time": NOON + timedelta(hours=1)}]

    def late(bids: DataFrame) -> DataFrame:
        return bids.where(F.current_timestamp() > F.lit(NOON)).select("k")

    assert run(spark, late, inputs={"bids": (rows, "k int, _time timestamp")}) == [(2,)]
