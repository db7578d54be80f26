"""One connection of a client: requests paired with answers, deliveries handed on.

Owns the pairing and nothing else: what to retry is client.py's business. Law: every request ends
with an answer or, when the connection ends, with Unavailable.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from penstock.errors import BadFormat, PenstockError, Unavailable
from penstock.wire import messages as m
from penstock.wire.errors import error_from_code
from penstock.wire.frames import Frame, FrameReader, encode_frame

Answer = Callable[[m.Message | PenstockError, memoryview], None]
_NOTHING = memoryview(b"")


class ClientConnection(asyncio.BufferedProtocol):
    """See the module's docstring. Output collects and goes out once per loop turn."""

    def __init__(self, on_delivery: Callable[[m.Delivery, memoryview], None]) -> None:
        self._reader = FrameReader(authenticated=True)
        self._transport: asyncio.Transport | None = None
        self._on_delivery = on_delivery
        self._answers: dict[int, Answer] = {}
        self._out: list[bytes | bytearray | memoryview] = []
        self._loop = asyncio.get_running_loop()
        #: How often something was received.
        self.heard_count = 0
        self.closed: asyncio.Future[PenstockError] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(Unavailable(f"the connection was lost: {exc or 'closed by the server'}"))

    def _end(self, error: PenstockError) -> None:
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(error)
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(error, _NOTHING)

    def abort(self, error: PenstockError) -> None:
        """Close now; unanswered requests end with this error."""
        transport = self._transport
        self._end(error)
        if transport is not None:
            transport.abort()

    def close(self) -> None:
        """Close now; unanswered requests end with Unavailable."""
        transport = self._transport
        if transport is not None:
            self.flush()
            if transport.get_extra_info("sslcontext") is None:
                transport.close()
            else:
                # TLS says goodbye and waits for an answer, which the loop may not live to see.
                transport.abort()
        self._end(Unavailable("the connection was closed"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    @property
    def is_waiting(self) -> bool:
        """Something was asked and not answered yet."""
        return bool(self._answers)

    def buffer_updated(self, size: int) -> None:
        self.heard_count += 1
        try:
            for frame in self._reader.buffer_updated(size):
                self._handle(frame)
        except PenstockError as error:
            self.abort(Unavailable(f"the server sent what this client cannot read: {error}"))

    def _handle(self, frame: Frame) -> None:
        message = m.decode_message(frame.kind, frame.head)
        body = memoryview(frame.body)
        if isinstance(message, m.Delivery):
            self._on_delivery(message, body)
            return
        answer = self._answers.pop(frame.request, None)
        if isinstance(message, m.Failed):
            error = error_from_code(message.code, message.message)
            if answer is not None:
                answer(error, body)
            elif frame.request == 0:
                self.abort(error)
            # Else nobody waits any more: a reader's, say, that was closed meanwhile.
            return
        if answer is None:
            raise BadFormat(f"an answer to request {frame.request}, which was not asked")
        answer(message, body)

    def send(
        self,
        request: int,
        message: m.Message,
        answer: Answer | None = None,
        body: bytes = b"",
    ) -> None:
        """Send a message; `answer` is called once. Raises Unavailable if the connection ended."""
        if self._transport is None:
            raise Unavailable("the connection is closed")
        if answer is not None:
            self._answers[request] = answer
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(encode_frame(message.KIND, request, m.encode_message(message), len(body)))
        if body:
            self._out.append(body)

    def forget(self, request: int) -> None:
        self._answers.pop(request, None)

    def flush(self) -> None:
        """Send what collected, now."""
        if self._out and self._transport is not None:
            self._transport.writelines(self._out)
        self._out = []


async def open_connection(
    host: str,
    port: int,
    *,
    token: str,
    name: str,
    session: str,
    tls: ssl.SSLContext | None,
    timeout: float,
    on_delivery: Callable[[m.Delivery, memoryview], None],
    log: str = "",
    reads: bool = False,
) -> tuple[ClientConnection, m.Welcome]:
    """Connect and show the token. Raises Unavailable, Unauthorized."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, protocol = await loop.create_connection(
                lambda: ClientConnection(on_delivery), host, port, ssl=tls
            )
            welcome: asyncio.Future[m.Message] = loop.create_future()

            def answer(message: m.Message | PenstockError, _: memoryview) -> None:
                if welcome.done():
                    return
                if isinstance(message, PenstockError):
                    welcome.set_exception(message)
                else:
                    welcome.set_result(message)

            protocol.send(1, m.Hello(token, name, session, log, reads), answer)
            try:
                message = await welcome
            except BaseException:
                protocol.close()
                raise
    except (OSError, TimeoutError) as error:
        raise Unavailable(
            f"no log server answers at {host}:{port}: {error or 'timeout'}"
        ) from error
    if not isinstance(message, m.Welcome):
        protocol.close()
        raise Unavailable(f"{host}:{port} is not a log server")
    return protocol, message
