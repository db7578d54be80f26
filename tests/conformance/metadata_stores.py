"""Every metadata store that must behave alike, and how a session of each comes to its end.

As a program it holds an ephemeral node until it is killed, and says `lost` if it lost its session:
`metadata_stores.py ADDRESS PATH`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kazoo.client import KazooClient

from penstock.log.meta.memory import MemoryMetadata, MemorySession
from penstock.log.meta.open import open_metadata

#: Nobody loses it on a busy machine.
SESSION_SECONDS = 30.0
#: Of a process that is killed, and whose end is waited for; a pause of some seconds is no end.
HOLDER_SECONDS = 6.0


class Stores(Protocol):
    """One fresh tree of one kind."""

    #: For another process; empty if it can have none.
    address: str

    async def open(self) -> Any:
        """Another session."""

    async def expire(self, store: Any) -> None:
        """End a session from outside."""


class MemoryStores:
    address = ""

    def __init__(self) -> None:
        self._tree = MemoryMetadata()

    async def open(self) -> MemorySession:
        return self._tree.session()

    async def expire(self, store: MemorySession) -> None:
        store.expire()


class ZooKeeperStores:
    def __init__(self, hosts: str, namespace: str) -> None:
        self.address = f"penstock://{hosts}/{namespace}"
        self._hosts = hosts

    async def open(self) -> Any:
        return await open_metadata(self.address, session_seconds=SESSION_SECONDS)

    async def expire(self, store: Any) -> None:
        """The known way: another client takes the session over, and closes it."""
        rival = KazooClient(self._hosts, client_id=store._client.client_id)

        def take_over() -> None:
            rival.start()
            rival.stop()
            rival.close()

        await asyncio.to_thread(take_over)


@contextmanager
def holder(address: str, path: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds an ephemeral node; it is killed at the end if it is not yet."""
    process = subprocess.Popen(
        [sys.executable, __file__, address, path], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def hold(address: str, path: str) -> None:
    store = await open_metadata(address, session_seconds=HOLDER_SECONDS)
    store.on_session_lost(lambda: print("lost", flush=True))
    await store.create(path, b"held", ephemeral=True)
    print("held", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], sys.argv[2]))
