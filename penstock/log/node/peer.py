"""One connection to a node, before and after it shows the token.

Owns the transport, what a peer may do before its token is accepted, and `GET /metrics`. Law (I20):
before that nothing is read beyond 16 KiB and nothing is done; bytes that are no frame close the
connection and touch nobody else. What the requests mean is connection.py's business.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Protocol, cast

from penstock.errors import Damaged, PenstockError, Refused, Unauthorized
from penstock.limits import (
    CONNECTION_OUTPUT_BYTES_MAX,
    PREAUTH_FRAME_BYTES_MAX,
    PREAUTH_SECONDS_MAX,
)
from penstock.wire.errors import error_code
from penstock.wire.frames import Frame, FrameReader, encode_frame
from penstock.wire.messages import Failed, encode_as

logger = logging.getLogger(__name__)


class Host(Protocol):
    """The server of a connection."""

    token: str
    #: Connections with output that `after_event` must send.
    dirty: set[Peer]

    def admit(self, peer: Peer) -> bool:
        """Whether a new connection may stay."""

    def authenticated(self, peer: Peer) -> None: ...

    def dismiss(self, peer: Peer) -> None: ...

    def after_event(self) -> None: ...

    def count_unauthorized(self) -> None: ...

    def count_bad_frame(self) -> None: ...

    def metrics_text(self) -> str: ...


class Peer(asyncio.BufferedProtocol):
    """See the module's docstring. Output collects in `out` and goes out once per event."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reader = FrameReader(authenticated=False)
        self.is_authenticated = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.out: list[bytes | bytearray | memoryview] = []
        #: Why no more requests are read now; empty while they are.
        self._halts: set[str] = set()
        self.peer = "?"
        self._http: bytearray | None = None

    # ---- for the subclass

    def handle(self, frame: Frame) -> None:
        """A frame of a peer that has shown its token. May raise Damaged or Refused: it is cut."""
        raise NotImplementedError

    def hello(self, frame: Frame) -> str:
        """The token in the first frame; raises Damaged or Refused."""
        raise NotImplementedError

    def welcome(self, frame: Frame) -> None:
        """Answer the first frame, whose token is right. May raise PenstockError: it is closed."""
        raise NotImplementedError

    # ---- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = str(transport.get_extra_info("peername"))
        if not self._host.admit(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(CONNECTION_OUTPUT_BYTES_MAX)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(PREAUTH_SECONDS_MAX, self.cut, "no token in time")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._transport = None
        self._host.dismiss(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, size: int) -> None:
        try:
            if not self.is_authenticated and self._is_http(size):
                return
            for frame in self._reader.buffer_updated(size):
                if self.is_authenticated:
                    self.handle(frame)
                else:
                    self._first(frame)
        except (Damaged, Refused) as error:
            self._host.count_bad_frame()
            self.fail(0, error)
            self.cut(str(error))
        self._host.after_event()

    def _first(self, frame: Frame) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not hmac.compare_digest(self.hello(frame).encode(), self._host.token.encode()):
            self._host.count_unauthorized()
            self.fail(frame.request, Unauthorized("the token is missing or wrong"))
            self.cut("unauthorized")
            return
        try:
            self.welcome(frame)
        except PenstockError as error:
            self.fail(frame.request, error)
            self.cut(str(error))
            return
        self.is_authenticated = True
        self._reader.allow_large()
        if self._deadline is not None:
            self._deadline.cancel()
        self._host.authenticated(self)

    def pause_writing(self) -> None:
        """The peer does not read what it asked for: it need not ask for more."""
        self.halt("unread answers")

    def resume_writing(self) -> None:
        self.go_on("unread answers")

    def halt(self, cause: str) -> None:
        transport = self._transport
        if not self._halts and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self._halts.add(cause)

    def go_on(self, cause: str) -> None:
        if cause not in self._halts:
            return
        self._halts.discard(cause)
        transport = self._transport
        if not self._halts and transport is not None and not transport.is_closing():
            transport.resume_reading()

    def eof_received(self) -> None:
        return None

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def cut(self, cause: str) -> None:
        """Close a connection that misbehaved."""
        if self._transport is not None:
            logger.warning("closing a connection peer=%s cause=%s", self.peer, cause)
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def flush(self) -> None:
        """Send what collected."""
        if self.out and self._transport is not None:
            self._transport.writelines(self.out)
        self.out = []

    def fail(self, request: int, error: PenstockError) -> None:
        head = encode_as(Failed, Failed(error_code(error), str(error)))
        self.out.append(encode_frame(Failed.KIND, request, head))
        self._host.dirty.add(self)

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
        wanted = b"bearer " + self._host.token.encode()
        shown = b""
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"authorization":
                shown = value.strip()
        shown = shown[:7].lower() + shown[7:]
        if not hmac.compare_digest(shown, wanted):
            self._host.count_unauthorized()
            logger.warning("closing a connection peer=%s cause=unauthorized", self.peer)
            status, text = "401 Unauthorized", "send the token: Authorization: Bearer TOKEN\n"
        elif lines[0].split(b" ")[1] != b"/metrics":
            status, text = "404 Not Found", "only /metrics is here\n"
        else:
            status, text = "200 OK", self._host.metrics_text()
        body = text.encode()
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/openmetrics-text; version=1.0.0; "
            f"charset=utf-8\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.out += (head.encode(), body)
        self.close()
