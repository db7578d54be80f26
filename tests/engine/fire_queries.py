"""What runs under fire, and what feeds it: queries over five streams, rows known by number.

Owns the DataFrames and the rows. The same functions build the streaming queries and, over the very
rows that the generator made, the batch queries that say what the results must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from penstock_bench.nexmark import model
from penstock_bench.nexmark.generator import Generator, Parameters, rhino_parameters
from penstock_bench.nexmark.queries import QUERIES as NEXMARK
from penstock_bench.nexmark.queries import RHINO as RHINO_NAMES
from penstock_bench.nexmark.queries.joins import q3
from penstock_bench.nexmark.queries.windows import q5, q8

from penstock.limits import MIB
from penstock.plan.nodes import Mode

LINES = pa.schema([("line", pa.string())])
STREAMS = {"persons": model.PERSON, "auctions": model.AUCTION, "bids": model.BID, "lines": LINES}
#: Slow, so that the windows of 10 s close while the run goes on.
PARAMETERS = Parameters(seed=7, events_per_s=500)
#: Hours of event time within minutes, so that Rhino's windows of 4 and 12 h close.
RHINO_PARAMETERS = replace(rhino_parameters(), events_per_s=0.2)
#: Nearly all events within one window of 12 h, so that what it keeps only grows; large rows.
LARGE_PARAMETERS = replace(rhino_parameters(state_scale=8), events_per_s=20)
#: One line of words per so many events.
EVENTS_PER_LINE = 10
WORDS = 400
WORDS_PER_LINE = 8
#: When the rows come that only close windows.
FAR = datetime(2030, 1, 1, tzinfo=UTC)

Frames = Mapping[str, Any]


def _site(query: Callable[[Any, Any, Any], Any]) -> Callable[[Frames], Any]:
    return lambda frames: query(frames["persons"], frames["auctions"], frames["bids"])


def words_per_count(frames: Frames) -> Any:
    """Lines to words, words counted, and how many words were counted so often: three stages."""
    from pyspark.sql import functions as F

    words = frames["lines"].select(F.explode(F.split("line", " ")).alias("word"))
    counts = words.groupBy("word").agg(F.count("*").alias("times"))
    return counts.groupBy("times").agg(F.count("*").alias("words"))


@dataclass(frozen=True, slots=True)
class FireQuery:
    build: Callable[[Frames], Any]
    mode: Mode
    #: Rows come in the order of their times, so that none is late.
    has_watermark: bool = False
    #: As `start` takes it.
    state_memory: int | None = None

    def build_streaming(self, frames: Frames) -> Any:
        if self.has_watermark:
            frames = {
                name: frame if name == "lines" else frame.withWatermark("dateTime", "1 second")
                for name, frame in frames.items()
            }
        return self.build(frames)


QUERIES = {
    "q3": FireQuery(_site(q3), "update"),
    "q5": FireQuery(_site(q5), "append", has_watermark=True),
    "q8": FireQuery(_site(q8), "append", has_watermark=True),
    "words": FireQuery(words_per_count, "update"),
}


#: Those of Rhino's paper: large windows, sessions, and much state.
RHINO = {
    name: FireQuery(_site(NEXMARK[name].build), "append", has_watermark=True)
    for name in RHINO_NAMES
}
#: With state of many times the memory that its workers may have for it.
LARGE = {
    "nbq8_large": replace(RHINO["nbq8"], state_memory=MIB),
}
ALL = QUERIES | RHINO | LARGE


def parameters_of(names: Iterable[str]) -> Parameters:
    """Of what feeds these queries."""
    if LARGE.keys() & {*names}:
        return LARGE_PARAMETERS
    return RHINO_PARAMETERS if RHINO.keys() & {*names} else PARAMETERS


def make_rows(generator: Generator, first: int, end: int) -> dict[str, pa.RecordBatch]:
    """The rows of events [first, end), by stream."""
    ids = np.arange(first, end)
    return {
        "persons": generator.persons(ids),
        "auctions": generator.auctions(ids),
        "bids": generator.bids(ids),
        "lines": pa.RecordBatch.from_arrays(
            [pa.array([_line(n) for n in range(first, end) if n % EVENTS_PER_LINE == 0])],
            schema=LINES,
        ),
    }


def _line(n: int) -> str:
    """Words of unequal frequency: the smaller of two draws."""
    rng = np.random.default_rng(n)
    words = rng.integers(0, WORDS, (2, WORDS_PER_LINE)).min(axis=0)
    return " ".join(f"w{word}" for word in words.tolist())


def closing_rows() -> dict[str, pa.RecordBatch]:
    """One row per stream that tells time, so late that every window before it is final."""
    rows = {}
    for name in ("persons", "auctions", "bids"):
        row: dict[str, object] = {field.name: None for field in STREAMS[name]}
        # Of persons and auctions that never come otherwise.
        row |= {"dateTime": FAR, "id": -1, "seller": -2, "auction": -3}
        row = {field.name: row[field.name] for field in STREAMS[name]}
        rows[name] = pa.RecordBatch.from_pylist([row], schema=STREAMS[name])
    return rows
