"""Lanes: the shares of a stream that several tasks read side by side; each entry is in one.

Owns which lane rows go to, and the tag that says so. A stream keeps the lanes that it was made
with. One from before there were lanes has a single one, and so has no such tags.

    by turns    each entry of a producer goes to the next lane
    by key      rows are split by the virtual node of their key, which belongs to one lane

Law: a data entry of a stream with several lanes has the stream's tag and that of exactly one lane.
With a key, rows of one key are in one lane, in the order in which they were appended. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import BadRequest
from penstock.limits import LANES_MAX
from penstock.stream.registration import Registration, stream_tag


def lane_tag(stream: str, lane: int) -> str:
    return f"l/{stream}/{lane}"


@dataclass(frozen=True, slots=True)
class Lanes:
    """How the rows of one stream are spread."""

    stream: str
    count: int = 1
    #: Columns; none: by turns.
    key: tuple[str, ...] = ()

    def tags(self, lane: int) -> tuple[str, ...]:
        """Of an entry in this lane."""
        whole = stream_tag(self.stream)
        return (whole,) if self.count == 1 else (whole, lane_tag(self.stream, lane))

    def of_nodes(self, nodes: Collection[int]) -> tuple[int, ...]:
        """The lanes of a task that has these virtual nodes: each goes with that of its number."""
        return tuple(lane for lane in range(self.count) if lane in nodes)

    def split(
        self, batch: pa.RecordBatch, turn: int
    ) -> Iterator[tuple[pa.RecordBatch, tuple[str, ...]]]:
        """The rows by lane, with their tags; `turn` counts the entries of a producer."""
        if self.count == 1 or not self.key:
            yield batch, self.tags(turn % self.count)
            return
        from penstock.state.keys import hash_columns, virtual_nodes  # who only reads hashes nothing

        columns = [batch.column(name) for name in self.key]
        lanes = virtual_nodes(hash_columns(columns, batch.num_rows)) % self.count
        for lane, rows in split_by(batch, lanes):
            yield rows, self.tags(lane)


def split_by(
    batch: pa.RecordBatch, places: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each place, in order, by place."""
    counts = np.bincount(places)
    ends = np.cumsum(counts)
    present = np.flatnonzero(counts).tolist()
    if len(present) == 1:
        yield present[0], batch
        return
    sorted_rows = batch.take(pa.array(np.argsort(places, kind="stable")))
    for place in present:
        count = int(counts[place])
        yield place, sorted_rows.slice(int(ends[place]) - count, count)


def lanes_of(registration: Registration) -> Lanes:
    return Lanes(registration.name, registration.lanes, registration.key)


def check_lanes(name: str, schema: pa.Schema, count: int, key: Sequence[str]) -> None:
    """Raise BadRequest if a stream cannot be made like this."""
    if type(count) is not int or not 1 <= count <= LANES_MAX:
        raise BadRequest(f"stream {name}: lanes={count!r}, 1 to {LANES_MAX} allowed")
    missing = [column for column in key if column not in schema.names]
    if missing:
        raise BadRequest(
            f"stream {name}: the key names {', '.join(missing)}, but the columns are "
            f"{', '.join(schema.names)}"
        )
    if len(set(key)) < len(key):
        raise BadRequest(f"stream {name}: the key names a column twice: {', '.join(key)}")
