"""q9, winning bids: each auction with its best bid so far.

The best is the highest, then the earliest, then the one of the lowest bidder.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def q9(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    in_time = (auction.id == bid.auction) & bid.dateTime.between(auction.dateTime, auction.expires)
    best_first = Window.partitionBy("id").orderBy(
        F.desc("price"), F.asc(bid.dateTime), F.asc("bidder")
    )
    return (
        auction.join(bid, in_time)
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
