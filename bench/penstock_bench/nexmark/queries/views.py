"""The mixed stream as the queries want it: one DataFrame per kind of event."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def split_events(events: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Persons, auctions and bids out of (event_type, person, auction, bid)."""
    person, auction, bid = (
        events.where(F.col("event_type") == number).select(f"{kind}.*")
        for number, kind in enumerate(("person", "auction", "bid"))
    )
    return person, auction, bid
