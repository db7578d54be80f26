"""What `penstock bench cluster` has to do with a cluster: clients, tails, and what nodes count.

Owns the clients: one list of proxies for all of them, so that a thousand logs do not mean a
thousand sessions with the metadata.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from penstock.log.client.client import AsyncLog
from penstock.log.client.cluster import DEFAULT_REGION, ClusterRoute, ProxyList
from penstock.log.local_cluster import LocalCluster
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.open import open_metadata, parse_cluster_address
from penstock.log.proxy.manifest_register import manifest_path
from penstock.log.replication.manifest import LogManifest, decode_log_manifest
from penstock.log.serving.directory import read_token

_READ_SECONDS = 30.0


class Clients:
    """Everything that the bench asks of one cluster. Made and closed on the loop."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._proxies = ProxyList(self.open_store)
        self._token = read_token(cluster.token_file)
        self._logs: list[AsyncLog] = []

    async def open_store(self) -> MetadataStore:
        return await open_metadata(self._cluster.address)

    async def connect(self, log: str) -> AsyncLog:
        address = parse_cluster_address(self._cluster.address_of(log))
        route = ClusterRoute(
            address, self._proxies, token=self._token, tls=None, region=DEFAULT_REGION
        )
        connected = await AsyncLog.connect(route)
        self._logs.append(connected)
        return connected

    def look_again(self) -> None:
        """A proxy was started: the next client must hear of it."""
        self._proxies.invalidate()

    async def connect_all(self, names: Sequence[str], at_once: int = 16) -> list[AsyncLog]:
        """One client for each, some of them at once."""
        turns = asyncio.Semaphore(at_once)

        async def one(name: str) -> AsyncLog:
            async with turns:
                return await self.connect(name)

        return await asyncio.gather(*map(one, names))

    async def close(self, logs: Sequence[AsyncLog] | None = None) -> None:
        """All, or some."""
        for log in list(self._logs) if logs is None else logs:
            self._logs.remove(log)
            await log.close()

    async def manifest(self, log: str) -> LogManifest:
        store = await self.open_store()
        try:
            value = await store.get(manifest_path(log))
        finally:
            await store.close()
        if value is None:
            raise RuntimeError(f"there is no log {log}")
        return decode_log_manifest(value.data)

    async def nodes_of(self, log: str) -> set[str]:
        """Names of the nodes that take the log's new blocks."""
        manifest = await self.manifest(log)
        nodes = manifest.segments[-1].ensembles[-1].nodes
        return {node.rpartition(":")[0] for node in nodes}

    async def node_counters(self, name: str) -> dict[str, float]:
        """What one node counts, from its own metrics."""
        text = await scrape(
            self._cluster.directory / name / "node.json", self._cluster.node_token_file
        )
        return parse_metrics(text)

    async def read_bytes(self) -> int:
        """Bytes that all nodes together have sent to readers."""
        per_node = [await self.node_counters(name) for name in self._cluster.nodes]
        return int(sum(counters["penstock_node_read_bytes_total"] for counters in per_node))

    async def fetched_bytes(self, proxy: str) -> int:
        """Bytes that a proxy has read from nodes."""
        directory = self._cluster.directory
        text = await scrape(directory / f"{proxy}.json", self._cluster.token_file)
        return int(parse_metrics(text)["penstock_fetched_bytes"])


async def scrape(address_file: Path, token_file: Path) -> str:
    """`GET /metrics` of the process whose address is in that file."""
    address = json.loads(address_file.read_text())
    token = read_token(token_file)
    async with asyncio.timeout(_READ_SECONDS):
        reader, writer = await asyncio.open_connection(address["host"], address["port"])
        writer.write(f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"no metrics: {head[:100]!r}")
    return body.decode()


def parse_metrics(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


class Tails:
    """Readers that follow a log from `start` on, each with a client of its own."""

    def __init__(self, logs: Sequence[AsyncLog], start: int) -> None:
        self._seen = [start] * len(logs)
        self._moved = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._follow(place, log, start)) for place, log in enumerate(logs)
        ]

    async def _follow(self, place: int, log: AsyncLog, start: int) -> None:
        async with log.tail(None, start=start) as reader:
            async for batch in reader:
                self._seen[place] = batch.looked_up_to
                self._moved.set()

    async def reach(self, lsn: int) -> None:
        """Until all of them have read everything below."""
        async with asyncio.timeout(_READ_SECONDS):
            while min(self._seen) < lsn:
                self._moved.clear()
                await self._moved.wait()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
