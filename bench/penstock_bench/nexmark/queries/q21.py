"""q21, channel id: a number for each known channel, or the one that the url names."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q21(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    name = F.lower("channel")
    number = F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2)
    channel_id = (
        F.when(name == "apple", "0")
        .when(name == "google", "1")
        .when(name == "facebook", "2")
        .when(name == "baidu", "3")
        .otherwise(number)
    )
    numbered = bid.where((number != "") | name.isin("apple", "google", "facebook", "baidu"))
    return numbered.select("auction", "bidder", "price", "channel", channel_id.alias("channel_id"))
