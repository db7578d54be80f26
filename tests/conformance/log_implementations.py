"""Every log that must behave alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from harness.in_process_cluster import in_process_cluster

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


@asynccontextmanager
async def replicated(directory: Path) -> AsyncIterator[AsyncLog]:
    async with in_process_cluster(directory) as cluster, await cluster.connect() as log:
        yield log


@asynccontextmanager
async def followed(directory: Path) -> AsyncIterator[AsyncLog]:
    """Readers have a proxy of their own, which does not own the log."""
    async with in_process_cluster(directory) as cluster:
        await cluster.start_proxy(role="read")
        async with await cluster.connect() as log:
            yield log


IMPLEMENTATIONS: dict[str, Opener] = {
    "memory": memory,
    "served": served,
    "replicated": replicated,
    "followed": followed,
}
