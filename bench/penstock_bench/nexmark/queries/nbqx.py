"""NBQX of Rhino's evaluation (5.1.2): five joins of auctions and their bids at once.

Four within sessions, with gaps of 30 to 120 minutes, and one within windows of 4 h; `part` says
which one a row is of. Spark has no join within sessions, so it is said as what it means: the
auctions and bids of one auction form sessions together, and every pair in a session is a row. It
differs from Rhino's in one thing: the two sides meet in an aggregate, not in a join operator.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

GAPS_MINUTES: Final = (30, 60, 90, 120)
WINDOW: Final = "4 hours"

_AUCTION: Final = "struct(dateTime AS auction_time, seller, extra AS auction_extra)"
_BID: Final = "struct(dateTime AS bid_time, bidder, price)"
_COLUMNS: Final = (
    "part",
    "starttime",
    "endtime",
    "auction",
    *("auction_time", "seller", "auction_extra"),
    *("bid_time", "bidder", "price"),
)


def nbqx(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    sessions = [session_join(auction, bid, minutes) for minutes in GAPS_MINUTES]
    return reduce(DataFrame.unionAll, [*sessions, window_join(auction, bid)])


def session_join(auction: DataFrame, bid: DataFrame, gap_minutes: int) -> DataFrame:
    """Auctions with the bids of the same session of their auction."""
    opened = auction.selectExpr(
        "id AS auction", "dateTime", f"{_AUCTION} AS opened", "NULL AS placed"
    )
    placed = bid.selectExpr("auction", "dateTime", "NULL AS opened", f"{_BID} AS placed")
    sessions = opened.unionAll(placed).groupBy(
        "auction", F.session_window("dateTime", f"{gap_minutes} minutes")
    )
    # Lists leave nulls out: each side has its own rows only.
    both = sessions.agg(
        F.collect_list("opened").alias("opened"), F.collect_list("placed").alias("placed")
    )
    each = both.select(
        F.lit(f"session {gap_minutes}").alias("part"),
        F.col("session_window.start").alias("starttime"),
        F.col("session_window.end").alias("endtime"),
        "auction",
        F.inline("opened"),
        "placed",
    )
    return each.select("*", F.inline("placed")).select(*_COLUMNS)


def window_join(auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Auctions with the bids of the same window."""
    window = F.window("dateTime", WINDOW)
    opened = auction.select("id", window.alias("opened_in"), F.expr(_AUCTION).alias("opened"))
    placed = bid.select("auction", window.alias("placed_in"), F.expr(_BID).alias("placed"))
    both = opened.join(placed, (F.col("id") == F.col("auction")) & F.expr("opened_in = placed_in"))
    return both.select(
        F.lit("window").alias("part"),
        F.col("opened_in.start").alias("starttime"),
        F.col("opened_in.end").alias("endtime"),
        "auction",
        "opened.*",
        "placed.*",
    ).select(*_COLUMNS)
