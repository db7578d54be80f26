"""`penstock bench recovery`: how soon a query goes on after its tasks were lost.

State is built from five minutes (of event time, at the generator's default rate) of NEXMark q8's
input, fed as fast as the tasks take it; the tasks commit, write changes and checkpoints as they
always do, and are then dropped without a goodbye. Measured (the first also by bench/nexmark, at
several rates):

resume      the real tasks, all in this process against a real log server, from their claims until
            each has its state and reads on: with checkpoints and without, in turn
end to end  the same query started on Spark, until new input is processed, committed and visible
killed      kill -9 of a Python worker, then of an executor of a cluster of two: from the signal
            until new input is processed, committed and visible

Law: with and without are measured on the same log, the same markers and changes; the states that
come out have the same number of rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvloop
from pyspark.sql import SparkSession

from penstock.ids import Lsn
from penstock.limits import LANES_DEFAULT
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import directory_endpoint
from penstock.log.records import Entry, Kind, NewEntry
from penstock.plan.stages import Query
from penstock.protocol.markers import Marker, decode_marker
from penstock.protocol.names import TaskId, control_tag, flush_tag
from penstock.runtime.control import Hello, decode_message
from penstock.runtime.outputs import result_schema
from penstock.runtime.spec import QuerySpec, Settings, Source, count_tasks, join_stages
from penstock.runtime.task import Task
from penstock.spark.frontend import plan as plan_frame
from penstock.spark.start import start
from penstock.state.changelog import decode_changes
from penstock.stream.batches import encode_batch
from penstock.stream.lanes import Lanes
from penstock.stream.session import Log, connect
from penstock_bench.driver_process import session_builder
from penstock_bench.measure import scratch
from penstock_bench.nexmark import model
from penstock_bench.nexmark.generator import Generator, Parameters
from penstock_bench.nexmark.queries.windows import q8
from penstock_bench.report import Check, Report, Say

RATIO_BAR: Final = 10.0
WORKER_SECONDS_BAR: Final = 2.0
EXECUTOR_SECONDS_BAR: Final = 10.0
#: Event time in one append.
_STEP_MS: Final = 100
_QUERY: Final = "q8"
_RESULT: Final = "q8_result"


@dataclass(frozen=True, slots=True)
class RecoveryBenchSizes:
    """How much of everything; QUICK is for tests of the bench itself."""

    event_seconds: int = 300
    #: Of the whole stream, bids included; q8 reads the 8 % that are persons and auctions.
    events_per_s: int = 10_000
    rounds: int = 5
    workers: int = 2
    checkpoint_seconds: float = 1.0
    kills: int = 3
    with_cluster: bool = True


FULL: Final = RecoveryBenchSizes()
QUICK: Final = RecoveryBenchSizes(event_seconds=30, rounds=1, kills=1, with_cluster=False)


@dataclass(slots=True)
class Replay:
    """What resuming takes from the log, over all tasks."""

    #: Changes and the markers between them.
    entries: int = 0
    bytes: int = 0
    #: Rows of state that the changes set or remove.
    changes: int = 0

    def add(self, entry: Entry) -> None:
        self.entries += 1
        self.bytes += len(entry.payload)
        if entry.kind is Kind.CHANGE:
            self.changes += sum(change.rows.num_rows for change in decode_changes(entry.payload))


@dataclass(slots=True)
class RecoveryFigures:
    """Everything that was measured."""

    build_seconds: float = 0.0
    #: Seconds until all tasks had resumed, one per round.
    with_checkpoints: list[float] = field(default_factory=list)
    without: list[float] = field(default_factory=list)
    #: Rows of state in the one and not in the other.
    state_rows: int = 0
    rows_differ: int = 0
    change_bytes: int = 0
    change_entries: int = 0
    checkpoint_bytes: int = 0
    #: Changes after the checkpoints, which are read with them too.
    suffix_bytes: int = 0
    replay_all: Replay = field(default_factory=Replay)
    replay_suffix: Replay = field(default_factory=Replay)
    commits: int = 0
    end_to_end: dict[str, float] = field(default_factory=dict)
    worker_killed: list[float] = field(default_factory=list)
    executor_killed: list[float] = field(default_factory=list)


def run_bench(*, directory: Path | None, plan: RecoveryBenchSizes, say: Say) -> Report:
    """About three minutes; needs Java."""
    figures = RecoveryFigures()
    with scratch("penstock-recovery-", directory) as root:
        _measure(root, plan, figures, say)
        if plan.with_cluster:
            say("a cluster of two executors: kill -9 of one")
            with session("local-cluster[2,1,1024]") as spark:
                figures.executor_killed = _kill_on_cluster(spark, root, plan)
    return make_report(figures, plan)


def measure_resume(
    *, directory: Path | None, plan: RecoveryBenchSizes, say: Say
) -> RecoveryFigures:
    """Only the first part: tasks in this process, with checkpoints and without. Needs Java once,
    to plan the query."""
    figures = RecoveryFigures()
    with (
        scratch("penstock-recovery-", directory) as root,
        session("local[1]") as spark,
        connect(root) as log,
    ):
        spec = _make_spec(log, _make_frame(spark, log), plan, root)
        say(f"building state from {plan.event_seconds} s of {plan.events_per_s:,} events/s")
        uvloop.run(_in_process(root, spec, plan, figures, say))
    return figures


def make_report(measured: RecoveryFigures, plan: RecoveryBenchSizes) -> Report:
    """The verdict."""
    checks = resume_checks(measured)
    for name, seconds, bar in (
        ("killed worker, new input visible", measured.worker_killed, WORKER_SECONDS_BAR),
        ("killed executor, new input visible", measured.executor_killed, EXECUTOR_SECONDS_BAR),
    ):
        if seconds:
            checks.append(Check(name, max(seconds), bar, "at most", "s", f"of {len(seconds)}"))
    figures = {
        name: [round(number, 4) for number in value] if isinstance(value, list) else value
        for name, value in asdict(measured).items()
    }
    return Report("recovery", checks, figures, asdict(plan))


def resume_checks(measured: RecoveryFigures, name: str = "") -> list[Check]:
    """How much faster checkpoints are, and whether the states are the same."""
    with_s = statistics.median(measured.with_checkpoints)
    without_s = statistics.median(measured.without)
    detail = f"medians of {len(measured.without)} rounds: {without_s:.3f} s without, {with_s:.3f} s"
    faster, differ = "resume with checkpoints, times faster", "difference in rows of state"
    return [
        Check(f"{name}{faster}", without_s / with_s, RATIO_BAR, "at least", "x", detail),
        Check(f"{name}{differ}", measured.rows_differ, 0, "at most", "rows"),
    ]


def _measure(directory: Path, plan: RecoveryBenchSizes, figures: RecoveryFigures, say: Say) -> None:
    with session(f"local[{plan.workers + 1}]") as spark, connect(directory) as log:
        frame = _make_frame(spark, log)
        spec = _make_spec(log, frame, plan, directory)
        say(f"building state from {plan.event_seconds} s of events")
        uvloop.run(_in_process(directory, spec, plan, figures, say))
        _run_on_spark(frame, log, plan, figures, say)


# -- the query


def _make_frame(spark: Any, log: Log) -> Any:
    """q8 in real time: windows that have passed are forgotten."""
    person = log.create_stream("person", model.PERSON).df(spark)
    auction = log.create_stream("auction", model.AUCTION).df(spark)
    timed = [frame.withWatermark("dateTime", "2 seconds") for frame in (person, auction)]
    return q8(timed[0], timed[1], None)  # type: ignore[arg-type]


def _make_spec(log: Log, frame: Any, plan: RecoveryBenchSizes, directory: Path) -> QuerySpec:
    """As `penstock.start` would register it for the first time: it goes on with this state."""
    query: Query = plan_frame(frame, mode="append").query
    schema = result_schema(query.schema, changing=query.stages[-1].changing)
    return QuerySpec(
        name=_QUERY,
        version=1,
        fingerprint="bench",
        query=query,
        statics={},
        sources={
            name: Source(log.stream(name).schema, Lsn(0), log.stream(name).lanes)
            for name in query.streams
        },
        to=_RESULT,
        to_schema=log.create_stream(_RESULT, schema).schema,
        tasks=join_stages(
            query,
            count_tasks(
                query, plan.workers, {name: log.stream(name).lanes for name in query.streams}
            ),
        ),
        settings=Settings(
            checkpoints=str(directory / "checkpoints"),
            checkpoint_interval_ms=round(plan.checkpoint_seconds * 1000),
        ),
    )


def _make_entries(first_ms: int, events_per_s: int = 10_000) -> list[NewEntry]:
    """Persons and auctions of _STEP_MS of event time."""
    count = round(events_per_s * _STEP_MS / 1000)
    first = first_ms // _STEP_MS * count
    ids = np.arange(first, first + count)
    generator = _generator(events_per_s)
    made = {"person": generator.persons(ids), "auction": generator.auctions(ids)}
    lane = first_ms // _STEP_MS % LANES_DEFAULT
    return [
        NewEntry(encode_batch(rows), Lanes(name, LANES_DEFAULT).tags(lane), rows=rows.num_rows)
        for name, rows in made.items()
    ]


@functools.cache
def _generator(events_per_s: int) -> Generator:
    return Generator(Parameters(events_per_s=events_per_s))


# -- in this process


async def _in_process(
    directory: Path, spec: QuerySpec, plan: RecoveryBenchSizes, figures: RecoveryFigures, say: Say
) -> None:
    async with await AsyncLog.connect(directory_endpoint(directory)) as log:
        started = time.monotonic()
        await _build(log, spec, plan)
        figures.build_seconds = round(time.monotonic() - started, 1)
        await _weigh(log, spec, figures)
        bare = replace(spec, settings=replace(spec.settings, checkpoints=None))
        say(f"resuming, {plan.rounds} times with checkpoints and without")
        await _resume(log, spec)  # what is paid once: imports, caches
        for _ in range(plan.rounds):
            with_s, rows = await _resume(log, spec)
            without_s, bare_rows = await _resume(log, bare)
            figures.with_checkpoints.append(with_s)
            figures.without.append(without_s)
            figures.state_rows = sum(rows)
            figures.rows_differ += sum(abs(a - b) for a, b in zip(rows, bare_rows, strict=True))


async def _build(log: AsyncLog, spec: QuerySpec, plan: RecoveryBenchSizes) -> None:
    """Feed the tasks, and drop them as a killed process would."""
    async with running(log, spec):
        source = await log.own_appender()
        for first_ms in range(0, plan.event_seconds * 1000, _STEP_MS):
            await source.append(_make_entries(first_ms, plan.events_per_s))
        await settle(log, spec)


@contextlib.asynccontextmanager
async def running(log: AsyncLog, spec: QuerySpec) -> Any:
    """All tasks of the query, as new instances."""
    instances = await asyncio.gather(*(log.claim(task.producer) for task in spec.task_ids))
    tasks = [
        await Task.open(log, spec, task, instance)
        for task, instance in zip(spec.task_ids, instances, strict=True)
    ]
    loops = [asyncio.ensure_future(task.run()) for task in tasks]
    try:
        yield tasks
        for loop in loops:
            if loop.done():
                loop.result()
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def settle(log: AsyncLog, spec: QuerySpec) -> None:
    """Until every task has committed what is in the log now, stage by stage."""
    for stage, count in enumerate(spec.tasks):
        tag = flush_tag(spec.name, spec.version, stage)
        asked = await log.append([NewEntry(b"", (tag,), Kind.CONTROL)])
        for index in range(count):
            task = TaskId(spec.name, spec.version, stage, index)
            while True:
                marker = await last_marker(log, task)
                if marker is not None and marker.position > asked.first_lsn:
                    break
                await asyncio.sleep(0.01)


async def last_marker(log: AsyncLog, task: TaskId) -> Marker | None:
    last = await log.read_last(task.marker_tag)
    return None if last is None else decode_marker(last.payload)


async def _weigh(log: AsyncLog, spec: QuerySpec, figures: RecoveryFigures) -> None:
    """How large the change log and the checkpoints are."""
    for task in spec.task_ids:
        marker = await last_marker(log, task)
        assert marker is not None, f"{task} has committed nothing"
        figures.commits += marker.number + 1
        newest = marker.checkpoints[0] if marker.checkpoints else None
        figures.checkpoint_bytes += 0 if newest is None else int(newest["bytes"])
        base = -1 if newest is None else int(newest["marker_lsn"])
        end = (await log.bounds()).tail
        async with log.tail([task.change_tag, task.marker_tag], start=0, end=end) as reader:
            async for batch in reader:
                for entry in batch.entries:
                    if marker.has_state:  # if not, a task reads its last marker and goes on
                        figures.replay_all.add(entry)
                        if entry.lsn > base:
                            figures.replay_suffix.add(entry)
                    if entry.kind is Kind.CHANGE:
                        figures.change_entries += 1
                        figures.change_bytes += len(entry.payload)
                        figures.suffix_bytes += len(entry.payload) if entry.lsn > base else 0


async def _resume(log: AsyncLog, spec: QuerySpec) -> tuple[float, list[int]]:
    """Seconds until all tasks read on, and the rows of state that each has then."""
    started = time.monotonic()
    async with running(log, spec) as tasks:
        while not all(task.resume_ms for task in tasks):
            await asyncio.sleep(0.001)
        seconds = time.monotonic() - started
        return seconds, [task.report()["state_rows"] for task in tasks]


# -- on Spark


def _run_on_spark(
    frame: Any, log: Log, plan: RecoveryBenchSizes, figures: RecoveryFigures, say: Say
) -> None:
    checkpoints = str(Path(log.target) / "checkpoints")
    feed = _Feed(log, plan.event_seconds * 1000, plan.events_per_s)
    # The first run also starts Spark's Python processes, which stay: it is not counted.
    for name, where in (("warm_up", checkpoints), ("with", checkpoints), ("without", "")):
        say(f"end to end on Spark: {name.replace('_', ' ')} checkpoints")
        started = time.monotonic()
        query = start(
            frame, to=_RESULT, name=_QUERY, mode="append", workers=plan.workers, log=log,
            checkpoints=where,
        )  # fmt: skip
        try:
            feed()
            query.processAllAvailable()
            seconds = time.monotonic() - started
            if name == "with":
                say("kill -9 of a worker")
                figures.worker_killed = _kill(query, log, feed, plan.kills, above=0)
        finally:
            query.stop()
        if name != "warm_up":
            figures.end_to_end[f"{name}_seconds"] = round(seconds, 3)
            figures.end_to_end[f"{name}_resume_ms_max"] = _longest_resume(query)


def _longest_resume(query: Any) -> float:
    tasks = (query.lastProgress or {}).get("tasks", {}).values()
    return max((float(task.get("resume_ms", 0.0)) for task in tasks), default=0.0)


@dataclass(slots=True)
class _Feed:
    """New input, one step of event time after the other."""

    log: Log
    next_ms: int
    events_per_s: int

    def __call__(self) -> None:
        self.log.client.append(_make_entries(self.next_ms, self.events_per_s))
        self.next_ms += _STEP_MS


def _kill(query: Any, log: Log, feed: Callable[[], None], kills: int, above: int) -> list[float]:
    """Seconds from each kill until input that came after it is visible in the result.

    Killed are a worker and so many processes above it.
    """
    seconds = []
    for _ in range(kills):
        pids = _with_parents(_newest_worker(log, query.name), above)
        started = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        feed()
        query.processAllAvailable()
        seconds.append(time.monotonic() - started)
        time.sleep(2.0)  # until Spark has started a successor, so that two are there again
    return seconds


def _newest_worker(log: Log, name: str) -> int:
    """The process of the worker that said hello last."""
    entries: Sequence[Any] = log.client.read([control_tag(name)], start=0)
    messages = [decode_message(entry.payload) for entry in entries]
    return [message.pid for message in messages if isinstance(message, Hello)][-1]


def _with_parents(pid: int, above: int) -> list[int]:
    """A process and those above it, the last first: its parent, and so on."""
    pids = [pid]
    for _ in range(above):
        stat = Path(f"/proc/{pids[0]}/stat").read_text()
        pids.insert(0, int(stat.rpartition(")")[2].split()[1]))
    return pids


def _kill_on_cluster(spark: Any, directory: Path, plan: RecoveryBenchSizes) -> list[float]:
    with connect(directory) as log:
        numbers = log.create_stream("numbers", "n long")
        frame = numbers.df(spark).selectExpr("n % 10 AS k").groupBy("k").count()
        query = start(frame, to="counts", name="counts", workers=plan.workers, log=log)
        try:
            numbers.append([{"n": n} for n in range(100)])
            query.processAllAvailable()

            def feed() -> None:
                numbers.append([{"n": 1}])

            # A worker, PySpark's daemon, the executor: as when their machine is lost.
            return _kill(query, log, feed, 1, above=2)
        finally:
            query.stop()


@contextlib.contextmanager
def session(master: str) -> Iterator[Any]:
    """The session that is there, or one of our own."""
    existing = SparkSession.getActiveSession()
    # What is killed here is killed on purpose, and may not complain.
    quiet = session_builder("bench-recovery", master).config("spark.log.level", "OFF")
    session = existing or quiet.getOrCreate()
    try:
        yield session
    finally:
        if existing is None:
            session.stop()
