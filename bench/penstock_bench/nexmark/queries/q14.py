"""q14, calculation: converted prices in a range, the time of day, and how often a letter occurs."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q14(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    euros = F.expr("0.908BD") * F.col("price")
    hour = F.hour("dateTime")
    time_type = (
        F.when(hour.between(8, 18), "dayTime")
        .when((hour <= 6) | (hour >= 20), "nightTime")
        .otherwise("otherTime")
    )
    c_counts = F.length("extra") - F.length(F.replace("extra", F.lit("c"), F.lit("")))
    return bid.where((euros > 1_000_000) & (euros < 50_000_000)).select(
        "auction",
        "bidder",
        euros.cast("decimal(23, 3)").alias("price"),
        time_type.alias("bidTimeType"),
        "dateTime",
        "extra",
        c_counts.alias("c_counts"),
    )
