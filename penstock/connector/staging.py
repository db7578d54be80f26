"""Rows to staged entries, by a task: durable, and counted by nobody until a marker names them.

Owns the cut into entries and the reservation `staging/<id>.<batch>`, which says from where on a
writer has entries without a marker: trimming spares them (runtime/trim.py). Law: the reservation is
in the log before, or with, the first staged entry of a batch, and only its commit or abort takes it
away. An attempt that is sent twice stages its rows twice: only what it returns can be named.
"""

from __future__ import annotations

import itertools
import random
import secrets
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.errors import GuardFailed, Unknown
from penstock.limits import LANES_MAX, PAYLOAD_BYTES_MAX
from penstock.log.client.blocking import BlockingLog
from penstock.log.client.packing import pack
from penstock.log.records import Appended, Guard, Kind, NewEntry, SetKey
from penstock.protocol.markers import Range, join_ranges
from penstock.protocol.names import stream_node_tag
from penstock.protocol.reservations import encode_reservation
from penstock.state.keys import hash_columns, virtual_nodes
from penstock.stream.batches import encode_batch, split_batch
from penstock.stream.lanes import split_by
from penstock.stream.rows import to_batches
from penstock.stream.stream import Stream

#: Spark's batches are joined up to it: fewer entries, each cheaper by the row.
_ENTRY_BYTES: Final = PAYLOAD_BYTES_MAX // 2
_IN_FLIGHT_MAX: Final = 4
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Staged:
    """What a task staged: what a marker would have to name."""

    ranges: tuple[Range, ...]
    rows: int
    #: The log's id: positions of one mean nothing in another.
    log: str


class Staging:
    """One task's rows for one stream; `reservation` is the key of the batch's reservation."""

    def __init__(
        self,
        client: BlockingLog,
        stream: Stream,
        *,
        reservation: str,
        key_by: tuple[str, ...] = (),
    ) -> None:
        self._client = client
        self._stream = stream
        self._reservation = reservation
        self._key_by = key_by
        self._lanes = stream.spread
        self._turns = itertools.count(random.randrange(LANES_MAX))
        self._is_reserved = False
        self._sent: deque[tuple[list[NewEntry], Future[Appended]]] = deque()
        self._ranges: list[Range] = []
        self._rows = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> Staged:
        """Returns when all rows are durable. Raises BadRow, TooLarge."""
        for group in pack(self._entries(batches)):
            self._append(group)
        while self._sent:
            self._take_one()
        return Staged(join_ranges(self._ranges), self._rows, self._client.log_id)

    def _entries(self, batches: Iterable[pa.RecordBatch]) -> Iterator[NewEntry]:
        for batch in _joined(batches):
            for fitting in to_batches(batch, self._stream.schema):
                for rows, tags in self._by_node(fitting):
                    for piece in split_batch(rows, PAYLOAD_BYTES_MAX, first_row=self._rows):
                        self._rows += piece.num_rows
                        payload = encode_batch(piece)
                        yield NewEntry(payload, tags, Kind.STAGED, rows=piece.num_rows)

    def _by_node(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, tuple[str, ...]]]:
        """The rows of each lane, and of each virtual node if the writer asks for it."""
        name = self._stream.name
        for rows, tags in self._lanes.split(batch, next(self._turns)):
            if not self._key_by:
                yield rows, tags
                continue
            columns = [rows.column(key) for key in self._key_by]
            nodes = virtual_nodes(hash_columns(columns, rows.num_rows))
            for node, of_node in split_by(rows, nodes):
                yield of_node, (*tags, stream_node_tag(name, node))

    def _append(self, group: list[NewEntry]) -> None:
        if not self._is_reserved:
            self._append_first(group)
            self._is_reserved = True
            return
        if len(self._sent) == _IN_FLIGHT_MAX:
            self._take_one()
        self._sent.append((group, self._client.append_nowait(group)))

    def _append_first(self, group: list[NewEntry]) -> None:
        """With the reservation, unless there is one: an older one spares more from trimming."""
        guards = [Guard(self._reservation, None)]
        reservation = encode_reservation(len(group), secrets.token_hex(8))
        for attempt in range(_TRIES):
            try:
                sets = [SetKey(self._reservation, reservation)]
                return self._name(group, self._client.append(group, guards=guards, sets=sets))
            except GuardFailed:
                break  # another task was faster, or this one, whose answer was lost
            except Unknown:
                if attempt == _TRIES - 1:
                    raise
        self._name(group, self._client.append(group))

    def _take_one(self) -> None:
        group, sent = self._sent.popleft()
        try:
            self._name(group, sent.result())
        except Unknown:
            self._name(group, self._client.append(group))

    def _name(self, group: list[NewEntry], done: Appended) -> None:
        # Not done.count, which includes the reservation.
        self._ranges.append(Range(done.first_lsn, len(group)))


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch | pa.Table]:
    """The rows in order, small batches joined."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if waiting and size + batch.nbytes > _ENTRY_BYTES:
            yield _join(waiting)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    if waiting:
        yield _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
