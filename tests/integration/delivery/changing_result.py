"""A result that changes, as a query's task writes it to the log, and what a table of it must be.

Windows with the number of bids of each auction: rows come, are replaced, and go. The commits have
all forms that tasks give them: entries in one group with their marker, or staged ahead and named by
it, with what replaces a row in another entry than what takes it back. Between them stand rows that
do not count: staged ones that no marker names, and others' rows in the same stream.

Law: of two commits, the one that was made later counts later.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from delivered_tables import Change, Committed, Oracle, Row

import penstock
from penstock.ids import Lsn
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Kind, NewEntry, SetKey
from penstock.protocol.images import (
    ID_BYTES,
    Image,
    encode_image,
    image_key,
    image_tag,
    seal_payload,
)
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import TaskId, query_key
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.state.keys import hash_columns, virtual_nodes
from penstock.stream.batches import encode_batch
from penstock.stream.registration import stream_tag

STREAM = "bids_by_window"
QUERY = "hot"
SCHEMA = (
    "window struct<start: timestamp, end: timestamp>, auction long, bids long, "
    "_weight long NOT NULL"
)
KEY = ("window", "auction")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WINDOWS, AUCTIONS = 6, 25

#: What is looked at of the table: start of the window, auction, bids.
COLUMNS = ("window_start", "auction", "bids")


def _as_stream_has_it(row: Row, weight: int) -> dict[str, Any]:
    window = {"start": row[0], "end": row[0] + timedelta(seconds=10)}
    return {"window": window, "auction": row[1], "bids": row[2], "_weight": weight}


class ChangingResult:
    """The only task of a query, and its commits so far."""

    def __init__(self, log: penstock.Log, seed: int) -> None:
        self._random = random.Random(seed)
        self._stream = log.create_stream(STREAM, SCHEMA)
        query = RegisteredQuery(
            name=QUERY, id="an-id", version=1, plan="a plan", mode="update", to=STREAM, starts={},
            tasks=[1], created_ms=1, checkpoints=None, result_key=list(KEY),
        )  # fmt: skip
        log.client.compare_and_set(query_key(QUERY), expected=None, value=encode_query(query))
        self._task = TaskId(QUERY, 1, 0, 0)
        self._producer = log.client.appender(self._task.producer)
        self._rows_out = 0
        #: By window and auction.
        self._table: dict[tuple[datetime, int], Row] = {}
        self.commits: list[Committed] = []

    def commit(self) -> None:
        """Change a few rows."""
        changes = self._draw_changes()
        taken = [change for change in changes if change[1] < 0]
        added = [change for change in changes if change[1] > 0]
        parts = [part for part in (added, taken) if part]  # what is added first, in the log
        if self._random.random() < 0.1:
            self._stream.append(_as_stream_has_it((NOON, 0, 999), 1))  # somebody else's
        if self._random.random() < 0.1:
            self._append([self._entry(parts[0], Kind.STAGED)])  # named by no marker
        ranges: list[Range] = []
        inline = [self._entry(part, Kind.DATA) for part in parts]
        if self._random.random() < 0.5:
            for part in parts:
                first = self._append([self._entry(part, Kind.STAGED)])
                ranges.append(Range(Lsn(first), 1))
            inline = []
        self._rows_out += len(changes)
        marker = Marker(
            task=str(self._task), instance=self._producer.instance, number=len(self.commits),
            position=Lsn(0), inline=len(inline), ranges=tuple(ranges), rows_out=self._rows_out,
        )  # fmt: skip
        tags = (self._task.marker_tag, stream_tag(STREAM))
        first = self._append([*inline, NewEntry(encode_marker(marker), tags, Kind.MARKER)])
        self.commits.append(Committed(first + len(inline), changes))

    def _append(self, entries: Sequence[NewEntry]) -> int:
        return int(self._producer.append(entries).first_lsn)

    def _entry(self, changes: Sequence[Change], kind: Kind) -> NewEntry:
        rows = [_as_stream_has_it(*change) for change in changes]
        batch = pa.RecordBatch.from_pylist(rows, schema=self._stream.schema)
        return NewEntry(encode_batch(batch), (stream_tag(STREAM),), kind, rows=len(rows))

    def keep_image(self, client: BlockingLog) -> int:
        """What the query's driver does now and then; the position of the image."""
        position = client.bounds().tail
        rows = [_as_stream_has_it(row, 1) for row in self._table.values()]
        batch = pa.RecordBatch.from_pylist(rows, schema=self._stream.schema)
        id = "ab" * ID_BYTES
        entry = NewEntry(seal_payload(id, encode_batch(batch)), (image_tag(QUERY, 1),), Kind.CHANGE)
        first = client.append([entry]).first_lsn
        image = Image(1, position, id, first, first + 1, entries=1, rows=len(rows))
        client.append([], sets=[SetKey(image_key(QUERY), encode_image(image))])
        return int(position)

    def _draw_changes(self) -> list[Change]:
        changes: list[Change] = []
        starts = [NOON + timedelta(seconds=10 * window) for window in range(WINDOWS)]
        keys = [(start, auction) for start in starts for auction in range(AUCTIONS)]
        for key in self._random.sample(keys, self._random.randint(1, 12)):
            old = self._table.pop(key, None)
            if old is not None:
                changes.append((old, -1))
            if old is None or self._random.random() < 0.8:
                row: Row = (*key, self._random.randrange(1_000))
                if row == old:
                    row = (*key, old[2] + 1_000)
                self._table[key] = row
                changes.append((row, 1))
        return changes

    def close(self) -> None:
        self._producer.close()


def oracle_of(commits: Iterable[Committed], shards: int, *, keyed: bool) -> Oracle:
    """The judge of the result's tables."""
    commits = list(commits)
    rows = sorted({row for one in commits for row, _ in one.changes})
    homes = [node % shards for node in nodes_of(rows, keyed=keyed)]
    return Oracle(commits, dict(zip(rows, homes, strict=True)), shards)


def nodes_of(rows: Sequence[Row], *, keyed: bool) -> list[int]:
    """The virtual node of each row."""
    if not rows:
        return []
    starts = [row[0] for row in rows]
    ends = [start + timedelta(seconds=10) for start in starts]
    time = pa.timestamp("us", tz="UTC")
    windows = pa.StructArray.from_arrays(
        [pa.array(starts, time), pa.array(ends, time)], names=["start", "end"]
    )
    columns = [windows, pa.array([row[1] for row in rows], pa.int64())]
    if not keyed:
        columns.append(pa.array([row[2] for row in rows], pa.int64()))
    return [int(node) for node in virtual_nodes(hash_columns(columns, len(rows)))]
