"""Clients that load a replicated log, know when they were answered, and doubt what is newest."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fault_workload import TAGS, Writer, count_up, follow, read_final
from harness.history import Append, History, Outcome, check_counter

from penstock.errors import Retryable, Unavailable
from penstock.log.client.client import AsyncLog, Endpoint, Resolve
from penstock.log.embedded import endpoint
from penstock.log.local_cluster import LocalCluster
from penstock.log.meta.api import MetadataStore, Versioned
from penstock.log.meta.open import open_metadata
from penstock.log.meta.zookeeper import SESSION_SECONDS
from penstock.log.records import Appended, Entry, Kind
from penstock.log.replication.manifest import LogManifest, decode_log_manifest
from penstock.log.serving.directory import read_token

COUNTER = "count"


class ClusterHistory(History):
    """A history that also knows the time of its answers and how far the log must have come."""

    def __init__(self) -> None:
        super().__init__()
        self.answered_at: list[float] = []
        #: Everything below it was acknowledged to somebody.
        self.known_lsn = 0
        self.problems: list[str] = []

    def ok(self, append: Append, done: Appended) -> None:
        super().ok(append, done)
        self.answered_at.append(time.monotonic())
        self.known_lsn = max(self.known_lsn, done.first_lsn + done.count)

    def check_all(self, final: Sequence[Entry], by_tag: dict[str, list[Entry]]) -> list[str]:
        """Every problem: the history's, the producers', the counter's, and what was told newest."""
        counted = [append for append in self.appends if append.client.startswith("counter-")]
        ok = sum(append.outcome is Outcome.OK for append in counted)
        unknown = sum(append.outcome is Outcome.UNKNOWN for append in counted)
        return [
            *self.problems,
            *self.check(final, by_tag),
            *check_seqs(final),
            *check_counter(final, COUNTER, ok=ok, unknown=unknown),
        ]


def check_seqs(final: Sequence[Entry]) -> list[str]:
    """Every seq of a producer once and in order, and no older instance after a newer one."""
    problems = []
    known: dict[str, tuple[int, int]] = {}
    for entry in final:
        instance, next_seq = known.get(entry.producer, (0, 0))
        is_claim = entry.kind is Kind.CONTROL and len(entry.payload) == 8
        if entry.instance < instance:
            problems.append(f"lsn {entry.lsn}: instance {entry.instance} after {instance}")
        if not is_claim and entry.seq != next_seq:
            problems.append(f"lsn {entry.lsn}: seq {entry.seq} of {entry.producer}, not {next_seq}")
        known[entry.producer] = (entry.instance, next_seq + (not is_claim))
    return problems[:10]


async def doubt(log: AsyncLog, history: ClusterHistory, stop: asyncio.Event) -> None:
    """Ask again and again for the newest; it must not be older than what was acknowledged."""
    counted = 0
    while not stop.is_set():
        known = history.known_lsn
        try:
            tail = (await log.bounds()).tail
            if tail < known:
                history.problems.append(f"the tail is {tail}, but {known} was acknowledged")
            value = await log.get(COUNTER)
        except Retryable:
            continue  # nobody could be asked: no answer is right, too
        count = 0 if value is None else int(value.data)
        if count < counted:
            history.problems.append(f"the counter is {count}, but was {counted}")
        counted = count
        await asyncio.sleep(0.01)


class Load:
    """Writers, rival counters, doubters and tails of one log; `start` and `quiet` take turns."""

    def __init__(
        self,
        resolve: Callable[[], Resolve],
        history: ClusterHistory,
        seed: int,
        *,
        pause_seconds: float = 0.004,
        payload_bytes_max: int = 400,
    ) -> None:
        self._resolve = resolve
        self.history = history
        self._rng = random.Random(seed)
        self._pause_seconds = pause_seconds
        self._payload_bytes_max = payload_bytes_max
        self.logs: list[AsyncLog] = []
        self._work: list[asyncio.Future[None]] = []
        self._tails: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._starts = 0

    async def __aenter__(self) -> Load:
        self.logs = [await AsyncLog.connect(self._resolve()) for _ in range(3)]
        history = self.history
        readings = [
            history.reading("everything", None),
            history.reading("one tag", TAGS[:1]),
            history.reading("three tags", TAGS[2:5]),
        ]
        self._tails = [
            asyncio.create_task(follow(self.logs[number % 3], reading))
            for number, reading in enumerate(readings)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in [*self._work, *self._tails]:
            task.cancel()
        await asyncio.gather(*self._work, *self._tails, return_exceptions=True)
        for log in self.logs:
            log.abandon()
            await log.close()

    def start(self) -> None:
        """Everybody at work."""
        self._stop.clear()
        self._starts += 1
        stop, history = self._stop, self.history
        jobs: list[Awaitable[None]] = [
            Writer(
                self.logs[number % 2],
                history,
                f"writer-{self._starts}-{number}",
                random.Random(self._rng.random()),
                outstanding=16,
                pause_seconds=self._pause_seconds,
                payload_bytes_max=self._payload_bytes_max,
            ).run(stop)
            for number in range(3)
        ]
        jobs += [
            count_up(log, history, f"counter-{self._starts}-{number}", COUNTER, stop)
            for number, log in enumerate(self.logs[:2])
        ]
        jobs.append(doubt(self.logs[2], history, stop))
        self._work = [asyncio.ensure_future(job) for job in jobs]

    async def quiet(self, seconds: float) -> None:
        """Let everybody finish what they do."""
        self._stop.set()
        _, unfinished = await asyncio.wait(self._work, timeout=seconds)
        if unfinished:
            raise AssertionError("\n".join(self._stories(unfinished)))
        for task in self._work:
            task.result()
        self._work = []

    def _stories(self, tasks: Iterable[asyncio.Future[None]]) -> Iterator[str]:
        """What those wait for that should be finished."""
        for task in tasks:
            yield f"still at work: {task}"
        for log in self.logs:
            yield f"client: connection {log.connection}, keeper {log._keeper}"
            for appender in log._appenders:
                yield f"  {appender.producer}: {vars(appender.core)}"[:2000]

    def check_alive(self) -> None:
        for task in [*self._work, *self._tails]:
            if task.done():
                task.result()
                raise AssertionError(f"ended: {task}")

    async def next_answer(self, seconds: float, *, after: float | None = None) -> float:
        """When the next append was acknowledged; the time is that of `time.monotonic`."""
        since = time.monotonic() if after is None else after
        async with asyncio.timeout(seconds):
            while not self.history.answered_at or self.history.answered_at[-1] < since:
                self.check_alive()
                await asyncio.sleep(0.002)
        return next(at for at in reversed(_ascending(self.history.answered_at, since)))

    async def check(self, seconds: float, tags: Sequence[str] = TAGS) -> list[Entry]:
        """All is quiet: tails see the end of the log in time, and every law holds."""
        final, by_tag = await read_final(self.logs[0], tags)
        tail = final[-1].lsn + 1
        async with asyncio.timeout(seconds):
            while any(reading.looked_up_to < tail for reading in self.history.readings):
                self.check_alive()
                await asyncio.sleep(0.01)
        problems = self.history.check_all(final, by_tag)
        if problems:
            raise AssertionError("\n".join(problems))
        return final


def _ascending(times: Sequence[float], since: float) -> list[float]:
    """The answers since then, newest first."""
    found = []
    for at in reversed(times):
        if at < since:
            break
        found.append(at)
    return found


class Watcher:
    """A metadata session of the test's own: who owns the log, and what its manifest says."""

    def __init__(self, store: MetadataStore, cluster: LocalCluster, log: str) -> None:
        self.store = store
        self._cluster = cluster
        self._log = log

    async def _get(self, path: str) -> Versioned | None:
        """With another session, if this one did not outlive what is done to ZooKeeper."""
        while True:
            try:
                return await self.store.get(path)
            except Unavailable:
                await self.store.close()
            try:
                self.store = await open_metadata(self._cluster.address)
            except Unavailable:
                await asyncio.sleep(0.1)

    async def owner_id(self) -> str | None:
        found = await self._get(f"/owners/{self._log}")
        return None if found is None else str(json.loads(found.data)["id"])

    async def owner(self, seconds: float = 20.0) -> tuple[str, str]:
        """Name and id of the proxy that owns the log, once there is one that runs."""
        async with asyncio.timeout(seconds):
            while True:
                id = await self.owner_id()
                for name, process in self._cluster.proxies.items():
                    if process.is_running and id == _ready(self._cluster, name).get("id"):
                        return name, str(id)
                await asyncio.sleep(0.01)

    async def left(self, id: str, seconds: float) -> float:
        """Wait until the log is no more owned by `id`; the last moment at which it surely was."""
        owned_at = time.monotonic()
        async with asyncio.timeout(seconds):
            while True:
                asked_at = time.monotonic()
                if await self.owner_id() != id:
                    return owned_at
                owned_at = asked_at
                await asyncio.sleep(0.003)

    async def manifest(self) -> LogManifest:
        found = await self._get(f"/logs/{self._log}")
        assert found is not None
        return decode_log_manifest(found.data)


def _ready(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """What a proxy said when it was ready."""
    try:
        found: dict[str, Any] = json.loads((cluster.directory / f"{name}.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def endpoint_of(cluster: LocalCluster, proxy: str, log: str) -> Resolve:
    """For a client that talks to this proxy and to no other, whoever owns the log."""
    ready = _ready(cluster, proxy)
    found = Endpoint(ready["host"], ready["port"], read_token(cluster.token_file), log=log)

    async def resolve() -> Endpoint:
        return found

    return resolve


def route(cluster: LocalCluster, log: str) -> Resolve:
    return endpoint(cluster.address_of(log), token_file=cluster.token_file)


@asynccontextmanager
async def watching(
    cluster: LocalCluster, log: str, *, session_seconds: float = SESSION_SECONDS
) -> AsyncIterator[Watcher]:
    """`session_seconds`: longer than the test may sleep, where others use the session, too."""
    store = await open_metadata(cluster.address, session_seconds=session_seconds)
    watcher = Watcher(store, cluster, log)
    try:
        yield watcher
    finally:
        await watcher.store.close()


def wait_state(pid: int, letters: str) -> None:
    """Until the kernel says that the process is in one of these states, e.g. T: stopped."""
    deadline = time.monotonic() + 30.0
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in letters:
        assert time.monotonic() < deadline, f"process {pid} is not in state {letters}"
        time.sleep(0.001)
