"""q11, user sessions: bids per bidder, until 10 s pass without one."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q11(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    sessions = bid.groupBy("bidder", F.session_window("dateTime", "10 seconds"))
    return sessions.agg(F.count("*").alias("bid_count")).select(
        "bidder",
        "bid_count",
        F.col("session_window.start").alias("starttime"),
        F.col("session_window.end").alias("endtime"),
    )
