"""One connection on a server, before and after its peer has proved the token.

Owns the transport, when it is read, and what a peer may do before its proof is accepted: ask for a
challenge (wire/proof.py), once; with a narrowed token, where the host takes those. Law (I20):
before that nothing is read beyond 16 KiB and nothing is done; bytes that are no frame close the
connection and touch nobody else. A `GET /metrics` with the token as bearer is answered too, so that
Prometheus needs no second, open port. What requests mean, and what a narrowed token allows, is up
to the listener's host: log_requests.py, log/node/requests.py, delivery/remote/.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from penstock.errors import BadRequest, Damaged, PenstockError, Refused, Unauthorized
from penstock.limits import (
    CONNECTION_OUTPUT_BYTES_MAX,
    PREAUTH_FRAME_BYTES_MAX,
    PREAUTH_SECONDS_MAX,
)
from penstock.log.core.rights import ROOT, Rights, read_rights
from penstock.log.keep_alive import keep_alive
from penstock.wire.errors import error_code
from penstock.wire.frames import Frame, FrameReader, encode_frame
from penstock.wire.messages import Challenge, Failed, Hello, Meet, MeetAs, decode_as, encode_as
from penstock.wire.node_messages import NodeHello
from penstock.wire.proof import NONCE_BYTES, Nonces, is_proof, prove_client, prove_server
from penstock.wire.target_messages import TargetHello
from penstock.wire.token import is_narrowed, is_token, parse_chain, split_token

if TYPE_CHECKING:
    from penstock.log.serving.listener import Listener

logger = logging.getLogger(__name__)

_UNREAD = "unread answers"
_HELLOS = (Hello.KIND, NodeHello.KIND, TargetHello.KIND)
_NO_CHALLENGE = (
    "no challenge was asked for: this server wants the token proved, not shown; a client that "
    "shows it is older than the server, and must be upgraded"
)


class Requests(Protocol):
    """What is done with the requests of one connection."""

    def hello(self, frame: Frame) -> Callable[[], None] | None:
        """What sends the welcome; None if the frame is no hello. Its proof is not our business.

        Sending it may raise PenstockError: the connection is closed.
        """

    def handle(self, frame: Frame) -> None:
        """A frame of a peer that has proved the token. Damaged or Refused: it is closed."""

    def after_event(self) -> None:
        """Something arrived: a turn of the listener must follow."""

    def pause(self) -> None:
        """The peer does not read what it is sent."""

    def resume(self) -> None:
        """It does again."""

    def lost(self) -> None:
        """The connection has ended. Called once."""


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The address of the other end, without its port."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else "?"


class ServerConnection(asyncio.BufferedProtocol):
    """See the module's docstring. Output collects in `out` and goes out once per turn."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._reader = FrameReader(authenticated=False)
        self.is_authenticated = False
        self._is_silenced = False
        #: From the challenge on; and what is proved: the root token, or the mac of a narrowed one.
        self._nonces: Nonces | None = None
        self._proved = ""
        #: What its token allows, once that is proved.
        self.rights: Rights = ROOT
        #: None before the connection is made, and after it has ended.
        self.transport: asyncio.Transport | None = None
        #: Takes an accepted socket through TLS; there is no transport before that is done.
        self.handshake: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.out: list[bytes | bytearray | memoryview] = []
        #: Why no more requests are read now; empty while they are.
        self.halts: set[str] = set()
        self.peer = "?"
        self._http: bytearray | None = None
        #: Looks for what a `GET /metrics` is answered with.
        self._answering: asyncio.Task[None] | None = None
        #: Both know each other: let go of when the connection ends, so that both are freed then.
        self._requests: Requests | None = listener.host.meet(self)

    # ---- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.peer = str(transport.get_extra_info("peername"))
        if self._is_silenced or not self._listener.admit(self, peer_of(transport)):
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(CONNECTION_OUTPUT_BYTES_MAX)
        keep_alive(transport)
        self.start_deadline()

    def start_deadline(self) -> None:
        """From the accept on: whatever comes before the token, as TLS does, is included."""
        if self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(PREAUTH_SECONDS_MAX, self._too_late)

    def _too_late(self) -> None:
        logger.warning("closing a connection peer=%s cause=no token in time", self.peer)
        self.silence()  # TLS would wait for the goodbye of one who says nothing

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.transport = None
        if self._answering is not None:
            self._answering.cancel()
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
        if frame.kind == Meet.KIND and self._nonces is None:
            meet = cast(Meet, decode_as(Meet, frame.head))
            self._challenge(frame, meet.nonce, self._listener.token)
            return
        if frame.kind == MeetAs.KIND and self._nonces is None:
            self._meet_narrowed(frame)
            return
        if frame.kind in _HELLOS and self._nonces is None:
            self._refuse(frame, _NO_CHALLENGE)
            return
        welcome = requests.hello(frame)
        if welcome is None or not self._is_proved(frame):
            self._refuse(frame, "the token is missing or wrong")
            return
        try:
            welcome()
        except PenstockError as error:
            self.fail(frame.request, error)
            self.cut(str(error))
            return
        self.is_authenticated = True
        self._reader.allow_large()
        if self._deadline is not None:
            self._deadline.cancel()
        self._listener.authenticated(self)

    def _meet_narrowed(self, frame: Frame) -> None:
        meet = cast(MeetAs, decode_as(MeetAs, frame.head))
        if self._listener.door is None:
            self._refuse(frame, "only the token itself opens this, not one that was narrowed")
            return
        try:
            chain = parse_chain(meet.chain)
            self.rights = read_rights(chain)
        except BadRequest as error:
            self._refuse(frame, f"the token cannot be used: {error}")
            return
        self._challenge(frame, meet.nonce, chain.mac(self._listener.token).hex())

    def _challenge(self, frame: Frame, nonce: bytes, proved: str) -> None:
        self._nonces = Nonces(nonce, secrets.token_bytes(NONCE_BYTES))
        self._proved = proved
        proof = prove_server(proved, self._nonces)
        head = encode_as(Challenge, Challenge(self._nonces.server, proof))
        self.out.append(encode_frame(Challenge.KIND, frame.request, head))
        self._listener.dirty[self] = None

    def _is_proved(self, frame: Frame) -> bool:
        if self._nonces is None:
            return False
        wanted = prove_client(self._proved, self._nonces, frame.kind, frame.head)
        return is_proof(frame.body, wanted)

    def _refuse(self, frame: Frame, words: str) -> None:
        self._listener.metrics.unauthorized += 1
        self.fail(frame.request, Unauthorized(words))
        self.cut("unauthorized")

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
        elif self.handshake is not None:
            self.handshake.cancel()

    def silence(self) -> None:
        """Nothing is heard on this connection any more."""
        self._is_silenced = True
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

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
        if self._answering is not None:
            return True
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
        refusal = self._refuse_bearer(shown)
        if refusal is not None:
            self._listener.metrics.unauthorized += 1
            logger.warning("closing a connection peer=%s cause=unauthorized", self.peer)
            status, text = refusal
        elif lines[0].split(b" ")[1] != b"/metrics":
            status, text = "404 Not Found", "only /metrics is here\n"
        else:
            self._answering = asyncio.ensure_future(self._answer_metrics())
            self._answering.add_done_callback(self._answered)
            return
        self._send_http(status, text)

    async def _answer_metrics(self) -> None:
        self._send_http("200 OK", await self._listener.host.full_metrics_text())

    def _answered(self, answering: asyncio.Task[None]) -> None:
        error = None if answering.cancelled() else answering.exception()
        if error is not None:  # it looked only: nothing in memory is other than before
            logger.error("metrics cannot be told cause=%r", error, exc_info=error)
            self._send_http("500 Internal Server Error", "see the server's log\n")

    def _send_http(self, status: str, text: str) -> None:
        body = text.encode()
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/openmetrics-text; version=1.0.0; "
            f"charset=utf-8\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.out += (head.encode(), body)
        self.close()

    def _refuse_bearer(self, shown: bytes) -> tuple[str, str] | None:
        """Status and text for who may not look at the metrics."""
        root, door = self._listener.token, self._listener.door
        if hmac.compare_digest(shown[:7].lower() + shown[7:], b"bearer " + root.encode()):
            return None
        token = shown[7:].decode("ascii", "replace")
        if door is None or not is_narrowed(token) or not is_token(token, root):
            return "401 Unauthorized", "send the token: Authorization: Bearer TOKEN\n"
        try:
            door.allow_metrics(read_rights(split_token(token)[0]))
        except PenstockError as error:
            return "403 Forbidden", f"{error}\n"
        return None
