"""q3, local item suggestion: who sells in category 10 in Oregon, Idaho or California.

Auctions come before their sellers and after; both sides are kept for good.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q3(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    nearby = person.where(F.col("state").isin("OR", "ID", "CA"))
    offered = auction.where("category = 10").select("seller", F.col("id").alias("auction"))
    joined = nearby.join(offered, nearby.id == offered.seller)
    return joined.select("name", "city", "state", F.col("auction").alias("id"))
