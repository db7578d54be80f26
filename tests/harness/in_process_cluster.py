"""A whole cluster in one event loop: real nodes, real proxies, real sockets, metadata in memory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.files import token_file
from penstock.log.client.client import TIMEOUT_SECONDS, AsyncLog
from penstock.log.client.cluster import ClusterRoute, ProxyList
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.memory import MemoryMetadata
from penstock.log.meta.open import ClusterAddress
from penstock.log.node.config import NodeConfig
from penstock.log.node.server import NodeServer
from penstock.log.proxy.config import ProxyConfig
from penstock.log.proxy.open_log import Replication
from penstock.log.proxy.server import ProxyServer
from penstock.log.replication.manifest import LogManifest, decode_log_manifest
from penstock.log.replication.routing import ProxyInfo
from penstock.log.serving.served_log import wall_ms

#: Small segments: whatever a test does, some of it lies in sealed ones.
SMALL = Replication(segment_bytes=64 * 1024)


@dataclass
class InProcessCluster:
    """Made by `in_process_cluster`."""

    directory: Path
    replication: Replication = SMALL
    metadata: MemoryMetadata = field(default_factory=MemoryMetadata)
    nodes: dict[str, tuple[NodeServer, asyncio.Task[None]]] = field(default_factory=dict)
    proxies: list[tuple[ProxyServer, asyncio.Task[None]]] = field(default_factory=list)

    def _token(self, name: str) -> Path:
        path = self.directory / name
        if not path.exists():
            token_file(path, secrets.token_hex(32))
        return path

    async def open_store(self) -> MetadataStore:
        return self.metadata.session()

    async def start_node(self, name: str, **settings: Any) -> NodeServer:
        config = NodeConfig(
            name, self.directory / name, token_file=self._token("node-token"), **settings
        )
        server = NodeServer(config, self.open_store)
        task = asyncio.create_task(server.run())
        await _ready(server.ready.wait(), task)
        self.nodes[name] = (server, task)
        return server

    async def stop_node(self, name: str) -> None:
        server, task = self.nodes.pop(name)
        server.stop()
        await task

    async def start_proxy(
        self,
        *,
        role: Literal["write", "read"] = "write",
        wall_ms: Callable[[], int] = wall_ms,
        **settings: Any,
    ) -> ProxyServer:
        config = ProxyConfig(
            "memory",
            self._token("token"),
            self._token("node-token"),
            role=role,
            replication=self.replication,
            **settings,
        )
        ready: asyncio.Future[ProxyInfo] = asyncio.get_running_loop().create_future()
        server = ProxyServer(config, self.open_store, ready.set_result, wall_ms=wall_ms)
        task = asyncio.create_task(server.run())
        await _ready(ready, task)
        self.proxies.append((server, task))
        return server

    def manifest(self, log: str = "main") -> LogManifest:
        return decode_log_manifest(self.metadata.paths()[f"/logs/{log}"].data)

    async def stop_proxy(self, server: ProxyServer) -> None:
        (task,) = (task for known, task in self.proxies if known is server)
        self.proxies.remove((server, task))
        server.stop()
        await task

    async def connect(
        self, log: str = "main", *, region: str = "default", timeout: float = TIMEOUT_SECONDS
    ) -> AsyncLog:
        route = ClusterRoute(
            ClusterAddress((), "/memory", log),
            ProxyList(self.open_store),
            token=self._token("token").read_text(),
            tls=None,
            region=region,
        )
        return await AsyncLog.connect(route, timeout=timeout)

    async def stop_nodes(self) -> None:
        for name in list(self.nodes):
            await self.stop_node(name)

    async def stop_proxies(self) -> None:
        for server, _ in list(self.proxies):
            await self.stop_proxy(server)

    async def stop(self) -> None:
        await self.stop_proxies()
        await self.stop_nodes()


async def _ready(ready: Any, task: asyncio.Task[None]) -> None:
    waiting = asyncio.ensure_future(ready)
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        task.result()


@asynccontextmanager
async def in_process_cluster(
    directory: Path, *, nodes: int = 3, proxies: int = 1, replication: Replication = SMALL
) -> AsyncIterator[InProcessCluster]:
    cluster = InProcessCluster(directory, replication)
    try:
        for number in range(nodes):
            await cluster.start_node(f"n{number}")
        for _ in range(proxies):
            await cluster.start_proxy()
        yield cluster
    finally:
        await cluster.stop()
