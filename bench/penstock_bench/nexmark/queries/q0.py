"""q0, pass-through: bids without channel and url. What moving rows costs by itself."""

from __future__ import annotations

from pyspark.sql import DataFrame


def q0(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    return bid.select("auction", "bidder", "price", "dateTime", "extra")
