"""q20, expanded bids: each with its auction, in category 10, however far apart they come."""

from __future__ import annotations

from pyspark.sql import DataFrame


def q20(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    joined = bid.join(auction.where("category = 10"), bid.auction == auction.id)
    return joined.select(
        "auction",
        "bidder",
        "price",
        "channel",
        "url",
        bid.dateTime.alias("bid_dateTime"),
        bid.extra.alias("bid_extra"),
        "itemName",
        "description",
        "initialBid",
        "reserve",
        auction.dateTime.alias("auction_dateTime"),
        "expires",
        "seller",
        "category",
        auction.extra.alias("auction_extra"),
    )
