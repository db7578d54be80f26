"""q19, top bids: the ten highest of every auction.

Of bids at the same price the earliest is the higher, then the one of the smaller padding.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def q19(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    highest_first = Window.partitionBy("auction").orderBy(
        F.desc("price"), F.asc("dateTime"), F.asc("extra")
    )
    ranked = bid.withColumn("rank_number", F.row_number().over(highest_first))
    return ranked.where("rank_number <= 10")
