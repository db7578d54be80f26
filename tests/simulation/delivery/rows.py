"""The rows of a world of deliveries: who writes them, and which of them count where.

Owns the oracle: what each shard must have at a position, by the definition of what counts
(protocol/committed.py) and nothing else. It sees every entry that the log ever held.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from random import Random

import pyarrow as pa

from penstock.delivery.routing import WEIGHT, Router, first_route
from penstock.ids import Lsn
from penstock.log.api import ReadBatch
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog, changes_of
from penstock.log.records import Entry, Kind, NewEntry
from penstock.protocol.deliveries import decode_delivery
from penstock.protocol.markers import Marker, Range, decode_marker, encode_marker
from penstock.protocol.names import TaskId, deliver_key, with_naming
from penstock.protocol.shards import Shards, shards_of
from penstock.stream.batches import decode_batch, encode_batch
from penstock.stream.registration import stream_tag

STREAM = "results"
TASK = TaskId("query", 1, 0, 0)
DELIVERY = "orders"
SCHEMA = pa.schema([pa.field("key", pa.int64()), pa.field("row", pa.int64())])
#: Of a stream that could take rows back: rows move only in such a one.
CHANGING = SCHEMA.append(pa.field(WEIGHT, pa.int64(), nullable=False))
KEYS = 40
#: Of all rows, one in so many is refused by targets, where there are such rows.
_BAD = 11
_TAGS = (stream_tag(STREAM),)


def is_bad(row: int) -> bool:
    return row % _BAD == 0


class Writer:
    """Writes commits of every kind as a task of a query, and entries of another in between."""

    def __init__(self, random: Random, rows_max: int, schema: pa.Schema) -> None:
        self._random = random
        self._schema = schema
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
        columns = [pa.array(keys), pa.array(numbers), pa.array([1] * count, pa.int64())]
        width = len(self._schema)
        rows = pa.RecordBatch.from_arrays(columns[:width], schema=self._schema)
        return NewEntry(encode_batch(rows), _TAGS, kind, rows=count)


class Oracle:
    """What counts in a log that grows."""

    def __init__(
        self,
        entries: list[Entry],
        shards: int,
        *,
        of_query: bool,
        bad_rows: bool,
        schema: pa.Schema = SCHEMA,
    ) -> None:
        self._entries = entries
        self._schema = schema
        self._own = f"@{TASK.query}.{TASK.version}/" if of_query else ""
        self._bad_rows = bad_rows
        self._nodes = _nodes_of_keys()
        route = first_route(shards)
        self._shards = [route[node] for node in self._nodes]
        self._layout = shards_of(shards, [], [route])
        #: Where rows count, which virtual nodes they have, and which they are.
        self._all: list[tuple[int, int, int]] = []
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

    @property
    def layout(self) -> Shards:
        """Who has what, from where on; of the last registration that is in the log."""
        self._look()
        return self._layout

    def contents(self, shard: int, position: int) -> list[int]:
        """The rows of a shard at a position, sorted, whichever shards there were."""
        assert position <= len(self._entries), f"LSN {position} is beyond the log"
        route = self.layout.routes[bisect_left(self.layout.cuts, position)]
        own = (row for lsn, node, row in self._all if lsn < position and route[node] == shard)
        return sorted(own)

    def _look(self) -> None:
        while self._looked < len(self._entries):
            entry = self._entries[self._looked]
            self._looked += 1
            if entry.kind is Kind.META:
                for value in changes_of(deliver_key(DELIVERY), ReadBatch([entry], entry.lsn)):
                    if value is not None:
                        found = decode_delivery(DELIVERY, value.data, value.lsn)
                        self._layout = found.layout
            if stream_tag(STREAM) not in entry.tags or not entry.producer.startswith(self._own):
                continue
            if entry.kind is Kind.DATA:
                self._count(entry.lsn, entry)
            elif entry.kind is Kind.MARKER:
                for named in decode_marker(entry.payload).ranges:
                    for staged in self._entries[named.first_lsn : named.end]:
                        self._count(entry.lsn, staged)

    def _count(self, lsn: int, entry: Entry) -> None:
        batch = decode_batch(entry.payload, self._schema)
        for key, row in zip(batch["key"].to_pylist(), batch["row"].to_pylist(), strict=True):
            shard = self._shards[key]
            self._all.append((lsn, self._nodes[key], row))
            if self._bad_rows and is_bad(row):
                self.bad.append((shard, row))
            else:
                self._lsns[shard].append(lsn)
                self._rows[shard].append(row)


def _nodes_of_keys() -> list[int]:
    """Of each key, as it is routed."""
    keys = pa.RecordBatch.from_pydict({"key": [*range(KEYS)], "row": [0] * KEYS}, schema=SCHEMA)
    nodes: list[int] = Router(SCHEMA, ("key",), first_route(1)).nodes(keys).tolist()
    return nodes
