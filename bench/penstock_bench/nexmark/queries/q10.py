"""q10, log to files: bids with the day and the minute that a file sink partitions by."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q10(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    return bid.select(
        "auction",
        "bidder",
        "price",
        "dateTime",
        "extra",
        F.date_format("dateTime", "yyyy-MM-dd").alias("dt"),
        F.date_format("dateTime", "HH:mm").alias("hm"),
    )
