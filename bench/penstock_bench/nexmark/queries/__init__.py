"""The queries, each a PySpark function of person, auction and bid, registered under its name.

The DataFrames may be batch or streaming, with watermarks or without; q13 also takes a static one.

rows.py     row by row
joins.py    joins without bounds in time; bids joined with their auctions, then aggregated or ranked
windows.py  windows of event time, sessions, windows of processing time
groups.py   statistics per day, first rows by rank
rhino.py    Rhino's variants: long windows, sessions, large state
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock_bench.nexmark.queries.groups import q15, q16, q17, q18, q19
from penstock_bench.nexmark.queries.joins import q3, q4, q6, q9, q20
from penstock_bench.nexmark.queries.rhino import nbq5, nbq8, nbqx
from penstock_bench.nexmark.queries.rows import q0, q1, q2, q10, q13, q14, q21, q22
from penstock_bench.nexmark.queries.windows import q5, q7, q8, q11, q12


@dataclass(frozen=True, slots=True)
class Query:
    """`build(person, auction, bid)`, with a fourth frame, keyed, if it takes a side input."""

    build: Callable[..., DataFrame]
    takes_side_input: bool = False


_BUILDERS = (
    *(q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11),
    *(q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22),
    *(nbq5, nbq8, nbqx),
)
QUERIES = {build.__name__: Query(build, takes_side_input=build is q13) for build in _BUILDERS}
#: Those of Rhino's evaluation: made for generator.rhino_parameters, and for slow event time.
RHINO = ("nbq5", "nbq8", "nbqx")


def split_events(events: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Persons, auctions and bids out of the mixed stream: (event_type, person, auction, bid).

    With the time of their arrival, if the stream has it.
    """
    arrival = [name for name in events.columns if name == "_time"]
    person, auction, bid = (
        events.where(F.col("event_type") == number).select(f"{kind}.*", *arrival)
        for number, kind in enumerate(("person", "auction", "bid"))
    )
    return person, auction, bid
