"""One client's connection on the server: bytes ↔ frames ↔ calls of the owner.

Owns what a peer may do before and after it shows the token, and the limits on its unanswered bytes.
Law (I20): before the token is accepted nothing is read beyond 16 KiB and nothing is done; bytes
that are no frame close the connection and touch nobody else. A `GET /metrics` with the token as
bearer is answered too, so that Prometheus needs no second, open port.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import (
    BadRequest,
    Damaged,
    Defect,
    Overloaded,
    PenstockError,
    Refused,
    TooLarge,
    Trimmed,
    Unauthorized,
    Unavailable,
)
from penstock.ids import Lsn
from penstock.limits import (
    CONNECTION_INFLIGHT_BYTES_MAX,
    CONNECTION_OUTPUT_BYTES_MAX,
    CONNECTION_READS_MAX,
    CONNECTION_WAITING_MAX,
    CREDIT_BYTES_MAX,
    DELIVERY_BYTES,
    FLUSH_MS_MAX,
    GROUP_OVERHEAD_BYTES,
    GUARDS_MAX,
    PREAUTH_FRAME_BYTES_MAX,
    PREAUTH_SECONDS_MAX,
    SERVER_INFLIGHT_BYTES_MAX,
    SUBSCRIPTION_TAGS_MAX,
    SUBSCRIPTIONS_PER_CONNECTION_MAX,
)
from penstock.log.core.tails import Deliver
from penstock.log.group_format import check_new_body, decode_body
from penstock.log.records import Flush, Value, check_tag
from penstock.log.server.served_log import Outcome
from penstock.wire import messages as m
from penstock.wire.errors import error_code
from penstock.wire.frames import Frame, FrameReader, encode_frame

if TYPE_CHECKING:
    from penstock.log.server.listener import Listener
    from penstock.log.server.served_log import ServedLog

logger = logging.getLogger(__name__)


class ServerConnection(asyncio.BufferedProtocol):
    """See the module's docstring. Output collects in `out` and goes out once per event."""

    def __init__(self, server: Listener) -> None:
        self._server = server
        self._reader = FrameReader(authenticated=False)
        self.authenticated = False
        #: What this connection is about, from the welcome on.
        self.log: ServedLog | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.out: list[bytes | bytearray | memoryview] = []
        self._inflight_bytes = 0
        #: Why no more requests are read now; empty while they are.
        self._halts: set[str] = set()
        self._reads = asyncio.Semaphore(CONNECTION_READS_MAX)
        self._writable = asyncio.Event()
        self._writable.set()
        self.session = ""
        self._is_silenced = False
        self.subscriptions: set[int] = set()
        self.peer = "?"
        self._http: bytearray | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = str(transport.get_extra_info("peername"))
        if not self._server.admit(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(CONNECTION_OUTPUT_BYTES_MAX)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(PREAUTH_SECONDS_MAX, self._close, "no token in time")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        for task in self._tasks:
            task.cancel()
        self._transport = None
        self._server.dismiss(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, size: int) -> None:
        if self._is_silenced:
            return
        try:
            if not self.authenticated and self._is_http(size):
                return
            for frame in self._reader.buffer_updated(size):
                self._handle(frame)
        except (Damaged, Refused) as error:
            self._server.metrics.bad_frames += 1
            self._fail(0, error)
            self._close(str(error))
        self._server.after_event(self.log)

    def pause_writing(self) -> None:
        """The peer does not read what it asked for: it need not ask for more, nor be given more."""
        self._writable.clear()
        self._halt("unread answers")
        for number in self.subscriptions:
            self._served.tails.pause((self, number))

    def resume_writing(self) -> None:
        self._writable.set()
        self._go_on("unread answers")
        for number in list(self.subscriptions):
            self._served.perform(self._served.tails.resume((self, number)))
        self._server.after_event(self.log)

    def _halt(self, cause: str) -> None:
        transport = self._transport
        if not self._halts and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self._halts.add(cause)

    def _go_on(self, cause: str) -> None:
        if cause not in self._halts:
            return
        self._halts.discard(cause)
        transport = self._transport
        if not self._halts and transport is not None and not transport.is_closing():
            transport.resume_reading()

    def eof_received(self) -> None:
        return None

    def _close(self, cause: str) -> None:
        if self._transport is not None:
            logger.warning("closing a connection peer=%s cause=%s", self.peer, cause)
            self.flush()
            self._transport.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def silence(self) -> None:
        """The client speaks on a newer connection (core/sessions.py): nothing is heard on this."""
        self._is_silenced = True
        if self._transport is not None:
            self._transport.abort()

    def flush(self) -> None:
        """Send what collected."""
        if self.out and self._transport is not None:
            self._transport.writelines(self.out)
        self.out = []

    def send(self, request: int, message: m.Message) -> None:
        self.out.append(encode_frame(message.KIND, request, m.encode_message(message)))
        self._server.dirty.add(self)

    def _fail(self, request: int, error: PenstockError) -> None:
        self.send(request, m.Failed(error_code(error), str(error)))

    # ---- frames

    def _handle(self, frame: Frame) -> None:
        message = m.decode_message(frame.kind, frame.head)
        if not self.authenticated:
            self._hello(frame.request, message)
            return
        try:
            self._dispatch(frame, message)
        except (Refused, Overloaded) as error:
            self._fail(frame.request, error)

    def _hello(self, request: int, message: m.Message) -> None:
        if not isinstance(message, m.Hello) or not hmac.compare_digest(
            message.token.encode(), self._server.token.encode()
        ):
            self._server.metrics.unauthorized += 1
            self._fail(request, Unauthorized("the token is missing or wrong"))
            self._close("unauthorized")
            return
        self.authenticated = True
        self._reader.allow_large()
        if self._deadline is not None:
            self._deadline.cancel()
        self.session = message.session
        self._server.authenticated(self)

        def opened(found: ServedLog | PenstockError) -> None:
            if isinstance(found, PenstockError):
                self._fail(request, found)
                self._close(f"no log: {found}")
            else:
                self.log = found
                self.send(request, found.welcome())
            self._server.after_event(self.log)

        self._server.open_log(message, self, opened)

    @property
    def _served(self) -> ServedLog:
        if self.log is None:
            raise BadRequest("nothing may be asked before the welcome")
        return self.log

    def _dispatch(self, frame: Frame, message: m.Message) -> None:
        request = frame.request
        owner = self._served
        match message:
            case m.Append():
                self._append(frame, message)
            case m.Subscribe():
                self._subscribe(message)
            case m.Credit():
                if message.bytes > CREDIT_BYTES_MAX:
                    raise TooLarge(f"credit of {message.bytes} bytes")
                id = (self, message.subscription)
                owner.perform(owner.tails.credit(id, message.bytes))
            case m.Unsubscribe():
                owner.tails.unsubscribe((self, message.subscription))
                self.subscriptions.discard(message.subscription)
            case m.ReadLast():
                check_tag(message.tag)
                self._later(request, lambda: self._read_last(request, message))
            case m.FindTime():
                time_ms = message.time_ms
                self._later(request, lambda: self._position(request, owner.find_time(time_ms)))
            case m.Trim():
                logger.info("trim requested peer=%s lsn=%d", self.peer, message.lsn)
                lsn = message.lsn
                self._later(request, lambda: self._position(request, owner.trim(lsn)))
            case m.GetMetadata():
                self._later(request, lambda: self._metadata(request, message))
            case m.GetProducer():
                self._later(request, lambda: self._producer(request, message.producer))
            case m.GetBounds():
                if owner.is_sure:
                    self.send(request, m.LogBounds(owner.trim_point, owner.durable_lsn))
                else:
                    self._later(request, lambda: self._bounds(request))
            case m.Ping():
                self.send(request, m.Pong())
            case m.GetStatus():
                self._later(request, lambda: self._status(request))
            case _:
                raise BadRequest(f"{type(message).__name__} is not for a server")

    def _append(self, frame: Frame, message: m.Append) -> None:
        size = GROUP_OVERHEAD_BYTES + len(frame.body)
        server = self._server
        if server.inflight_bytes + size > SERVER_INFLIGHT_BYTES_MAX:
            raise Overloaded("too many bytes of unanswered appends")
        if len(message.guards) > GUARDS_MAX:
            raise TooLarge(f"{len(message.guards)} guards: the limit is {GUARDS_MAX}")
        try:
            body = decode_body(frame.body)
            check_new_body(body)
        except Damaged as error:
            raise BadRequest(f"the group cannot be read: {error}") from error
        self._inflight_bytes += size
        server.inflight_bytes += size
        request = frame.request

        def reply(outcome: Outcome) -> None:
            self._inflight_bytes -= size
            server.inflight_bytes -= size
            if self._inflight_bytes < CONNECTION_INFLIGHT_BYTES_MAX // 2:
                self._go_on("unanswered appends")
            if isinstance(outcome, PenstockError):
                self._fail(request, outcome)
            else:
                self.send(
                    request, m.AppendDone(outcome.first_lsn, outcome.count, outcome.duplicate)
                )

        self._served.append(reply, body, message.guards, Flush(min(message.flush_ms, FLUSH_MS_MAX)))
        if self._inflight_bytes > CONNECTION_INFLIGHT_BYTES_MAX:
            self._halt("unanswered appends")

    def _subscribe(self, message: m.Subscribe) -> None:
        owner = self._served
        number = message.subscription
        if number >= 2**32:
            # Its failure is told under this number, as that of a request.
            raise BadRequest(f"subscription {number}: numbers have 32 bits")
        if number in self.subscriptions:
            raise BadRequest(f"subscription {number} exists")
        try:
            if len(self.subscriptions) >= SUBSCRIPTIONS_PER_CONNECTION_MAX:
                raise Overloaded("too many subscriptions on one connection")
            if message.tags is not None and not 0 < len(message.tags) <= SUBSCRIPTION_TAGS_MAX:
                raise TooLarge(f"{len(message.tags)} tags: 1 to {SUBSCRIPTION_TAGS_MAX} allowed")
            for tag in message.tags or ():
                check_tag(tag)
            if not 0 < message.credit <= CREDIT_BYTES_MAX or message.start > message.end:
                raise BadRequest("credit or range makes no sense")
            point = owner.trim_point
            if message.start < point:
                raise Trimmed(f"lsn {message.start} is below the trim point {point}")
        except PenstockError as error:
            self._fail(number, error)
            return
        self.subscriptions.add(number)
        owner.perform(
            owner.tails.subscribe(
                (self, number),
                None if message.tags is None else frozenset(message.tags),
                start=Lsn(message.start),
                end=Lsn(message.end),
                credit=message.credit,
                paused=not self._writable.is_set(),
            )
        )

    def deliver(self, number: int, effect: Deliver) -> None:
        size = sum(map(len, effect.records))
        head = m.encode_message(m.Delivery(number, effect.looked_up_to, effect.done))
        self.out.append(encode_frame(m.Delivery.KIND, 0, head, size))
        self.out += effect.records
        self._server.dirty.add(self)
        if effect.done:
            self.subscriptions.discard(number)

    def fail_subscription(self, number: int, error: PenstockError) -> None:
        self.subscriptions.discard(number)
        self._fail(number, error)

    # ---- requests that wait

    def _later(self, request: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Answer when there is time: a few at once, and none while answers wait to be read."""

        async def run() -> None:
            try:
                async with self._reads:
                    await self._writable.wait()
                    await work()
            except Defect as error:
                self._server.on_fatal(error)
            except PenstockError as error:
                self._fail(request, error)
            except OSError as error:
                logger.error("a request failed peer=%s cause=%r", self.peer, error)
                self._fail(request, Unavailable(f"the request failed: {error}"))
            self._server.after_event(self.log)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._answered)
        if len(self._tasks) > CONNECTION_WAITING_MAX:
            self._halt("waiting requests")

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) < CONNECTION_WAITING_MAX // 2:
            self._go_on("waiting requests")

    async def _read_last(self, request: int, message: m.ReadLast) -> None:
        await self._served.make_sure()
        record = await self._served.read_last(message.tag, message.end)
        body = record or b""
        head = m.encode_message(m.LastEntry())
        self.out += (encode_frame(m.LastEntry.KIND, request, head, len(body)), body)
        self._server.dirty.add(self)

    async def _position(self, request: int, found: Coroutine[Any, Any, Lsn]) -> None:
        self.send(request, m.Position(await found))

    async def _bounds(self, request: int) -> None:
        log = self._served
        await log.make_sure()
        self.send(request, m.LogBounds(log.trim_point, log.durable_lsn))

    async def _status(self, request: int) -> None:
        self.send(request, m.Status(self._server.status_json()))

    async def _metadata(self, request: int, message: m.GetMetadata) -> None:
        found = await self._served.get_metadata(lambda known: choose_values(known, message))
        size, count = 0, 0
        while count < len(found) and (not count or size < DELIVERY_BYTES):
            size += len(found[count][0]) + len(found[count][1].data)
            count += 1
        values = tuple(m.MetadataValue(key, value.data, value.lsn) for key, value in found[:count])
        self.send(request, m.Metadata(values, more=count < len(found)))

    async def _producer(self, request: int, producer: str) -> None:
        self.send(request, await self._served.get_producer(producer))

    # ---- metrics over HTTP

    def _is_http(self, size: int) -> bool:
        if self._http is None:
            start = self._reader.peek(size)
            if not start.startswith(b"GET "):
                return False
            self._http = bytearray(start)
        else:
            self._http += self._reader.peek(size)
        self._reader.skip()
        if b"\r\n\r\n" in self._http or len(self._http) > PREAUTH_FRAME_BYTES_MAX:
            self._answer_http(bytes(self._http))
        return True

    def _answer_http(self, request: bytes) -> None:
        lines = request.split(b"\r\n")
        wanted = b"bearer " + self._server.token.encode()
        shown = b""
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"authorization":
                shown = value.strip()
        shown = shown[:7].lower() + shown[7:]
        if not hmac.compare_digest(shown, wanted):
            self._server.metrics.unauthorized += 1
            logger.warning("closing a connection peer=%s cause=unauthorized", self.peer)
            status, text = "401 Unauthorized", "send the token: Authorization: Bearer TOKEN\n"
        elif lines[0].split(b" ")[1] != b"/metrics":
            status, text = "404 Not Found", "only /metrics is here\n"
        else:
            status, text = "200 OK", self._server.metrics_text()
        body = text.encode()
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/openmetrics-text; version=1.0.0; "
            f"charset=utf-8\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.out += (head.encode(), body)
        self.flush()
        if self._transport is not None:
            self._transport.close()


def choose_values(known: dict[str, Value], message: m.GetMetadata) -> list[tuple[str, Value]]:
    """The keys that were asked for, sorted."""
    if message.exact:
        return [(message.prefix, known[message.prefix])] if message.prefix in known else []
    return sorted(
        (key, value)
        for key, value in known.items()
        if key.startswith(message.prefix) and key > message.after
    )
