"""q8, new users who sell: persons who came and opened an auction within the same 10 s."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q8(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    window = F.window("dateTime", "10 seconds")
    came = person.select("id", "name", window).distinct()
    sold = auction.select("seller", window).distinct()
    both = came.join(sold, (came.id == sold.seller) & (came.window == sold.window))
    return both.select("id", "name", came.window.start.alias("starttime"))
