"""The requests of one client to a log server or proxy: frames ↔ calls of the log.

Owns the pairing of requests and answers, the limits on unanswered bytes, waiting requests and
subscriptions, and the end of a session whose token expires or is revoked. Laws: every request
passes `_allow` before anything is done; one that is refused fails alone; a connection with too much
unanswered is not read until most of it is answered. Transport and token are connection.py's
business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    BadRequest,
    Damaged,
    Defect,
    Forbidden,
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
    CONNECTION_TAGS_MAX,
    CONNECTION_WAITING_MAX,
    CREDIT_BYTES_MAX,
    DELIVERY_BYTES,
    FLUSH_MS_MAX,
    GROUP_OVERHEAD_BYTES,
    GUARDS_MAX,
    SERVER_INFLIGHT_BYTES_MAX,
    SUBSCRIPTION_TAGS_MAX,
    SUBSCRIPTIONS_PER_CONNECTION_MAX,
)
from penstock.log.core.tails import Deliver, Room
from penstock.log.group_format import Body, check_new_body, decode_body
from penstock.log.records import Flush, Value, check_tag
from penstock.log.serving.connection import ServerConnection
from penstock.log.serving.served_log import Outcome
from penstock.log.serving.task_set import TaskSet
from penstock.wire import messages as m
from penstock.wire.frames import Frame, encode_frame

if TYPE_CHECKING:
    from penstock.log.serving.log_service import LogService
    from penstock.log.serving.served_log import ServedLog

logger = logging.getLogger(__name__)

#: How often a session is looked at whose token may be revoked: at most 5 s are promised.
LOOK_SECONDS = 1.0
#: How long a client with a narrowed token waits for a log that is not known well enough yet.
LEARN_SECONDS_MAX = 2.0
LEARN_POLL_SECONDS = 0.005


class LogRequests:
    """See the module's docstring. A `connection.Requests`."""

    def __init__(self, service: LogService, connection: ServerConnection) -> None:
        self._service = service
        self._listener = service.listener
        self.connection = connection
        #: What this connection is about, from the welcome on.
        self.log: ServedLog | None = None
        self._inflight_bytes = 0
        self._reads = asyncio.Semaphore(CONNECTION_READS_MAX)
        self._writable = asyncio.Event()
        self._writable.set()
        self.session = ""
        #: What it calls itself; told to people, and nothing is decided by it.
        self.client = ""
        #: Numbers of its readers, and how many tags each has.
        self.subscriptions: dict[int, int] = {}
        #: As much as its socket may hold before it counts as not read: when it is full, either a
        #: read is under way, or the transport will tell us to resume.
        self._room = Room(CONNECTION_OUTPUT_BYTES_MAX)
        self._tasks = TaskSet(service.listener.on_task_failed)
        self._timer: asyncio.TimerHandle | None = None
        self._is_refusal_told = False

    def lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel_nowait()
        # A log that was let go never answers: what it was given must not count for ever.
        self._listener.inflight_bytes -= self._inflight_bytes
        self._inflight_bytes = 0
        self._service.dismiss(self)
        if self.log is not None:
            for number in self.subscriptions:
                self.log.tails.unsubscribe((self, number))

    def pause(self) -> None:
        """Nor is it given more of what it subscribed to."""
        self._writable.clear()
        for number in self.subscriptions:
            self._served.tails.pause((self, number))

    def resume(self) -> None:
        self._writable.set()
        self.tell_sent()
        for number in list(self.subscriptions):
            self._served.perform(self._served.tails.resume((self, number)))
        self.after_event()

    def tell_sent(self) -> None:
        """The turn's output went out, or some of it: others of our readers may go on."""
        connection = self.connection
        transport = connection.transport
        if self.log is None or transport is None or transport.is_closing():
            return
        if connection.out:
            self._service.tell_sent_soon(self)  # a turn will follow
        unsent = transport.get_write_buffer_size() + sum(map(len, connection.out))
        effects = self.log.tails.sent(self._room, unsent)
        if effects:
            self.log.perform(effects)
            self.after_event()

    def after_event(self) -> None:
        if self.log is not None:
            self._service.due[self.log] = True
        self._listener.turn_soon()

    def _send(self, request: int, message: m.Message) -> None:
        connection = self.connection
        connection.out.append(encode_frame(message.KIND, request, m.encode_message(message)))
        self._listener.dirty[connection] = None

    # ---- frames

    def hello(self, frame: Frame) -> Callable[[], None] | None:
        message = m.decode_message(frame.kind, frame.head)
        if isinstance(message, m.GetMetrics):
            return lambda: self._metrics(frame.request)
        if not isinstance(message, m.Hello):
            return None
        return lambda: self._open(frame.request, message)

    def _metrics(self, request: int) -> None:
        self._service.allow_metrics(self.connection.rights)
        self._send(request, m.MetricsText(self._listener.host.metrics_text()))

    def _open(self, request: int, hello: m.Hello) -> None:
        self._allow(hello)
        self.client = hello.client
        self._service.greet(hello.session, self)

        def opened(found: ServedLog | PenstockError) -> None:
            id = self.connection.rights.id
            if isinstance(found, PenstockError):
                self._no_log(request, found)
            elif id is not None and found.is_revoked(id) is None:
                self._tasks.spawn(self._welcome_later(request, found, id))
            else:
                self._welcome(request, found)

        may_make = self.connection.rights.is_whole
        self._service.host.open_log(hello, opened, may_make=may_make)

    def _no_log(self, request: int, error: PenstockError) -> None:
        self.connection.fail(request, error)
        self.connection.cut(f"no log: {error}")
        self.after_event()

    def _welcome(self, request: int, log: ServedLog) -> None:
        try:
            self._service.check_valid(self.connection.rights, (log,))
        except PenstockError as error:
            self._no_log(request, error)
            return
        self.log = log
        self._send(request, log.welcome())
        self._look()
        self.after_event()

    async def _welcome_later(self, request: int, log: ServedLog, id: str) -> None:
        """A log that is followed since a moment tells soon which tokens were revoked."""
        deadline = asyncio.get_running_loop().time() + LEARN_SECONDS_MAX
        while log.is_revoked(id) is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(LEARN_POLL_SECONDS)
        self._welcome(request, log)

    def _allow(self, message: m.Message, body: Body | None = None) -> None:
        """The one place where a client's rights are asked for. Raises Unauthorized."""
        logs = () if self.log is None else (self.log,)
        self._service.allow(self.connection.rights, message, body, logs)

    def _look(self) -> None:
        """Again and again: end the session once its token is good for nothing any more."""
        rights, log = self.connection.rights, self.log
        if rights.id is None or log is None or self.connection.transport is None:
            return
        try:
            self._service.check_valid(rights, (log,))
        except Unauthorized as error:
            self.connection.fail(0, error)
            self.connection.cut(str(error))
            return
        except Unavailable:
            pass  # it was good a moment ago, and will be asked for again
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def handle(self, frame: Frame) -> None:
        message = m.decode_message(frame.kind, frame.head)
        try:
            if isinstance(message, m.Append):
                body = self._check_append(frame, message)
                self._allow(message, body)
                self._append(frame, message, body)
            else:
                self._allow(message)
                self._dispatch(frame.request, message)
        except (Refused, Overloaded, Unavailable) as error:
            self.connection.fail(frame.request, error)
            if isinstance(error, Unauthorized):
                self._tell_refusal(error)

    def _tell_refusal(self, error: Unauthorized) -> None:
        """Operators are told once a connection; who has no token any more goes."""
        if not isinstance(error, Forbidden):
            self.connection.cut(str(error))
        elif not self._is_refusal_told:
            self._is_refusal_told = True
            peer, id = self.connection.peer, self.connection.rights.id
            logger.warning("refused a request peer=%s token=%s cause=%s", peer, id, error)

    @property
    def _served(self) -> ServedLog:
        if self.log is None:
            raise BadRequest("nothing may be asked before the welcome")
        return self.log

    def _dispatch(self, request: int, message: m.Message) -> None:
        log = self._served
        match message:
            case m.Subscribe():
                self._subscribe(message)
            case m.Credit():
                if message.bytes > CREDIT_BYTES_MAX:
                    raise TooLarge(f"credit of {message.bytes} bytes")
                id = (self, message.subscription)
                log.perform(log.tails.credit(id, message.bytes))
            case m.Unsubscribe():
                log.tails.unsubscribe((self, message.subscription))
                self.subscriptions.pop(message.subscription, None)
                self._service.tell_sent_soon(self)
            case m.ReadLast():
                check_tag(message.tag)
                self._later(request, lambda: self._read_last(request, message))
            case m.FindTime():
                time_ms = message.time_ms
                self._later(request, lambda: self._position(request, self._find_time(time_ms)))
            case m.Trim():
                logger.info("trim requested peer=%s lsn=%d", self.connection.peer, message.lsn)
                lsn = message.lsn
                self._soon(request, lambda: self._position(request, log.trim(lsn)))
            case m.GetMetadata():
                self._later(request, lambda: self._metadata(request, message))
            case m.GetProducer():
                self._later(request, lambda: self._producer(request, message.producer))
            case m.GetBounds():
                if log.is_sure:
                    self._send(request, m.LogBounds(log.trim_point, log.durable_lsn))
                else:
                    self._later(request, lambda: self._bounds(request))
            case m.Ping():
                self._send(request, m.Pong())
            case m.GetStatus():
                self._soon(request, lambda: self._status(request))
            case m.GetMetrics():
                self._metrics(request)
            case _:
                raise BadRequest(f"{type(message).__name__} is not for a server")

    def _check_append(self, frame: Frame, message: m.Append) -> Body:
        size = GROUP_OVERHEAD_BYTES + len(frame.body)
        if self._listener.inflight_bytes + size > SERVER_INFLIGHT_BYTES_MAX:
            raise Overloaded("too many bytes of unanswered appends")
        if len(message.guards) > GUARDS_MAX:
            raise TooLarge(f"{len(message.guards)} guards: the limit is {GUARDS_MAX}")
        try:
            body = decode_body(frame.body)
            check_new_body(body)
        except Damaged as error:
            raise BadRequest(f"the group cannot be read: {error}") from error
        return body

    def _append(self, frame: Frame, message: m.Append, body: Body) -> None:
        log = self._served
        size = GROUP_OVERHEAD_BYTES + len(frame.body)
        listener = self._listener
        self._inflight_bytes += size
        listener.inflight_bytes += size
        request = frame.request

        def reply(outcome: Outcome) -> None:
            if self.connection.transport is None:
                return  # nobody waits, and nothing is held for it any more
            self._inflight_bytes -= size
            listener.inflight_bytes -= size
            if self.connection.halts and self._inflight_bytes < CONNECTION_INFLIGHT_BYTES_MAX // 2:
                self.connection.go_on("unanswered appends")
            if isinstance(outcome, PenstockError):
                self.connection.fail(request, outcome)
            else:
                self._send(
                    request, m.AppendDone(outcome.first_lsn, outcome.count, outcome.duplicate)
                )

        log.append(reply, body, message.guards, Flush(min(message.flush_ms, FLUSH_MS_MAX)))
        if self._inflight_bytes > CONNECTION_INFLIGHT_BYTES_MAX:
            self.connection.halt("unanswered appends")

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
            tags = len(message.tags or ())
            if sum(self.subscriptions.values()) + tags > CONNECTION_TAGS_MAX:
                raise Overloaded("too many tags on one connection")
            for tag in message.tags or ():
                check_tag(tag)
            if not 0 < message.credit <= CREDIT_BYTES_MAX or message.start > message.end:
                raise BadRequest("credit or range makes no sense")
            point = owner.trim_point
            if message.start < point:
                raise Trimmed(f"lsn {message.start} is below the trim point {point}")
        except PenstockError as error:
            self.connection.fail(number, error)
            return
        self.subscriptions[number] = tags
        owner.perform(
            owner.tails.subscribe(
                (self, number),
                None if message.tags is None else frozenset(message.tags),
                start=Lsn(message.start),
                end=Lsn(message.end),
                credit=message.credit,
                paused=not self._writable.is_set(),
                room=self._room,
            )
        )

    def deliver(self, number: int, effect: Deliver) -> None:
        size = sum(map(len, effect.records))
        head = m.encode_message(m.Delivery(number, effect.looked_up_to, effect.done))
        self.connection.out.append(encode_frame(m.Delivery.KIND, 0, head, size))
        self.connection.out += effect.records
        self._listener.dirty[self.connection] = None
        self._service.tell_sent_soon(self)
        if effect.done:
            self.subscriptions.pop(number, None)

    def fail_subscription(self, number: int, error: PenstockError) -> None:
        self.subscriptions.pop(number, None)
        self.connection.fail(number, error)
        self._service.tell_sent_soon(self)

    # ---- requests that wait

    def _later(self, request: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Answer when there is time: a few at once, and none while answers wait to be read."""

        async def read() -> None:
            async with self._reads:
                await self._writable.wait()
                await work()

        self._soon(request, read)

    def _soon(self, request: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Behind no read: those may wait for what this does, or has an operator do."""

        async def run() -> None:
            try:
                await self._writable.wait()
                await work()
            except Defect as error:
                self._listener.on_fatal(error)
            except PenstockError as error:
                self.connection.fail(request, error)
            except OSError as error:
                logger.error("a request failed peer=%s cause=%r", self.connection.peer, error)
                self.connection.fail(request, Unavailable(f"the request failed: {error}"))
            self.after_event()

        self._tasks.spawn(run()).add_done_callback(self._answered)
        if len(self._tasks) > CONNECTION_WAITING_MAX:
            self.connection.halt("waiting requests")

    def _answered(self, _: object) -> None:
        if len(self._tasks) < CONNECTION_WAITING_MAX // 2:
            self.connection.go_on("waiting requests")

    async def _read_last(self, request: int, message: m.ReadLast) -> None:
        await self._served.make_sure()
        record = await self._served.read_last(message.tag, message.end)
        body = record or b""
        head = m.encode_message(m.LastEntry())
        self.connection.out += (encode_frame(m.LastEntry.KIND, request, head, len(body)), body)
        self._listener.dirty[self.connection] = None

    async def _position(self, request: int, found: Coroutine[Any, Any, Lsn]) -> None:
        self._send(request, m.Position(await found))

    async def _find_time(self, time_ms: int) -> Lsn:
        await self._served.make_sure()
        return await self._served.find_time(time_ms)

    async def _bounds(self, request: int) -> None:
        log = self._served
        await log.make_sure()
        self._send(request, m.LogBounds(log.trim_point, log.durable_lsn))

    async def _status(self, request: int) -> None:
        self._send(request, m.Status(self._service.host.status_json(self.log)))

    async def _metadata(self, request: int, message: m.GetMetadata) -> None:
        rights = self.connection.rights
        found = await self._served.get_metadata(
            lambda known: [
                (key, value)
                for key, value in choose_values(known, message)
                if rights.shows_key(key)
            ]
        )
        size, count = 0, 0
        while count < len(found) and (not count or size < DELIVERY_BYTES):
            size += len(found[count][0]) + len(found[count][1].data)
            count += 1
        values = tuple(m.MetadataValue(key, value.data, value.lsn) for key, value in found[:count])
        self._send(request, m.Metadata(values, more=count < len(found)))

    async def _producer(self, request: int, producer: str) -> None:
        self._send(request, await self._served.get_producer(producer))


def choose_values(known: dict[str, Value], message: m.GetMetadata) -> list[tuple[str, Value]]:
    """The keys that were asked for, sorted."""
    if message.exact:
        return [(message.prefix, known[message.prefix])] if message.prefix in known else []
    return sorted(
        (key, value)
        for key, value in known.items()
        if key.startswith(message.prefix) and key > message.after
    )
