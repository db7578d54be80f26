"""One connection to a server: every request is paired with its answer.

Owns the pairing, on the connections of clients to log servers and of proxies to storage nodes. What
to send, and what to send again, is its user's business. Law: every request ends with its answer or,
when the connection ends, with an error. An answer that nobody waits for is dropped: its request was
given up. What ended the connection is no answer: its cause may be another request. Orders are
never refused for their size: those beyond a window of unanswered bytes wait here, in order, as
buffers of their owner, until others are answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from penstock.errors import PenstockError, Retryable, TooLarge, Unavailable
from penstock.limits import (
    CONNECTION_INFLIGHT_BYTES_MAX,
    FRAME_BODY_BYTES_MAX,
    FRAME_HEAD_BYTES_MAX,
)
from penstock.log.group_format import Buffer
from penstock.log.keep_alive import keep_alive
from penstock.wire.errors import error_from_code
from penstock.wire.frames import Frame, FrameReader, encode_frame
from penstock.wire.messages import Failed

_NOTHING = memoryview(b"")


class Message(Protocol):
    """Of any of the protocols in wire/."""

    @property
    def KIND(self) -> int: ...


M = TypeVar("M", bound=Message)
#: Called once, with the message and the body that came with it.
Answer = Callable[[M | PenstockError, memoryview], None]
#: Called once; None: it was done.
Ack = Callable[[PenstockError | None], None]


class _Order(NamedTuple):
    """See `PairedConnection.order`."""

    request: int
    kind: int
    head: bytes
    body: Sequence[Buffer]
    body_bytes: int
    #: What it counts for.
    bytes: int
    ack: Ack


def _told_nobody(error: PenstockError) -> None:
    return None


class PairedConnection(asyncio.BufferedProtocol, Generic[M]):
    """See the module's docstring. Output collects and goes out once per loop turn.

    `unasked` takes messages under request 0, which answer nothing. `on_end` is told once, before
    those who wait for answers. `ack_kind` is the kind of message that says nothing but yes (see
    `order`); `window_bytes` bounds the unanswered orders that were sent, but for a single large
    one. `delay_seconds` stands for a distance, both ways, in benchmarks.
    """

    def __init__(
        self,
        encode: Callable[[M], bytes],
        decode: Callable[[int, bytes], M],
        *,
        unasked: Callable[[M, memoryview], None] | None = None,
        on_end: Callable[[PenstockError], None] = _told_nobody,
        ack_kind: int = 0,
        window_bytes: int = CONNECTION_INFLIGHT_BYTES_MAX,
        delay_seconds: float = 0.0,
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._unasked = unasked
        self._on_end = on_end
        self._ack_kind = ack_kind
        self._window_bytes = window_bytes
        self._delay = delay_seconds
        self._reader = FrameReader(authenticated=True)
        self._transport: asyncio.Transport | None = None
        self._answers: dict[int, Answer[M]] = {}
        #: Unanswered orders, each with its bytes.
        self._acks: dict[int, tuple[Ack, int]] = {}
        #: Orders that wait for room in the window; never without an unanswered one.
        self._held: deque[_Order] = deque()
        self._out: list[Buffer] = []
        self._loop = asyncio.get_running_loop()
        #: Bytes of orders that were sent and not answered.
        self.inflight_bytes = 0
        #: How often something was received; how many requests were answered.
        self.heard_count = 0
        self.answered_count = 0
        self.closed: asyncio.Future[PenstockError] = self._loop.create_future()

    # ---- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(Unavailable(f"the connection was lost: {exc or 'closed by the server'}"))

    def abort(self, error: PenstockError) -> None:
        """Close now; unanswered requests end with this error, as one that can be retried.

        Idempotent.
        """
        if self.closed.done():
            return
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self.closed.set_result(error)
        acks, self._acks = self._acks, {}
        held, self._held = self._held, deque()
        answers, self._answers = self._answers, {}
        self.inflight_bytes = 0
        self._on_end(error)
        told = error
        if not isinstance(error, Retryable):
            # The server refused one of them, or what was not even a request; nobody knows which.
            told = Unavailable(f"the connection was ended: {error}")
        for ack, _ in acks.values():
            ack(told)
        for order in held:
            order.ack(told)
        for answer in answers.values():
            answer(told, _NOTHING)

    def close(self) -> None:
        """Send what collected and close; unanswered requests end with Unavailable. Idempotent."""
        transport = self._transport
        if transport is not None:
            self.flush()
            # TLS says goodbye and waits for an answer, which the loop may not live to see.
            if transport.get_extra_info("sslcontext") is None:
                transport.close()
                self._transport = None
        self.abort(Unavailable("the connection was closed"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, size: int) -> None:
        try:
            frames = self._reader.buffer_updated(size)
        except PenstockError as error:
            self._unreadable(error)
            return
        if self._delay:
            self._loop.call_later(self._delay, self._take, frames)
        else:
            self._take(frames)

    def _take(self, frames: list[Frame]) -> None:
        self.heard_count += 1
        try:
            for frame in frames:
                self._handle(frame)
        except PenstockError as error:
            self._unreadable(error)

    def _unreadable(self, error: PenstockError) -> None:
        self.abort(Unavailable(f"the server sent what this client cannot read: {error}"))

    # ---- answers

    @property
    def is_waiting(self) -> bool:
        """Something was asked and not answered yet."""
        return bool(self._answers or self._acks)

    def is_unanswered(self, request: int) -> bool:
        """Whether somebody waits for the answer to this number: it must not be used again yet."""
        return request in self._answers or request in self._acks

    def _handle(self, frame: Frame) -> None:
        if self._acks and (order := self._acks.pop(frame.request, None)) is not None:
            ack, size = order
            self.answered_count += 1
            self.inflight_bytes -= size
            if frame.kind == self._ack_kind:
                ack(None)
            else:
                self._refuse(frame, ack)
            while self._held and self._has_room(self._held[0].bytes):
                self._send_order(self._held.popleft())
            return
        message = self._decode(frame.kind, frame.head)
        answer = self._answers.pop(frame.request, None)
        self.answered_count += frame.request != 0
        if isinstance(message, Failed):
            error = error_from_code(message.code, message.message)
            if answer is not None:
                answer(error, frame.body)
            elif frame.request == 0:
                self.abort(error)
        elif answer is not None:
            answer(message, frame.body)
        elif frame.request == 0 and self._unasked is not None:
            self._unasked(message, frame.body)

    def _refuse(self, frame: Frame, ack: Ack) -> None:
        try:
            message = self._decode(frame.kind, frame.head)
        except PenstockError as unreadable:
            ack(Unavailable(f"an answer that cannot be read: {unreadable}"))
            raise
        if isinstance(message, Failed):
            ack(error_from_code(message.code, message.message))
        else:
            error = Unavailable(f"a {type(message).__name__} instead of an acknowledgement")
            ack(error)
            self.abort(error)

    # ---- requests

    def send(
        self, request: int, message: M, answer: Answer[M] | None = None, body: Buffer = b""
    ) -> None:
        """Send a message; `answer` is called once. Raises Unavailable if the connection ended.

        TooLarge: nothing was sent, since for such a frame the server would close the connection.
        """
        if self._transport is None:
            raise Unavailable("the connection is closed")
        head = self._encode(message)
        if len(head) > FRAME_HEAD_BYTES_MAX or len(body) > FRAME_BODY_BYTES_MAX:
            name, size = type(message).__name__, f"{len(head)} + {len(body)} bytes"
            limit = f"{FRAME_HEAD_BYTES_MAX} + {FRAME_BODY_BYTES_MAX}"
            raise TooLarge(f"{name} of {size} does not fit into a frame: the limit is {limit}")
        if answer is not None:
            self._answers[request] = answer
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(encode_frame(message.KIND, request, head, len(body)))
        if body:
            self._out.append(body)

    def post(self, kind: int, head: bytes, body: Sequence[Buffer] = ()) -> None:
        """Send what has no answer, under request 0. Raises Unavailable if the connection ended.

        The buffers must never change.
        """
        if self._transport is None:
            raise Unavailable("the connection is closed")
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(encode_frame(kind, 0, head, sum(map(len, body))))
        self._out += body

    async def ask(self, request: int, message: M, body: Buffer = b"") -> tuple[M, memoryview]:
        """The answer to one request. Raises what it failed with; given up when cancelled."""
        future: asyncio.Future[tuple[M, memoryview]] = self._loop.create_future()

        def answer(outcome: M | PenstockError, data: memoryview) -> None:
            if future.done():
                return
            if isinstance(outcome, PenstockError):
                future.set_exception(outcome)
            else:
                future.set_result((outcome, data))

        self.send(request, message, answer, body)
        try:
            return await future
        finally:
            self.forget(request)

    def order(
        self,
        request: int,
        kind: int,
        head: bytes,
        body: Sequence[Buffer],
        overhead_bytes: int,
        ack: Ack,
    ) -> None:
        """Send a request whose answer is of `ack_kind`: it is not even decoded.

        The bytes of its body and an overhead are `inflight_bytes` until it is answered. It may wait
        for its turn: the buffers must never change.
        """
        size = sum(map(len, body))
        order = _Order(request, kind, head, body, size, size + overhead_bytes, ack)
        if self._held or not self._has_room(order.bytes):
            self._held.append(order)
        else:
            self._send_order(order)

    def _has_room(self, size: int) -> bool:
        return not self.inflight_bytes or self.inflight_bytes + size <= self._window_bytes

    def _send_order(self, order: _Order) -> None:
        self._acks[order.request] = (order.ack, order.bytes)
        self.inflight_bytes += order.bytes
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(encode_frame(order.kind, order.request, order.head, order.body_bytes))
        self._out += order.body

    def forget(self, request: int) -> None:
        """Nobody waits for its answer any more."""
        self._answers.pop(request, None)

    def flush(self) -> None:
        """Send what collected, now."""
        out, self._out = self._out, []
        if not out:
            return
        if self._delay:
            self._loop.call_later(self._delay, self._write, out)
        else:
            self._write(out)

    def _write(self, out: list[Buffer]) -> None:
        if self._transport is not None:
            self._transport.writelines(out)
