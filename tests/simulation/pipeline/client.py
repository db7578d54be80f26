"""A process's way to the log, over a network that delays, loses, repeats and delivers late.

Owns retries: a request without an answer is sent again, the same, until there is one; the log's
sequence numbers make that safe. What a process sent before it died arrives all the same, and a copy
of it may arrive much later, when another has taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.errors import StaleInstance, Trimmed
from penstock.ids import Lsn
from penstock.log.api import Bounds, ReadBatch
from penstock.log.client.appender_core import AppenderCore, Send, Settle, check_submission
from penstock.log.group_format import CLAIM, encode_body, meta_entry
from penstock.log.records import Appended, Entry, Guard, Kind, NewEntry, SetKey
from simulation.pipeline.fibers import Loop, Process, Promise
from simulation.pipeline.log import Known, SimLog
from simulation.pipeline.swarm import Fault, Swarm

T = TypeVar("T")

#: After so long without an answer a request is sent again, on another connection.
RETRY_US = 25_000
#: So long a reader waits before it asks how far was looked.
LOOK_US = 30_000
FOREVER = 2**62


class Network:
    """Between all clients and the log."""

    def __init__(self, loop: Loop, log: SimLog, swarm: Swarm) -> None:
        self._loop = loop
        self._log = log
        self._swarm = swarm
        self.is_broken = True
        self.late = 0
        self.lost = 0

    def _delay_us(self) -> int:
        random = self._loop.random
        if self.is_broken and random.random() < self._swarm.slow_odds:
            return random.randint(1000, 15_000)
        return random.randint(20, 400)

    def _happens(self, fault: Fault) -> bool:
        odds = self._swarm.odds.get(fault, 0.0) if self.is_broken else 0.0
        return odds > 0 and self._loop.random.random() < odds

    def send(self, request: Callable[[], None]) -> None:
        """Let a request arrive, or not, or twice."""
        if self._happens(Fault.LATE):
            self.late += 1
            self._loop.after(
                self._loop.random.randint(5000, 400_000), lambda: self._arrive(request)
            )
        if self._happens(Fault.LOST):
            self.lost += 1
            return
        self._loop.after(self._delay_us(), lambda: self._arrive(request))

    def _arrive(self, request: Callable[[], None]) -> None:
        if self._log.is_up:
            request()

    def answer(self, then: Callable[[], None]) -> None:
        """Let an answer come back, or not."""
        if self._happens(Fault.LOST):
            self.lost += 1
            return
        self._loop.after(self._delay_us(), then)


class Client:
    """The log as one process sees it."""

    def __init__(self, process: Process, log: SimLog, network: Network) -> None:
        self.process = process
        self.log = log
        self._network = network
        self._own: SimAppender | None = None

    async def _call(self, request: Callable[[Promise[T]], None]) -> T:
        """Ask until there is an answer."""
        outcome: Promise[T] = Promise()
        process = self.process

        def attempt() -> None:
            if outcome.is_done or not process.is_alive:
                return
            if not process.is_paused:
                answered: Promise[T] = Promise()
                answered.then(lambda: self._network.answer(lambda: _pass_on(answered, outcome)))
                self._network.send(lambda: request(answered))
            process.loop.after(RETRY_US, attempt)

        attempt()
        try:
            return await outcome
        finally:
            outcome.is_done = True  # who was cancelled asks no more

    async def _ask(self, look: Callable[[], T]) -> T:
        def request(answer: Promise[T]) -> None:
            try:
                answer.keep(look())
            except Trimmed as error:
                answer.fail(error)

        return await self._call(request)

    # -- reading

    async def bounds(self) -> Bounds:
        return await self._ask(self.log.bounds)

    async def read_last(self, tag: str) -> Entry | None:
        return await self._ask(lambda: self.log.read_last(tag))

    async def read(self, tags: Sequence[str], *, start: int, end: int) -> list[Entry]:
        wanted = frozenset(tags)
        return await self._ask(lambda: self.log.read(wanted, start, end))

    def tail(self, tags: Sequence[str], *, start: int, end: int = FOREVER) -> SimReader:
        return SimReader(self, frozenset(tags), Lsn(start), end)

    async def trim(self, lsn: Lsn) -> Lsn:
        return await self._ask(lambda: self.log.trim(lsn))

    # -- appending

    async def producer(self, name: str) -> Known:
        return await self._call(lambda answer: self.log.ask_producer(name, answer))

    async def claim(self, name: str, *, guards: Sequence[Guard] = ()) -> int:
        """As log/client/appender.py claims."""
        while True:
            known = await self.producer(name)
            instance = known.instance + 1
            nonce = self.process.loop.random.randbytes(8)
            body = encode_body(
                producer=name, instance=instance, first_seq=known.next_seq, flags=CLAIM,
                entries=[NewEntry(nonce, (), Kind.CONTROL)],
            )  # fmt: skip
            try:
                await self.order(body, guards)
            except StaleInstance:
                continue
            if (await self.producer(name)).instance == instance:
                return instance

    async def order(self, body: bytes, guards: Sequence[Guard] = ()) -> Appended:
        return await self._call(lambda answer: self.log.append(body, guards, answer))

    async def adopt(self, name: str, instance: int) -> SimAppender:
        known = await self.producer(name)
        if known.instance != instance:
            raise StaleInstance(f"producer {name} is at {known.instance}, not {instance}")
        return SimAppender(self, name, instance, known.next_seq)

    async def appender(self, name: str) -> SimAppender:
        return await self.adopt(name, await self.claim(name))

    async def append(self, entries: Sequence[NewEntry]) -> Appended:
        if self._own is None:
            self._own = await self.appender(f"own-{self.process.name}")
        return await self._own.append(entries)


def _pass_on(answered: Promise[T], outcome: Promise[T]) -> None:
    try:
        value = answered.result()
    except Exception as error:
        outcome.fail(error)
    else:
        outcome.keep(value)


class SimAppender:
    """One producer's appends through the real AppenderCore, one group on its way at a time."""

    def __init__(self, client: Client, name: str, instance: int, next_seq: int) -> None:
        self._client = client
        self.instance = instance
        self._core = AppenderCore(producer=name, instance=instance, next_seq=next_seq)
        self._is_pumping = False

    async def append(self, entries: Sequence[NewEntry], *, sets: Sequence[SetKey] = ()) -> Appended:
        return await self.append_nowait(entries, sets=sets)

    def append_nowait(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
    ) -> Promise[Appended]:
        """Submit; what is submitted first is ordered first."""
        whole = [*entries, meta_entry(sets)] if sets else list(entries)
        check_submission(whole, guards)
        promise: Promise[Appended] = Promise()
        self._settle(self._core.submit(promise, whole, guards=guards))
        if not self._is_pumping:
            # Apart from who asked: what was sent goes on when its task is cancelled. The first
            # goes at once, alone; what is submitted meanwhile travels together.
            self._is_pumping = True
            self._client.process.start_main(self._pump(self._core.take_sends()))
        return promise

    async def _pump(self, sends: Sequence[Send]) -> None:
        while sends:
            for send in sends:
                await self._send(send)
            sends = self._core.take_sends()
        self._is_pumping = False

    async def _send(self, send: Send) -> None:
        try:
            outcome = await self._client.order(send.body, send.guards)
        except Exception as error:
            self._settle(self._core.answered(send.seq, error))  # type: ignore[arg-type]
        else:
            self._settle(self._core.answered(send.seq, outcome))

    def _settle(self, effects: Sequence[object]) -> None:
        for effect in effects:
            assert isinstance(effect, Settle), effect
            promise = effect.ticket
            assert isinstance(promise, Promise)
            if isinstance(effect.outcome, Appended):
                promise.keep(effect.outcome)
            else:
                promise.fail(effect.outcome)


class SimReader:
    """Follows tags; the network decides where a batch ends, also inside a group."""

    def __init__(self, client: Client, tags: frozenset[str], start: Lsn, end: int) -> None:
        self._client = client
        self._tags = tags
        self._position = start
        self._end = end

    async def next(self) -> ReadBatch | None:
        """The next batch; None at the end."""
        if self._position >= self._end:
            return None
        client, log = self._client, self._client.log
        chunk = client.process.loop.random.choice((1, 2, 5, 50))
        loop = client.process.loop

        def request(answer: Promise[ReadBatch]) -> None:
            start, tags = self._position, self._tags
            log.poll(tags, start, self._end, chunk, answer)
            if not answer.is_done:
                # Nothing there: say after a while how far was looked, as a server does.
                loop.after(LOOK_US, lambda: answer.keep(ReadBatch([], log.look(tags, start))))

        found = await client._call(request)
        self._position = found.looked_up_to
        return found
