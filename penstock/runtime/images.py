"""Keeps the image of a changing result near the end of the log (protocol/images.py).

Owns the way from one image to the next: read what has counted since, add it up with the rows of
the last image, append the sum, and name it by a key that is set with the last of its entries. The
coordinator of the query does it, beside everything else. That append is guarded by the run and by
the image before, so that no replaced coordinator sets one, and positions only grow.

Law: the image is the sum of the weights of all rows that this version of the query committed below
its position, and of nothing else. A failure leaves the image before. Nothing here ends a query.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from penstock.errors import PenstockError, TooLarge, Trimmed
from penstock.ids import Lsn
from penstock.limits import KIB
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.records import Entry, Guard, Kind, NewEntry, SetKey
from penstock.protocol.committed import Marked, read_entries
from penstock.protocol.images import (
    ID_BYTES,
    Image,
    decode_image,
    encode_image,
    image_key,
    image_tag,
    is_due,
    payloads_of,
    seal_payload,
)
from penstock.runtime.host import Host
from penstock.runtime.spec import QuerySpec
from penstock.state.memory_row_set import MemoryRowSet
from penstock.stream.batches import decode_batch, encode_trusted, split_batch
from penstock.stream.registration import stream_tag

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
#: So many looks without a new row, and the result is quiet.
QUIET_LOOKS: Final = 3
#: Bytes of an entry: pulses of the coordinator wait for no more than one of them.
ENTRY_BYTES: Final = 256 * KIB
#: A result of more rows has no image: they are added up in the memory of the driver.
ROWS_MAX: Final = 5_000_000


class ImageKeeper:
    """Of one run of one query whose result changes."""

    def __init__(
        self, log: AsyncLog, voice: AsyncAppender, guard: Guard, spec: QuerySpec, host: Host
    ) -> None:
        """`guard`: that the run is still this one."""
        self._log = log
        self._voice = voice
        self._guard = guard
        self._spec = spec
        self._host = host
        self._key = image_key(spec.name)
        #: The image, and its bytes as the log has them.
        self._image: Image | None = None
        self._data: bytes | None = None
        #: How many rows the query had written, and for how many looks that has been so.
        self._rows_seen: int | None = None
        self._looks = 0
        #: Whether there are rows that the image may be without.
        self._is_behind = True
        self._told = ""

    async def keep(self, rows_written: Callable[[], int | None]) -> None:
        """Until there can be none. What fails otherwise is tried again later."""
        while True:
            try:
                if self._image is None:
                    self._image = await self._begin()
                await self._look(self._image, rows_written())
            except (Trimmed, TooLarge) as error:
                logger.warning(
                    "query=%s result has no image, so result() reads all changes: %s",
                    self._spec.name, error,
                )  # fmt: skip
                return
            except (PenstockError, OSError) as error:
                self._image = None  # whatever was appended may be there
                if str(error) != self._told:
                    self._told = str(error)
                    logger.warning("query=%s image is made later: %s", self._spec.name, error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _begin(self) -> Image:
        """The image there is, or one without rows where the query began.

        Raises Trimmed if rows of a result without an image may be lost already.
        """
        spec = self._spec
        value = await self._log.get(self._key)
        self._data = None if value is None else value.data
        image = None if self._data is None else decode_image(spec.name, self._data)
        if image is not None and image.version == spec.version:
            return image
        start = min((source.start for source in spec.sources.values()), default=Lsn(0))
        if start < (await self._log.bounds()).trim_point:
            raise Trimmed(f"the log was trimmed above LSN {start}, where the query began")
        return await self._set(Image(spec.version, start), [])

    async def _look(self, image: Image, rows_written: int | None) -> None:
        if rows_written != self._rows_seen:
            self._rows_seen, self._looks, self._is_behind = rows_written, 0, True
        self._looks += 1
        if not self._is_behind or not rows_written:
            return
        tail = (await self._log.bounds()).tail
        if is_due(image, tail, is_quiet=self._looks > QUIET_LOOKS):
            self._image = await self._renew(image, tail)
            self._is_behind = False

    async def _renew(self, image: Image, position: Lsn) -> Image:
        """The image at a later position."""
        total = _Sum(self._spec.to_schema)
        try:
            if image.entries:
                await asyncio.to_thread(total.add, await self._payloads(image))
            async for payloads in _payloads_since(
                self._log, self._spec, Lsn(image.position), position
            ):
                await asyncio.to_thread(total.add, payloads)
            pieces, rows = await asyncio.to_thread(total.pieces)
        except TooLarge:
            # It must not hold back what is trimmed.
            await self._change(None)
            raise
        return await self._set(Image(image.version, position, rows=rows), pieces)

    async def _payloads(self, image: Image) -> list[memoryview]:
        tags = [image_tag(self._spec.name, image.version)]
        entries = await self._log.read(tags, start=image.first_lsn, end=image.end_lsn)
        return payloads_of(image, entries)

    async def _set(self, image: Image, pieces: Sequence[bytes]) -> Image:
        if pieces:
            id, lsns = self._host.token(ID_BYTES), []
            tags = (image_tag(self._spec.name, image.version),)
            for piece in pieces:
                entry = NewEntry(seal_payload(id, piece), tags, Kind.CHANGE)
                lsns.append((await self._voice.append([entry])).first_lsn)
            image = replace(
                image, id=id, first_lsn=lsns[0], end_lsn=lsns[-1] + 1, entries=len(lsns)
            )
        await self._change(encode_image(image))
        return image

    async def _change(self, data: bytes | None) -> None:
        guards = [self._guard, Guard(self._key, self._data)]
        await self._voice.append([], guards=guards, sets=[SetKey(self._key, data)])
        self._data = data


async def _payloads_since(
    log: AsyncLog, spec: QuerySpec, start: Lsn, end: Lsn
) -> AsyncIterator[list[bytes | memoryview]]:
    """Of all rows of the query's result that count from `start` to `end`, delivery by delivery."""
    tags, committed = [stream_tag(spec.to)], read_entries(start)
    async with log.tail(tags, start=start, end=end) as reader:
        async for batch in reader:
            counted: list[Entry] = []
            for entry in batch.entries:
                taken = committed.take(entry)
                if isinstance(taken, Marked):
                    for named in taken.missing:
                        fetched = await log.read(tags, start=named.first_lsn, end=named.end)
                        taken.supply(named, fetched)
                    counted += taken.entries
                elif taken is not None:
                    counted.append(taken)
            yield [entry.payload for entry in counted if is_of(entry, spec.name, spec.version)]


def is_of(entry: Entry, query: str, version: int) -> bool:
    """Whether a task of this version of the query, under any layout, wrote it."""
    return entry.producer.startswith(f"@{query}.{version}/")


class _Sum:
    """Rows of a changing result added up; takes a while, so it is used in threads."""

    def __init__(self, schema: pa.Schema) -> None:
        """`schema` is the stream's: weights are its last column."""
        self._schema = schema
        rows = pa.schema(list(schema)[:-1])
        self._rows = MemoryRowSet(rows, (), None, ())
        self._looks_at = ROWS_MAX
        self._added = 0

    def add(self, payloads: Iterable[bytes | memoryview]) -> None:
        for payload in payloads:
            batch = decode_batch(payload, self._schema)
            weights = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
            self._rows.insert(batch.select(range(batch.num_columns - 1)), weights)
            self._rows.forget_changes()
            self._added += batch.num_rows
        if self._added > self._looks_at:
            rows, _ = self._rows.rows()
            _check_rows(rows.num_rows)
            self._looks_at = self._added + ROWS_MAX // 2

    def pieces(self) -> tuple[list[bytes], int]:
        """The sum as payloads of the stream, and how many different rows it has."""
        rows, weights = self._rows.rows()
        _check_rows(rows.num_rows)
        if not rows.num_rows:
            return [], 0
        arrays = [*rows.columns, pa.array(weights, self._schema.field(-1).type)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return [encode_trusted(piece) for piece in split_batch(batch, ENTRY_BYTES)], rows.num_rows


def _check_rows(rows: int) -> None:
    if rows > ROWS_MAX:
        raise TooLarge(f"it has {rows:,} rows, and at most {ROWS_MAX:,} are added up in memory")
