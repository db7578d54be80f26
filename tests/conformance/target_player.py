"""A program that delivers without end until it is killed: `target_player.py URI TERM`.

Each batch adds 50 rows and replaces 50, so that rows and position tell whether they belong
together. After each answer it prints the position.
"""

from __future__ import annotations

import sys
import time

import pyarrow as pa

from penstock.delivery.api import Batch, Shard, Target
from penstock.delivery.targets import open_target
from penstock.errors import Unavailable
from penstock.ids import Lsn

SCHEMA = pa.schema([pa.field("number", pa.int64(), nullable=False), ("batch", pa.int64())])
SHARD = Shard("endless", 0, 1, Lsn(0), SCHEMA, False, ("number",), "results")
ROWS = 50


def rows_of(batch: int) -> list[tuple[int, int]]:
    """New numbers, and those of the batch before once more."""
    first = max(0, ROWS * (batch - 1))
    return [(number, batch) for number in range(first, ROWS * (batch + 1))]


def table_at(position: int) -> list[tuple[int, int]]:
    """What the table must hold there."""
    last = {number: batch for b in range(position) for number, batch in rows_of(b)}
    return sorted(last.items())


def open_patiently(target: Target, term: int) -> Lsn:
    while True:
        try:
            return target.open(SHARD, term)
        except Unavailable:
            time.sleep(0.001)


def main(uri: str, term: int) -> None:
    target = open_target(uri)
    position = open_patiently(target, term)
    while True:
        numbers, batches = zip(*rows_of(position), strict=True)
        columns = [pa.array(numbers, pa.int64()), pa.array(batches, pa.int64())]
        rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        try:
            position = target.apply(Batch(term, position, Lsn(position + 1), rows))
        except Unavailable:
            position = open_patiently(target, term)
        print(position, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
