"""Queries row by row, without state."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q0(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Pass-through: bids without channel and url. What moving rows costs by itself."""
    return bid.select("auction", "bidder", "price", "dateTime", "extra")


def q1(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Currency conversion: prices times 0.908, exactly."""
    euros = (F.expr("0.908BD") * F.col("price")).cast("decimal(23, 3)").alias("price")
    return bid.select("auction", "bidder", euros, "dateTime", "extra")


def q2(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Selection: bids on auctions whose id is a multiple of 123."""
    return bid.where("auction % 123 = 0").select("auction", "price")


def q10(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Log to files: bids with the day and the minute that a file sink partitions by."""
    day = F.date_format("dateTime", "yyyy-MM-dd").alias("dt")
    minute = F.date_format("dateTime", "HH:mm").alias("hm")
    return bid.select("auction", "bidder", "price", "dateTime", "extra", day, minute)


def q13(person: DataFrame, auction: DataFrame, bid: DataFrame, side_input: DataFrame) -> DataFrame:
    """Side input: bids enriched from a table that does not change."""
    joined = bid.join(side_input, F.col("auction") % 10000 == F.col("key"))
    return joined.select("auction", "bidder", "price", "dateTime", "value")


def q14(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Calculation: converted prices in a range, the time of day, and how often a letter occurs."""
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


def q21(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Channel id: a number for each known channel, or the one that the url names."""
    name = F.lower("channel")
    number = F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2)
    channel_id = (
        F.when(name == "apple", "0")
        .when(name == "google", "1")
        .when(name == "facebook", "2")
        .when(name == "baidu", "3")
        .otherwise(number)
    )
    numbered = bid.where((number != "") | name.isin("apple", "google", "facebook", "baidu"))
    return numbered.select("auction", "bidder", "price", "channel", channel_id.alias("channel_id"))


def q22(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Url directories: the three parts of the path."""
    slash = F.lit("/")
    parts = [F.split_part("url", slash, F.lit(3 + part)).alias(f"dir{part}") for part in (1, 2, 3)]
    return bid.select("auction", "bidder", "price", "channel", *parts)
