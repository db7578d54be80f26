"""q1, currency conversion: prices times 0.908, exactly."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def q1(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    euros = (F.expr("0.908BD") * F.col("price")).cast("decimal(23, 3)").alias("price")
    return bid.select("auction", "bidder", euros, "dateTime", "extra")
