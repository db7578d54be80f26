"""q7, highest bid: per 10 s, every bid at the highest price.

A bid exactly at the end of a window that equals its maximum is reported for it, as in Flink's form.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q7(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    window = F.window("dateTime", "10 seconds")
    highest = (
        bid.groupBy(window)
        .agg(F.max("price").alias("maxprice"))
        .select("maxprice", F.col("window.end").alias("wend"))
    )
    in_window = bid.dateTime.between(highest.wend - F.expr("INTERVAL 10 SECONDS"), highest.wend)
    top = bid.join(highest, (bid.price == highest.maxprice) & in_window)
    return top.select("auction", "price", "bidder", "dateTime", "extra")
