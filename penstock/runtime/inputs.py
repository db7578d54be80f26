"""What a task took in and has not worked on yet: rows by leaf, in log order, small ones joined.

Joining is natural batching for operators: the further a task is behind, the larger the batches that
it pushes, and the cheaper each row. Law: rows of different leaves are never reordered. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.records import Entry
from penstock.ops.api import Delta, join_deltas
from penstock.plan import nodes as n
from penstock.stream.batches import decode_batch
from penstock.stream.metadata import metadata_column


@dataclass(frozen=True, slots=True)
class Arrival:
    """Rows for one leaf; `lsn` is that of the last entry that they came in."""

    place: int
    delta: Delta
    lsn: Lsn
    #: The stream or stage that they came from, for people.
    origin: str
    #: What was joined to make it, if anything.
    parts: tuple[Arrival, ...] = ()
    #: Of rows of a source: their place in its order (row_merge.py).
    order: int = 0
    #: The entry that they came in, if `lsn` is another one.
    entry_lsn: Lsn | None = None

    @property
    def told_lsn(self) -> Lsn:
        """Where people find these rows."""
        return self.lsn if self.entry_lsn is None else self.entry_lsn


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
                or run[0].entry_lsn != arrival.entry_lsn
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
    return Arrival(last.place, delta, last.lsn, last.origin, tuple(run), entry_lsn=last.entry_lsn)


class SourceReader:
    """Rows of source entries. An entry that several leaves read is decoded once, for them all."""

    def __init__(self) -> None:
        #: The last one, and the schema that it was decoded by.
        self._last: tuple[Entry, pa.Schema, pa.RecordBatch] | None = None

    def read(
        self, entry: Entry, leaf: n.Scan, schema: pa.Schema, at: Entry | None = None
    ) -> pa.RecordBatch:
        """The columns of a source entry that the query reads, under the plan's own names.

        `at`: the entry where it counts, if that is another one.
        """
        last = self._last
        if last is None or last[0] is not entry or last[1] is not schema:
            last = self._last = (entry, schema, _decode(entry, leaf.stream, schema))
        return _select(last[2], leaf, at or entry)


def decode_source(
    entry: Entry, leaf: n.Scan, schema: pa.Schema, at: Entry | None = None
) -> pa.RecordBatch:
    """The same for one leaf."""
    return SourceReader().read(entry, leaf, schema, at)


def _decode(entry: Entry, stream: str, schema: pa.Schema) -> pa.RecordBatch:
    try:
        return decode_batch(entry.payload, schema)
    except BadFormat as error:
        raise BadFormat(f"stream {stream}, LSN {entry.lsn}: {error}") from error


def _select(batch: pa.RecordBatch, leaf: n.Scan, at: Entry) -> pa.RecordBatch:
    if not leaf.columns:  # only how many rows there are is asked for
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
    names, rows = batch.schema.names, batch.num_rows
    columns = [
        batch.column(name) if name in names else metadata_column(name, at, leaf.stream, rows)
        for name in leaf.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=leaf.schema)
