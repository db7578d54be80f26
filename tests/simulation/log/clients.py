"""The real client, as the simulated programs use it: what is asked and told goes into the story.

One `Client` is one process with one connection. What may fail for a while is asked until it does
not; each failure is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, Retryable, Unknown
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog, Endpoint
from penstock.log.records import NewEntry, Value
from simulation.log import operations
from simulation.log.lives import HOST, PORT, TOKEN
from simulation.log.story import AppendOp, BoundsOp, ClaimOp

if TYPE_CHECKING:
    from simulation.log.world import World

#: Pause before a producer is opened again that could not be opened.
_OPEN_SECONDS = 0.05


class Client:
    """One client process and its connection."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process = world.scheduler.process(name)
        self._log: asyncio.Task[AsyncLog] | None = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a program in this process."""
        self.process.spawn(work)

    async def log(self) -> AsyncLog:
        """Connected, as soon as the server lets us."""
        if self._log is None:
            self._log = self.process.create_task(self._connect())
        return await asyncio.shield(self._log)

    async def _resolve(self) -> Endpoint:
        return Endpoint(HOST, PORT, TOKEN, pulse_seconds=self.world.swarm.pulse_seconds)

    async def _connect(self) -> AsyncLog:
        seconds, asked = self.world.swarm.timeout_ms / 1000, self.world.now
        while True:
            try:
                log = await AsyncLog.connect(self._resolve, name=self.name, timeout=seconds)
            except Retryable:
                continue
            assert log.welcome is not None
            self.world.got_in(self.name, self.world.now - asked)
            self.world.story.know(log.welcome.tail)
            return log

    def told(self, error: PenstockError) -> None:
        self.world.count(f"told {type(error).__name__}")

    # ---- appending

    async def open(self, name: str | None) -> AsyncAppender:
        """Open a producer, however often that takes; None: an anonymous one."""
        world, log = self.world, await self.log()
        while True:
            op = ClaimOp(self.name, world.now_us, world.story.known_lsn)
            try:
                appender = await log.appender(name)
            except (Retryable, Unknown) as error:
                self.told(error)
                world.count("claim failed")
                await asyncio.sleep(_OPEN_SECONDS)
                continue
            op.producer, op.instance = appender.producer, appender.instance
            op.nonce, op.won, op.ended_us = b"%d" % world.unique(), True, world.now_us
            world.story.claims.append(op)
            return appender

    def append(
        self,
        appender: AsyncAppender,
        entries: Sequence[NewEntry],
        settled: Callable[[AppendOp], None],
        **options: Any,
    ) -> AppendOp:
        """Submit a group; `settled` is called once, when its outcome is known."""
        return operations.append(self.world, self.name, appender, entries, settled, **options)

    # ---- asking

    async def get(self, key: str) -> Value | None:
        return await operations.get(self.world, self.name, await self.log(), key)

    async def bounds(self) -> BoundsOp:
        return await operations.bounds(self.world, self.name, await self.log())
