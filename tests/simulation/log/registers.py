"""Programs that compare and set: counters that only grow, and locks that are taken and given back.

A counter's values are `n/unique`: in log order, n must count without a gap. A lock goes from absent
to its owner and back to absent, so that a guard that once failed holds again later: a refused
request that arrives a second time would then be let in.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.errors import GuardFailed, Retryable
from penstock.log.client.appender import AsyncAppender
from penstock.log.records import Appended, Guard, NewEntry, SetKey
from simulation.log.clients import Client
from simulation.log.story import AppendOp

if TYPE_CHECKING:
    from simulation.log.world import World

#: Most attempts of one change, so that rivals cannot keep each other going for ever.
_ATTEMPTS_MAX = 40


class Register:
    """A program with a producer of its own that changes one key again and again."""

    def __init__(self, world: World, client: Client, *, key: str, operations: int) -> None:
        self._world = world
        self._client = client
        self._key = key
        self._left = operations
        self._attempts = 0
        self.is_done = False

    async def run(self) -> None:
        while self._left and self._attempts < _ATTEMPTS_MAX:
            appender = await self._client.open(None)
            await self._use(appender)
            await appender.close()
        self.is_done = True

    async def _use(self, appender: AsyncAppender) -> None:
        """Until the producer breaks: whether its last change happened is the log's secret."""
        while self._left and self._attempts < _ATTEMPTS_MAX:
            await asyncio.sleep(self._world.random.random() * self._world.swarm.safety_ms * 40e-6)
            self._attempts += 1
            try:
                value = await self._client.get(self._key)
            except Retryable as error:
                self._client.told(error)
                continue
            op = await self._swap(appender, None if value is None else value.data)
            if isinstance(op.outcome, Appended):
                self._left -= 1
            elif not isinstance(op.outcome, GuardFailed):
                return

    async def _swap(self, appender: AsyncAppender, before: bytes | None) -> AppendOp:
        """A guarded group of two entries: one that names the attempt, and the change itself."""
        expected, value = self._change(before)
        settled = asyncio.Event()
        proof = NewEntry(f"{self._client.name}/{self._world.unique()}".encode(), ("proof",))
        op = self._client.append(
            appender,
            [proof],
            lambda _: settled.set(),
            guards=[Guard(self._key, expected)],
            sets=[SetKey(self._key, value)],
            flush_ms=self._world.random.choice((0, 0, 5)),
        )
        await settled.wait()
        return op

    def _change(self, before: bytes | None) -> tuple[bytes | None, bytes | None]:
        """The value to expect, and the one to set."""
        raise NotImplementedError


class Counter(Register):
    """Adds one, over and over."""

    def _change(self, before: bytes | None) -> tuple[bytes | None, bytes | None]:
        count = 0 if before is None else int(before.split(b"/")[0])
        return before, f"{count + 1}/{self._world.unique()}".encode()


class Lock(Register):
    """Takes the lock whenever it believes it free, keeps it a while, gives it back."""

    def __init__(self, world: World, client: Client, *, key: str, operations: int) -> None:
        super().__init__(world, client, key=key, operations=operations)
        self._mine: set[bytes] = set()

    def _change(self, before: bytes | None) -> tuple[bytes | None, bytes | None]:
        if before is not None and before in self._mine:
            return before, None  # also what an unknown outcome left behind
        # Tried even if somebody holds it: it may be free when the request is ordered.
        value = f"{self._client.name}/{self._world.unique()}".encode()
        self._mine.add(value)
        return None, value
