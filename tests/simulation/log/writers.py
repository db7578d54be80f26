"""Programs that append: under a name that outlives them, anonymously, or as the zombie of a name.

Owns when what is appended. Every payload is unique, so that the log itself tells which append an
entry came from. A named writer that was told Unknown opens its producer again, as its next
instance; one that was fenced stops, or, if stubborn, takes the name back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.errors import Fenced, Refused
from penstock.log.client.appender import AsyncAppender
from penstock.log.records import Kind, NewEntry
from simulation.log.clients import Client
from simulation.log.story import AppendOp

if TYPE_CHECKING:
    from simulation.log.world import World

TAGS = ("a", "b", "c", "d", "rare")


class Writer:
    """One program that appends `operations` times under a name, or anonymously (None)."""

    def __init__(
        self, world: World, client: Client, *, name: str | None, operations: int, stubborn: bool
    ) -> None:
        self._world = world
        self._client = client
        self._name = name
        self._left = operations
        self._stubborn = stubborn
        #: Latencies that this writer accepts, in milliseconds.
        self._flushes_ms = (2000,) if world.random.random() < 0.15 else (0, 0, 0, 5, 40)
        self.is_done = False

    async def run(self) -> None:
        while self._left:
            appender = await self._client.open(self._name)
            await self._use(appender)
            await appender.close()
            broken = appender.core.broken
            if isinstance(broken, Fenced) and not self._stubborn:
                self._world.count("zombie stopped")
                break
            # Unknown: open again. A refusal of an unguarded append would be a defect of ours.
            assert not isinstance(broken, Refused), f"{self._client.name}: {broken!r}"
        self.is_done = True

    async def _use(self, appender: AsyncAppender) -> None:
        """Append with a producer until it breaks, or, if it is anonymous, a few times."""
        random = self._world.random
        until_close = random.randint(1, 6) if self._name is None else self._left
        for _ in range(min(until_close, self._left)):
            if random.random() < 0.5:
                # A pause that spreads the appends over the phase with faults.
                await asyncio.sleep(random.random() * self._world.swarm.safety_ms * 80e-6)
            if appender.core.broken is not None:
                return
            self._left -= 1
            entries = [self._entry(index) for index in range(random.choice((1, 1, 1, 2, 3, 7)))]
            flush_ms = random.choice(self._flushes_ms)
            self._client.append(appender, entries, _settled, flush_ms=flush_ms)

    def _entry(self, index: int) -> NewEntry:
        random = self._world.random
        size = random.choice((0, 10, 60, 60, 300))
        if random.random() < 0.02:
            size = 3000
        payload = f"{self._client.name}/{self._world.unique()}/{index}/".encode() + b"." * size
        tags = tuple(tag for tag in TAGS[:-1] if random.random() < 0.3)
        if random.random() < 0.03:
            tags = (*tags, TAGS[-1])
        kind = Kind.MARKER if random.random() < 0.1 else Kind.DATA
        return NewEntry(payload, tags, kind, random.randint(0, 3))


def _settled(op: AppendOp) -> None:
    """Its outcome is in the story; what follows from it is seen when the producer is closed."""
