"""The rows of a world of deliveries: who writes them, and which of them count where.

Owns the oracle: what each shard must have at a position, by the definition of what counts
(protocol/committed.py) and nothing else. It sees every entry that the log ever held.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from random import Random

import pyarrow as pa

from penstock.delivery.routing import Commit, Router, first_route
from penstock.ids import Lsn
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.records import Entry, Kind, NewEntry
from penstock.protocol.markers import Marker, Range, decode_marker, encode_marker
from penstock.protocol.names import TaskId, with_naming
from penstock.stream.batches import decode_batch, encode_batch
from penstock.stream.registration import stream_tag

STREAM = "results"
TASK = TaskId("query", 1, 0, 0)
SCHEMA = pa.schema([pa.field("key", pa.int64()), pa.field("row", pa.int64())])
KEYS = 40
#: Of all rows, one in so many is refused by targets, where there are such rows.
_BAD = 11
_TAGS = (stream_tag(STREAM),)


def is_bad(row: int) -> bool:
    return row % _BAD == 0


class Writer:
    """Writes commits of every kind as a task of a query, and entries of another in between."""

    def __init__(self, random: Random, rows_max: int) -> None:
        self._random = random
        self._rows_max = rows_max
        self._row = 0
        self._number = 0

    async def write(self, log: AsyncLog, commits: int, seconds: float) -> None:
        appender = await log.appender(TASK.producer)
        for _ in range(commits):
            draw = self._random.random()
            if draw < 0.35:
                await log.append([self._entry(Kind.DATA)])
            elif draw < 0.6:
                await self._commit(appender, staged=0)
            elif draw < 0.9:
                await self._commit(appender, staged=self._random.randint(1, 4))
            else:
                # What it has staged never counts: another instance goes on.
                await appender.append([self._entry(Kind.STAGED)])
                await appender.close()
                appender = await log.appender(TASK.producer)
            await asyncio.sleep(self._random.uniform(0, 2 * seconds / commits))
        await appender.close()

    async def _commit(self, appender: AsyncAppender, staged: int) -> None:
        ranges = []
        for _ in range(staged):
            done = await appender.append(
                [self._entry(Kind.STAGED) for _ in range(self._random.randint(1, 2))]
            )
            ranges.append(Range(Lsn(done.first_lsn), done.count))
        inline = [
            self._entry(Kind.DATA) for _ in range(self._random.randint(0 if ranges else 1, 2))
        ]
        position = ranges[-1].end if ranges else Lsn(0)
        marker = Marker(
            str(TASK), appender.instance, self._number, position, len(inline), tuple(ranges)
        )
        self._number += 1
        tags = (TASK.marker_tag, *_TAGS)
        named = with_naming(tags) if ranges else tags
        await appender.append([*inline, NewEntry(encode_marker(marker), named, Kind.MARKER)])

    def _entry(self, kind: Kind) -> NewEntry:
        count = self._random.randint(1, self._rows_max)
        numbers = range(self._row + 1, self._row + count + 1)
        self._row += count
        keys = [self._random.randrange(KEYS) for _ in numbers]
        rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(numbers)], schema=SCHEMA)
        return NewEntry(encode_batch(rows), _TAGS, kind, rows=count)


class Oracle:
    """What counts in a log that grows."""

    def __init__(
        self, entries: list[Entry], shards: int, *, of_query: bool, bad_rows: bool
    ) -> None:
        self._entries = entries
        self._own = f"@{TASK.query}.{TASK.version}/" if of_query else ""
        self._bad_rows = bad_rows
        self._shards = _shards_of_keys(shards)
        self._looked = 0
        #: By shard, side by side: where rows count, and which.
        self._lsns: list[list[int]] = [[] for _ in range(shards)]
        self._rows: list[list[int]] = [[] for _ in range(shards)]
        #: Rows that count and that targets refuse, with their shards.
        self.bad: list[tuple[int, int]] = []

    def between(self, shard: int, after: int, upto: int) -> list[int]:
        """The rows of a shard that count in [after, upto), in order."""
        assert upto <= len(self._entries), f"LSN {upto} is beyond the log"
        self._look()
        lsns = self._lsns[shard]
        return self._rows[shard][bisect_left(lsns, after) : bisect_left(lsns, upto)]

    def _look(self) -> None:
        while self._looked < len(self._entries):
            entry = self._entries[self._looked]
            self._looked += 1
            if stream_tag(STREAM) not in entry.tags or not entry.producer.startswith(self._own):
                continue
            if entry.kind is Kind.DATA:
                self._count(entry.lsn, entry)
            elif entry.kind is Kind.MARKER:
                for named in decode_marker(entry.payload).ranges:
                    for staged in self._entries[named.first_lsn : named.end]:
                        self._count(entry.lsn, staged)

    def _count(self, lsn: int, entry: Entry) -> None:
        batch = decode_batch(entry.payload, SCHEMA)
        for key, row in zip(batch["key"].to_pylist(), batch["row"].to_pylist(), strict=True):
            shard = self._shards[key]
            if self._bad_rows and is_bad(row):
                self.bad.append((shard, row))
            else:
                self._lsns[shard].append(lsn)
                self._rows[shard].append(row)


def _shards_of_keys(shards: int) -> list[int]:
    """Of each key alone, as it is routed."""
    router = Router(SCHEMA, ("key",), first_route(shards))
    found = []
    for key in range(KEYS):
        batch = pa.RecordBatch.from_pydict({"key": [key], "row": [0]}, schema=SCHEMA)
        span = router.route([Commit(Lsn(0), (batch,), 1)], after=Lsn(0), upto=Lsn(1))
        (shard,) = span.pieces
        found.append(shard)
    return found
