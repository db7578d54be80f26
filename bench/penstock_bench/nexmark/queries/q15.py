"""q15, bidding statistics per day: bids, bidders and auctions, in all and by price."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def q15(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    day = F.date_format("dateTime", "yyyy-MM-dd").alias("day")
    return bid.groupBy(day).agg(*statistics())


def statistics() -> list[Column]:
    """How many bids, bidders and auctions: of all bids, and of cheap, middling and dear ones."""
    price = F.col("price")
    ranks = {
        "total": F.lit(True),
        "rank1": price < 10_000,
        "rank2": (price >= 10_000) & (price < 1_000_000),
        "rank3": price >= 1_000_000,
    }
    bids = [F.count_if(rank).alias(f"{name}_bids") for name, rank in ranks.items()]
    bidders = [
        F.count_distinct(F.when(rank, F.col("bidder"))).alias(f"{name}_bidders")
        for name, rank in ranks.items()
    ]
    auctions = [
        F.count_distinct(F.when(rank, F.col("auction"))).alias(f"{name}_auctions")
        for name, rank in ranks.items()
    ]
    return [*bids, *bidders, *auctions]
