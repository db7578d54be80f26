"""Statistics of groups of bids, and the first bids of each."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F


def q15(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Bidding statistics per day: bids, bidders and auctions, in all and by price."""
    return bid.groupBy(day()).agg(*statistics())


def q16(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Channel statistics per day: as q15, by channel, with the last minute of a bid."""
    minute = F.max(F.date_format("dateTime", "HH:mm")).alias("minute")
    return bid.groupBy("channel", day()).agg(minute, *statistics())


def q17(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Auction statistics per day: bids by price, and their least, largest, average and sum."""
    price = F.col("price")
    return bid.groupBy("auction", day()).agg(
        F.count("*").alias("total_bids"),
        F.count_if(price < 10_000).alias("rank1_bids"),
        F.count_if((price >= 10_000) & (price < 1_000_000)).alias("rank2_bids"),
        F.count_if(price >= 1_000_000).alias("rank3_bids"),
        F.min("price").alias("min_price"),
        F.max("price").alias("max_price"),
        F.avg("price").cast("bigint").alias("avg_price"),
        F.sum("price").alias("sum_price"),
    )


def q18(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Last bid: of every bidder on every auction.

    Of bids at the same time the highest is the last, then the one of the larger padding.
    """
    last_first = Window.partitionBy("bidder", "auction").orderBy(
        F.desc("dateTime"), F.desc("price"), F.desc("extra")
    )
    ranked = bid.withColumn("place", F.row_number().over(last_first))
    return ranked.where("place = 1").drop("place")


def q19(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Top bids: the ten highest of every auction.

    Of bids at the same price the earliest is the higher, then the one of the smaller padding.
    """
    highest_first = Window.partitionBy("auction").orderBy(
        F.desc("price"), F.asc("dateTime"), F.asc("extra")
    )
    ranked = bid.withColumn("rank_number", F.row_number().over(highest_first))
    return ranked.where("rank_number <= 10")


def day() -> Column:
    return F.date_format("dateTime", "yyyy-MM-dd").alias("day")


def statistics(distinct: Callable[[Column], Column] = F.count_distinct) -> list[Column]:
    """How many bids, bidders and auctions: of all bids, and of cheap, middling and dear ones."""
    price = F.col("price")
    ranks = {
        "total": F.lit(True),
        "rank1": price < 10_000,
        "rank2": (price >= 10_000) & (price < 1_000_000),
        "rank3": price >= 1_000_000,
    }
    bids = [F.count_if(rank).alias(f"{name}_bids") for name, rank in ranks.items()]
    others = [
        distinct(F.when(rank, F.col(column))).alias(f"{name}_{column}s")
        for column in ("bidder", "auction")
        for name, rank in ranks.items()
    ]
    return [*bids, *others]
