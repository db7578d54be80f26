"""The listener for Kafka's clients: connections within bounds, how it stops.

Law: KAFKA_CONNECTIONS_MAX have shown a token; those that have not are guests (guests.py), and keep
nobody out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.gateway.config import HEAD_SECONDS_MAX, KAFKA_CONNECTIONS_MAX, GatewayConfig
from penstock.gateway.guests import Guest, Guests
from penstock.gateway.kafka.connection import KafkaConnection
from penstock.gateway.kafka.shared import Shared
from penstock.log.serving.acceptor import Acceptor
from penstock.log.serving.directory import Address
from penstock.log.serving.tls_files import ServerTls

#: What a socket's buffer holds beyond the frame that is being read.
_BUFFER_BYTES = 64 * 1024


class KafkaListener:
    """See the module's docstring."""

    def __init__(self, shared: Shared, config: GatewayConfig) -> None:
        self._shared = shared
        self._config = config
        self._acceptor: Acceptor[Guest] | None = None
        self._guests = Guests(2 * HEAD_SECONDS_MAX)
        self._known: set[Guest] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, tls: ServerTls | None, fatal: Callable[[], None]) -> Address:
        config = self._config
        assert config.kafka_port is not None
        self._acceptor, address = await self._guests.listen(
            config.kafka_host, config.kafka_port, tls, self._protocol, fatal
        )
        return address

    def _protocol(self, guest: Guest) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit=_BUFFER_BYTES)
        return asyncio.StreamReaderProtocol(reader, partial(self._connected, guest))

    async def _connected(
        self, guest: Guest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        guest.transport = writer.transport
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = KafkaConnection(self._shared, reader, writer, lambda: self._let_in(guest))
        try:
            await connection.run()
        except asyncio.CancelledError:
            pass  # the gateway stops
        finally:
            self._tasks.discard(task)
            self._known.discard(guest)
            self._guests.dismiss(guest)
            writer.close()

    def _let_in(self, guest: Guest) -> bool:
        """It has shown a token. Whether there is room for it."""
        self._guests.dismiss(guest)
        if guest not in self._known and len(self._known) >= KAFKA_CONNECTIONS_MAX:
            return False
        self._known.add(guest)
        return True

    async def stop(self) -> None:
        """No more connections; those that are there end. Their clients go on elsewhere."""
        self._shared.stopping.set()
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=HEAD_SECONDS_MAX)
        self._shared.close()
