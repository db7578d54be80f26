"""A reader on asyncio: one subscription, resumed wherever it was after every reconnection.

Owns the position. Law: entries are handed out once, in LSN order; after a reconnection the
subscription starts again at the first LSN that was not handed over, so nothing is skipped and
nothing comes twice. Law: what is held here and the credit that the server has are together at most
its `credit_bytes` (a server sends whole records, so the last may be beyond it).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import BadFormat, PenstockError, Retryable, TooLarge
from penstock.ids import Lsn
from penstock.limits import CREDIT_BYTES_DEFAULT
from penstock.log.api import ReadBatch
from penstock.log.client.connection import ClientConnection
from penstock.log.group_format import Body
from penstock.log.record_format import RecordHeader, decode_header, decode_record
from penstock.log.records import Entry
from penstock.wire import messages as m

if TYPE_CHECKING:
    from penstock.log.client.client import AsyncLog

#: Wait before a subscription is tried again that the server could not serve.
RESUME_SECONDS = 0.05


class AsyncReader:
    """Iterate over it for `ReadBatch`es; `async with` it so that the server forgets it after."""

    def __init__(
        self,
        log: AsyncLog,
        number: int,
        tags: tuple[str, ...] | None,
        *,
        start: Lsn,
        end: Lsn,
        credit_bytes: int | None = None,
    ) -> None:
        self._log = log
        self._credit_bytes = CREDIT_BYTES_DEFAULT if credit_bytes is None else credit_bytes
        self.number = number
        self._tags = tags
        #: Everything below was received; where a new subscription starts.
        self.next_lsn = start
        self._end = end
        #: Deliveries not yet handed out, with the bytes to give back as credit.
        self._queue: deque[tuple[m.Delivery, memoryview]] = deque()
        self._arrived = asyncio.Event()
        self._done = False
        self._error: PenstockError | None = None
        self._connection: ClientConnection | None = None
        #: Holds as much as it may: subscribes once some of it was handed out.
        self._is_full = False
        #: When the server first gave the subscription up, and last, since anything was delivered.
        self._failures: tuple[float, float] | None = None

    def resume(self, connection: ClientConnection) -> None:
        """Subscribe (again), unless the connection just ended: the client then comes again."""
        if self._done or self._error is not None or connection.closed.done():
            return
        if self.next_lsn >= self._end:
            self._done = True
            self._arrived.set()
            return
        if connection is not self._connection:
            self._failures = None
        self._connection = connection
        # What was received and not handed out yet is credited when it is: it must not count twice.
        credit = self._credit_bytes - sum(len(body) for _, body in self._queue)
        self._is_full = credit <= 0
        if self._is_full:
            return
        # A new number: deliveries of the old subscription cannot be taken for the new one's.
        self._log.renumber_reader(self)
        message = m.Subscribe(self.number, self._tags, self.next_lsn, self._end, credit)
        try:
            connection.send(self.number, message, self._answered)
        except TooLarge as error:
            self.fail(error)

    def _answered(self, message: m.Message | PenstockError, _: memoryview) -> None:
        """Only failures are answered; a lost connection is resumed by the client."""
        connection = self._connection
        if not isinstance(message, PenstockError):
            return
        if not isinstance(message, Retryable):
            self.fail(message)
        elif connection is not None and not connection.closed.done():
            # The server gave this subscription up, not the connection: nobody else will resume it.
            loop = asyncio.get_running_loop()
            if self._failed_for(loop.time()) >= self._log.timeout:
                self.fail(message)
            else:
                loop.call_later(RESUME_SECONDS, self._resume_on, connection)

    def _failed_for(self, now: float) -> float:
        """How long the server gives up this subscription again and again, nothing delivered."""
        first, last = self._failures or (now, now)
        if now - last >= self._log.timeout:
            first = now  # it stood that long in between: there was nothing to deliver
        self._failures = (first, now)
        return now - first

    def _resume_on(self, connection: ClientConnection) -> None:
        if connection is self._connection and not connection.closed.done():
            self.resume(connection)

    def delivered(self, message: m.Delivery, body: memoryview) -> None:
        self.next_lsn = Lsn(max(self.next_lsn, message.looked_up_to))
        self._failures = None
        self._queue.append((message, body))
        if message.done:
            self._done = True
            if self._connection is not None:
                self._connection.forget(self.number)
        self._arrived.set()

    def fail(self, error: PenstockError) -> None:
        self._error = error
        self._arrived.set()

    def __aiter__(self) -> AsyncReader:
        return self

    async def __anext__(self) -> ReadBatch:
        message, body = await self.next_delivery()
        return ReadBatch(decode_records(body), Lsn(message.looked_up_to))

    async def next_delivery(self) -> tuple[m.Delivery, memoryview]:
        """The next delivery as it came, its records not yet taken apart."""
        while not self._queue:
            if self._done:
                self._close()
                raise StopAsyncIteration
            if self._error is not None:
                self._close()
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        message, body = self._queue.popleft()
        if body:
            self._give_credit(len(body))
        return message, body

    def _give_credit(self, size: int) -> None:
        """To the current subscription, whichever one sent them: `resume` counted what was held."""
        connection = self._connection
        if self._done or connection is None or connection.closed.done():
            return
        if self._is_full:
            self.resume(connection)
        else:
            connection.send(0, m.Credit(self.number, size))

    def _close(self) -> None:
        self._log.forget_reader(self.number)

    async def close(self) -> None:
        """Stop reading. Idempotent."""
        self._close()
        if not self._done and self._connection is not None and self._error is None:
            if not self._connection.closed.done():
                self._connection.forget(self.number)
                self._connection.send(0, m.Unsubscribe(self.number))
        self._done = True
        self._queue.clear()
        self._arrived.set()

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def decode_records(body: memoryview) -> list[Entry]:
    """The entries of a delivery, each checked against its CRC."""
    entries: list[Entry] = []
    for header, group in split_records(body):
        entries += group.entries(header.first_lsn, header.time_ms)
    return entries


def split_records(body: memoryview) -> Iterator[tuple[RecordHeader, Body]]:
    """The records of a delivery; their entries are checked against their CRCs when taken."""
    at = 0
    while at < len(body):
        header = decode_header(body, at)
        end = at + header.record_bytes
        if end > len(body):
            raise BadFormat("a delivery ends inside a record")
        yield decode_record(body[at:end])
        at = end
