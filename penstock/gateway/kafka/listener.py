"""The listener for Kafka's clients: connections within bounds, how it stops."""

from __future__ import annotations

import asyncio
import ssl

from penstock.errors import Unavailable
from penstock.gateway.config import HEAD_SECONDS_MAX, KAFKA_CONNECTIONS_MAX, GatewayConfig
from penstock.gateway.kafka.connection import KafkaConnection
from penstock.gateway.kafka.shared import Shared
from penstock.log.serving.directory import Address
from penstock.log.serving.listener import BACKLOG

#: What a socket's buffer holds beyond the frame that is being read.
_BUFFER_BYTES = 64 * 1024


class KafkaListener:
    """See the module's docstring."""

    def __init__(self, shared: Shared, config: GatewayConfig) -> None:
        self._shared = shared
        self._config = config
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, tls: ssl.SSLContext | None) -> Address:
        config = self._config
        assert config.kafka_port is not None
        try:
            self._server = await asyncio.start_server(
                self._connected,
                config.kafka_host,
                config.kafka_port,
                limit=_BUFFER_BYTES,
                ssl=tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=None if tls is None else HEAD_SECONDS_MAX,
            )
        except OSError as error:
            reason = error.strerror or error
            raise Unavailable(
                f"cannot listen on {config.kafka_host} port {config.kafka_port}: {reason}"
            ) from None
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port, tls is not None)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= KAFKA_CONNECTIONS_MAX or self._shared.stopping.is_set():
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = KafkaConnection(self._shared, reader, writer)
        loop = asyncio.get_running_loop()

        def look() -> None:
            if not connection.is_known:
                writer.transport.abort()

        timer = loop.call_later(2 * HEAD_SECONDS_MAX, look)
        try:
            await connection.run()
        except asyncio.CancelledError:
            pass  # the gateway stops
        finally:
            timer.cancel()
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        """No more connections; those that are there end. Their clients go on elsewhere."""
        self._shared.stopping.set()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=HEAD_SECONDS_MAX)
        self._shared.close()
