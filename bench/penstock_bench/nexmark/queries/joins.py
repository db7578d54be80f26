"""Joins without bounds in time: both sides are kept for good, in whatever order they come."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F


def q3(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Local item suggestion: who sells in category 10 in Oregon, Idaho or California."""
    nearby = person.where(F.col("state").isin("OR", "ID", "CA"))
    offered = auction.where("category = 10").select("seller", F.col("id").alias("auction"))
    joined = nearby.join(offered, nearby.id == offered.seller)
    return joined.select("name", "city", "state", F.col("auction").alias("id"))


def q4(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Average price per category: over auctions, of the highest bid of each so far, truncated."""
    average = F.avg("final").cast("bigint").alias("final")
    return sold(auction, bid, "category").groupBy("category").agg(average)


def q6(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Average selling price: per seller and auction, over the last 10 auctions up to this one.

    An auction's price is its highest bid so far; auctions are ordered by when they end. Truncated.
    """
    last_ten = Window.partitionBy("seller").orderBy("expires", "id").rowsBetween(-9, 0)
    average = F.avg("final").over(last_ten).cast("bigint").alias("avg_price")
    prices = sold(auction, bid, "seller", "expires")
    return prices.select("seller", average, F.col("expires").alias("closed"))


def q9(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Winning bids: each auction with its best bid so far.

    The best is the highest, then the earliest, then the one of the lowest bidder.
    """
    best_first = Window.partitionBy("id").orderBy(
        F.desc("price"), F.asc(bid.dateTime), F.asc("bidder")
    )
    return (
        auction.join(bid, in_time(auction, bid))
        .withColumn("place", F.row_number().over(best_first))
        .where("place = 1")
        .select(
            *(auction[name] for name in auction.columns),
            "auction",
            "bidder",
            "price",
            bid.dateTime.alias("bid_dateTime"),
            bid.extra.alias("bid_extra"),
        )
    )


def q20(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Expanded bids: each with its auction, in category 10, however far apart they come."""
    joined = bid.join(auction.where("category = 10"), bid.auction == auction.id)
    return joined.select(
        *("auction", "bidder", "price", "channel", "url"),
        bid.dateTime.alias("bid_dateTime"),
        bid.extra.alias("bid_extra"),
        *("itemName", "description", "initialBid", "reserve"),
        auction.dateTime.alias("auction_dateTime"),
        *("expires", "seller", "category"),
        auction.extra.alias("auction_extra"),
    )


def in_time(auction: DataFrame, bid: DataFrame) -> Column:
    """A bid counts from its auction's beginning to its end, both inclusive."""
    return (auction.id == bid.auction) & bid.dateTime.between(auction.dateTime, auction.expires)


def sold(
    auction: DataFrame, bid: DataFrame, *keys: str, more: tuple[Column, ...] = ()
) -> DataFrame:
    """Auctions with their highest bid so far as `final`, and what more is wanted of their bids."""
    groups = auction.join(bid, in_time(auction, bid)).groupBy(auction.id, *keys)
    return groups.agg(F.max("price").alias("final"), *more)
