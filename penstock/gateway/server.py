"""The process of a gateway: what runs in it, and how it stops.

Law: when told to stop, it takes no more connections, ends tails, and finishes what is under way
within DRAIN_SECONDS.
"""

from __future__ import annotations

from collections.abc import Callable

import uvloop

from penstock.gateway.app import Gateway
from penstock.gateway.config import (
    CONNECTIONS_MAX,
    KAFKA_CONNECTIONS_MAX,
    SESSIONS_MAX,
    GatewayConfig,
)
from penstock.gateway.guests import WAITING_MAX
from penstock.gateway.http_server import Door, HttpServer
from penstock.gateway.sessions import resolver
from penstock.log.serving.directory import Address
from penstock.log.serving.process import run_until_signal
from penstock.log.serving.tls_files import ServerTls


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
        self._server: HttpServer | None = None
        self._stopped = False

    @property
    def descriptors_wanted(self) -> int:
        kafka = 0 if self._config.kafka_port is None else KAFKA_CONNECTIONS_MAX + WAITING_MAX
        return CONNECTIONS_MAX + WAITING_MAX + kafka + 2 * SESSIONS_MAX + 64

    async def run(self) -> None:
        config = self._config
        gateway = self._gateway = Gateway(config, resolver(config.target, config.tls_ca))
        listener = gateway.listen_to_kafka()

        async def start_listener(tls: ServerTls | None, fatal: Callable[[], None]) -> None:
            if listener is not None:
                self._on_kafka(await listener.start(tls, fatal))

        door = Door(config.host, config.port, config.tls_cert, config.tls_key)
        server = self._server = HttpServer(gateway.app, door, self._on_ready, start_listener)
        gateway.sessions.start()
        if self._stopped:
            self.stop()
        try:
            await server.serve()
        finally:
            if listener is not None:
                await listener.stop()
            await gateway.close()

    def stop(self) -> None:
        """The second time, without waiting for anybody."""
        if self._server is not None and self._gateway is not None:
            self._server.stop()
            self._gateway.stop()
        self._stopped = True


def run_gateway(
    config: GatewayConfig,
    on_ready: Callable[[Address], None] = lambda address: None,
    on_kafka: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve in this process until SIGTERM or SIGINT.

    Once it listens, `on_kafka` is told where for Kafka's clients, if it does, then `on_ready`.
    """
    uvloop.run(run_until_signal(GatewayServer(config, on_ready, on_kafka), config.lines()))
