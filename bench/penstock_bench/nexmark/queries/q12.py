"""q12, processing time windows: bids per bidder and 10 s of the clock on the wall.

Its result depends on when it runs, so it has no place in a log that is replayed: refused.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q12(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    seen = bid.withColumn("p_time", F.current_timestamp())
    counts = seen.groupBy("bidder", F.window("p_time", "10 seconds"))
    return counts.agg(F.count("*").alias("bid_count")).select(
        "bidder",
        "bid_count",
        F.col("window.start").alias("starttime"),
        F.col("window.end").alias("endtime"),
    )
