"""The two DataFrames of `penstock bench realtime`, and what their rows say about latency.

Both engines run exactly these. Law: `time_column` of a result row is the moment from which its
latency counts: the creation of the event, or the end of the window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock_bench.load import PRICE_KEPT, kept


@dataclass(frozen=True, slots=True)
class BenchQuery:
    """A DataFrame over bids, and how its result is judged."""

    name: str
    build: Callable[[Any], Any]
    time_column: str
    #: Where a row says how many events it stands for; None: one.
    count_column: str | None
    #: What a number of events, from the first on, must add up to in the result.
    expected: Callable[[int, int], int]


def _stateless(bids: Any) -> Any:
    return bids.where(f"price >= {PRICE_KEPT}").selectExpr(
        "auction", "bidder", "price * 100 AS cents", "channel", "ts"
    )


def _windowed(bids: Any) -> Any:
    from pyspark.sql import functions as F

    return (
        bids.withWatermark("ts", "0 seconds")
        .groupBy(F.window("ts", "1 second"), "auction")
        .agg(F.count("*").alias("n"))
        .selectExpr("auction", "window.end AS window_end", "n")
    )


QUERIES: Final = {
    "stateless": BenchQuery("stateless", _stateless, "ts", None, kept),
    "windowed": BenchQuery("windowed", _windowed, "window_end", "n", lambda first, count: count),
}
