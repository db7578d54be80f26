"""q2, selection: bids on auctions whose id is a multiple of 123."""

from __future__ import annotations

from pyspark.sql import DataFrame


def q2(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    return bid.where("auction % 123 = 0").select("auction", "price")
