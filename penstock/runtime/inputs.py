"""What a task took in and has not worked on yet: rows by leaf, in log order, small ones joined.

Joining is natural batching for operators: the further a task is behind, the larger the batches that
it pushes, and the cheaper each row. Law: rows of different leaves are never reordered. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.records import Entry
from penstock.ops.api import Delta
from penstock.plan import nodes as n
from penstock.stream.batches import decode_batch


@dataclass(frozen=True, slots=True)
class Arrival:
    """Rows for one leaf; `lsn` is that of the last entry that they came in."""

    place: int
    delta: Delta
    lsn: Lsn
    #: The stream or stage that they came from, for people.
    origin: str


class Arrivals:
    """A queue; joined when it is drained."""

    def __init__(self, rows_at_once: int) -> None:
        self._rows_at_once = rows_at_once
        self._waiting: list[Arrival] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, arrival: Arrival) -> None:
        self._waiting.append(arrival)

    def drain(self, *, whole: bool) -> Iterator[Arrival]:
        """All of them, in order; neighbours of one leaf joined, unless each is wanted whole."""
        waiting, self._waiting = self._waiting, []
        run: list[Arrival] = []
        rows = 0
        for arrival in waiting:
            if run and (
                whole
                or run[0].place != arrival.place
                or rows + len(arrival.delta) > self._rows_at_once
            ):
                yield _join(run)
                run, rows = [], 0
            run.append(arrival)
            rows += len(arrival.delta)
        if run:
            yield _join(run)


def _join(run: list[Arrival]) -> Arrival:
    last = run[-1]
    if len(run) == 1:
        return last
    delta = join_deltas([arrival.delta for arrival in run])
    return Arrival(last.place, delta, last.lsn, last.origin)


def join_deltas(deltas: list[Delta]) -> Delta:
    """All rows of deltas with one schema, in order."""
    if len(deltas) == 1:
        return deltas[0]
    batch = pa.concat_batches([delta.batch for delta in deltas])
    if all(delta.weights is None for delta in deltas):
        return Delta(batch)
    return Delta(batch, np.concatenate([delta.all_weights() for delta in deltas]))


def decode_source(entry: Entry, leaf: n.Scan, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a source entry that the query reads, under the plan's own names."""
    try:
        batch = decode_batch(entry.payload, schema)
    except BadFormat as error:
        raise BadFormat(f"stream {leaf.stream}, LSN {entry.lsn}: {error}") from error
    if not leaf.columns:  # only how many rows there are is asked for
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
    columns = [batch.column(name) for name in leaf.columns]
    return pa.RecordBatch.from_arrays(columns, schema=leaf.schema)
