"""The asyncio client of a log: one connection kept alive, requests retried, readers resumed.

Owns reconnection. What is safe to send again is decided elsewhere: appends by appender_core.py,
readers resume after the last LSN they handed out, all other requests may be repeated freely.
Law: a reader hands out each entry once and in order over any number of reconnections.
Law (I22): a request that changes the log, was sent, and has no answer of its own is Unknown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import (
    BadFormat,
    DeadlineExceeded,
    NotOwner,
    Overloaded,
    PenstockError,
    Retryable,
    Trimmed,
    Unauthorized,
    Unavailable,
    Unknown,
)
from penstock.ids import Lsn
from penstock.log.api import Bounds, ReadBatch
from penstock.log.client.appender import AsyncAppender, adopt_producer, claim_producer
from penstock.log.client.appender_core import AppenderCore
from penstock.log.client.connection import ClientConnection, open_connection
from penstock.log.client.reader import AsyncReader
from penstock.log.core.owners import anonymous_prefix
from penstock.log.core.tails import FOREVER
from penstock.log.group_format import decode_sets
from penstock.log.record_format import decode_record
from penstock.log.records import (
    IMMEDIATE,
    Appended,
    Entry,
    Flush,
    Guard,
    NewEntry,
    SetKey,
    Value,
    check_key,
    check_position,
    meta_tag,
)
from penstock.wire import messages as m
from penstock.wire.token import token_id

logger = logging.getLogger(__name__)

#: Waits between attempts to connect, in seconds; the last one repeats.
BACKOFF_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
#: How long a request may wait for an answer, reconnections included.
TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
#: See `Endpoint.pulse_seconds`. A lone server that pauses for less, or is in a long fsync, is
#: waited for. A connection that died without a word is left in time to send again what was sent.
PULSE_SECONDS = 7.5
assert 3 * PULSE_SECONDS + CONNECT_SECONDS < TIMEOUT_SECONDS
#: A server that goes on sending and answers nothing for so long does not hear us, and is left, too.
#: Longer: an answer waits behind all that was sent before it.
DEAF_SECONDS = 30.0
#: Redirects that are followed at once; after them the owners of a log seem to be changing.
REDIRECTS_MAX = 3
#: Requests after which the log is not what it was; all others are questions.
_CHANGES = (m.Append, m.Trim)

T = TypeVar("T", bound=m.Message)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect, and how to show who we are."""

    host: str
    port: int
    token: str
    tls: ssl.SSLContext | None = None
    #: Which of a proxy's logs, and whether only reads will follow; see `messages.Hello`.
    log: str = ""
    reads: bool = False
    #: Told what came of it, so that the next attempt can go elsewhere.
    failed: Callable[[PenstockError], None] | None = None
    welcomed: Callable[[], None] | None = None
    #: A server that is silent for two to three times as long, though it was asked, is left: the
    #: connection may be dead and nobody was told, or the server hangs and another has taken over.
    pulse_seconds: float = PULSE_SECONDS
    #: The longest wait between two attempts.
    backoff_seconds_max: float = BACKOFF_SECONDS[-1]


#: Called before every attempt, so that a server that moved is found again.
Resolve = Callable[[], Awaitable[Endpoint]]


class AsyncLog:
    """A `penstock.log.api.Log` over the network. Make one with `AsyncLog.connect`."""

    def __init__(self, resolve: Resolve, *, name: str, timeout: float) -> None:
        self._resolve = resolve
        self._name = name
        #: What our connections have in common: the server hears only the newest of them.
        self._session = secrets.token_hex(16)
        self.timeout = timeout
        self._connection: ClientConnection | None = None
        self._connected = asyncio.Event()
        self._request = 1
        self._readers: dict[int, AsyncReader] = {}
        self._appenders: dict[AsyncAppender, None] = {}
        self._own: asyncio.Task[AsyncAppender] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._fatal: PenstockError | None = None
        self._last_error: PenstockError = Unavailable("not connected yet")
        self.welcome: m.Welcome | None = None
        #: Names of producers that we draw begin so.
        self.anonymous_prefix = anonymous_prefix(None)
        #: Readers of a cluster have a connection of their own, to the proxy that is best for them.
        self._reads: AsyncLog | None = None

    @classmethod
    async def connect(
        cls, resolve: Resolve, *, name: str | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> AsyncLog:
        """Connect; raises Unavailable or Unauthorized if that fails within the timeout."""
        log = cls(resolve, name=name or f"pid-{os.getpid()}", timeout=timeout)
        log._start()
        try:
            await log._wait_connected(timeout)
        except BaseException:
            await log.close()
            raise
        return log

    @property
    def log_id(self) -> str:
        """Which log it is: positions of one mean nothing in another."""
        assert self.welcome is not None, "a client that is open was welcomed"
        return self.welcome.log_id.hex()

    @property
    def broken(self) -> PenstockError | None:
        """Why no request can succeed any more; None while one may."""
        return self._fatal

    @property
    def last_error(self) -> str:
        """Why the last attempt to connect failed, or the last connection ended."""
        return str(self._last_error)

    # ---- connection

    def _start(self) -> None:
        self._keeper = asyncio.get_running_loop().create_task(self._keep_connected())

    async def _keep_connected(self) -> None:
        attempt = 0
        while True:
            endpoint: Endpoint | None = None
            try:
                endpoint = await self._resolve()
                connection, welcome = await open_connection(
                    endpoint.host,
                    endpoint.port,
                    token=endpoint.token,
                    name=self._name,
                    session=self._session,
                    tls=endpoint.tls,
                    log=endpoint.log,
                    reads=endpoint.reads,
                    timeout=CONNECT_SECONDS,
                    on_delivery=self._delivered,
                )
                self._check_identity(welcome)
                self.anonymous_prefix = anonymous_prefix(token_id(endpoint.token))
            except Retryable as error:
                self._last_error = error
                if endpoint is not None and endpoint.failed is not None:
                    endpoint.failed(error)
                if isinstance(error, NotOwner) and str(error) and attempt < REDIRECTS_MAX:
                    attempt += 1
                    continue
                await asyncio.sleep(_backoff(endpoint, attempt))
                attempt += 1
                continue
            except PenstockError as error:
                self._fail(error)
                return
            if endpoint.welcomed is not None:
                endpoint.welcomed()
            connected_at = asyncio.get_running_loop().time()
            self._connection = connection
            self._connected.set()
            for reader in list(self._readers.values()):
                reader.resume(connection)
            for appender in list(self._appenders):
                appender.pump()
            ended = await self._until_ended(connection, endpoint.pulse_seconds)
            self._connected.clear()
            self._connection = None
            self._last_error = ended
            if endpoint.failed is not None:
                endpoint.failed(ended)
            if asyncio.get_running_loop().time() - connected_at > 1.0:
                attempt = 0
            else:
                # It was closed at once: do not hammer a server that does not want us.
                await asyncio.sleep(_backoff(endpoint, attempt))
                attempt += 1
            for appender in list(self._appenders):
                appender.disconnected()
            if isinstance(ended, Unauthorized):
                self._fail(ended)
                return

    async def _until_ended(
        self, connection: ClientConnection, pulse_seconds: float
    ) -> PenstockError:
        """Why it ended. While anybody waits for something, a quiet server is asked if it lives."""
        loop = asyncio.get_running_loop()
        silent_pulses = 0
        asked_at: float | None = None
        while True:
            heard, answered = connection.heard_count, connection.answered_count
            await asyncio.wait((connection.closed,), timeout=pulse_seconds)
            if connection.closed.done():
                return connection.closed.result()
            silent_pulses = 0 if connection.heard_count != heard else silent_pulses + 1
            if connection.answered_count != answered:
                asked_at = None
            elif asked_at is None:
                if connection.is_waiting:
                    connection.send(self.next_request(), m.Ping(), lambda *_: None)
                    asked_at = loop.time()
            elif silent_pulses >= 2:
                connection.abort(Unavailable("the server has not answered any more"))
            elif loop.time() - asked_at >= DEAF_SECONDS:
                connection.abort(Unavailable("the server sends, but does not answer any more"))

    def _check_identity(self, welcome: m.Welcome) -> None:
        known = self.welcome
        if known is not None and known.log_id != welcome.log_id:
            raise Trimmed(
                f"the server now serves log {welcome.log_id.hex()}, not {known.log_id.hex()}: "
                "positions of the one mean nothing in the other"
            )
        self.welcome = welcome

    def _fail(self, error: PenstockError) -> None:
        """No reconnection can help: everything that waits ends with this error."""
        self._fatal = error
        self._connected.set()
        for reader in list(self._readers.values()):
            reader.fail(error)
        for appender in list(self._appenders):
            appender.give_up(str(error))

    async def _wait_connected(self, timeout: float) -> ClientConnection:
        while True:
            try:
                # Not wait_for: in Python 3.11 it swallows a cancellation that comes as it is done.
                async with asyncio.timeout(timeout):
                    await self._connected.wait()
            except TimeoutError:
                raise Unavailable(str(self._last_error)) from self._last_error
            if self._fatal is not None:
                raise self._fatal
            if self._connection is not None:
                return self._connection

    @property
    def connection(self) -> ClientConnection | None:
        """The live connection, if there is one now."""
        return self._connection

    def reconnect(self) -> None:
        """Drop the connection; the keeper opens another."""
        if self._connection is not None:
            self._connection.close()

    def next_request(self) -> int:
        """A number that no reader and no unanswered request has; they begin anew after 2^32."""
        connection = self._connection
        while True:
            self._request += 1
            if self._request >= 2**32:
                self._request = 2
            number = self._request
            if number not in self._readers:
                if connection is None or not connection.is_unanswered(number):
                    return number

    async def call(
        self, message: m.Message, expect: type[T], body: bytes = b""
    ) -> tuple[T, memoryview]:
        """One request that may be repeated; retried over reconnections until the timeout.

        Raises Unknown for a change that was sent and may have taken effect.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout
        may_be_done = False
        while True:
            was_sent = False
            try:
                connection = await self._wait_connected(max(deadline - loop.time(), 0.001))
                was_sent = not connection.closed.done()
                async with asyncio.timeout_at(deadline):
                    answer, data = await connection.ask(self.next_request(), message, body)
            except TimeoutError:
                error: PenstockError = DeadlineExceeded(
                    f"no answer to {type(message).__name__} within {self.timeout:g} s"
                )
            except Retryable as failed:
                error = failed
            except PenstockError as failed:
                if was_sent or not may_be_done:
                    raise  # the server's answer, or nothing was sent
                error = failed
            else:
                if isinstance(answer, expect):
                    return answer, data
                wrong = f"a {type(answer).__name__} instead of a {expect.__name__}"
                raise Unknown(wrong) if isinstance(message, _CHANGES) else Unavailable(wrong)
            # Overloaded is said before anything is done; all else, while it may be under way.
            if was_sent and isinstance(message, _CHANGES) and not isinstance(error, Overloaded):
                may_be_done = True
            if self._fatal is None and loop.time() < deadline and isinstance(error, Retryable):
                await asyncio.sleep(BACKOFF_SECONDS[0])
            elif may_be_done:
                raise Unknown(f"{type(message).__name__} may have taken effect: {error}") from error
            else:
                raise error

    async def close(self) -> None:
        """Finish what was submitted, then close. Idempotent."""
        if self._own is not None and not self._own.cancelled():
            try:
                await (await self._own).close()
            except PenstockError as error:
                logger.debug("own producer did not close cleanly cause=%s", error)
            self._own = None
        for appender in list(self._appenders):
            await appender.close()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        if self._reads is not None:
            await self._reads.close()
        for reader in list(self._readers.values()):
            reader.fail(Unavailable("the client was closed"))
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._fatal = self._fatal or Unavailable("the client was closed")
        self._connected.set()

    def abandon(self) -> None:
        """Close at once: what was submitted and not answered is unknown."""
        self._fail(Unavailable("the client was abandoned"))
        if self._reads is not None:
            self._reads.abandon()
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def __aenter__(self) -> AsyncLog:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- appending

    async def appender(self, producer: str | None = None) -> AsyncAppender:
        core = await claim_producer(self, producer)
        return self._open_appender(core, retire_on_close=producer is None)

    async def claim(self, producer: str, *, guards: Sequence[Guard] = ()) -> int:
        """Fence all instances of a producer, on behalf of who will `adopt` the new one."""
        return (await claim_producer(self, producer, tuple(guards))).instance

    async def adopt(self, producer: str, instance: int) -> AsyncAppender:
        """Append as an instance that was claimed for us."""
        core = await adopt_producer(self, producer, instance)
        return self._open_appender(core, retire_on_close=False)

    def _open_appender(self, core: AppenderCore, *, retire_on_close: bool) -> AsyncAppender:
        appender = AsyncAppender(self, core, retire_on_close=retire_on_close)
        self._appenders[appender] = None
        return appender

    def dismiss(self, appender: AsyncAppender) -> None:
        self._appenders.pop(appender, None)

    async def own_appender(self) -> AsyncAppender:
        """The client's own producer, opened on first use, and anew once it can append no more.

        That is safe since nobody but this client's callers knows it, and they were told.
        """
        own = self._own
        if own is not None and own.done() and not _is_usable(own):
            own = None
        if own is None:
            own = self._own = asyncio.get_running_loop().create_task(self.appender())
        return await asyncio.shield(own)

    async def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush: Flush = IMMEDIATE,
    ) -> Appended:
        try:
            appender = await self.own_appender()
        except Unknown as error:
            raise DeadlineExceeded(f"never sent: {error}") from error
        return await appender.append(entries, guards=guards, sets=sets, flush=flush)

    # ---- reading

    def tail(
        self,
        tags: Sequence[str] | None = None,
        *,
        start: int,
        end: int | None = None,
        credit_bytes: int | None = None,
    ) -> AsyncReader:
        """Follow entries; iterate over it, and close it (or leave `async with`) when done.

        `credit_bytes`: held here at most, for who follows very many; None is the default.
        """
        reads = self._reading()
        if reads is not self:
            return reads.tail(tags, start=start, end=end, credit_bytes=credit_bytes)
        stop = FOREVER if end is None else Lsn(end)
        check_position(start)
        check_position(stop)
        reader = AsyncReader(
            self,
            self.next_request(),
            None if tags is None else tuple(dict.fromkeys(tags)),
            start=Lsn(start),
            end=stop,
            credit_bytes=credit_bytes,
        )
        self._readers[reader.number] = reader
        if self._fatal is not None:
            reader.fail(self._fatal)
        elif self._connection is not None:
            reader.resume(self._connection)
        return reader

    def _reading(self) -> AsyncLog:
        """Whose connection readers use."""
        route: Resolve | None = getattr(self._resolve, "reads", None)
        if route is None or self._fatal is not None:
            return self
        if self._reads is None:
            self._reads = AsyncLog(route, name=self._name, timeout=self.timeout)
            self._reads._start()
        return self._reads

    def forget_reader(self, number: int) -> None:
        self._readers.pop(number, None)

    def renumber_reader(self, reader: AsyncReader) -> None:
        self._readers.pop(reader.number, None)
        reader.number = self.next_request()
        self._readers[reader.number] = reader

    def _delivered(self, message: m.Message, body: memoryview) -> None:
        if not isinstance(message, m.Delivery):
            raise BadFormat(f"a {type(message).__name__}, which was not asked for")
        reader = self._readers.get(message.subscription)
        if reader is not None:
            reader.delivered(message, body)

    async def read(
        self, tags: Sequence[str] | None = None, *, start: int = 0, end: int | None = None
    ) -> list[Entry]:
        check_position(start)
        stop = FOREVER if end is None else end
        check_position(stop)
        stop = min(stop, (await self.bounds()).tail)
        entries: list[Entry] = []
        if stop <= start:
            return entries
        async with self.tail(tags, start=start, end=stop) as reader:
            async for batch in reader:
                entries += batch.entries
        return entries

    async def read_last(self, tag: str, *, end: int | None = None) -> Entry | None:
        stop = FOREVER if end is None else end
        check_position(stop)
        _, body = await self.call(m.ReadLast(tag, stop), m.LastEntry)
        if not body:
            return None
        header, group = decode_record(body)
        return next(group.entries(header.first_lsn, header.time_ms))

    async def bounds(self) -> Bounds:
        found, _ = await self.call(m.GetBounds(), m.LogBounds)
        return Bounds(Lsn(found.trim_point), Lsn(found.tail))

    async def find_time(self, time_ms: int) -> Lsn:
        check_position(time_ms)
        found, _ = await self.call(m.FindTime(time_ms), m.Position)
        return Lsn(found.lsn)

    async def trim(self, lsn: int) -> Lsn:
        check_position(lsn)
        found, _ = await self.call(m.Trim(lsn), m.Position)
        return Lsn(found.lsn)

    # ---- metadata

    async def get(self, key: str) -> Value | None:
        check_key(key)
        found, _ = await self.call(m.GetMetadata(key, True), m.Metadata)
        return Value(found.values[0].data, Lsn(found.values[0].lsn)) if found.values else None

    async def list_metadata(self, prefix: str = "") -> dict[str, Value]:
        values: dict[str, Value] = {}
        after = ""
        while True:
            found, _ = await self.call(m.GetMetadata(prefix, False, after), m.Metadata)
            for value in found.values:
                values[value.key] = Value(value.data, Lsn(value.lsn))
            if not found.more:
                return values
            after = found.values[-1].key

    async def compare_and_set(
        self, key: str, *, expected: bytes | None, value: bytes | None
    ) -> Lsn:
        done = await self.append([], guards=[Guard(key, expected)], sets=[SetKey(key, value)])
        return done.first_lsn

    async def watch(self, key: str, *, start: int) -> AsyncIterator[Value | None]:
        async with self.tail([meta_tag(key)], start=start) as reader:
            async for batch in reader:
                for value in changes_of(key, batch):
                    yield value

    # ---- for people and tools

    async def status(self) -> str:
        """The server's status as JSON text."""
        found, _ = await self.call(m.GetStatus(), m.Status)
        return found.json

    async def metrics(self) -> str:
        """The server's metrics as OpenMetrics text."""
        found, _ = await self.call(m.GetMetrics(), m.MetricsText)
        return found.text


def changes_of(key: str, batch: ReadBatch) -> Iterator[Value | None]:
    """The values that a batch of metadata entries gave a key; None where it was removed."""
    for entry in batch.entries:
        for change in decode_sets(entry.payload):
            if change.key == key:
                yield None if change.value is None else Value(change.value, entry.lsn)


def _is_usable(own: asyncio.Task[AsyncAppender]) -> bool:
    """A finished task that opened a producer which can still append."""
    return not own.cancelled() and own.exception() is None and own.result().core.broken is None


def _backoff(endpoint: Endpoint | None, attempt: int) -> float:
    seconds = BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)]
    return seconds if endpoint is None else min(seconds, endpoint.backoff_seconds_max)
