"""NBQ5 of Rhino's evaluation (5.1.2): bids per auction, every 10 s over the last 60 s.

A window aggregation and nothing else: small state, read and written at every bid.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def nbq5(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    window = F.window("dateTime", "60 seconds", "10 seconds")
    counts = bid.groupBy("auction", window).agg(F.count("*").alias("num"))
    return counts.select(
        "auction",
        "num",
        F.col("window.start").alias("starttime"),
        F.col("window.end").alias("endtime"),
    )
