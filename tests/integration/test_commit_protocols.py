"""Every commit protocol under kill -9: a real coordinator, real workers, a real log; no Spark.

Workers are processes that run what Spark would run. They are killed while input comes, at moments
that differ from run to run, and started again as Spark would; then the result must be what one
thread makes of the input, for every protocol that promises it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from embedded_server import stop_server
from harness.waiting import until
from penstock_bench.protocols.choosing import ProtocolName, with_protocol
from simulation.pipeline.queries import SOURCE, Rows, add_rows, make_entries, make_spec, run_oracle

import penstock
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import endpoint
from penstock.protocol.names import TaskId, query_key
from penstock.runtime.coordinator_thread import CoordinatorThread
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.spec import QuerySpec, Settings
from penstock.runtime.task import Task
from penstock.runtime.trim import trim_consumed
from penstock.runtime.worker import LogAddress, run_worker

#: As Spark does, workers are forked from a process that has imported what they need.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["penstock.runtime.worker", __name__])
WORKERS = 2


class Cluster:
    """Two workers and their coordinator."""

    def __init__(self, directory: Path, spec: QuerySpec) -> None:
        self._address = LogAddress(str(directory))
        self._spec = spec
        self._attempts = [0] * WORKERS
        self.coordinator = CoordinatorThread(
            self._address, spec, id="test", workers=WORKERS, trims=False
        )
        self.workers = [self._start(slot) for slot in range(WORKERS)]

    def _start(self, slot: int) -> multiprocessing.process.BaseProcess:
        args = (self._address, self._spec, slot, self._attempts[slot])
        self._attempts[slot] += 1
        worker = _context.Process(target=run_worker, args=args, daemon=True)
        worker.start()
        return worker

    def kill(self, slot: int) -> None:
        """kill -9; Spark says so, and starts the next attempt."""
        self.workers[slot].kill()
        self.workers[slot].join()
        self.coordinator.job_lost(slot, self._attempts[slot])
        self.workers[slot] = self._start(slot)

    def close(self) -> None:
        self.coordinator.finish()
        self.coordinator.ended.wait(30)
        for worker in self.workers:
            worker.join(10)
            if worker.is_alive():
                worker.kill()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[penstock.Log]:
    log = penstock.connect(tmp_path / "log")
    yield log
    log.close()
    stop_server(tmp_path / "log")


def register(log: penstock.Log, spec: QuerySpec) -> None:
    for stream in spec.query.streams:
        log.create_stream(stream, SOURCE)
    log.create_stream(spec.to, spec.to_schema)
    known = RegisteredQuery(
        name=spec.name, id="test", version=1, plan="", mode="", to=spec.to,
        starts=dict.fromkeys(spec.query.streams, 0), tasks=list(spec.tasks), created_ms=0,
        checkpoints=None, protocol=spec.settings.protocol.name,
    )  # fmt: skip
    log.client.compare_and_set(query_key(spec.name), expected=None, value=encode_query(known))


def result(log: penstock.Log, spec: QuerySpec) -> Rows:
    rows: Rows = Counter()
    changing = spec.query.stages[-1].changing
    for batch in log.stream(spec.to).read().to_batches():
        add_rows(rows, batch, changing=changing)
    return Counter({row: weight for row, weight in rows.items() if weight})


def oracle(log: penstock.Log, spec: QuerySpec) -> Rows:
    """One thread, over the sources in the order of the log."""
    found: list[tuple[int, str, pa.RecordBatch]] = []
    for stream in spec.query.streams:
        with log.stream(stream).tail("earliest", "latest") as tail:
            for batch in tail:
                assert tail.lsn is not None
                found.append((tail.lsn, stream, batch))
    found.sort(key=lambda one: one[0])
    return run_oracle(spec, [(stream, batch) for _, stream, batch in found])


def make(log: penstock.Log, tmp_path: Path, shape: str, protocol: ProtocolName) -> QuerySpec:
    settings = Settings(
        commit_interval_ms=5, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval_ms=200
    )
    spec = make_spec(shape, with_protocol(protocol, settings))
    register(log, spec)
    return spec


def feed_and_kill(log: penstock.Log, cluster: Cluster, spec: QuerySpec, kills: int) -> None:
    chance = random.Random()
    inputs = make_entries(spec, chance, 120, 60)
    producers = {stream: log.stream(stream).producer(f"p-{stream}") for stream in inputs}
    strikes = sorted(chance.randrange(10, 110) for _ in range(kills))
    for at in range(120):
        for stream, batches in inputs.items():
            producers[stream].append(batches[at])
        time.sleep(0.02)
        while strikes and strikes[0] == at:
            strikes.pop(0)
            cluster.kill(chance.randrange(WORKERS))
    for producer in producers.values():
        producer.close()


@pytest.mark.soak
@pytest.mark.parametrize("shape", ["count", "window", "join"])
@pytest.mark.parametrize("protocol", ["transaction", "aligned"])
def test_kills_change_nothing(
    log: penstock.Log, tmp_path: Path, shape: str, protocol: ProtocolName
) -> None:
    spec = make(log, tmp_path, shape, protocol)
    with contextlib.closing(Cluster(tmp_path / "log", spec)) as cluster:
        feed_and_kill(log, cluster, spec, kills=3)
        cluster.coordinator.flush().result(120)
        assert cluster.coordinator.error is None
        found = result(log, spec)
    assert found == oracle(log, spec)
    assert found


# -- a transaction that ends anywhere


class Died(Exception):
    """As a process does: nothing of it happens any more."""


class Mortal(Task):
    """Ends at its n-th append, before it is sent or after, and is not heard of again."""

    def mortal(self, appends: int, *, sent: bool) -> Mortal:
        self._left, self._sent = appends, sent
        return self

    async def _resume(self, careful_upto: Lsn | None) -> None:
        append = self.appender.append_nowait

        def append_or_die(entries: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._sent:
                append(entries, **options)
            if self._left <= 0:
                raise Died
            return append(entries, **options)

        self.appender.append_nowait = append_or_die  # type: ignore[method-assign]
        await super()._resume(careful_upto)


async def live_and_die(
    client: AsyncLog, spec: QuerySpec, task: TaskId, death: int, feed: Any
) -> None:
    """One instance, until its n-th append; fed all the while."""
    instance = await client.claim(task.producer)
    opened = await Mortal.open(client, spec, task, instance)
    mortal = opened.mortal(death // 2 + 1, sent=bool(death % 2))
    running = asyncio.ensure_future(mortal.run())
    while not running.done():
        await asyncio.to_thread(feed)
        await asyncio.wait({running}, timeout=0.02)
    assert isinstance(running.exception(), Died)


@contextlib.asynccontextmanager
async def at_work(
    client: AsyncLog, spec: QuerySpec, tasks: Sequence[TaskId]
) -> AsyncIterator[list[Task]]:
    """Instances that live, and commit what they have at the end."""
    made = [await Task.open(client, spec, one, await client.claim(one.producer)) for one in tasks]
    running = [asyncio.ensure_future(task.run()) for task in made]
    yield made
    for task, one in zip(made, running, strict=True):
        task.drain()
        await one


def have_settled(tasks: Sequence[Task], upto: int) -> bool:
    return all((task._settled_position() or 0) >= upto for task in tasks)


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_transaction_may_end_anywhere(
    log: penstock.Log, tmp_path: Path, stage: int
) -> None:
    """Instances die at their first append, their second, …; each settles what the last one left."""
    spec = make_spec("count", with_protocol("transaction", Settings()))
    register(log, spec)
    batches = itertools.cycle(make_entries(spec, random.Random(5), 1000, 20)["bids"])
    source = log.stream("bids")
    victim = TaskId(spec.name, spec.version, stage, 0)
    others = [task for task in spec.task_ids if task != victim]

    async with await AsyncLog.connect(endpoint(tmp_path / "log"), timeout=30) as client:
        async with at_work(client, spec, others):
            for death in range(20):
                await live_and_die(
                    client, spec, victim, death, lambda: source.append(next(batches))
                )
        for last in (0, 1):
            stages = [task for task in spec.task_ids if task.stage == last]
            async with at_work(client, spec, stages) as made:
                await until(partial(have_settled, made, (await client.bounds()).tail))
    found = result(log, spec)
    assert found and found == oracle(log, spec)


def test_beside_aligned_checkpoints_nothing_is_trimmed(log: penstock.Log, tmp_path: Path) -> None:
    """Results of the next checkpoint are staged before the last is committed: trim_rule.py."""
    spec = make(log, tmp_path, "count", "aligned")
    with contextlib.closing(Cluster(tmp_path / "log", spec)) as cluster:
        for batch in make_entries(spec, random.Random(1), 5, 20)["bids"]:
            log.stream("bids").append(batch)
            cluster.coordinator.flush().result(120)
    assert log.client.run(trim_consumed) == 0
