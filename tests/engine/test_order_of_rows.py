"""Rows of a key are taken in log order of their source, also by two workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from small_queries import running

import penstock

KEYS, ROUNDS, AT_ONCE = 5, 40, 25


@pytest.fixture
def numbers(log: penstock.Log, request: pytest.FixtureRequest) -> penstock.Stream:
    return log.create_stream(request.node.name.removeprefix("test_")[:40], "k long, n long")


def append_round(stream: penstock.Stream, number: int) -> None:
    """Rows that count up, by one producer, in small entries."""
    first = number * AT_ONCE
    stream.append([{"k": n % KEYS, "n": n} for n in range(first, first + AT_ONCE)])


def test_the_last_row_is_the_last_that_was_appended(spark: Any, numbers: penstock.Stream) -> None:
    from pyspark.sql import functions as F

    latest = numbers.df(spark).groupBy("k").agg(
        F.last("n").alias("last"), F.max("n").alias("largest"), F.collect_list("n").alias("all")
    )  # fmt: skip
    with running(latest, to="latest", workers=2) as query:
        for number in range(ROUNDS):
            append_round(numbers, number)
            if number % 10 == 9:
                query.processAllAvailable()
                for row in query.result().to_pylist():
                    assert row["last"] == row["largest"]
                    assert row["all"] == sorted(row["all"])


def test_a_processor_sees_the_rows_of_a_key_in_order(spark: Any, numbers: penstock.Stream) -> None:
    from pyspark.sql.streaming import StatefulProcessor

    class Behind(StatefulProcessor):
        """Tells of every row that comes after a later one."""

        def init(self, handle: Any) -> None:
            self._largest = handle.getValueState("largest", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
            from pyspark.sql import Row

            largest = self._largest.get()[0] if self._largest.exists() else -1
            for row in rows:
                if row.n < largest:
                    yield Row(k=key[0], n=row.n)
                largest = max(largest, row.n)
            self._largest.update((largest,))

        def close(self) -> None:
            pass

    told = numbers.df(spark).groupBy("k").transformWithState(
        Behind(), outputStructType="k long, n long", outputMode="append", timeMode="none"
    )  # fmt: skip
    with running(told, to="behind", mode="append", workers=2) as query:
        for number in range(ROUNDS):
            append_round(numbers, number)
        query.processAllAvailable()
        assert query.result().num_rows == 0


def test_all_that_is_final_is_there_when_a_keyed_stream_was_processed(
    spark: Any, log: penstock.Log
) -> None:
    """Two tasks read it whole, each its keys, and tell its time together."""
    from small_queries import BIDS, append_bids, by_batch

    from penstock.testing.oracle import assert_equal

    stream = log.create_stream("keyed_bids", BIDS, key=["auction"])

    def counts(frame: Any) -> Any:
        from pyspark.sql import functions as F

        return frame.groupBy("auction", F.window("ts", "10 seconds")).count()

    timed = counts(stream.df(spark).withWatermark("ts", "0 seconds"))
    with running(timed, to="keyed_counts", mode="append", workers=2) as query:
        assert query._spec.tasks == (0, 2)
        append_bids(stream, 0, 1_000)
        append_bids(stream, 1_000, 1)  # closes what is before it
        query.processAllAvailable()
        shown = query.result()
    assert shown.num_rows == 70
    whole = by_batch(spark, counts, stream)
    ends = whole.column("window").combine_chunks().field("end").to_pylist()
    closed = whole.filter([end < max(ends) for end in ends])
    assert_equal(shown, closed, "windows that are over")
