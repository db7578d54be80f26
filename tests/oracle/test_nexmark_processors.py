"""NEXMark q4 and q6 as StatefulProcessors: the form in which Structured Streaming can run them.

The processors are copied from the description of the benchmark as they stand. The answers over the
small example can be checked on paper; over generated events, q4 is compared with its SQL in batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from penstock_bench.nexmark import model
from penstock_bench.nexmark.generator import Generator
from penstock_bench.nexmark.queries import QUERIES, split_events
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from penstock.ops.driver import Driver
from penstock.testing.oracle import Frames, chunks, plan_streaming

#: Time, in milliseconds after 1970, is the last value of an auction but one, and of a bid.
AUCTIONS = [  # id, seller, category, time, end
    (1107, 1001, 10, 2_000, 12_000), (1108, 1001, 11, 3_000, 9_000),
    (1109, 1002, 10, 3_500, 15_000), (1110, 1003, 10, 13_000, 18_000),
    (1230, 1002, 11, 14_000, 19_000), (1111, 1004, 10, 20_500, 26_000),
]  # fmt: skip
BIDS = [  # auction, price, time
    (1107, 100, 2_500), (1108, 250, 2_900), (1107, 300, 5_000), (1108, 200, 9_000),
    (1107, 300, 9_500), (1109, 500, 10_000), (1107, 900, 12_500), (1230, 700, 14_500),
    (1110, 400, 15_000), (1999, 50, 16_000), (1230, 750, 19_000), (1110, 900, 20_000),
    (1111, 601, 22_000), (1107, 1000, 26_000),
]  # fmt: skip


class MaxPerAuction(StatefulProcessor):
    def init(self, h: Any) -> None:
        self.meta = h.getValueState("meta", "t0 BIGINT, t1 BIGINT, seller BIGINT, category BIGINT")
        self.best = h.getValueState("best", "price BIGINT, ts BIGINT")
        self.early = h.getListState("early", "price BIGINT, ts BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        meta, best = self.meta.get(), self.best.get()
        old, bids = best, []
        for r in rows:
            if r.kind == 1:
                meta = (r.ts, r.expires, r.seller, r.category)
                self.meta.update(meta)
            else:
                bids.append((r.price, r.ts))
        if meta is None:
            for x in bids:
                self.early.appendValue(x)
            return
        if self.early.exists():
            bids += [tuple(x) for x in self.early.get()]
            self.early.clear()
        for p, t in sorted(bids, key=lambda x: x[1]):
            if meta[0] <= t <= meta[1] and (best is None or p > best[0]):
                best = (p, t)
        if best is not None and best != old:
            self.best.update(best)
            yield Row(
                category=meta[3], d_sum=best[0] - (old[0] if old else 0), d_cnt=0 if old else 1
            )

    def close(self) -> None:
        pass


class Winner(MaxPerAuction):
    def init(self, h: Any) -> None:
        super().init(h)
        self.h = h

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        rows = list(rows)
        for r in rows:
            if r.kind == 1:
                self.h.registerTimer(r.expires + 1)
        for _ in super().handleInputRows(key, iter(rows), timerValues):
            pass
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        meta, best = self.meta.get(), self.best.get()
        self.meta.clear()
        self.best.clear()
        if meta and best:
            yield Row(seller=meta[2], price=best[0], closed=meta[1])


class Last10(StatefulProcessor):
    def init(self, h: Any) -> None:
        self.last = h.getListState("last", "closed BIGINT, price BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        cur = [tuple(x) for x in self.last.get()]
        for c, p in sorted((r.closed, r.price) for r in rows):
            cur = [*cur, (c, p)][-10:]
            yield Row(seller=key[0], avg_price=sum(x[1] for x in cur) // len(cur), closed=c)
        self.last.put(cur)

    def close(self) -> None:
        pass


def _both(events: Any) -> Any:
    timed = events.withColumn("dateTime", F.coalesce("auction.dateTime", "bid.dateTime"))
    return timed.withWatermark("dateTime", "4 seconds").where("event_type IN (1, 2)").selectExpr(
        "event_type AS kind", "coalesce(auction.id, bid.auction) AS k", "dateTime",
        "unix_millis(dateTime) AS ts", "unix_millis(auction.expires) AS expires",
        "auction.seller AS seller", "auction.category AS category", "bid.price AS price",
    )  # fmt: skip


def _q4(frames: Frames) -> Any:
    deltas = (
        _both(frames["events"])
        .groupBy("k")
        .transformWithState(
            MaxPerAuction(), "category BIGINT, d_sum BIGINT, d_cnt BIGINT", "Update", "None"
        )
    )
    return deltas.groupBy("category").agg(F.expr("sum(d_sum) div sum(d_cnt)").alias("final"))


def _q6(frames: Frames) -> Any:
    won = (
        _both(frames["events"])
        .groupBy("k")
        .transformWithState(
            Winner(), "seller BIGINT, price BIGINT, closed BIGINT", "Append", "eventTime"
        )
    )
    return won.groupBy("seller").transformWithState(
        Last10(), "seller BIGINT, avg_price BIGINT, closed BIGINT", "Append", "None"
    )


def _example() -> pa.Table:
    told: list[tuple[int, dict[str, Any]]] = []
    for id, seller, category, second, end in AUCTIONS:
        auction = {"id": id, "seller": seller, "category": category}
        auction |= {"dateTime": second * 1000, "expires": end * 1000}
        told.append((second, {"event_type": 1, "auction": auction}))
    for id, price, second in BIDS:
        bid = {"auction": id, "price": price, "dateTime": second * 1000}
        told.append((second, {"event_type": 2, "bid": bid}))
    told.sort(key=lambda event: event[0])
    return pa.Table.from_pylist([row for _, row in told], schema=model.EVENT)


def _run(
    spark: Any, build: Any, batches: list[pa.RecordBatch], *, tasks: int
) -> list[tuple[Any, ...]]:
    """The rows at the end; every batch but the first goes to a query resumed from a snapshot."""
    planned = plan_streaming(spark, build, {"events": pa.Table.from_batches(batches)})
    driver = Driver(planned.query, {}, tasks=tasks)
    for batch in batches:
        outputs = driver.outputs
        driver = Driver(planned.query, {}, tasks=tasks, resume=driver.snapshot())
        driver.outputs = outputs
        driver.feed(planned.query.streams[0], batch)
    driver.finish()
    return sorted(tuple(row.values()) for row in driver.result().to_pylist())


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_q4_of_the_example(spark: Any, tasks: int, size: int) -> None:
    rows = _run(spark, _q4, _example().to_batches(max_chunksize=size), tasks=tasks)

    assert rows == [(10, 450), (11, 475)]


@pytest.mark.parametrize(("tasks", "size"), [(1, 1), (1, 3), (1, 99), (2, 1)])
def test_q6_of_the_example(spark: Any, tasks: int, size: int) -> None:
    rows = _run(spark, _q6, _example().to_batches(max_chunksize=size), tasks=tasks)

    assert rows == [
        (1001, 200, 9_000),
        (1001, 250, 12_000),
        (1002, 500, 15_000),
        (1002, 625, 19_000),
        (1003, 400, 18_000),
        (1004, 601, 26_000),
    ]


def test_q4_of_generated_events_is_that_of_its_sql(spark: Any) -> None:
    events = pa.Table.from_batches([Generator().events(np.arange(4_000))])
    batch = QUERIES["q4"].build(*split_events(spark.createDataFrame(events)))
    expected = sorted(tuple(row) for row in batch.collect())

    rows = _run(spark, _q4, chunks(events, random.Random(7)), tasks=2)

    assert rows == expected
