"""q4, average price per category: over auctions, of the highest bid of each so far.

A bid counts from the auction's beginning to its end, both inclusive. The average is truncated.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q4(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    in_time = (auction.id == bid.auction) & bid.dateTime.between(auction.dateTime, auction.expires)
    highest = (
        auction.join(bid, in_time)
        .groupBy(auction.id, "category")
        .agg(F.max("price").alias("final"))
    )
    average = F.avg("final").cast("bigint").alias("final")
    return highest.groupBy("category").agg(average)
