"""q5, hot items: every 2 s, the auctions with the most bids of the last 10 s, ties included."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q5(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    window = F.window("dateTime", "10 seconds", "2 seconds")
    counts = bid.groupBy("auction", window).agg(F.count("*").alias("num"))
    most = counts.groupBy("window").agg(F.max("num").alias("most"))
    hot = counts.join(most, "window").where("num >= most")
    return hot.select(
        "auction",
        "num",
        F.col("window.start").alias("starttime"),
        F.col("window.end").alias("endtime"),
    )
