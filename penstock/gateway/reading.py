"""The committed reader on a loop: what counts of a stream, as record batches, with positions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.limits import CREDIT_BYTES_DEFAULT
from penstock.log.client.client import AsyncLog
from penstock.log.records import Entry
from penstock.protocol.committed import Marked, read_entries
from penstock.stream.batches import decode_batch
from penstock.stream.registration import Registration, stream_tag


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that count at one place of the log."""

    entry: Entry
    batch: pa.RecordBatch
    #: Start here to go on after them.
    position: Lsn


class LoopTail:
    """See `stream/tail.py`, whose laws it has. Close it, or use it in an `async with`."""

    def __init__(
        self,
        log: AsyncLog,
        stream: Registration,
        *,
        start: Lsn,
        end: Lsn | None = None,
        tags: Sequence[str] = (),
        bytes_max: int = CREDIT_BYTES_DEFAULT,
    ) -> None:
        self._log = log
        self._stream = stream
        #: Others than the stream's for who wants a share of it.
        self._tags = list(tags) or [stream_tag(stream.name)]
        self._reader = log.tail(self._tags, start=start, end=end, credit_bytes=bytes_max)
        self._committed = read_entries(start, 2 * bytes_max)
        #: All that counts below it was given.
        self.position = start

    async def next(self, seconds: float | None = None) -> list[Piece] | None:
        """What counts in the next delivery. None: it ended. Raises TimeoutError; nothing is lost
        by it."""
        async with asyncio.timeout(seconds):
            try:
                delivery = await self._reader.__anext__()
            except StopAsyncIteration:
                return None
        pieces: list[Piece] = []
        for entry in delivery.entries:
            taken = self._committed.take(entry)
            if taken is entry:
                pieces.append(self._piece(entry, [entry]))
            elif isinstance(taken, Marked):
                await self._fetch(taken)
                if taken.entries:
                    pieces.append(self._piece(entry, taken.entries))
        self.position = delivery.looked_up_to
        return pieces

    async def _fetch(self, marked: Marked[Entry]) -> None:
        for named in marked.missing:
            fetched = await self._log.read(self._tags, start=named.first_lsn, end=named.end)
            marked.supply(named, fetched)

    def _piece(self, place: Entry, entries: list[Entry]) -> Piece:
        try:
            batches = [decode_batch(entry.payload, self._stream.schema) for entry in entries]
        except BadFormat as error:
            raise BadFormat(f"stream {self._stream.name}, LSN {place.lsn}: {error}") from error
        # One batch: no position lies between what counts at one place.
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return Piece(place, batch, Lsn(place.lsn + 1))

    async def pieces(self) -> AsyncIterator[Piece]:
        """All that is left, up to the end."""
        while (found := await self.next()) is not None:
            for piece in found:
                yield piece

    async def close(self) -> None:
        """Stop reading. Idempotent."""
        await self._reader.close()

    async def __aenter__(self) -> LoopTail:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
