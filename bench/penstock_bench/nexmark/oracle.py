"""The oracle: batch Spark runs the plain query over the same events, made again from the seed.

Events go through files, a part at a time, so that their number costs no memory. Law: equal means
that every row is there as often on both sides; different comes with the first rows that differ.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow.parquet as pq

from penstock_bench.child import Child
from penstock_bench.nexmark import model
from penstock_bench.nexmark.driver import run_batch
from penstock_bench.nexmark.generator import Generator, Parameters
from penstock_bench.nexmark.multiset import difference
from penstock_bench.nexmark.visible import Rows

_PART_EVENTS: Final = 100_000
_BATCH_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the oracle says, and about what."""

    oracle: Literal["equal", "different", "skipped"]
    reason: str


def write_events(parameters: Parameters, count: int, directory: Path) -> None:
    """Events [0, count), as parquet files by kind."""
    generator = Generator(parameters)
    for kind in model.KINDS:
        (directory / kind).mkdir(parents=True)
    for part, first in enumerate(range(0, count, _PART_EVENTS)):
        ids = np.arange(first, min(first + _PART_EVENTS, count))
        made = (generator.persons(ids), generator.auctions(ids), generator.bids(ids))
        for kind, rows in zip(model.KINDS, made, strict=True):
            path = directory / kind / f"{part:05d}.parquet"
            with pq.ParquetWriter(path, rows.schema, compression="lz4") as writer:
                writer.write_batch(rows)


def ask_oracle(
    driver: Child,
    query: str,
    parameters: Parameters,
    count: int,
    rows: Rows,
    directory: Path,
) -> Verdict:
    """Compare the rows of a finished run over events [0, count)."""
    events, result = directory / "events", directory / "expected"
    try:
        write_events(parameters, count, events)
        batch = partial(run_batch, query=query, events=events, result=result)
        driver.ask(batch, _BATCH_SECONDS)
        expected = pq.read_table(result, partitioning=None)
        differences = difference(rows.table, expected, rows.weights)
    finally:
        shutil.rmtree(events, ignore_errors=True)
        shutil.rmtree(result, ignore_errors=True)
    about = f"{expected.num_rows:,} rows of batch Spark over {count:,} events"
    if differences is None and not expected.num_rows:
        return Verdict("skipped", f"{about}, and none of ours: that shows nothing")
    if differences is None:
        return Verdict("equal", about)
    return Verdict("different", f"{differences}; against {about}")
