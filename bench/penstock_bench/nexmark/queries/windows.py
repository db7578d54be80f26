"""Windows of time, and sessions."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def q5(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Hot items: every 2 s, the auctions with the most bids of the last 10 s, ties included."""
    window = F.window("dateTime", "10 seconds", "2 seconds")
    counts = bid.groupBy("auction", window).agg(F.count("*").alias("num"))
    return most_bids(counts).select("auction", "num", *ends())


def most_bids(counts: DataFrame) -> DataFrame:
    """Of counts per auction and window, the highest of each window."""
    most = counts.groupBy("window").agg(F.max("num").alias("most"))
    return counts.join(most, "window").where("num >= most")


def q7(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Highest bid: per 10 s, every bid at the highest price.

    A bid exactly at the end of a window that equals its maximum is reported for it, as in Flink's
    form.
    """
    window = F.window("dateTime", "10 seconds")
    highest = (
        bid.groupBy(window)
        .agg(F.max("price").alias("maxprice"))
        .select("maxprice", F.col("window.end").alias("wend"))
    )
    in_window = bid.dateTime.between(highest.wend - F.expr("INTERVAL 10 SECONDS"), highest.wend)
    top = bid.join(highest, (bid.price == highest.maxprice) & in_window)
    return top.select("auction", "price", "bidder", "dateTime", "extra")


def q8(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """New users who sell: persons who came and opened an auction within the same 10 s."""
    window = F.window("dateTime", "10 seconds")
    came = person.select("id", "name", window).distinct()
    sold = auction.select("seller", window).distinct()
    both = came.join(sold, (came.id == sold.seller) & (came.window == sold.window))
    return both.select("id", "name", came.window.start.alias("starttime"))


def q11(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """User sessions: bids per bidder, until 10 s pass without one."""
    sessions = bid.groupBy("bidder", F.session_window("dateTime", "10 seconds"))
    counts = sessions.agg(F.count("*").alias("bid_count"))
    return counts.select("bidder", "bid_count", *ends("session_window"))


def q12(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Windows of arrival: bids per bidder and 10 s of the log's clock.

    `_time` is when the log took the row (penstock/stream/metadata.py), so the result does not
    depend on when or how fast the query runs.
    """
    windows = bid.groupBy("bidder", F.window("_time", "10 seconds"))
    counts = windows.agg(F.count("*").alias("bid_count"))
    return counts.select("bidder", "bid_count", *ends())


def ends(window: str = "window") -> tuple[Column, Column]:
    """Where a window begins and ends, as the results have it."""
    return F.col(f"{window}.start").alias("starttime"), F.col(f"{window}.end").alias("endtime")
