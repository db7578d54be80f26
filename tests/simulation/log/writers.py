"""Clients that append: under a name that outlives them, anonymously, or as the zombie of a name.

Owns when what is appended. Every payload is unique, so that the log itself tells which append an
entry came from. A named writer that was told Unknown opens its producer again, as its next
instance; one that was fenced stops, or, if stubborn, takes the name back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import Fenced, PenstockError, Refused
from penstock.log.records import Kind, NewEntry
from simulation.log.appender import Claim, SimAppender
from simulation.log.link import Link
from simulation.log.story import AppendOp

if TYPE_CHECKING:
    from simulation.log.world import World

TAGS = ("a", "b", "c", "d", "rare")


class Writer:
    """One process that appends `operations` times under a name, or anonymously (None)."""

    def __init__(
        self, world: World, link: Link, *, name: str | None, operations: int, stubborn: bool
    ) -> None:
        self._world = world
        self._link = link
        self._name = name
        self._left = operations
        self._stubborn = stubborn
        self._appender: SimAppender | None = None
        self._unsettled = 0
        #: Appends until an anonymous writer closes its producer and opens another.
        self._until_close = 0
        self._opened = 0
        #: Latencies that this writer accepts, in milliseconds.
        self._flushes_ms = (2000,) if world.random.random() < 0.15 else (0, 0, 0, 5, 40)
        self.is_done = False

    def start(self) -> None:
        self._opened += 1
        producer = self._name or f"anon-{self._link.name}-{self._opened}"
        self._until_close = self._world.random.randint(1, 6) if self._name is None else 1 << 30
        Claim(self._link, producer, retires=self._name is None, opened=self._claimed)

    def _claimed(self, result: SimAppender | PenstockError) -> None:
        if isinstance(result, SimAppender):
            self._appender = result
            self._soon()
        else:
            self._world.count("claim failed")
            self._world.after(50_000, f"{self._link.name} opens again", self.start)

    def _soon(self) -> None:
        """The next append follows at once, or after a pause that spreads them over the phase."""
        random = self._world.random
        pause_us = 0
        if random.random() < 0.5:
            pause_us = random.randint(0, self._world.swarm.safety_ms * 80)
        self._world.after(pause_us, f"{self._link.name} appends", self._append)

    def _append(self) -> None:
        appender = self._appender
        if appender is None or self.is_done:
            return
        if self._left == 0 or self._until_close == 0:
            self._appender = None
            appender.close(self._closed)
            return
        self._left -= 1
        self._until_close -= 1
        self._unsettled += 1
        random = self._world.random
        entries = [self._entry(index) for index in range(random.choice((1, 1, 1, 2, 3, 7)))]
        appender.append(entries, self._ended, flush_ms=random.choice(self._flushes_ms))
        self._soon()

    def _entry(self, index: int) -> NewEntry:
        random = self._world.random
        size = random.choice((0, 10, 60, 60, 300))
        if random.random() < 0.02:
            size = 3000
        payload = f"{self._link.name}/{self._world.unique()}/{index}/".encode() + b"." * size
        tags = tuple(tag for tag in TAGS[:-1] if random.random() < 0.3)
        if random.random() < 0.03:
            tags = (*tags, TAGS[-1])
        kind = Kind.MARKER if random.random() < 0.1 else Kind.DATA
        return NewEntry(payload, tags, kind, random.randint(0, 3))

    def _ended(self, op: AppendOp) -> None:
        self._unsettled -= 1
        outcome = op.outcome
        if isinstance(outcome, PenstockError):
            self._world.count(f"told {type(outcome).__name__}")
        if self._appender is None or self._appender.core.broken is None:
            return
        if self._unsettled:
            return  # the rest of a broken producer is settled one by one
        broken = self._appender.core.broken
        self._link.leave(self._appender)
        self._appender = None
        if isinstance(broken, Fenced) and not self._stubborn:
            self._world.count("zombie stopped")
            self.is_done = True
            return
        # Unknown: open again. A refusal of an unguarded append would be a defect of ours.
        assert not isinstance(broken, Refused), f"{self._link.name}: {broken!r}"
        self._world.after(1000, f"{self._link.name} opens again", self.start)

    def _closed(self) -> None:
        if self._left:
            self.start()
        else:
            self.is_done = True
