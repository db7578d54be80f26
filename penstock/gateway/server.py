"""The process of a gateway: listening, TLS, what is bounded before a request is one, how it stops.

Laws: without TLS it listens on loopback only; a connection that has not sent a whole head holds
HEAD_BYTES_MAX (and what one read of a socket brings), for HEAD_SECONDS_MAX; when told to stop, it
takes no more connections, ends tails, and finishes what is under way within DRAIN_SECONDS. What
comes beside a body (extensions of chunks, trailers) is bounded like a head.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.gateway.app import Gateway
from penstock.gateway.config import (
    CONNECTIONS_MAX,
    DRAIN_SECONDS,
    HEAD_BYTES_MAX,
    HEAD_SECONDS_MAX,
    IDLE_SECONDS_MAX,
    KAFKA_CONNECTIONS_MAX,
    SESSIONS_MAX,
    GatewayConfig,
)
from penstock.gateway.guests import WAITING_MAX, Guest, Guests
from penstock.gateway.kafka.listener import KafkaListener
from penstock.gateway.streaming import ABORT
from penstock.log.client.client import Resolve
from penstock.log.embedded import endpoint
from penstock.log.serving.directory import Address
from penstock.log.serving.process import run_until_signal
from penstock.log.serving.tls_files import ServerTls, tls_files

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

    def __init__(self, server: _Uvicorn, guest: Guest) -> None:
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


class _Uvicorn(uvicorn.Server):
    """With our sockets and signals instead of its own."""

    def __init__(self, config: uvicorn.Config, settings: GatewayConfig) -> None:
        super().__init__(config)
        self._settings = settings
        self.kafka: KafkaListener | None = None
        self.on_started: Callable[[Address, Address | None], None] = lambda address, kafka: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        settings = self._settings
        files = tls_files(settings.tls_cert, settings.tls_key)
        tls = None if files is None else ServerTls(files, asyncio.get_running_loop().time)
        guests = Guests(HEAD_SECONDS_MAX)
        server, http = await guests.listen(
            settings.host, settings.port, tls, lambda guest: BoundedHttp(self, guest), self._fatal
        )
        self.servers = [server]  # type: ignore[list-item]  # closed, and waited for: no more
        self.started = True
        kafka = None if self.kafka is None else await self.kafka.start(tls, self._fatal)
        self.on_started(http, kafka)

    def _fatal(self) -> None:
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are run_until_signal's


class GatewayServer:
    """What runs in the process."""

    def __init__(
        self,
        config: GatewayConfig,
        on_ready: Callable[[Address], None] = lambda address: None,
        on_kafka: Callable[[Address], None] = lambda address: None,
    ) -> None:
        config.validate()
        self._config = config
        self._on_ready = on_ready
        self._on_kafka = on_kafka
        self._gateway: Gateway | None = None
        self._uvicorn: _Uvicorn | None = None
        self._stopped = False

    @property
    def descriptors_wanted(self) -> int:
        kafka = 0 if self._config.kafka_port is None else KAFKA_CONNECTIONS_MAX + WAITING_MAX
        return CONNECTIONS_MAX + WAITING_MAX + kafka + 2 * SESSIONS_MAX + 64

    async def run(self) -> None:
        gateway = self._gateway = Gateway(self._config, _resolver(self._config))
        # It tells of every request that is none; what fails in ours is told by app.py.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        settings = uvicorn.Config(
            gateway.app,
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
        self._uvicorn = _Uvicorn(settings, self._config)
        self._uvicorn.on_started = self._started
        listener = self._uvicorn.kafka = gateway.listen_to_kafka()
        gateway.sessions.start()
        if self._stopped:
            self.stop()
        try:
            await self._uvicorn.serve()
        finally:
            if listener is not None:
                await listener.stop()
            await gateway.close()

    def _started(self, http: Address, kafka: Address | None) -> None:
        if kafka is not None:
            self._on_kafka(kafka)
        self._on_ready(http)

    def stop(self) -> None:
        """The second time, without waiting for anybody."""
        server, gateway = self._uvicorn, self._gateway
        if server is not None and gateway is not None:
            server.force_exit = server.should_exit
            server.should_exit = True
            gateway.stop()
        self._stopped = True


def _resolver(config: GatewayConfig) -> Callable[[str], Resolve]:
    """Where the log is, for a caller's token."""
    target: Any = config.target
    if target is not None and "://" not in target:
        target = Path(target)

    def resolve_for(token: str) -> Resolve:
        return endpoint(target, tls_ca=config.tls_ca, token=token)

    return resolve_for


def run_gateway(
    config: GatewayConfig,
    on_ready: Callable[[Address], None] = lambda address: None,
    on_kafka: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve in this process until SIGTERM or SIGINT.

    Once it listens, `on_kafka` is told where for Kafka's clients, if it does, then `on_ready`.
    """
    uvloop.run(run_until_signal(GatewayServer(config, on_ready, on_kafka), config.lines()))
