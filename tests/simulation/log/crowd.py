"""Strangers that connect and say nothing, to a server to which the system grants few descriptors.

Owns who sits there, and how many sockets the server may have. A stranger that is thrown out comes
again, also when all faults are healed. Laws: sockets never take the descriptors that the server's
files need (I19); those who have the token get in all the same (I20), or the world is stuck.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from penstock.log.storage.log_storage import FILE_CACHE_COUNT
from simulation.checkers import Violation
from simulation.kernel import Process
from simulation.log.lives import HOST, PORT

if TYPE_CHECKING:
    from simulation.log.world import World

#: So many come at a time, until they are more than there is room for.
STRANGERS = 6
#: How long one who was thrown out stays away.
_AWAY_SECONDS = 0.3
#: What a listener leaves to files and to work, beside the files of readers.
_WORKING_DESCRIPTORS = 64


class _Silent(asyncio.Protocol):
    """Hears when it is thrown out, and nothing else."""

    def __init__(self, gone: asyncio.Future[None]) -> None:
        self.gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set_result(None)


def _itself(silent: _Silent) -> _Silent:
    return silent


class Crowd:
    """See the module's docstring."""

    def __init__(self, world: World, room: int) -> None:
        """`room`: sockets that the server may have beside its files."""
        self._world = world
        self._room = room
        self._process = world.scheduler.process("strangers")
        self._count = 0

    def descriptor_limits(self) -> tuple[int, int]:
        """Stands in for what the system would say."""
        granted = FILE_CACHE_COUNT + _WORKING_DESCRIPTORS + self._room
        return granted, granted

    def come(self) -> bool:
        if self._count > self._room:
            return False
        for _ in range(STRANGERS):
            self._process.spawn(self._sit())
        self._count += STRANGERS
        return True

    async def _sit(self) -> None:
        while True:
            silent = _Silent(self._process.create_future())
            with suppress(OSError):  # nobody listens now
                await self._process.create_connection(partial(_itself, silent), HOST, PORT)
                await silent.gone
            await asyncio.sleep(_AWAY_SECONDS * (0.5 + self._world.random.random()))

    def check(self, server: Process) -> None:
        """Somebody was let in, or not."""
        count = sum(not each.is_closing() for each in server.sockets)
        if count > self._room:
            raise Violation("I19", f"{count} sockets, with descriptors for {self._room}")
        if count == self._room:
            self._world.count("no descriptor left for sockets")
