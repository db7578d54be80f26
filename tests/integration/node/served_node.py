"""Storage nodes for tests: one in this process, and one as a process that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.log.meta.memory import MemoryMetadata, MemorySession
from penstock.log.node.client import NetworkNodeClient
from penstock.log.node.config import NodeConfig
from penstock.log.node.server import NodeServer
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import NodeInfo
from penstock.log.serving import launch
from penstock.log.serving.directory import read_token

START_SECONDS = 30.0


@asynccontextmanager
async def serving(
    data_dir: Path,
    metadata: MemoryMetadata,
    name: str = "n1",
    *,
    sessions: list[MemorySession] | None = None,
    **settings: Any,
) -> AsyncIterator[NodeServer]:
    """A node in this process, registered; `sessions` gets those that it opens."""
    settings.setdefault("trim_seconds", 0.05)

    async def open_store() -> MemorySession:
        session = metadata.session()
        sessions.append(session)
        return session

    sessions = [] if sessions is None else sessions
    server = NodeServer(NodeConfig(name, data_dir, **settings), open_store)
    task = asyncio.create_task(server.run())
    registered = asyncio.create_task(server.wait_registered())
    try:
        async with asyncio.timeout(START_SECONDS):
            await asyncio.wait({task, registered}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield server
    finally:
        registered.cancel()
        server.stop()
        await asyncio.gather(registered, return_exceptions=True)
        await task


@asynccontextmanager
async def client_of(
    server: NodeServer, cookie: str | None = None
) -> AsyncIterator[NetworkNodeClient]:
    info = server.info
    if cookie is not None:
        info = NodeInfo(info.name, cookie, info.host, info.port)
    client = NetworkNodeClient(info, token=server.listener.token)
    try:
        yield client
    finally:
        client.close()


async def add(
    client: NetworkNodeClient, key: SegmentKey, block: bytes, epoch: int = 1
) -> PenstockError | None:
    (outcome,) = await add_all(client, [(key, block)], epoch)
    return outcome


async def add_all(
    client: NetworkNodeClient, blocks: Sequence[tuple[SegmentKey, bytes]], epoch: int = 1
) -> list[PenstockError | None]:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[PenstockError | None]] = []
    for key, block in blocks:
        future: asyncio.Future[PenstockError | None] = loop.create_future()
        client.add(key, epoch, [block[:112], block[112:]], future.set_result)
        futures.append(future)
    async with asyncio.timeout(30):
        return list(await asyncio.gather(*futures))


class NodeProcess:
    """`python -m penstock.log.node`, ended by `with`."""

    def __init__(self, directory: Path, metadata: str, name: str = "n1", *options: str) -> None:
        self.data_dir = directory / name
        self._log = directory / f"{name}.txt"
        self._options = [
            *("--name", name, "--data-dir", str(self.data_dir), "--metadata", metadata),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NodeProcess:
        self.info = self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def start(self) -> NodeInfo:
        """Start it, and wait until it listens."""
        self._process = self._launch()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"the node ended: {self.output()[-2000:]}")
            try:
                found = json.loads((self.data_dir / "node.json").read_text())
                if found["pid"] == self._process.pid:
                    identity = json.loads((self.data_dir / "identity.json").read_text())
                    return NodeInfo(
                        identity["name"], identity["cookie"], found["host"], found["port"]
                    )
            except (OSError, ValueError):
                pass
            time.sleep(0.01)
        raise AssertionError("the node does not start")

    def run(self) -> int:
        """Start it, for a start that fails: its exit code."""
        return self._launch().wait(30)

    def _launch(self) -> subprocess.Popen[bytes]:
        return launch.start_module("penstock.log.node", self._options, self._log)

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(30)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(30)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def token(self) -> str:
        return read_token(self.data_dir / "token")

    def output(self) -> str:
        return self._log.read_text(errors="replace")


def end_of(journal: Path, block: bytes) -> int:
    """Where what repeats the head of its record begins."""
    return journal.read_bytes().index(block) + len(block)
