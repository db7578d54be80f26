"""The process of a page: what runs in it, and how it stops.

Law: when told to stop, it takes no more connections and ends all pages, which try again by
themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import uvloop

from penstock.gateway.config import CONNECTIONS_MAX, SESSIONS_MAX
from penstock.gateway.guests import WAITING_MAX
from penstock.gateway.http_server import Door, HttpServer
from penstock.gateway.sessions import resolver
from penstock.log.directories import default_data_dir
from penstock.log.serving.directory import Address, url_of
from penstock.log.serving.process import run_until_signal
from penstock.ui.app import Ui
from penstock.ui.config import UiConfig
from penstock.ui.place import Place
from penstock.ui.tickets import Ticket


class UiServer:
    """What runs in the process."""

    def __init__(
        self,
        config: UiConfig,
        on_ready: Callable[[Address], None] = lambda address: None,
        ticket: Ticket | None = None,
    ) -> None:
        config.validate()
        self._config = config
        self._ticket = ticket
        self._on_ready = on_ready
        self._ui: Ui | None = None
        self._server: HttpServer | None = None
        self._place: Place | None = None
        self._stopped = False

    @property
    def descriptors_wanted(self) -> int:
        return CONNECTIONS_MAX + WAITING_MAX + 2 * SESSIONS_MAX + 64

    async def run(self) -> None:
        config = self._config
        # A server of a directory is never started from here: what is down is shown as down.
        resolve_for = resolver(config.target, config.tls_ca, start=False)
        ui = self._ui = Ui(config, resolve_for, self._ticket)
        door = Door(config.host, config.port, config.tls_cert, config.tls_key)
        server = self._server = HttpServer(ui.app, door, self._started)
        ui.sessions.start()
        if self._stopped:
            self.stop()
        try:
            await server.serve()
        finally:
            if self._place is not None:
                self._place.close()
            await ui.close()

    def _started(self, address: Address) -> None:
        target = self._config.target
        if target is None or "://" not in target:
            directory = default_data_dir() if target is None else Path(target)
            self._place = Place(directory, url_of(address))
        self._on_ready(address)

    def stop(self) -> None:
        """The second time, without waiting for anybody."""
        if self._server is not None and self._ui is not None:
            self._server.stop()
            self._ui.stop()
        self._stopped = True


def run_ui(config: UiConfig, on_ready: Callable[[Address], None] = lambda address: None) -> None:
    """Serve in this process until SIGTERM or SIGINT; `on_ready` is told where it listens."""
    uvloop.run(run_until_signal(UiServer(config, on_ready), config.lines()))
