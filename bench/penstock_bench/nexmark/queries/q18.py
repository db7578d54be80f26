"""q18, last bid: of every bidder on every auction.

Of bids at the same time the highest is the last, then the one of the larger padding.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def q18(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    last_first = Window.partitionBy("bidder", "auction").orderBy(
        F.desc("dateTime"), F.desc("price"), F.desc("extra")
    )
    ranked = bid.withColumn("place", F.row_number().over(last_first))
    return ranked.where("place = 1").drop("place")
