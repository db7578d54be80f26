"""What the world found in shells that it only mirrors: played on the real ones, over sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.config import ServerConfig
from penstock.log.client.client import AsyncLog
from penstock.log.client.connection import open_connection
from penstock.log.core import tails
from penstock.log.embedded import directory_endpoint
from penstock.log.records import NewEntry
from penstock.log.server.server import LogServer
from penstock.log.serving import served_log


class Serving:
    """A server in the test's own event loop."""

    def __init__(self, data_dir: Path) -> None:
        self._server = LogServer(ServerConfig(data_dir=data_dir))
        self.endpoint = directory_endpoint(data_dir, start=False)

    async def __aenter__(self) -> Serving:
        self._task = asyncio.create_task(self._server.run())
        while not hasattr(self._server, "ready"):
            await asyncio.sleep(0)
        await self._server.ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.stop()
        await self._task


def test_a_reader_goes_on_after_a_read_of_the_server_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection lives on, so nobody but the reader itself can ask again."""
    monkeypatch.setattr(tails, "RECENT_BYTES", 1)  # nothing comes from memory
    read_piece, failures = served_log.read_piece, [OSError(5, "Input/output error")]

    def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return read_piece(*arguments)

    monkeypatch.setattr(served_log, "read_piece", fail_once)

    async def play() -> list[bytes]:
        async with Serving(tmp_path) as serving, await AsyncLog.connect(serving.endpoint) as log:
            for text in (b"1", b"2", b"3"):
                await log.append([NewEntry(text, ("t",))])
            async with asyncio.timeout(10):
                return [entry.payload for entry in await log.read(["t"])]

    assert asyncio.run(play()) == [b"1", b"2", b"3"]
    assert not failures


def test_a_connection_is_not_heard_once_its_client_has_a_newer_one(tmp_path: Path) -> None:
    async def play() -> None:
        async with Serving(tmp_path) as serving:
            endpoint = await serving.endpoint()

            async def connect(session: str) -> Any:
                connection, _ = await open_connection(
                    endpoint.host,
                    endpoint.port,
                    token=endpoint.token,
                    name="test",
                    session=session,
                    tls=None,
                    timeout=10,
                    on_delivery=lambda message, body: None,
                )
                return connection

            old, stranger = await connect("mine"), await connect("another's")
            new = await connect("mine")

            async with asyncio.timeout(10):
                await old.closed
            assert not new.closed.done()
            assert not stranger.closed.done()
            new.close()
            stranger.close()

    asyncio.run(play())
