"""Clients that load a log and write down what happened to them; shared by the fault tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from harness.history import Append, History, Reading
from harness.server_process import ServerProcess

from penstock.errors import GuardFailed, PenstockError
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog, Resolve
from penstock.log.client.connection import ClientConnection
from penstock.log.records import Appended, Entry, Guard, NewEntry, SetKey

TAGS = tuple(f"tag-{number}" for number in range(8))
#: How long readers may take to see the end of the log once all is quiet.
SETTLE_SECONDS = 60.0


class Writer:
    """Appends small groups with several tags, many on their way at once."""

    def __init__(
        self,
        log: AsyncLog,
        history: History,
        name: str,
        rng: random.Random,
        *,
        outstanding: int = 8,
        pause_seconds: float = 0.002,
        payload_bytes_max: int = 1500,
    ) -> None:
        self._log = log
        self._history = history
        self._name = name
        self._rng = rng
        self._room = asyncio.Semaphore(outstanding)
        self._outstanding = outstanding
        self._pause_seconds = pause_seconds
        self._payload_bytes_max = payload_bytes_max
        self._count = 0
        self.latencies: list[float] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Append until told to stop, and until everything is settled."""
        appender = await self._log.appender(self._name)
        while not stop.is_set():
            await self._room.acquire()
            if appender.core.broken is not None:
                # Its last outcome was unknown: the next instance fences whatever is on its way.
                await appender.close()
                appender = await self._log.appender(self._name)
            self._submit(appender)
            await asyncio.sleep(self._rng.random() * 2 * self._pause_seconds)
        for _ in range(self._outstanding):
            await self._room.acquire()
        await appender.close()

    def _submit(self, appender: AsyncAppender) -> None:
        append = self._history.invoke(f"{self._name}#{appender.instance}", self.entries())
        loop = asyncio.get_running_loop()
        started = loop.time()

        def settled(future: asyncio.Future[Appended]) -> None:
            self._room.release()
            self.latencies.append(loop.time() - started)
            record(self._history, append, future)

        appender.append_nowait(append.entries).add_done_callback(settled)

    def entries(self) -> list[NewEntry]:
        """One to five entries, each unlike any other of the run, under up to four tags."""
        rng = self._rng
        entries = []
        for _ in range(rng.randint(1, 5)):
            self._count += 1
            head = b"%s/%d/" % (self._name.encode(), self._count)
            payload = head + rng.randbytes(rng.randint(0, self._payload_bytes_max))
            tags = tuple(rng.sample(TAGS, rng.randint(0, 4)))
            entries.append(NewEntry(payload, tags, rows=rng.randint(0, 9)))
        return entries


def record(history: History, append: Append, future: asyncio.Future[Appended]) -> None:
    """Write down how an append ended; only Penstock's own errors are an ending."""
    error = future.exception()
    if error is None:
        history.ok(append, future.result())
    else:
        assert isinstance(error, PenstockError), repr(error)
        history.failed(append, error)


async def count_up(
    log: AsyncLog, history: History, name: str, key: str, stop: asyncio.Event
) -> None:
    """Raise a shared counter by one, again and again, each time under a guard on its value."""
    appender = await log.appender(name)
    number = 0
    while not stop.is_set():
        value = await log.get(key)
        old = None if value is None else value.data
        new = b"%d" % (int(old or b"0") + 1)
        number += 1
        entry = NewEntry(b"%s/%d" % (name.encode(), number), ("counted",))
        append = history.invoke(f"{name}#{appender.instance}", [entry])
        try:
            done = await appender.append([entry], guards=[Guard(key, old)], sets=[SetKey(key, new)])
            history.ok(append, done)
        except GuardFailed as error:
            history.failed(append, error)  # a rival was faster
        except PenstockError as error:
            history.failed(append, error)
            await appender.close()
            appender = await log.appender(name)
        await asyncio.sleep(0.005)
    await appender.close()


async def follow(log: AsyncLog, reading: Reading, *, pause_seconds: float = 0.0) -> None:
    """Tail for ever, writing down every batch; cancel it when it has seen enough."""
    tags = None if reading.tags is None else sorted(reading.tags)
    async with log.tail(tags, start=reading.start) as reader:
        async for batch in reader:
            reading.saw(batch)
            if pause_seconds:
                await asyncio.sleep(pause_seconds)


@asynccontextmanager
async def clients(resolve: Resolve, count: int) -> AsyncIterator[list[AsyncLog]]:
    """Several clients, each with a connection of its own."""
    logs = [await AsyncLog.connect(resolve) for _ in range(count)]
    try:
        yield logs
    finally:
        for log in logs:
            await log.close()


async def settle(
    readings: Sequence[Reading], tasks: Sequence[asyncio.Task[None]], tail: int
) -> None:
    """Wait until every reader has looked at all below `tail`, then end them."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while any(reading.looked_up_to < tail for reading in readings):
            for task in tasks:
                assert not task.done(), f"a reader ended: {task}"
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def read_final(
    log: AsyncLog, tags: Sequence[str] = (*TAGS, "counted")
) -> tuple[list[Entry], dict[str, list[Entry]]]:
    """The whole log, and the same by tag."""
    tail = (await log.bounds()).tail
    final = await log.read(end=tail)
    return final, {tag: await log.read([tag], end=tail) for tag in tags}


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """What `under_load` yields."""

    history: History
    logs: list[AsyncLog]
    writers: list[Writer]
    #: Those of `logs` when everything had been read.
    connections: list[ClientConnection | None] = field(default_factory=list)


@asynccontextmanager
async def under_load(server: ServerProcess, *, writers: int = 2) -> AsyncIterator[UnderLoad]:
    """Writers and a tail at work; in the end the tail has seen all, and every law holds."""
    history = History()
    stop = asyncio.Event()
    async with clients(server.endpoint(), writers + 1) as logs:
        made = [
            Writer(log, history, f"writer-{number}", random.Random(number))
            for number, log in enumerate(logs[:writers])
        ]
        work = [asyncio.create_task(writer.run(stop)) for writer in made]
        reading = history.reading("tail", None)
        tail = asyncio.create_task(follow(logs[-1], reading))
        load = UnderLoad(history, logs, made)
        yield load
        stop.set()
        await asyncio.gather(*work)
        final, by_tag = await read_final(logs[0])
        await settle([reading], [tail], final[-1].lsn + 1)
        load.connections.extend(log.connection for log in logs)
    assert history.check(final, by_tag) == []
