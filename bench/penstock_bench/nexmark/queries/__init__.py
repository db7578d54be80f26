"""The queries, each a PySpark function of person, auction and bid, registered under its name.

The DataFrames may be batch or streaming, with watermarks or without; q13 also takes a static one.

q0.py, q1.py, q2.py, q10.py, q14.py, q21.py, q22.py  row by row
q3.py, q13.py, q20.py          joins without bounds in time
q4.py, q6.py, q9.py            bids joined with their auctions, then aggregated or ranked
q5.py, q7.py, q8.py            windows of event time, joined
q11.py, q12.py                 sessions; windows of processing time
q15.py, q16.py, q17.py         statistics per day
q18.py, q19.py                 first rows by rank
nbq5.py, nbq8.py, nbqx.py      Rhino's variants: long windows, sessions, large state
views.py                       the mixed stream of events as the three DataFrames
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from penstock_bench.nexmark.queries.nbq5 import nbq5
from penstock_bench.nexmark.queries.nbq8 import nbq8
from penstock_bench.nexmark.queries.nbqx import nbqx
from penstock_bench.nexmark.queries.q0 import q0
from penstock_bench.nexmark.queries.q1 import q1
from penstock_bench.nexmark.queries.q2 import q2
from penstock_bench.nexmark.queries.q3 import q3
from penstock_bench.nexmark.queries.q4 import q4
from penstock_bench.nexmark.queries.q5 import q5
from penstock_bench.nexmark.queries.q6 import q6
from penstock_bench.nexmark.queries.q7 import q7
from penstock_bench.nexmark.queries.q8 import q8
from penstock_bench.nexmark.queries.q9 import q9
from penstock_bench.nexmark.queries.q10 import q10
from penstock_bench.nexmark.queries.q11 import q11
from penstock_bench.nexmark.queries.q12 import q12
from penstock_bench.nexmark.queries.q13 import q13
from penstock_bench.nexmark.queries.q14 import q14
from penstock_bench.nexmark.queries.q15 import q15
from penstock_bench.nexmark.queries.q16 import q16
from penstock_bench.nexmark.queries.q17 import q17
from penstock_bench.nexmark.queries.q18 import q18
from penstock_bench.nexmark.queries.q19 import q19
from penstock_bench.nexmark.queries.q20 import q20
from penstock_bench.nexmark.queries.q21 import q21
from penstock_bench.nexmark.queries.q22 import q22


@dataclass(frozen=True, slots=True)
class Query:
    """`build(person, auction, bid)`, with a fourth frame, keyed, if it takes a side input."""

    build: Callable[..., DataFrame]
    summary: str
    takes_side_input: bool = False


QUERIES = {
    "q0": Query(q0, "bids as they are"),
    "q1": Query(q1, "prices in another currency"),
    "q2": Query(q2, "bids on chosen auctions"),
    "q3": Query(q3, "who sells what nearby: join without bounds"),
    "q4": Query(q4, "average price per category: join, maximum, average"),
    "q5": Query(q5, "auctions with the most bids: sliding windows, join with their maximum"),
    "q6": Query(q6, "average price of a seller's last ten auctions"),
    "q7": Query(q7, "highest bids per window: join with the window's maximum"),
    "q8": Query(q8, "new users who sell: join within windows"),
    "q9": Query(q9, "winning bid of each auction: join, first by rank"),
    "q10": Query(q10, "bids with day and minute"),
    "q11": Query(q11, "bids per session of a bidder"),
    "q12": Query(q12, "bids per window of processing time"),
    "q13": Query(q13, "bids enriched from a table", takes_side_input=True),
    "q14": Query(q14, "filter and arithmetic"),
    "q15": Query(q15, "distinct counts per day"),
    "q16": Query(q16, "distinct counts per channel and day"),
    "q17": Query(q17, "statistics per auction and day"),
    "q18": Query(q18, "last bid per bidder and auction"),
    "q19": Query(q19, "ten highest bids per auction"),
    "q20": Query(q20, "bids with their auctions: join without bounds"),
    "q21": Query(q21, "channel ids out of urls"),
    "q22": Query(q22, "parts of urls"),
    "nbq5": Query(nbq5, "bids per auction: sliding windows of a minute"),
    "nbq8": Query(nbq8, "auctions with their sellers: join within windows of 12 hours"),
    "nbqx": Query(nbqx, "auctions with their bids: four joins within sessions, one within windows"),
}
#: Those of Rhino's evaluation: made for generator.rhino_parameters, and for slow event time.
RHINO = ("nbq5", "nbq8", "nbqx")
