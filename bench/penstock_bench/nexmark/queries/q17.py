"""q17, auction statistics per day: bids by price, and their least, largest, average and sum."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q17(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    price = F.col("price")
    return bid.groupBy("auction", F.date_format("dateTime", "yyyy-MM-dd").alias("day")).agg(
        F.count("*").alias("total_bids"),
        F.count_if(price < 10_000).alias("rank1_bids"),
        F.count_if((price >= 10_000) & (price < 1_000_000)).alias("rank2_bids"),
        F.count_if(price >= 1_000_000).alias("rank3_bids"),
        F.min("price").alias("min_price"),
        F.max("price").alias("max_price"),
        F.avg("price").cast("bigint").alias("avg_price"),
        F.sum("price").alias("sum_price"),
    )
