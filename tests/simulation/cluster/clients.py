"""Clients of the replicated log: writers, counters, readers, a trimmer, all on the shipped client.

Honest, and forgetful only of what a real client forgets. All that was asked, told and seen goes
into the story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import (
    Fenced,
    GuardFailed,
    PenstockError,
    Refused,
    Retryable,
    Trimmed,
    Unknown,
)
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.client.cluster import ClusterRoute, ProxyList
from penstock.log.group_format import CLAIM, decode_body
from penstock.log.meta.open import ClusterAddress
from penstock.log.records import Appended, Guard, Kind, NewEntry, SetKey
from penstock.wire import messages as m
from simulation.cluster.metadata import LOG
from simulation.cluster.nodes import TOKEN
from simulation.log import operations
from simulation.log.story import AppendOp, ClaimOp, Reading

if TYPE_CHECKING:
    from simulation.cluster.world import ClusterWorld

TAGS = tuple(f"t{number}" for number in range(20))
MACHINE = "127.0.3.1"
RETRY_SECONDS = 0.1
#: A counter gives up after so many attempts.
ATTEMPTS_MAX = 30
#: What a client may be told of a cluster that is broken.
FORESEEN = (Retryable, Fenced, Unknown)
T = TypeVar("T", bound=m.Message)


class RecordedLog(AsyncLog):
    """The shipped client. What it claims and whom it leaves is written down."""

    world: ClusterWorld

    async def call(
        self, message: m.Message, expect: type[T], body: bytes = b""
    ) -> tuple[T, memoryview]:
        group = decode_body(body) if isinstance(message, m.Append) else None
        if group is None or not group.flags & CLAIM:
            return await super().call(message, expect, body)
        story, world = self.world.story, self.world
        (nonce,) = (bytes(entry.payload) for entry in group.entries(0, 0))
        op = ClaimOp(
            self._name,
            world.now_us,
            story.known_lsn,
            producer=group.producer,
            instance=group.instance,
            nonce=nonce,
        )
        story.claims.append(op)
        try:
            done = await super().call(message, expect, body)
        finally:
            op.ended_us = world.now_us
        op.won = True
        if isinstance(done[0], m.AppendDone):
            story.know(done[0].first_lsn + done[0].count)
        return done


async def connect(world: ClusterWorld, name: str, *, reads: bool) -> RecordedLog:
    """A client of the log; `reads`: its readers may go to any proxy."""
    route = ClusterRoute(
        ClusterAddress((), "/", LOG),
        ProxyList(lambda: world.metadata.open(MACHINE)),
        token=TOKEN,
        tls=None,
        region=world.regions[0],
    )
    if not reads:
        route.reads = None
    log = RecordedLog(route, name=name, timeout=world.swarm.timeout_seconds)
    log.world = world
    log._start()
    return log


class Client:
    """One program that uses the log."""

    def __init__(self, world: ClusterWorld, name: str, *, reads: bool = False) -> None:
        self.world = world
        self.name = name
        self._reads = reads
        self.log: RecordedLog
        self.is_done = False
        world.clients.spawn(self._live())

    async def _live(self) -> None:
        self.log = await connect(self.world, self.name, reads=self._reads)
        await self.run()
        self.is_done = True

    async def run(self) -> None:
        raise NotImplementedError

    def submit(
        self, appender: AsyncAppender, entries: Sequence[NewEntry], **options: Any
    ) -> asyncio.Future[AppendOp]:
        """Append; the future is the operation, once it has ended."""
        world = self.world
        ended: asyncio.Future[AppendOp] = world.clients.create_future()

        def settled(op: AppendOp) -> None:
            if isinstance(op.outcome, Appended):
                world.count("answer duplicate" if op.outcome.duplicate else "acked")
            elif "nothing was settled" in str(op.outcome):
                world.count("gave up")
            ended.set_result(op)

        operations.append(world, self.name, appender, entries, settled, **options)
        return ended


class Writer(Client):
    """Appends so many times under a name; a zombie of a name stops when it is fenced."""

    def __init__(
        self, world: ClusterWorld, name: str, *, producer: str, operations: int, delay: float
    ) -> None:
        self._producer = producer
        self._left = operations
        self._delay = delay
        super().__init__(world, name)

    async def run(self) -> None:
        await asyncio.sleep(self._delay)
        while self._left:
            try:
                appender = await self.log.appender(self._producer)
            except FORESEEN:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await self._append_some(appender)
            await appender.close()
            broken = appender.core.broken
            if isinstance(broken, Fenced):
                self.world.count("zombie stopped")
                break
            assert not isinstance(broken, Refused), f"{self.name}: {broken!r}"

    async def _append_some(self, appender: AsyncAppender) -> None:
        random, swarm = self.world.random, self.world.swarm
        waiting: list[asyncio.Future[AppendOp]] = []
        while self._left and appender.core.broken is None:
            self._left -= 1
            entries = [self._entry(index) for index in range(random.choice((1, 1, 1, 2, 3, 7)))]
            flush_ms = random.choice((0, 0, 0, 5, 40))
            waiting.append(self.submit(appender, entries, flush_ms=flush_ms))
            if random.random() < 0.6:
                await asyncio.sleep(random.random() * swarm.pace_seconds)
            elif random.random() < 0.3:
                await waiting[-1]
        for ended in waiting:
            await ended

    def _entry(self, index: int) -> NewEntry:
        random = self.world.random
        size = random.choice((0, 10, 60, 300)) * self.world.swarm.payload_factor
        payload = f"{self.name}/{self.world.unique()}/{index}/".encode() + b"." * size
        tags = tuple(random.sample(TAGS, random.choice((0, 1, 1, 2, 5))))
        kind = Kind.MARKER if random.random() < 0.1 else Kind.DATA
        return NewEntry(payload, tags, kind, random.randint(0, 3))


class Counter(Client):
    """Adds one to a key, under a guard on the value that it read."""

    def __init__(self, world: ClusterWorld, name: str, *, key: str, operations: int) -> None:
        self._key = key
        self._left = operations
        self._attempts = 0
        super().__init__(world, name)

    async def run(self) -> None:
        while self._left and self._attempts < ATTEMPTS_MAX:
            try:
                appender = await self.log.appender()
            except FORESEEN:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            while self._left and appender.core.broken is None and self._attempts < ATTEMPTS_MAX:
                await self._add_one(appender)
            await appender.close()

    async def _add_one(self, appender: AsyncAppender) -> None:
        world = self.world
        await asyncio.sleep(world.random.random() * world.swarm.pace_seconds)
        try:
            value = await operations.get(world, self.name, self.log, self._key)
        except FORESEEN:
            return
        self._attempts += 1
        now = None if value is None else value.data
        count = 0 if now is None else int(now.split(b"/")[0])
        new = f"{count + 1}/{world.unique()}".encode().ljust(world.swarm.value_bytes, b"/")
        payload = f"{self.name}/{world.unique()}/".encode()
        ended = await self.submit(
            appender,
            [NewEntry(payload, ("count",))],
            guards=[Guard(self._key, now)],
            sets=[SetKey(self._key, new)],
        )
        if isinstance(ended.outcome, Appended):
            self._left -= 1
        elif isinstance(ended.outcome, GuardFailed):
            world.count("answer GuardFailed")


class Follower(Client):
    """Reads some tags, or everything, from some LSN on, for ever."""

    def __init__(
        self,
        world: ClusterWorld,
        name: str,
        *,
        reads: bool,
        tags: tuple[str, ...] | None,
        slow: bool,
    ) -> None:
        self._tags = tags
        self._pause_seconds = 0.1 if slow else 0.001
        self.reading = Reading(name, tags, 0, None)
        world.story.readings.append(self.reading)
        super().__init__(world, name, reads=reads)

    @property
    def looked_up_to(self) -> int:
        return self.reading.looked_up_to

    async def run(self) -> None:
        world = self.world
        while True:
            error = await self._read()
            self.reading.error = error
            start = self.reading.looked_up_to
            if isinstance(error, Trimmed):
                world.count("reader trimmed")
                start = max(start, await self._trim_point())
            else:
                assert isinstance(error, Retryable), f"{self.name}: {error!r}"
            self.reading = Reading(self.name, self._tags, start, None)
            world.story.readings.append(self.reading)

    async def _read(self) -> PenstockError:
        """Until an error ends it."""
        world = self.world
        try:
            async with self.log.tail(self._tags, start=self.reading.start) as reader:
                async for batch in reader:
                    await asyncio.sleep(world.random.random() * self._pause_seconds)
                    story = world.story
                    story.saw(self.reading, batch.entries, batch.looked_up_to, world.now_us)
        except PenstockError as error:
            return error
        raise AssertionError("a reading without an end has ended")

    async def _trim_point(self) -> int:
        while True:
            try:
                return (await self.log.bounds()).trim_point
            except FORESEEN:
                await asyncio.sleep(RETRY_SECONDS)


class Scanner(Client):
    """Asks the owner now and then: for the bounds, or the newest entry of a tag."""

    async def run(self) -> None:
        world = self.world
        while world.is_broken:
            await asyncio.sleep(world.random.random() * 0.6)
            try:
                if world.random.random() < 0.5:
                    await operations.bounds(world, self.name, self.log)
                else:
                    await operations.read_last(
                        world, self.name, self.log, world.random.choice(TAGS)
                    )
            except FORESEEN:
                pass


class Trimmer(Client):
    """Gives up what the archive has read, or, if free, anything."""

    def __init__(self, world: ClusterWorld, name: str, *, limit: Callable[[], int]) -> None:
        self._limit = limit
        super().__init__(world, name)

    async def run(self) -> None:
        world = self.world
        while world.is_broken:
            await asyncio.sleep(0.05 + world.random.random() * world.swarm.trim_seconds)
            limit = self._limit()
            lsn = world.random.randint(limit // 2, limit)
            try:
                await operations.trim(world, self.name, self.log, lsn)
                world.count("trimmed")
            except FORESEEN:
                pass
