"""The page beside another program, on a thread of its own: for `penstock demo --ui`."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from penstock.errors import Unavailable
from penstock.log.serving.directory import Address, url_of
from penstock.ui.config import UiConfig
from penstock.ui.server import UiServer
from penstock.ui.tickets import Ticket

_START_SECONDS = 30.0


@contextmanager
def page_beside(config: UiConfig, token: str) -> Iterator[str]:
    """Until the end of the `with`. Yields an address that signs in once, with this token."""
    code = secrets.token_urlsafe(24)
    ready: list[Address] = []
    told = threading.Event()

    def announce(address: Address) -> None:
        ready.append(address)
        told.set()

    server = UiServer(config, announce, Ticket(code, token))
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        try:
            await server.run()
        finally:
            told.set()

    thread = threading.Thread(target=lambda: uvloop.run(run()), name="penstock-ui", daemon=True)
    thread.start()
    try:
        if not told.wait(_START_SECONDS) or not ready:
            raise Unavailable("the page could not be served: see the log of this program")
        yield f"{url_of(ready[0])}/#ticket={code}"
    finally:
        if loops and thread.is_alive():
            loops[0].call_soon_threadsafe(server.stop)
            thread.join(_START_SECONDS)
