"""The demo's bids, at the pace of the wall clock, and the query over them.

Owns a thread that appends. Bid n is made `n / rate` seconds after the start and carries that time;
it is appended at the first tick after it, or as soon as the log is back. Law: what was appended
depends on the number of bids alone, so `rows()` says what the stream must hold without looking at
it.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.stream.stream import Stream

BIDS: Final = "auction long NOT NULL, bidder long NOT NULL, price long NOT NULL, ts timestamp"
TICK_SECONDS: Final = 0.02
AUCTIONS: Final = 700
BIDDERS: Final = 5_000
#: Event time that passes before the bid that closes all windows.
_SILENCE_SECONDS: Final = 60
_SCHEMA: Final = pa.schema(
    [
        pa.field("auction", pa.int64(), nullable=False),
        pa.field("bidder", pa.int64(), nullable=False),
        pa.field("price", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
    ]
)


class LiveBids:
    """Appends `rate` bids a second, from `start` to `stop`."""

    def __init__(self, stream: Stream, rate: int) -> None:
        self._stream = stream
        self._rate = rate
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live-bids", daemon=True)
        #: Bids so far.
        self.count = 0
        self._began = 0.0
        self._base_us = 0

    def start(self) -> None:
        self._began = time.monotonic()
        self._base_us = time.time_ns() // 1000
        self._thread.start()

    def _run(self) -> None:
        try:
            # A named producer, so that an append whose answer was lost is not there twice.
            with self._stream.producer("site") as producer:
                is_ending = False
                while not is_ending:  # what is due at the end is appended, too
                    is_ending = self._ending.wait(TICK_SECONDS)
                    due = int((time.monotonic() - self._began) * self._rate)
                    if due > self.count:
                        producer.append(self._bids(self.count, due))
                        self.count = due
                producer.append(self._closing_bid())
        except BaseException as error:
            self._error = error

    def _bids(self, first: int, end: int) -> pa.RecordBatch:
        numbers = np.arange(first, end, dtype=np.uint64)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(_mixed(numbers, 1) % AUCTIONS, pa.int64()),
                pa.array(_mixed(numbers, 2) % BIDDERS, pa.int64()),
                pa.array(_mixed(numbers, 3) % 10_000 + 1, pa.int64()),
                pa.array(
                    self._base_us + numbers.astype(np.int64) * 1_000_000 // self._rate,
                    pa.timestamp("us", tz="UTC"),
                ),
            ],
            schema=_SCHEMA,
        )

    def _closing_bid(self) -> pa.RecordBatch:
        """One bid so late that every window before it is over."""
        number = self.count + _SILENCE_SECONDS * self._rate
        return self._bids(number, number + 1)

    def stop(self) -> None:
        """Append what closes all windows, and end; raises what went wrong on the way."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def rows(self) -> pa.Table:
        """All bids but the closing one, made anew."""
        return pa.Table.from_batches([self._bids(0, self.count)])


def _mixed(numbers: npt.NDArray[np.uint64], column: int) -> npt.NDArray[np.uint64]:
    """Numbers that look random, the same for the same bid and column (splitmix64)."""
    bits = numbers * np.uint64(4) + np.uint64(column)
    bits = bits * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return bits ^ (bits >> np.uint64(27))


def bids_per_auction(bids: Any) -> Any:
    """How many bids each auction got in each second, and the highest."""
    from pyspark.sql import functions as F

    return (
        bids.withWatermark("ts", "0 seconds")
        .groupBy(F.window("ts", "1 second"), "auction")
        .agg(F.count("*").alias("bids"), F.max("price").alias("price"))
        .selectExpr("window.end AS second", "auction", "bids", "price")
    )


def batch_result(spark: Any, rows: pa.Table) -> pa.Table:
    """The same query by batch Spark over these rows."""
    from pyspark.sql.pandas.types import from_arrow_schema

    wanted = rows.select(["auction", "price", "ts"])
    frame = spark.createDataFrame(wanted, from_arrow_schema(wanted.schema))
    return bids_per_auction(frame).toArrow()
