"""q16, channel statistics per day: as q15, by channel, with the last minute of a bid."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock_bench.nexmark.queries.q15 import statistics


def q16(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    day = F.date_format("dateTime", "yyyy-MM-dd").alias("day")
    minute = F.max(F.date_format("dateTime", "HH:mm")).alias("minute")
    return bid.groupBy("channel", day).agg(minute, *statistics())
