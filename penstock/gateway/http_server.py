"""An HTTP server of ours: uvicorn with our listening, TLS, signals, and bounds before a request.

Laws: without TLS it listens on loopback only; a connection that has not sent a whole head holds
HEAD_BYTES_MAX (and what one read of a socket brings), for HEAD_SECONDS_MAX; when told to stop, it
takes no more connections and finishes what is under way within DRAIN_SECONDS. What comes beside a
body (extensions of chunks, trailers) is bounded like a head.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.gateway.config import (
    CONNECTIONS_MAX,
    DRAIN_SECONDS,
    HEAD_BYTES_MAX,
    HEAD_SECONDS_MAX,
    IDLE_SECONDS_MAX,
)
from penstock.gateway.guests import Guest, Guests
from penstock.gateway.streaming import ABORT
from penstock.log.serving.directory import Address
from penstock.log.serving.tls_files import ServerTls, tls_files

#: Starts what else listens, with the same certificate; it is told how to say that nobody more can
#: be accepted.
Beside = Callable[["ServerTls | None", Callable[[], None]], Awaitable[None]]

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
    b"content-length: 0\r\n\r\n"
)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's connection, with bounds on what comes before a request is one. `guest`: who has
    come this far."""

    #: Since the last piece of a body, or the last end of a head or request.
    _bare_bytes = 0
    _in_head = True
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, server: HttpServer, guest: Guest) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._guest = guest

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._guest.transport = transport
        self._guest.connection_lost(None)  # it is counted here from now on
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            # One without a request makes place: idle ones keep nobody out.
            idle = (one for one in self.connections if one is not self and _is_idle(one))
            crowded = next(idle, self)
            crowded.transport.abort()
            if crowded is self:
                return
        self._watch_head()

    def _watch_head(self) -> None:
        self._in_head, self._bare_bytes = True, 0
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS_MAX, self._too_slow)

    def _too_slow(self) -> None:
        self._timer = None
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._bare_bytes += len(data)
        super().data_received(data)
        if self._bare_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]
        if not self._in_head:
            self._watch_head()

    def on_headers_complete(self) -> None:
        self._in_head, self._bare_bytes = False, 0
        self._unwatch()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bare_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_idle(connection: Any) -> bool:
    return connection.cycle is None or connection.cycle.response_complete


@dataclass(frozen=True, slots=True)
class Door:
    """Where to listen, and with which certificate."""

    host: str
    port: int
    tls_cert: Path | None
    tls_key: Path | None


class HttpServer(uvicorn.Server):
    """Run it with `serve`. `on_started` is told where it listens, once everything does."""

    def __init__(
        self,
        app: ASGIApp,
        door: Door,
        on_started: Callable[[Address], None],
        beside: Beside | None = None,
    ) -> None:
        # It tells of every request that is none; what fails in ours is told by who serves it.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        settings = uvicorn.Config(
            app,
            http=BoundedHttp,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(IDLE_SECONDS_MAX),
            timeout_graceful_shutdown=int(DRAIN_SECONDS),
        )
        super().__init__(settings)
        self._door = door
        self._on_started = on_started
        self._beside = beside

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        door = self._door
        files = tls_files(door.tls_cert, door.tls_key)
        tls = None if files is None else ServerTls(files, asyncio.get_running_loop().time)
        guests = Guests(HEAD_SECONDS_MAX)
        server, address = await guests.listen(
            door.host, door.port, tls, lambda guest: BoundedHttp(self, guest), self._fatal
        )
        self.servers = [server]  # type: ignore[list-item]  # closed, and waited for: no more
        self.started = True
        if self._beside is not None:
            await self._beside(tls, self._fatal)
        self._on_started(address)

    def _fatal(self) -> None:
        self.should_exit = True

    def stop(self) -> None:
        """The second time, without waiting for anybody."""
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are run_until_signal's
