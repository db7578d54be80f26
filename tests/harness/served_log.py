"""A log server inside the test's own event loop, for faults that need a hand inside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from penstock.config import ServerConfig
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import directory_endpoint
from penstock.log.server.server import LogServer
from penstock.log.serving.served_log import wall_ms


class ServedLog:
    """A running server and the task that runs it."""

    def __init__(self, server: LogServer, task: asyncio.Task[None]) -> None:
        self.server = server
        self.task = task

    async def connect(self, *, timeout: float = 30.0) -> AsyncLog:
        return await AsyncLog.connect(
            directory_endpoint(self.server.config.data_dir, start=False), timeout=timeout
        )


@asynccontextmanager
async def served(
    config: ServerConfig, *, wall_ms: Callable[[], int] = wall_ms
) -> AsyncIterator[ServedLog]:
    """Serve until the block ends; what stopped the server before that is the test's to await.

    On a port of its own: the usual one may be another's, who runs tests, too.
    """
    server = LogServer(replace(config, port=0), wall_ms=wall_ms)
    task = asyncio.create_task(server.run())
    while not task.done() and not hasattr(server, "ready"):
        await asyncio.sleep(0)
    ready = asyncio.create_task(server.ready.wait())
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        ready.cancel()
        await task
    try:
        yield ServedLog(server, task)
    finally:
        if not task.done():
            server.stop()
            await task
