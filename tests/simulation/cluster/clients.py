"""Clients of the replicated log: writers, counters, readers, a trimmer; honest, and forgetful only
of what a real client forgets.

A client keeps one connection, to the proxy that it believes to be right, and looks for another when
that one is gone, silent, or says who the owner is. A producer sends what was not answered again,
with the same seqs, wherever the log has gone (P6); decisions are the real AppenderCore's. All that
was asked, told and seen goes into the story.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    Fenced,
    GuardFailed,
    NotOwner,
    PenstockError,
    Refused,
    Retryable,
    StaleInstance,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock.log.client.appender_core import AppenderCore, Reconnect, Send, Settle
from penstock.log.client.reader import decode_records
from penstock.log.core.tails import FOREVER, Deliver
from penstock.log.group_format import CLAIM, encode_body, meta_entry
from penstock.log.records import IMMEDIATE, Appended, Flush, Guard, Kind, NewEntry, SetKey, Value
from penstock.log.serving.served_log import ServedLog
from simulation.cluster.network import Connection
from simulation.cluster.proxies import Peer, SimProxy
from simulation.log.story import AppendOp, BoundsOp, ClaimOp, GetOp, LastOp, Reading, TrimOp

if TYPE_CHECKING:
    from simulation.cluster.world import ClusterWorld

TAGS = tuple(f"t{number}" for number in range(20))
HELLO_SECONDS = 2.0
BACKOFF_SECONDS = 0.1
#: A proxy that owes an answer and says nothing for so long is left.
SILENCE_SECONDS = 1.5

Question = Callable[[ServedLog], Awaitable[Any]]


class Member:
    """What lives on a client's connection."""

    def connected(self) -> None: ...

    def disconnected(self) -> None: ...


class LogClient:
    """One client process's way to the log."""

    def __init__(self, world: ClusterWorld, name: str, *, reads: bool) -> None:
        self.world = world
        self.name = name
        self.reads = reads
        self.process = world.clients
        self.members: list[Member] = []
        self.peer: Peer | None = None
        self.proxy: SimProxy | None = None
        self._hint = ""
        self._ended: asyncio.Event | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = 0
        self._heard = 0.0
        #: Whether the proxy owes somebody an answer.
        self.owed: Callable[[], bool] = lambda: bool(self._calls)
        self.process.create_task(self._keep())
        self.process.create_task(self._watch())

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _keep(self) -> None:
        while True:
            proxy = self._choose()
            ended = asyncio.Event()
            error = await self._connect(proxy, ended)
            if error is not None:
                self._hint = str(error) if isinstance(error, NotOwner) else ""
                await asyncio.sleep(BACKOFF_SECONDS * (0.5 + self.world.random.random()))
                continue
            self._heard = self.world.now
            for member in list(self.members):
                member.connected()
            await ended.wait()
            self._disconnected()
            await asyncio.sleep(BACKOFF_SECONDS * self.world.random.random())

    def _choose(self) -> SimProxy:
        proxies = self.world.proxies
        return proxies.get(self._hint) or self.world.random.choice(list(proxies.values()))

    async def _connect(self, proxy: SimProxy, ended: asyncio.Event) -> PenstockError | None:
        opened: asyncio.Future[PenstockError | None] = self.process.create_future()

        def told(outcome: PenstockError | None) -> None:
            if not opened.done():
                opened.set_result(outcome)

        def broke() -> None:
            ended.set()
            told(Unavailable("the connection ended"))

        connection = Connection(
            self.world, (self.name, self.process), (proxy.name, proxy.process), broke
        )
        peer = Peer(self.name, connection)
        connection.send(True, lambda: proxy.hello(peer, self.reads, told))
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                error = await opened
        except TimeoutError:
            error = Unavailable("no answer to a hello")
        if error is not None:
            connection.close()
            return error
        self.peer, self.proxy, self._ended = peer, proxy, ended
        return None

    def reconnect(self) -> None:
        """Leave this connection and look for another."""
        if self.peer is not None and self._ended is not None:
            self.peer.connection.close()
            self._ended.set()

    def _disconnected(self) -> None:
        self.peer = self.proxy = self._ended = None
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(Unavailable("the connection ended"))
        for member in list(self.members):
            member.disconnected()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SILENCE_SECONDS / 2)
            if self.peer is None or not self.owed():
                self._heard = self.world.now
            elif self.world.now - self._heard > SILENCE_SECONDS:
                self.world.count("silent proxy left")
                self.reconnect()

    # ---- requests

    def send(self, action: Callable[[SimProxy, Peer], None]) -> None:
        """Do something at the proxy, if it arrives."""
        peer, proxy = self.peer, self.proxy
        if peer is not None and proxy is not None:
            peer.connection.send(True, lambda: action(proxy, peer))

    def heard(self) -> None:
        self._heard = self.world.now

    async def call(self, question: Question) -> Any:
        """Ask the log something; raises what it answers, Unavailable if it does not."""
        return await self.request(lambda proxy, peer, reply: proxy.ask(peer, question, reply))

    async def request(self, ask: Callable[[SimProxy, Peer, Callable[[Any], None]], None]) -> Any:
        if self.peer is None:
            raise Unavailable("not connected")
        number = self.next_number()
        future: asyncio.Future[Any] = self.process.create_future()
        self._calls[number] = future

        def told(outcome: Any) -> None:
            self.heard()
            if self._calls.pop(number, None) is None or future.done():
                return
            if isinstance(outcome, PenstockError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.send(lambda proxy, peer: ask(proxy, peer, told))
        return await future


async def claim(client: LogClient, producer: str) -> AppenderCore:
    """Open a producer: take the next instance, whoever has it now (appender.py)."""
    world = client.world
    while True:
        known = await client.call(lambda log: log.get_producer(producer))
        nonce = world.random.randbytes(8)
        op = ClaimOp(
            client.name,
            world.now_us,
            world.story.known_lsn,
            producer=producer,
            instance=known.instance + 1,
            nonce=nonce,
        )
        world.story.claims.append(op)
        body = encode_body(
            producer=producer,
            instance=known.instance + 1,
            first_seq=known.next_seq,
            entries=[NewEntry(nonce, (), Kind.CONTROL)],
            flags=CLAIM,
        )
        try:
            done = await client.request(partial(_append, body))
        except StaleInstance:
            continue
        finally:
            op.ended_us = world.now_us
        op.won = True
        world.story.know(done.first_lsn + done.count)
        now = await client.call(lambda log: log.get_producer(producer))
        if now.instance == op.instance:
            return AppenderCore(producer=producer, instance=now.instance, next_seq=now.next_seq)


def _append(body: bytes, proxy: SimProxy, peer: Peer, reply: Callable[[Any], None]) -> None:
    proxy.append(peer, body, (), IMMEDIATE, reply)


class Appender(Member):
    """An open producer on a client's connection."""

    def __init__(self, client: LogClient, core: AppenderCore) -> None:
        self._client = client
        self._world = client.world
        self.core = core
        self._settled_at = client.world.now
        self._waiting: dict[AppendOp, asyncio.Future[AppendOp]] = {}
        client.members.append(self)
        calls = client.owed
        client.owed = lambda: calls() or not core.is_idle
        self._client.process.create_task(self._look())

    def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush_ms: int = 0,
    ) -> asyncio.Future[AppendOp]:
        if sets:
            entries = [*entries, meta_entry(sets)]
        op = AppendOp(
            self._client.name,
            self._world.now_us,
            self._world.story.known_lsn,
            producer=self.core.producer,
            instance=self.core.instance,
            entries=tuple(entries),
            guards=tuple(guards),
            flush_ms=flush_ms,
        )
        self._world.story.appends.append(op)
        future: asyncio.Future[AppendOp] = self._client.process.create_future()
        self._waiting[op] = future
        if self.core.is_idle:
            self._settled_at = self._world.now
        self._settle(self.core.submit(op, entries, guards=guards, flush=Flush(flush_ms)))
        self._pump()
        return future

    def _pump(self) -> None:
        if self._client.peer is None:
            return
        for send in self.core.take_sends():
            self._send(send)
        self.core.check()

    def _send(self, send: Send) -> None:
        sent_on = self._client.peer

        def told(outcome: Any) -> None:
            self._client.heard()
            if isinstance(outcome, Appended) or self._client.peer is sent_on:
                self._settle(self.core.answered(send.seq, outcome))
                self._pump()

        self._client.send(
            lambda proxy, peer: proxy.append(peer, send.body, send.guards, send.flush, told)
        )

    def connected(self) -> None:
        self._pump()

    def disconnected(self) -> None:
        self.core.disconnected()

    async def _look(self) -> None:
        """Give up when nothing was settled for long."""
        timeout = self._world.swarm.timeout_seconds
        while self in self._client.members:
            await asyncio.sleep(timeout / 4)
            if not self.core.is_idle and self._world.now - self._settled_at >= timeout:
                self._world.count("gave up")
                self._settle(self.core.give_up("nothing was settled in time"))

    def _settle(self, effects: Sequence[Settle | Reconnect]) -> None:
        for effect in effects:
            if isinstance(effect, Reconnect):
                self._client.reconnect()
                continue
            op = effect.ticket
            assert isinstance(op, AppendOp) and op.outcome is None, f"settled twice: {op}"
            self._settled_at = self._world.now
            op.outcome = effect.outcome
            op.ended_us = self._world.now_us
            if isinstance(effect.outcome, Appended):
                self._world.story.know(effect.outcome.first_lsn + effect.outcome.count)
                self._world.count("answer duplicate" if effect.outcome.duplicate else "acked")
            else:
                self._world.count(f"told {type(effect.outcome).__name__}")
            self._world.note(f"{self._client.name} told {effect.outcome!r}")
            self._waiting.pop(op).set_result(op)

    def leave(self) -> None:
        self._client.members.remove(self)


class Writer:
    """Appends so many times under a name; a zombie of a name stops when it is fenced."""

    def __init__(
        self, world: ClusterWorld, client: LogClient, *, name: str, operations: int, delay: float
    ) -> None:
        self._world = world
        self._client = client
        self._name = name
        self._left = operations
        self.is_done = False
        client.process.create_task(self._run(delay))

    async def _run(self, delay: float) -> None:
        await asyncio.sleep(delay)
        while self._left:
            try:
                core = await claim(self._client, self._name)
            except PenstockError:
                await asyncio.sleep(0.1)
                continue
            appender = Appender(self._client, core)
            await self._append_some(appender)
            appender.leave()
            if isinstance(core.broken, Fenced):
                self._world.count("zombie stopped")
                break
            assert not isinstance(core.broken, Refused), f"{self._client.name}: {core.broken!r}"
        self.is_done = True

    async def _append_some(self, appender: Appender) -> None:
        random, swarm = self._world.random, self._world.swarm
        waiting: list[asyncio.Future[AppendOp]] = []
        while self._left and appender.core.broken is None:
            self._left -= 1
            entries = [self._entry(i) for i in range(random.choice((1, 1, 1, 2, 3, 7)))]
            flush_ms = random.choice((0, 0, 0, 5, 40))
            waiting.append(appender.append(entries, flush_ms=flush_ms))
            if random.random() < 0.6:
                await asyncio.sleep(random.random() * swarm.pace_seconds)
            elif random.random() < 0.3:
                await waiting[-1]
        for future in waiting:
            await future

    def _entry(self, index: int) -> NewEntry:
        random = self._world.random
        size = random.choice((0, 10, 60, 300))
        payload = f"{self._client.name}/{self._world.unique()}/{index}/".encode() + b"." * size
        tags = tuple(random.sample(TAGS, random.choice((0, 1, 1, 2, 5))))
        kind = Kind.MARKER if random.random() < 0.1 else Kind.DATA
        return NewEntry(payload, tags, kind, random.randint(0, 3))


class Counter:
    """Adds one to a key, under a guard on the value that it read."""

    def __init__(
        self, world: ClusterWorld, client: LogClient, *, key: str, operations: int
    ) -> None:
        self._world = world
        self._client = client
        self._key = key
        self._left = operations
        self._attempts = 0
        self._opened = 0
        self.is_done = False
        client.process.create_task(self._run())

    async def _run(self) -> None:
        while self._left and self._attempts < 30:
            self._opened += 1
            try:
                core = await claim(self._client, f"anon-{self._client.name}-{self._opened}")
            except PenstockError:
                await asyncio.sleep(0.1)
                continue
            appender = Appender(self._client, core)
            while self._left and core.broken is None and self._attempts < 30:
                await self._add_one(appender)
            appender.leave()
        self.is_done = True

    async def _add_one(self, appender: Appender) -> None:
        world = self._world
        await asyncio.sleep(world.random.random() * world.swarm.pace_seconds)
        op = GetOp(self._client.name, world.now_us, world.story.known_lsn, key=self._key)
        try:
            found = await self._client.call(partial(_get_key, self._key))
        except PenstockError:
            return
        op.ended_us = world.now_us
        if found is not None:
            op.found = found
            world.story.know(found.lsn + 1)
        world.story.gets.append(op)
        self._attempts += 1
        now = None if found is None else found.data
        count = 0 if now is None else int(now.split(b"/")[0])
        value = f"{count + 1}/{world.unique()}".encode()
        payload = f"{self._client.name}/{world.unique()}/".encode()
        ended = await appender.append(
            [NewEntry(payload, ("count",))],
            guards=[Guard(self._key, now)],
            sets=[SetKey(self._key, value)],
        )
        if isinstance(ended.outcome, Appended):
            self._left -= 1
        elif isinstance(ended.outcome, GuardFailed):
            world.count("answer GuardFailed")


async def _get_key(key: str, log: ServedLog) -> Value | None:
    found = await log.get_metadata(lambda known: [(key, known[key])] if key in known else [])
    return found[0][1] if found else None


class Follower(Member):
    """Reads some tags, or everything, from some LSN on, for ever."""

    def __init__(
        self,
        world: ClusterWorld,
        client: LogClient,
        *,
        tags: tuple[str, ...] | None,
        slow: bool,
    ) -> None:
        self._world = world
        self._client = client
        self._tags = tags
        self._slow = slow
        self._number = 0
        self._next_lsn = 0
        self._queue: deque[tuple[int, Deliver]] = deque()
        self._working = False
        #: It was trimmed, and looks for where to go on.
        self._lost = False
        self.reading = self._new_reading(0)
        client.members.append(self)

    def _new_reading(self, start: int) -> Reading:
        reading = Reading(self._client.name, self._tags, start, None)
        self._world.story.readings.append(reading)
        self._next_lsn = start
        return reading

    @property
    def looked_up_to(self) -> int:
        return self.reading.looked_up_to

    def connected(self) -> None:
        if not self._lost:
            self._subscribe()

    def _subscribe(self) -> None:
        number = self._number = self._client.next_number()
        tags = None if self._tags is None else frozenset(self._tags)
        start, credit = self._next_lsn, self._world.swarm.credit_bytes
        self._client.send(
            lambda proxy, peer: proxy.subscribe(
                peer, number, tags, start, credit, partial(self._told, number)
            )
        )

    def _told(self, number: int, what: Deliver | PenstockError) -> None:
        if number != self._number:
            return
        self._client.heard()
        if isinstance(what, Deliver):
            self._next_lsn = max(self._next_lsn, what.looked_up_to)
            self._queue.append((number, what))
            if not self._working:
                self._working = True
                self._later()
        elif isinstance(what, Trimmed):
            self._number = 0
            self._lost = True
            self._client.process.create_task(self._start_again(what))
        else:
            assert isinstance(what, Retryable), f"{self._client.name}: {what!r}"
            self._number = 0
            self._client.process.call_later(0.1, self._client.reconnect)

    def _later(self) -> None:
        pause = self._world.random.random() * (0.1 if self._slow else 0.001)
        self._client.process.call_later(pause, self._work)

    def _work(self) -> None:
        number, what = self._queue.popleft()
        body = bytes(what.records[0])
        entries = decode_records(memoryview(body))
        self._world.story.saw(self.reading, entries, what.looked_up_to, self._world.now_us)
        if body and number == self._number:
            self._client.send(lambda proxy, peer: proxy.credit(peer, number, len(body)))
        if self._queue:
            self._later()
        else:
            self._working = False

    async def _start_again(self, error: Trimmed) -> None:
        while self._queue:
            await asyncio.sleep(0.05)
        self.reading.error = error
        self._world.count("reader trimmed")
        while True:
            try:
                point, _ = await self._client.call(_bounds)
                break
            except PenstockError:
                await asyncio.sleep(0.1)
        self._lost = False
        self.reading = self._new_reading(max(point, self._next_lsn))
        if self._client.peer is not None:
            self._subscribe()


async def _bounds(log: ServedLog) -> tuple[int, int]:
    await log.make_sure()
    return log.trim_point, log.durable_lsn


class Scanner:
    """Asks the owner now and then: for the bounds, or the newest entry of a tag."""

    def __init__(self, world: ClusterWorld, client: LogClient) -> None:
        self._world = world
        self._client = client
        client.process.create_task(self._run())

    async def _run(self) -> None:
        world = self._world
        while world.is_broken:
            await asyncio.sleep(world.random.random() * 0.6)
            try:
                await (self._bounds() if world.random.random() < 0.5 else self._last())
            except PenstockError:
                pass

    async def _bounds(self) -> None:
        world = self._world
        op = BoundsOp(self._client.name, world.now_us, world.story.known_lsn)
        op.trim_point, op.tail = await self._client.call(_bounds)
        op.ended_us = world.now_us
        world.story.bounds.append(op)
        world.story.know(op.tail)

    async def _last(self) -> None:
        world = self._world
        tag = world.random.choice(TAGS)
        op = LastOp(self._client.name, world.now_us, world.story.known_lsn, tag=tag)
        body = await self._client.call(partial(_last, tag))
        op.ended_us = world.now_us
        if body:
            (op.found,) = decode_records(memoryview(body))
            world.story.know(op.found.lsn + 1)
        world.story.lasts.append(op)


async def _last(tag: str, log: ServedLog) -> bytes | None:
    await log.make_sure()
    return await log.read_last(tag, FOREVER)


async def _trim(lsn: int, log: ServedLog) -> int:
    return await log.trim(lsn)


class Trimmer:
    """Gives up what the archive has read, or, if free, anything."""

    def __init__(self, world: ClusterWorld, client: LogClient, *, limit: Callable[[], int]) -> None:
        self._world = world
        self._client = client
        self._limit = limit
        client.process.create_task(self._run())

    async def _run(self) -> None:
        world = self._world
        while world.is_broken:
            await asyncio.sleep(0.05 + world.random.random() * world.swarm.trim_seconds)
            limit = self._limit()
            lsn = world.random.randint(limit // 2, limit)
            op = TrimOp(self._client.name, world.now_us, world.story.known_lsn, lsn=lsn)
            world.story.trims.append(op)
            try:
                op.point = await self._client.call(partial(_trim, lsn))
                op.ended_us = world.now_us
                world.count("trimmed")
            except (PenstockError, Unknown):
                pass
