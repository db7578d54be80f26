"""q22, url directories: the three parts of the path."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q22(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    slash = F.lit("/")
    parts = [F.split_part("url", slash, F.lit(3 + part)).alias(f"dir{part}") for part in (1, 2, 3)]
    return bid.select("auction", "bidder", "price", "channel", *parts)
