"""Small queries over bids, run by Penstock and by batch Spark, for the tests beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import penstock
from penstock.testing.oracle import assert_equal

BIDS = "auction long, price long, ts timestamp"
T0 = datetime(2026, 1, 1, tzinfo=UTC)

Rows = list[dict[str, Any]]


def bids(first: int, count: int) -> Rows:
    """Bids by number: one every 100 ms, on seven auctions."""
    return [
        {"auction": n % 7, "price": n * 37 % 101, "ts": T0 + timedelta(milliseconds=100 * n)}
        for n in range(first, first + count)
    ]


def append_bids(stream: penstock.Stream, first: int, count: int, *, at_once: int = 50) -> None:
    for at in range(first, first + count, at_once):
        stream.append(bids(at, min(at_once, first + count - at)))


@contextmanager
def running(frame: Any, **options: Any) -> Iterator[penstock.StreamingQuery]:
    """A query under its stream's name; stopped at the end, and without an error."""
    options.setdefault("name", options["to"])
    query = penstock.start(frame, **options)
    try:
        yield query
    finally:
        query.stop()
    assert query.exception() is None


def by_batch(spark: Any, build: Callable[..., Any], *streams: penstock.Stream) -> pa.Table:
    """The same query over what the streams hold now, by batch Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema

    frames = [
        spark.createDataFrame(stream.read(), from_arrow_schema(stream.schema)) for stream in streams
    ]
    table: pa.Table = build(*frames).toArrow()
    return table


def check(spark: Any, query: Any, build: Callable[..., Any], *streams: penstock.Stream) -> None:
    query.processAllAvailable()
    assert_equal(query.result(), by_batch(spark, build, *streams), query.name)
