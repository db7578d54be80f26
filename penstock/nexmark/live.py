"""Bids at the pace of the wall clock, and a query over them: the auction site as it happens.

Owns a thread that appends. Event n happens `n / rate` seconds after the start and carries that
time; it is appended at the first tick after it, or as soon as the log is back. Law: what was
appended depends on the number of events alone, so `rows()` says what the stream must hold without
looking at it.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.nexmark.generator import Generator, Parameters
from penstock.stream.stream import Stream

TICK_SECONDS: Final = 0.02
_PREPARING_MS: Final = 500
#: Event time that passes before the bid that closes all windows.
_SILENCE_SECONDS: Final = 60


class LiveBids:
    """Appends the bids among `rate` events a second, from `start` to `stop`."""

    def __init__(self, stream: Stream, rate: int) -> None:
        self._stream = stream
        self._rate = rate
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live-bids", daemon=True)
        #: Events so far, persons and auctions included.
        self.events = 0
        self._generator: Generator
        self._began = 0.0

    def start(self) -> None:
        """The first event happens a moment later: the generator has strings to make before."""
        self._began = time.monotonic() + _PREPARING_MS / 1000
        base_ms = time.time_ns() // 1_000_000 + _PREPARING_MS
        self._generator = Generator(Parameters(events_per_s=self._rate, base_ms=base_ms))
        self._thread.start()

    def _run(self) -> None:
        try:
            # A named producer, so that an append whose answer was lost is not there twice.
            with self._stream.producer("site") as producer:
                while not self._ending.wait(TICK_SECONDS):
                    due = int((time.monotonic() - self._began) * self._rate)
                    if due > self.events:
                        producer.append(self._bids(self.events, due))
                        self.events = due
                producer.append(self._closing_bid())
        except BaseException as error:
            self._error = error

    def _bids(self, first: int, end: int) -> pa.RecordBatch:
        return self._generator.bids(np.arange(first, end))

    def _closing_bid(self) -> pa.RecordBatch:
        """One bid so late that every window before it is over."""
        first = self.events + _SILENCE_SECONDS * self._rate
        return self._bids(first, first + self._generator.parameters.turn).slice(0, 1)

    def stop(self) -> None:
        """Append what closes all windows, and end; raises what went wrong on the way."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def rows(self) -> pa.Table:
        """All bids but the closing one, made anew."""
        return pa.Table.from_batches([self._bids(0, self.events)])


def bids_per_auction(bids: Any) -> Any:
    """How many bids each auction got in each second, and the highest."""
    from pyspark.sql import functions as F

    return (
        bids.withWatermark("dateTime", "0 seconds")
        .groupBy(F.window("dateTime", "1 second"), "auction")
        .agg(F.count("*").alias("bids"), F.max("price").alias("price"))
        .selectExpr("window.end AS second", "auction", "bids", "price")
    )


def batch_result(spark: Any, rows: pa.Table) -> pa.Table:
    """The same query by batch Spark over these rows."""
    from pyspark.sql.pandas.types import from_arrow_schema

    wanted = rows.select(["auction", "price", "dateTime"])
    frame = spark.createDataFrame(wanted, from_arrow_schema(wanted.schema))
    return bids_per_auction(frame).toArrow()
