"""What a delivery reads of the log: the committed rows of a stream, or of one query's tasks in it.

Owns tails of the stream that last: over any time that the log is away, a reading goes on where it
was. Law: what counts at one place is given whole (protocol/committed.py), in log order, once. Law:
rows of others in a query's stream are left out, with their staged entries unread. Law: a reading
ends where the stream begins anew (`Log.restart_stream`): what follows replaces all that it gave.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.delivery.routing import WEIGHT, Commit
from penstock.errors import BadFormat, PlanChanged, Retryable
from penstock.ids import Lsn
from penstock.log.api import ReadBatch
from penstock.log.client.client import AsyncLog, changes_of
from penstock.log.client.reader import AsyncReader
from penstock.log.records import Entry, Kind, Value, meta_tag
from penstock.protocol.committed import CommittedReader, Marked, read_entries
from penstock.stream.batches import decode_batch
from penstock.stream.registration import (
    Registration,
    decode_registration,
    stream_key,
    stream_tag,
)

logger = logging.getLogger(__name__)

#: Entries that are looked at without a pause for others of the player's loop: some milliseconds.
ENTRIES_AT_ONCE: Final = 256
#: The same of a reading with an end, which is for one who is behind: others wait for each.
OWN_ENTRIES_AT_ONCE: Final = 32
#: Before a log that does not answer is asked again.
PAUSE_SECONDS: Final = 0.2


class Source:
    """Where rows come from. `own`: producers of the rows that count begin with it.

    `beginning`: what the delivery began with; raises PlanChanged if the stream begins later.
    """

    def __init__(
        self, log: AsyncLog, stream: Registration, *, beginning: Lsn, own: str = ""
    ) -> None:
        self.log = log
        self.stream = stream.name
        self.schema = stream.schema
        self.own = own
        self._beginning = beginning
        self.check_beginning(stream)

    @property
    def is_changing(self) -> bool:
        """Whether it takes rows back: then it ends with their weight."""
        return bool(self.schema.names) and self.schema.names[-1] == WEIGHT

    async def read_entries(self, tag: str, start: Lsn, end: Lsn) -> list[Entry]:
        """Other entries than rows, however long the log is away. Raises Trimmed."""
        while True:
            try:
                return await self.log.read([tag], start=start, end=end)
            except Retryable as error:
                logger.info("stream=%s waits for the log: %s", self.stream, error)
                await asyncio.sleep(PAUSE_SECONDS)

    def check_beginning(self, stream: Registration) -> None:
        if stream.start_lsn > self._beginning:
            raise PlanChanged(
                f"stream {stream.name} begins anew at LSN {stream.start_lsn}, because its query "
                "was restarted, and targets hold rows from before: remove the delivery, empty its "
                "table and its rows in penstock_positions, and deliver anew"
            )

    def read(
        self,
        start: Lsn,
        end: Lsn | None = None,
        *,
        tags: Sequence[str] = (),
        watched: str | None = None,
    ) -> Reading:
        """From `start` on, for ever or to `end`; entries under `tags` only wake the reader.

        `watched`: a metadata key whose changes are wanted, too.
        """
        return Reading(self, start, end, tags, watched)


class Reading:
    """One reading of a source. Close it when done."""

    def __init__(
        self,
        source: Source,
        start: Lsn,
        end: Lsn | None,
        tags: Sequence[str],
        watched: str | None,
    ) -> None:
        self._source = source
        self._key = stream_key(source.stream)
        self._watched = watched
        #: Values that the watched key got in what `next` brought last; None: it was removed.
        self.changes: list[Value | None] = []
        self._tags = (stream_tag(source.stream), meta_tag(self._key), *tags)
        if watched is not None:
            self._tags += (meta_tag(watched),)
        self.end = end
        self._at_once = ENTRIES_AT_ONCE if end is None else OWN_ENTRIES_AT_ONCE
        #: All that counts below it was given.
        self.position = start
        self._reader: AsyncReader | None = None
        self._committed: CommittedReader[Entry] = read_entries(start)
        #: What the log has brought and nobody has looked at, in pieces.
        self._brought: deque[ReadBatch] = deque()

    async def next(self) -> list[Commit] | None:
        """What counts from `position` on, some entries at a time; None: the end.

        Waits for it; while the log is away, too. Raises Trimmed if it is gone, PlanChanged if the
        stream begins anew, and BadFormat for rows that no version of ours wrote.
        """
        while True:
            if self._reader is None:
                log = self._source.log
                self._reader = log.tail(self._tags, start=self.position, end=self.end)
                self._committed = read_entries(self.position)
            try:
                if not self._brought:
                    self._brought += _pieces(await anext(self._reader), self._at_once)
                else:
                    await asyncio.sleep(0)  # others have their turn
                piece = self._brought[0]
                commits = await self._take(piece)
            except StopAsyncIteration:
                return None
            except Retryable as error:
                logger.info("stream=%s waits for the log: %s", self._source.stream, error)
                await self.close()
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._brought.popleft()
            self.position = piece.looked_up_to
            return commits

    async def _take(self, batch: ReadBatch) -> list[Commit]:
        commits = []
        own = self._source.own
        self.changes = []
        for entry in batch.entries:
            if entry.kind is Kind.META:
                self._look_for_beginning(entry)
                if self._watched is not None:
                    self.changes += changes_of(self._watched, ReadBatch([entry], entry.lsn))
            counted = self._committed.take(entry)
            if counted is None or not entry.producer.startswith(own):
                continue
            if isinstance(counted, Marked):
                entries = await self._fetch(counted)
            else:
                entries = [entry]
            if entries:
                commits.append(self._decode(entry.lsn, entries))
        return commits

    def _look_for_beginning(self, entry: Entry) -> None:
        for value in changes_of(self._key, ReadBatch([entry], Lsn(entry.lsn + 1))):
            if value is not None:
                registered = decode_registration(self._source.stream, value.data)
                self._source.check_beginning(registered)

    async def _fetch(self, marked: Marked[Entry]) -> list[Entry]:
        for named in marked.missing:
            fetched = await self._source.log.read(self._tags, start=named.first_lsn, end=named.end)
            marked.supply(named, fetched)
        return marked.entries

    def _decode(self, lsn: Lsn, entries: Sequence[Entry]) -> Commit:
        schema = self._source.schema
        try:
            batches = tuple(decode_batch(entry.payload, schema) for entry in entries)
        except BadFormat as error:
            raise BadFormat(f"stream {self._source.stream}, LSN {lsn}: {error}") from error
        return Commit(lsn, batches, sum(len(entry.payload) for entry in entries))

    async def close(self) -> None:
        """Stop reading. Idempotent; `next` begins again at the position."""
        reader, self._reader = self._reader, None
        self._brought.clear()
        if reader is not None:
            await reader.close()


def _pieces(batch: ReadBatch, size: int) -> Iterator[ReadBatch]:
    """What a log has brought at once, in pieces of so many entries, or the rest of a group more:
    a position within a group would be one within a commit."""
    entries, first = batch.entries, 0
    while True:
        end = first + size
        while end < len(entries) and _group_of(entries[end]) == _group_of(entries[end - 1]):
            end += 1
        if end >= len(entries):
            yield ReadBatch(entries[first:], batch.looked_up_to)
            return
        yield ReadBatch(entries[first:end], entries[end].lsn)
        first = end


def _group_of(entry: Entry) -> tuple[str, int, int, int]:
    """The same for all entries of a group; for those of two groups, hardly ever."""
    return entry.producer, entry.instance, entry.time_ms, entry.lsn - entry.seq
