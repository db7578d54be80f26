"""q6, average selling price: per seller and auction, over the last 10 auctions up to this one.

An auction's price is its highest bid so far; auctions are ordered by when they end. Truncated.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def q6(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    in_time = (auction.id == bid.auction) & bid.dateTime.between(auction.dateTime, auction.expires)
    sold = (
        auction.join(bid, in_time)
        .groupBy(auction.id, "seller", "expires")
        .agg(F.max("price").alias("final"))
    )
    last_ten = Window.partitionBy("seller").orderBy("expires", "id").rowsBetween(-9, 0)
    average = F.avg("final").over(last_ten).cast("bigint")
    return sold.select("seller", average.alias("avg_price"), F.col("expires").alias("closed"))
