"""Fetch: partitions followed for one connection.

A partition is a lane of its stream, read as every reader of lanes does: data under the lane's tag,
and markers that name staged entries. Between two requests its reader stays, where the client will
go on. Law: what is given is what counts, in log order; nothing of a commit before all of it counts.
A client that does not ask again costs FOLLOWED_BYTES of each partition, and its connection's end
frees them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from penstock.errors import Overloaded, TooLarge, Trimmed
from penstock.gateway.config import FOLLOWED_BYTES, FOLLOWED_MAX
from penstock.gateway.kafka.offsets import ROWS_MAX, offset_of, place_of
from penstock.gateway.kafka.rows import batch_to_records
from penstock.gateway.reading import LoopTail, Piece
from penstock.gateway.sessions import Session
from penstock.log.client.client import AsyncLog
from penstock.protocol.names import naming_tag
from penstock.stream.lanes import lane_tag
from penstock.stream.last_rows import find_last_rows
from penstock.stream.registration import Registration, stream_tag

#: Records of one batch that is sent: more are cut, so that answers keep near the size asked for.
BATCH_ROWS = 1024


def partition_tags(stream: Registration, partition: int) -> Sequence[str]:
    """The stream's own, where it has one lane."""
    if stream.lanes == 1:
        return (stream_tag(stream.name),)
    return lane_tag(stream.name, partition), naming_tag(stream.name)


async def find_end(log: AsyncLog, stream: Registration, partition: int) -> int | None:
    """The offset behind the last record of a partition; None: there is none."""
    tags = partition_tags(stream, partition)
    last = await find_last_rows(log, tags, beginning=stream.start_lsn)
    return None if last is None else offset_of(last.lsn, min(last.rows, ROWS_MAX))


class Followed:
    """One partition, from an offset on. `end`: where it ended when that was asked for."""

    def __init__(
        self, session: Session, stream: Registration, partition: int, offset: int, end: int
    ) -> None:
        self.session = session
        #: What the client is to ask for next.
        self.offset = offset
        self._end = end
        lsn, row = place_of(offset)
        #: Rows of the first place that the client has.
        self._skip = (lsn, row)
        self._pieces: deque[Piece] = deque()
        self._row = 0
        tags = partition_tags(stream, partition)
        self._tail = LoopTail(session.log, stream, start=lsn, tags=tags, bytes_max=FOLLOWED_BYTES)
        self._waiting: asyncio.Task[list[Piece] | None] | None = None

    @property
    def has_rows(self) -> bool:
        return bool(self._pieces)

    @property
    def end(self) -> int:
        """Behind the last record that is known to be there. Clients take it for the end of the
        partition: one that stands there has read all that was there when it asked."""
        return max(self._end, self.offset)

    def wait(self) -> asyncio.Task[list[Piece] | None]:
        """Done when there may be more; it goes on when nobody waits for it any more."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_task(self._tail.next())
        return self._waiting

    def look(self) -> None:
        """Take in what has come. Raises why nothing comes any more."""
        if self._waiting is None or not self._waiting.done():
            return
        task, self._waiting = self._waiting, None
        for piece in task.result() or ():
            if piece.batch.num_rows > ROWS_MAX:
                raise TooLarge(
                    f"LSN {piece.entry.lsn}: {piece.batch.num_rows} rows count at one place, and "
                    f"offsets have room for {ROWS_MAX}"
                )
            lsn, row = self._skip
            self._end = max(self._end, offset_of(piece.entry.lsn, piece.batch.num_rows))
            first = row if piece.entry.lsn == lsn else 0
            if first < piece.batch.num_rows:
                if not self._pieces:
                    self._row = first
                self._pieces.append(piece)

    def take(self, bytes_max: int) -> bytes:
        """Batches up to about so many bytes; one at least, if there is any."""
        out = bytearray()
        while self._pieces and (not out or len(out) < bytes_max):
            piece = self._pieces[0]
            lsn, rows = piece.entry.lsn, piece.batch.num_rows
            count = min(BATCH_ROWS, rows - self._row)
            out += batch_to_records(
                piece.batch.slice(self._row, count),
                offset=offset_of(lsn, self._row), append_ms=piece.entry.time_ms,
            )  # fmt: skip
            self._row += count
            self.offset = offset_of(lsn, self._row)
            if self._row == rows:
                self._pieces.popleft()
                self._row = 0
        return bytes(out)

    async def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.gather(self._waiting, return_exceptions=True)
            self._waiting = None
        await self._tail.close()


class Room:
    """How many partitions are followed, of all connections together."""

    def __init__(self, most: int = FOLLOWED_MAX) -> None:
        self.left = most


class Following:
    """The partitions that one connection follows."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._followed: dict[tuple[str, int], Followed] = {}

    async def follow(
        self, session: Session, stream: Registration, partition: int, offset: int
    ) -> Followed:
        """Raises Trimmed for an offset that is not there."""
        key = stream.name, partition
        known = self._followed.get(key)
        if known is not None:
            if known.session is session and known.offset == offset:
                return known
            await self.drop(stream.name, partition)
        if offset < 0:
            raise Trimmed(f"offset {offset}")
        bounds = await session.log.bounds()
        lsn, _ = place_of(offset)
        if not bounds.trim_point <= lsn <= bounds.tail:
            raise Trimmed(f"offset {offset} is not in the log")
        end = await find_end(session.log, stream, partition)
        if self._room.left <= 0:
            raise Overloaded(f"{FOLLOWED_MAX} partitions are being read")
        self._room.left -= 1
        known = self._followed[key] = Followed(session, stream, partition, offset, end or offset)
        return known

    async def keep_only(self, wanted: set[tuple[str, int]]) -> None:
        """Drop what the client does not ask for any more."""
        for name, partition in [key for key in self._followed if key not in wanted]:
            await self.drop(name, partition)

    async def drop(self, name: str, partition: int) -> None:
        known = self._followed.pop((name, partition), None)
        if known is not None:
            self._room.left += 1
            await known.close()

    async def close(self) -> None:
        await self.keep_only(set())
