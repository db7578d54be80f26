"""NBQ8 of Rhino's evaluation (5.1.2): auctions with their sellers, if both came in the same 12 h.

Whole records of both sides are kept until their window is over: state that only grows until then.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def nbq8(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    window = F.window("dateTime", "12 hours")
    came = person.select(
        F.col("id").alias("person_id"),
        "name",
        "emailAddress",
        "creditCard",
        "city",
        "state",
        F.col("dateTime").alias("person_time"),
        F.col("extra").alias("person_extra"),
        window.alias("came_in"),
    )
    sold = auction.select("*", window.alias("sold_in"))
    both = came.join(sold, (F.col("person_id") == F.col("seller")) & F.expr("came_in = sold_in"))
    return both.select(F.col("came_in.start").alias("starttime"), "*").drop("came_in", "sold_in")
