"""The queries of Rhino's evaluation (5.1.2): long windows, sessions, large state."""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock_bench.nexmark.queries.windows import ends

GAPS_MINUTES: Final = (30, 60, 90, 120)
WINDOW: Final = "4 hours"

_AUCTION: Final = "struct(dateTime AS auction_time, seller, extra AS auction_extra)"
_BID: Final = "struct(dateTime AS bid_time, bidder, price)"
_COLUMNS: Final = (
    *("part", "starttime", "endtime", "auction"),
    *("auction_time", "seller", "auction_extra"),
    *("bid_time", "bidder", "price"),
)


def nbq5(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """NBQ5: bids per auction, every 10 s over the last 60 s.

    A window aggregation and nothing else: small state, read and written at every bid.
    """
    window = F.window("dateTime", "60 seconds", "10 seconds")
    counts = bid.groupBy("auction", window).agg(F.count("*").alias("num"))
    return counts.select("auction", "num", *ends())


def nbq8(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """NBQ8: auctions with their sellers, if both came in the same 12 h.

    Whole records of both sides are kept until their window is over: state that only grows until
    then.
    """
    window = F.window("dateTime", "12 hours")
    came = person.select(
        F.col("id").alias("person_id"),
        *("name", "emailAddress", "creditCard", "city", "state"),
        F.col("dateTime").alias("person_time"),
        F.col("extra").alias("person_extra"),
        window.alias("came_in"),
    )
    sold = auction.select("*", window.alias("sold_in"))
    both = came.join(sold, (F.col("person_id") == F.col("seller")) & F.expr("came_in = sold_in"))
    return both.select(F.col("came_in.start").alias("starttime"), "*").drop("came_in", "sold_in")


def nbqx(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """NBQX: five joins of auctions and their bids at once.

    Four within sessions, with gaps of 30 to 120 minutes, and one within windows of 4 h; `part` says
    which one a row is of. Spark has no join within sessions, so it is said as what it means: the
    auctions and bids of one auction form sessions together, and every pair in a session is a row.
    It differs from Rhino's in one thing: the two sides meet in an aggregate, not in an operator
    that joins.
    """
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
        *ends("session_window"),
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
        *ends("opened_in"),
        "auction",
        "opened.*",
        "placed.*",
    ).select(*_COLUMNS)
