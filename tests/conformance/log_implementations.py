"""Every log that must behave alike. The replicated log becomes one more line here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.config import ServerConfig
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import directory_endpoint
from penstock.log.server.server import LogServer
from penstock.testing.memory_log import MemoryLog

#: Opens a log in an empty directory.
Opener = Callable[[Path], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def memory(_: Path) -> AsyncIterator[MemoryLog]:
    async with MemoryLog() as log:
        yield log


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[AsyncLog]:
    # Small segments: whatever the suite does, some of it lies in sealed ones.
    server = LogServer(ServerConfig(directory, port=0, segment_bytes=64 * 1024))
    running = asyncio.create_task(server.run())
    while not hasattr(server, "ready") or not server.ready.is_set():
        await asyncio.sleep(0.005)
        if running.done():
            running.result()
    try:
        async with await AsyncLog.connect(directory_endpoint(directory, start=False)) as log:
            yield log
    finally:
        server.stop()
        await running


IMPLEMENTATIONS: dict[str, Opener] = {"memory": memory, "served": served}
