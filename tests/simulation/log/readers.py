"""Programs that read: followers, scanners of a range, askers of single facts; and trimmers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import Retryable, Trimmed, Unknown
from penstock.log.client.reader import AsyncReader
from simulation.log import operations
from simulation.log.clients import Client
from simulation.log.story import FindTimeOp, Reading

if TYPE_CHECKING:
    from simulation.log.world import World

#: How long a slow reader looks at what it was given.
_SLOW_SECONDS_MAX = 0.02


class Follower:
    """Follows some tags, or everything, for ever."""

    def __init__(
        self, world: World, client: Client, *, tags: tuple[str, ...] | None, slow: bool
    ) -> None:
        self._world = world
        self._client = client
        self._tags = tags
        self._slow = slow
        self._reader: AsyncReader | None = None
        self.looked_up_to = 0

    async def run(self) -> None:
        log = await self._client.log()
        while True:
            self._reader = log.tail(self._tags, start=self.looked_up_to)
            reading = Reading(self._client.name, self._tags, self.looked_up_to, None)
            self._world.story.readings.append(reading)
            try:
                await self._follow(self._reader, reading)
            except Trimmed as error:
                reading.error = error
                self._world.count("reader trimmed")
                self.looked_up_to = await self._first_lsn()
            except Retryable as error:
                # The server could not serve it for as long as this client waits for anything.
                reading.error = error
                self._client.told(error)

    async def _follow(self, reader: AsyncReader, reading: Reading) -> None:
        world = self._world
        async for batch in reader:
            world.story.saw(reading, batch.entries, batch.looked_up_to, world.now_us)
            self.looked_up_to = batch.looked_up_to
            if self._slow:
                await asyncio.sleep(world.random.random() * _SLOW_SECONDS_MAX)

    async def _first_lsn(self) -> int:
        while True:
            try:
                return (await self._client.bounds()).trim_point
            except Retryable as error:
                self._client.told(error)

    async def leave(self, seconds: float) -> None:
        """Unsubscribe in the middle; `run` goes on from there."""
        await asyncio.sleep(seconds)
        if self._reader is not None:
            self._world.count("reader left")
            await self._reader.close()


class Scanner:
    """Asks now and then: for a range, the newest entry of a tag, a time, the bounds."""

    def __init__(self, world: World, client: Client, *, tags: tuple[str, ...]) -> None:
        self._world = world
        self._client = client
        self._tags = tags

    async def run(self) -> None:
        random = self._world.random
        while self._world.is_broken:
            await asyncio.sleep(random.uniform(0.001, 0.4))
            question = random.choice((self._scan, self._scan, self._last, self._time))
            try:
                await question()
            except Retryable as error:
                self._client.told(error)

    async def _scan(self) -> None:
        world, random, log = self._world, self._world.random, await self._client.log()
        bounds = await self._client.bounds()
        if bounds.tail <= bounds.trim_point:
            return
        start = random.randint(bounds.trim_point, bounds.tail)
        # Sometimes beyond the tail: it then waits for it.
        end = max(random.choice((bounds.tail, bounds.tail, start + 3)), start + 1)
        count = random.randint(0, 3)
        tags = tuple(random.sample(self._tags, count)) if count else None
        reading = Reading(self._client.name, tags, start, end)
        world.story.readings.append(reading)
        try:
            async with log.tail(tags, start=start, end=end) as reader:
                async for batch in reader:
                    world.story.saw(reading, batch.entries, batch.looked_up_to, world.now_us)
            reading.done = True
        except Trimmed as error:
            reading.error = error

    async def _last(self) -> None:
        world, log = self._world, await self._client.log()
        tag = world.random.choice(self._tags)
        await operations.read_last(world, self._client.name, log, tag)

    async def _time(self) -> None:
        world, log = self._world, await self._client.log()
        time_ms = max(world.clock.wall_ms() - world.random.randint(-100, 3000), 0)
        op = FindTimeOp(self._client.name, world.now_us, world.story.known_lsn, time_ms=time_ms)
        op.found = await log.find_time(time_ms)
        op.ended_us = world.now_us
        world.story.times.append(op)


class Trimmer:
    """Gives up old entries: those that the archive has read, or, if free, any."""

    def __init__(self, world: World, client: Client, *, limit: Callable[[], int]) -> None:
        self._world = world
        self._client = client
        self._limit = limit

    async def run(self) -> None:
        world, log = self._world, await self._client.log()
        while world.is_broken:
            await asyncio.sleep(world.random.uniform(0.05, 0.6))
            limit = self._limit()
            lsn = world.random.randint(limit // 2, limit)
            try:
                await operations.trim(world, self._client.name, log, lsn)
            except (Retryable, Unknown) as error:
                self._client.told(error)
