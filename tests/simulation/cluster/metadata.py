"""The cluster's metadata in the simulation: the store in memory, with what happens to its sessions.

Owns which sessions a machine has, and that a machine may be cut off from the store. A session ends
when its process has died or was cut off for long enough, whatever the process believes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import Unavailable
from penstock.log.meta.memory import MemoryMetadata, MemorySession
from penstock.log.proxy.manifest_register import manifest_path

if TYPE_CHECKING:
    from simulation.cluster.world import ClusterWorld

LOG = "main"
#: How long a change takes until it is told to those who watch.
WATCH_SECONDS_MAX = 0.1


class SimMetadata(MemoryMetadata):
    """See the module's docstring. `changed` is told of every manifest of the log."""

    def __init__(self, world: ClusterWorld, changed: Callable[[bytes], None]) -> None:
        super().__init__()
        self._world = world
        self._changed = changed
        #: Machines that cannot reach the store now.
        self.cuts: dict[str, None] = {}
        #: The session that each machine opened last.
        self.sessions: dict[str, MemorySession] = {}

    def _create(self, path: str, data: bytes, owner: MemorySession | None) -> int:
        version = super()._create(path, data, owner)
        if path == manifest_path(LOG):
            self._changed(data)
        return version

    def _set(self, path: str, data: bytes, version: int) -> int:
        new_version = super()._set(path, data, version)
        if path == manifest_path(LOG):
            self._changed(data)
        return new_version

    def _wake(self, *paths: str) -> None:
        for watch in self._watches:
            if watch.path in paths:
                watch.loop.call_later(self._world.random.random() * WATCH_SECONDS_MAX, watch._call)

    # ---- sessions

    async def open(self, machine: str) -> MemorySession:
        """A session for a machine, as `open_metadata` opens one."""
        await self._pause()
        if machine in self.cuts:
            raise Unavailable("the metadata cannot be reached")
        session = self.session()
        session.delay = self._pause
        self.sessions[machine] = session
        session.on_session_lost(lambda: self._world.count("session lost"))
        return session

    async def _pause(self) -> None:
        await asyncio.sleep(self._world.random.random() * self._world.swarm.metadata_seconds)

    def current(self, machine: str) -> MemorySession | None:
        """The machine's session, unless it has ended."""
        session = self.sessions.get(machine)
        return None if session is None or session.is_ended else session

    def process_died(self, machine: str, seconds: float) -> None:
        """Its session goes on until the store misses it."""
        session = self.sessions.pop(machine, None)
        if session is not None:
            self._world.after(seconds, lambda: session.expire(told=False))

    def cut(self, machine: str) -> None:
        self.cuts[machine] = None
        session = self.sessions.get(machine)
        if session is not None:
            session.is_unavailable = True

    def mend(self, machine: str) -> None:
        self.cuts.pop(machine, None)
        session = self.sessions.get(machine)
        if session is not None:
            session.is_unavailable = False
