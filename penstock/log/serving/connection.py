"""One connection on a server, before and after it shows the token.

Owns the transport, when it is read, and what a peer may do before its token is accepted. Law (I20):
before that nothing is read beyond 16 KiB and nothing is done; bytes that are no frame close the
connection and touch nobody else. A `GET /metrics` with the token as bearer is answered too, so that
Prometheus needs no second, open port. What requests mean is up to the listener's host:
log_requests.py and log/node/requests.py.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from penstock.errors import Damaged, PenstockError, Refused, Unauthorized
from penstock.limits import (
    CONNECTION_OUTPUT_BYTES_MAX,
    PREAUTH_FRAME_BYTES_MAX,
    PREAUTH_SECONDS_MAX,
)
from penstock.wire.errors import error_code
from penstock.wire.frames import Frame, FrameReader, encode_frame
from penstock.wire.messages import Failed, encode_as

if TYPE_CHECKING:
    from penstock.log.serving.listener import Listener

logger = logging.getLogger(__name__)

_UNREAD = "unread answers"


class Requests(Protocol):
    """What is done with the requests of one connection."""

    def hello(self, frame: Frame) -> tuple[str, Callable[[], None]] | None:
        """The token in the first frame, and what sends the welcome; None if it is no hello.

        Sending it may raise PenstockError: the connection is closed.
        """

    def handle(self, frame: Frame) -> None:
        """A frame of a peer that has shown its token. Damaged or Refused: it is closed."""

    def after_event(self) -> None:
        """Something arrived: a turn of the listener must follow."""

    def pause(self) -> None:
        """The peer does not read what it is sent."""

    def resume(self) -> None:
        """It does again."""

    def lost(self) -> None:
        """The connection has ended. Called once."""


class ServerConnection(asyncio.BufferedProtocol):
    """See the module's docstring. Output collects in `out` and goes out once per turn."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._reader = FrameReader(authenticated=False)
        self.is_authenticated = False
        self._is_silenced = False
        #: None before the connection is made, and after it has ended.
        self.transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.out: list[bytes | bytearray | memoryview] = []
        #: Why no more requests are read now; empty while they are.
        self.halts: set[str] = set()
        self.peer = "?"
        self._http: bytearray | None = None
        #: Both know each other: let go of when the connection ends, so that both are freed then.
        self._requests: Requests | None = listener.host.meet(self)

    # ---- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.peer = str(transport.get_extra_info("peername"))
        if not self._listener.admit(self):
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(CONNECTION_OUTPUT_BYTES_MAX)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(PREAUTH_SECONDS_MAX, self.cut, "no token in time")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.transport = None
        self._listener.dismiss(self)
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, size: int) -> None:
        requests = self._requests
        if requests is None or self._is_silenced:
            return
        try:
            if not self.is_authenticated and self._is_http(size):
                return
            for frame in self._reader.buffer_updated(size):
                if self.is_authenticated:
                    requests.handle(frame)
                else:
                    self._first(requests, frame)
        except (Damaged, Refused) as error:
            self._listener.metrics.bad_frames += 1
            self.fail(0, error)
            self.cut(str(error))
        requests.after_event()

    def _first(self, requests: Requests, frame: Frame) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        hello = requests.hello(frame)
        token = self._listener.token.encode()
        if hello is None or not hmac.compare_digest(hello[0].encode(), token):
            self._listener.metrics.unauthorized += 1
            self.fail(frame.request, Unauthorized("the token is missing or wrong"))
            self.cut("unauthorized")
            return
        try:
            hello[1]()
        except PenstockError as error:
            self.fail(frame.request, error)
            self.cut(str(error))
            return
        self.is_authenticated = True
        self._reader.allow_large()
        if self._deadline is not None:
            self._deadline.cancel()
        self._listener.authenticated(self)

    def pause_writing(self) -> None:
        """The peer does not read what it asked for: it need not ask for more."""
        self.halt(_UNREAD)
        if self._requests is not None:
            self._requests.pause()

    def resume_writing(self) -> None:
        self.go_on(_UNREAD)
        if self._requests is not None:
            self._requests.resume()

    def halt(self, cause: str) -> None:
        transport = self.transport
        if not self.halts and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self.halts.add(cause)

    def go_on(self, cause: str) -> None:
        if cause not in self.halts:
            return
        self.halts.discard(cause)
        transport = self.transport
        if not self.halts and transport is not None and not transport.is_closing():
            transport.resume_reading()

    def eof_received(self) -> None:
        return None

    def cut(self, cause: str) -> None:
        """Close a connection that misbehaved."""
        if self.transport is not None:
            logger.warning("closing a connection peer=%s cause=%s", self.peer, cause)
            self.close()

    def close(self) -> None:
        """Send what collected, and no more."""
        if self.transport is not None:
            self.flush()
            self.transport.close()

    def silence(self) -> None:
        """Nothing is heard on this connection any more."""
        self._is_silenced = True
        if self.transport is not None:
            self.transport.abort()

    def flush(self) -> None:
        """Send what collected."""
        if self.out and self.transport is not None:
            self.transport.writelines(self.out)
        self.out = []

    def fail(self, request: int, error: PenstockError) -> None:
        head = encode_as(Failed, Failed(error_code(error), str(error)))
        self.out.append(encode_frame(Failed.KIND, request, head))
        self._listener.dirty[self] = None

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
        shown = b""
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"authorization":
                shown = value.strip()
        wanted = b"bearer " + self._listener.token.encode()
        if not hmac.compare_digest(shown[:7].lower() + shown[7:], wanted):
            self._listener.metrics.unauthorized += 1
            logger.warning("closing a connection peer=%s cause=unauthorized", self.peer)
            status, text = "401 Unauthorized", "send the token: Authorization: Bearer TOKEN\n"
        elif lines[0].split(b" ")[1] != b"/metrics":
            status, text = "404 Not Found", "only /metrics is here\n"
        else:
            status, text = "200 OK", self._listener.host.metrics_text()
        body = text.encode()
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/openmetrics-text; version=1.0.0; "
            f"charset=utf-8\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.out += (head.encode(), body)
        self.close()
