"""`penstock bench handover`: how long a large state pauses when it moves, is lost, or is rescaled.

One query, counts and the newest time per key, over so many keys; 10,000 events a second while it
runs; two workers. Measured at the reader of its result, for the task with the state: the longest
gap between two of its results while it moves to the other worker, and the time from a kill -9 of
its worker until input that came after the kill is visible. Three ways, one after the other, on the
same log and keys:

    standby   replicas=1: the other worker keeps a copy and goes on with it
    store     no replicas: the other worker fetches checkpoint and changes
    restart   the query is stopped and started again, as engines without handover rescale

Then it is rescaled from two workers to four, and back: at copies that are made for it; from the
store, as it was before there were any; and by stopping it and starting it again. How old events are
when their results are there counts, from when it is asked for until successors have run for a
while; and the slowest hundredth in the seconds before and after it. The whole course is kept, for a
picture (handover_charts.py).

What a copy costs: processor time of the workers for each event, and median latency, with and
without copies, while nothing else happens. Both are measured by turns: what the workers still have
to do for keys that were just filled in, such as checkpoints, is no copy's cost.

Law: the clock is the reader's; a gap counts from the last result before to the first one after,
whatever happened in between.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import uvloop

from penstock.connector.tuned import LOADED_WORKERS
from penstock.errors import Unavailable
from penstock.limits import LANES_DEFAULT
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import directory_endpoint
from penstock.log.records import Kind, NewEntry
from penstock.protocol.names import control_tag, parse_task
from penstock.runtime.control import Move, encode_message
from penstock.runtime.outputs import RESULT_WEIGHT
from penstock.stream.batches import decode_batch, encode_batch
from penstock.stream.lanes import Lanes
from penstock.stream.registration import stream_tag
from penstock.stream.session import Log, connect
from penstock_bench.child import Child
from penstock_bench.driver_process import Session, start_driver
from penstock_bench.measure import (
    SECOND_US,
    busy_load,
    cpu_seconds,
    now_us,
    percentile,
    scratch,
)
from penstock_bench.report import Check, Report, Say

Way = Literal["standby", "store", "restart"]
WAYS: Final[tuple[Way, ...]] = ("standby", "store", "restart")
#: With copies and without.
COMPARED: Final[tuple[Way, ...]] = ("store", "standby")
EVENTS: Final = "key long, ts timestamp"
_TICK_SECONDS: Final = 0.005
_FILL_ROWS: Final = 2_000
_SETTLE_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 120.0
_RESULT: Final = "counts"
#: Workers of the query.
_FEWEST: Final = 2
_MOST: Final = 4


@dataclass(frozen=True, slots=True)
class HandoverBenchSizes:
    """How much of everything; QUICK is for tests of the bench itself."""

    keys: tuple[int, ...] = (100_000, 1_000_000, 5_000_000)
    rounds: int = 5
    rate: int = 10_000
    #: The rounds of 2 → 4 → 2 workers.
    rescales: int = 2
    #: How long nothing happens, before and after what is measured.
    calm_seconds: float = 10.0
    #: How often what a copy costs is measured, with and without.
    turns: int = 3
    ways: tuple[Way, ...] = WAYS
    #: Whether Spark starts workers from a daemon that has loaded what they need.
    loaded: bool = False


FULL: Final = HandoverBenchSizes()
QUICK: Final = HandoverBenchSizes(
    keys=(20_000,), rounds=1, rate=2_000, rescales=1, calm_seconds=2.0, turns=1
)


@dataclass(slots=True)
class WayFigures:
    """Of one way with one number of keys, in milliseconds, one for each round."""

    move_ms: list[float] = field(default_factory=list)
    kill_ms: list[float] = field(default_factory=list)
    #: By rescaling, to four and to two by turns: the longest gap between any two results, and the
    #: oldest that an event was when its result was there.
    rescale_gap_ms: list[float] = field(default_factory=list)
    rescale_late_ms: list[float] = field(default_factory=list)
    #: p99 in the calm before and after each.
    rescale_p99_before_ms: list[float] = field(default_factory=list)
    rescale_p99_after_ms: list[float] = field(default_factory=list)
    #: Of each: seconds since it was asked for, and the oldest event of the results that came in
    #: this tenth of a second.
    rescale_course: list[list[tuple[float, float]]] = field(default_factory=list)
    #: While nothing happens, by turn: processor time of the workers, and the median latency.
    cpu_us_per_event: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)


Figures = dict[int, dict[str, WayFigures]]


def run_bench(
    plan: HandoverBenchSizes,
    say: Say,
    directory: Path | None = None,
    keys: Sequence[int] = (),
    rounds: int | None = None,
    rescales: int | None = None,
    loaded: bool = False,
) -> Report:
    """`keys`, `rounds`, `rescales` and `loaded`: other ones than the plan's."""
    plan = replace(
        plan,
        keys=tuple(keys) or plan.keys,
        rounds=plan.rounds if rounds is None else rounds,
        rescales=plan.rescales if rescales is None else rescales,
        loaded=loaded or plan.loaded,
    )
    report = Report("handover", parameters={**asdict(plan), "load": busy_load(say)})
    found: Figures = {}
    for count in plan.keys:
        found[count] = {}
        with scratch("penstock-handover-", directory) as place:
            _measure_keys(place, count, plan, found[count], say)
    _judge(report, found, say)
    return report


def _measure_keys(
    place: Path, keys: int, plan: HandoverBenchSizes, found: dict[str, WayFigures], say: Say
) -> None:
    with connect(place / "log") as log:
        log.create_stream("events", EVENTS)
        settings = {"spark.master": f"local[{_MOST + 1}]"} | (LOADED_WORKERS if plan.loaded else {})
        driver = start_driver(place / "log", "handover", settings)
        load = Child("the load", _serve_load, place / "log", keys, plan.rate)
        stage = _Stage(log, driver, load, str(place / "checkpoints"), plan)
        try:
            say(f"{keys:,} keys: filling the state")
            stage.start("store")
            load.send(_FILL)
            load.answer(_PATIENCE_SECONDS)
            driver.ask(_flush, _PATIENCE_SECONDS)
            found |= {way: WayFigures() for way in plan.ways}
            for way in [way for way in COMPARED if way in plan.ways] * plan.turns:
                stage.start(way)
                stage.stay_calm(way, found[way])
            for way in plan.ways:
                stage.start(way)
                figures = found[way]
                stage.measure(way, plan.rounds, figures)
                moved, killed = figures.move_ms, figures.kill_ms
                say(f"{keys:,} keys, {way}: moved {_shown(moved)} ms, killed {_shown(killed)} ms")
            for way in plan.ways:
                stage.rescale(way, plan.rescales, found[way])
                gaps, late = found[way].rescale_gap_ms, found[way].rescale_late_ms
                say(
                    f"{keys:,} keys, {way}: rescaled with gaps of {_shown(gaps)} ms, and events "
                    f"at most {_shown(late)} ms late"
                )
        finally:
            stage.close()
            load.close()
            driver.close()


def _shown(values: list[float]) -> str:
    return " ".join(f"{value:.0f}" for value in values) or "-"


def _judge(report: Report, found: Figures, say: Say) -> None:
    report.figures = {
        str(keys): {way: asdict(figures) for way, figures in ways.items()}
        for keys, ways in found.items()
    }
    for keys, ways in found.items():
        if late := ways["standby"].rescale_late_ms:
            report.judge(Check(f"rescale_late_{keys}_keys", max(late), 250, "at most", "ms"), say)
        before, after = ways["standby"].rescale_p99_before_ms, ways["standby"].rescale_p99_after_ms
        if before:
            times = max(late / early for early, late in zip(before, after, strict=True))
            report.judge(Check(f"rescale_p99_after_{keys}_keys", times, 2, "at most", "x"), say)
        _judge_copy(report, keys, ways, say)
    found = {keys: ways for keys, ways in found.items() if ways["standby"].move_ms}
    medians = {
        keys: {way: statistics.median(one.move_ms) for way, one in ways.items()}
        for keys, ways in found.items()
    }
    for keys, ways in found.items():
        longest = max(ways["standby"].move_ms)
        report.judge(Check(f"move_gap_{keys}_keys", longest, 100, "at most", "ms"), say)
        slowest = max(ways["standby"].kill_ms)
        report.judge(Check(f"kill_visible_{keys}_keys", slowest, 1000, "at most", "ms"), say)
    moves = [ways["standby"] for ways in medians.values()]
    if len(moves) > 1:
        spread = max(moves) / min(moves)
        report.judge(Check("move_gap_largest_over_smallest", spread, 1.5, "at most", "x"), say)
    for keys, bar in ((1_000_000, 10.0), (5_000_000, 30.0)):
        if "store" in medians.get(keys, {}):
            times = medians[keys]["store"] / medians[keys]["standby"]
            report.judge(Check(f"move_below_store_{keys}_keys", times, bar, "at least", "x"), say)
    if len(found.get(5_000_000, {})) == len(WAYS):
        killed = {w: statistics.median(one.kill_ms) for w, one in found[5_000_000].items()}
        for way, bar in (("store", 4.0), ("restart", 8.0)):
            times = killed[way] / killed["standby"]
            report.judge(Check(f"kill_below_{way}_5M_keys", times, bar, "at least", "x"), say)


def _judge_copy(report: Report, keys: int, ways: dict[str, WayFigures], say: Say) -> None:
    """What a copy costs while nothing happens."""
    with_copy, without = ways["standby"], ways.get("store", WayFigures())
    if not with_copy.p50_ms or not without.p50_ms:
        return
    cpu = [statistics.median(one.cpu_us_per_event) for one in (with_copy, without)]
    more = cpu[0] / cpu[1] - 1
    report.judge(Check(f"copy_cpu_{keys}_keys", 100 * more, 25, "at most", "%"), say)
    later = statistics.median(with_copy.p50_ms) - statistics.median(without.p50_ms)
    report.judge(Check(f"copy_p50_{keys}_keys", later, 1, "at most", "ms"), say)


# ---- the stage on which all ways are measured


class _Stage:
    """Log, driver and load, with a reader of the result that notes when what came."""

    def __init__(
        self, log: Log, driver: Child, load: Child, checkpoints: str, plan: HandoverBenchSizes
    ) -> None:
        self._log = log
        self._rate, self._calm_seconds = plan.rate, plan.calm_seconds
        self._driver = driver
        self._load = load
        self._checkpoints = checkpoints
        self._arrivals = Arrivals(log)
        self._is_running = False
        #: Reports before this one may not know what was done last.
        self._fresh_from = 0

    def close(self) -> None:
        self._arrivals.close()

    def start(self, way: Way, workers: int = _FEWEST) -> None:
        """Also anew: it is stopped before."""
        if self._is_running:
            self._driver.ask(_stop, _PATIENCE_SECONDS)
        replicas = 1 if way == "standby" else 0
        begin = partial(_start, replicas=replicas, checkpoints=self._checkpoints, workers=workers)
        self._driver.ask(begin, _PATIENCE_SECONDS)
        self._is_running = True
        self._arrivals.open()

    def measure(self, way: Way, rounds: int, figures: WayFigures) -> None:
        self._load.send(_GO)
        try:
            self._settle(way)
            for _ in range(rounds):
                figures.move_ms.append(self._moved(way))
                self._settle(way)
            for _ in range(rounds):
                figures.kill_ms.append(self._killed(way))
                self._settle(way)
        finally:
            self._load.send(_HALT)
            self._load.answer(_PATIENCE_SECONDS)

    def rescale(self, way: Way, rounds: int, figures: WayFigures) -> None:
        """From two workers to four and back; without replicas: copies are made for it, or not, or
        it is started anew."""
        self.start("store")
        self._driver.ask(_begin_from_store if way == "store" else _make_ready)
        self._load.send(_GO)
        try:
            self._settle("store")
            for workers in [_MOST, _FEWEST] * rounds:
                time.sleep(self._calm_seconds)
                began = now_us()
                if way == "restart":
                    self.start("store", workers)
                else:
                    self._driver.ask(partial(_rescale, workers=workers))
                self._settle("store", workers)
                over = now_us()
                time.sleep(self._calm_seconds)
                calm_us = round(self._calm_seconds * SECOND_US)
                came = self._arrivals.latencies(began - calm_us, now_us())
                figures.rescale_gap_ms.append(self._arrivals.worst_gap_ms(began, over))
                figures.rescale_late_ms.append(_oldest(came, began, over))
                figures.rescale_p99_before_ms.append(_p99(came, began - calm_us, began))
                figures.rescale_p99_after_ms.append(_p99(came, over, over + calm_us))
                figures.rescale_course.append(_course(came, began))
        finally:
            self._load.send(_HALT)
            self._load.answer(_PATIENCE_SECONDS)

    def stay_calm(self, way: Way, figures: WayFigures) -> None:
        """What it costs while nothing happens."""
        self._load.send(_GO)
        try:
            self._settle(way)
            members = self._driver.ask(_progress)["members"].values()
            pids = [one["pid"] for one in members]
            began, spent = now_us(), sum(map(cpu_seconds, pids))
            time.sleep(self._calm_seconds)
            spent = sum(map(cpu_seconds, pids)) - spent
            events = (now_us() - began) / SECOND_US * self._rate
            figures.cpu_us_per_event.append(spent / events * SECOND_US)
            came = self._arrivals.latencies(began, now_us())
            figures.p50_ms.append(float(np.median([ms for _, ms in came])))
        finally:
            self._load.send(_HALT)
            self._load.answer(_PATIENCE_SECONDS)

    def _settle(self, way: Way, workers: int = _FEWEST) -> None:
        self._fresh_from = self._driver.ask(_progress).get("batchId", 0) + 2
        _until(lambda: self._is_settled(way, workers), "all workers run, and copies are ready")
        time.sleep(_SETTLE_SECONDS)

    def _is_settled(self, way: Way, workers: int) -> bool:
        progress = self._driver.ask(_progress)
        if progress.get("batchId", -1) < self._fresh_from or "rescaling" in progress:
            return False
        tasks = list(progress.get("tasks", {}).values())
        if len(progress.get("members", {})) != workers:
            return False
        if not all(task.get("is_running") for task in tasks):
            return False
        standbys = [task.get("standbys", {}).values() for task in tasks]
        return way != "standby" or all(any(s.get("is_ready") for s in of) for of in standbys)

    def _moved(self, way: Way) -> float:
        """The longest gap between results of the task that moves."""
        progress = self._driver.ask(_progress)
        task, place = _keyed_task(progress)
        began = now_us()
        if way == "restart":
            self.start(way)
        else:
            there = next(one for one in progress["members"] if one != place)
            message = encode_message(Move(task, there))
            tags = (control_tag(parse_task(task).query),)
            self._log.client.append([NewEntry(message, tags, Kind.CONTROL)])
        end = self._visible_after(task, began + SECOND_US // 2)
        time.sleep(max(0.0, _SETTLE_SECONDS - (end - began) / SECOND_US))
        return self._arrivals.longest_gap_ms(f"@{task}", began - SECOND_US // 2, now_us())

    def _killed(self, way: Way) -> float:
        """From the kill until an event that was made after it is in a result of the task."""
        progress = self._driver.ask(_progress)
        task, place = _keyed_task(progress)
        began = now_us()
        os.kill(progress["members"][place]["pid"], signal.SIGKILL)
        if way == "restart":
            self.start(way)
        return (self._visible_after(task, began) - began) / 1000

    def _visible_after(self, task: str, made_us: int) -> int:
        """When the first result of the task came that holds an event made after this time."""
        seen: list[int] = []

        def has_come() -> bool:
            seen[:] = [at for at in [self._arrivals.first_after(f"@{task}", made_us)] if at]
            return bool(seen)

        _until(has_come, f"{task} gives results again")
        return seen[0]


def _keyed_task(progress: dict[str, Any]) -> tuple[str, str]:
    """The first task of the last stage, which has the state; and its worker."""
    stage = max(parse_task(name).stage for name in progress["tasks"])
    name = next(name for name in progress["tasks"] if parse_task(name).stage == stage)
    return name, progress["tasks"][name]["worker"]


def _until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not happened():
        if time.monotonic() > deadline:
            raise Unavailable(f"not within {_PATIENCE_SECONDS:g} s: {what}")
        time.sleep(0.02)


#: When a result came, and how old its oldest event was then, in ms.
Latencies = list[tuple[int, float]]


def _oldest(came: Latencies, first_us: int, last_us: int) -> float:
    return max((ms for at, ms in came if first_us <= at <= last_us), default=0.0)


def _p99(came: Latencies, first_us: int, last_us: int) -> float:
    return percentile(np.array([ms for at, ms in came if first_us <= at <= last_us]), 99)


def _course(came: Latencies, began_us: int) -> list[tuple[float, float]]:
    """By tenth of a second since it was asked for, the oldest event."""
    worst: dict[int, float] = {}
    for at, ms in came:
        tenth = (at - began_us) // (SECOND_US // 10)
        worst[tenth] = max(worst.get(tenth, 0.0), ms)
    return [(tenth / 10, round(ms, 1)) for tenth, ms in sorted(worst.items())]


class Arrivals:
    """Entries of the result as a reader gets them: when, of which task; their rows later."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._seen: list[tuple[int, str, Any]] = []
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Read on; a no-op if it does already."""
        if self._thread is None:
            self._schema = self._log.stream(_RESULT).schema
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._leaving.set()
        if self._thread is not None:
            self._thread.join()

    def _read(self) -> None:
        tags = [stream_tag(_RESULT)]
        with self._log.client.tail(tags, start=self._log.bounds().tail) as reader:
            while not self._leaving.is_set():
                try:
                    batch = reader.next_batch(0.2)
                except TimeoutError:
                    continue
                at = now_us()
                if batch is not None:
                    rows = [entry for entry in batch.entries if entry.kind is not Kind.MARKER]
                    self._seen += [(at, entry.producer, entry.payload) for entry in rows]

    def longest_gap_ms(self, producer: str, first_us: int, last_us: int) -> float:
        times = [at for at, who, _ in self._seen if who == producer and first_us <= at <= last_us]
        return float(np.diff(np.array(times)).max()) / 1000

    def worst_gap_ms(self, first_us: int, last_us: int) -> float:
        """The longest time between two results."""
        times = [at for at, _, _ in [*self._seen] if first_us <= at <= last_us]
        return float(np.diff(np.array([first_us, *times])).max()) / 1000

    def latencies(self, first_us: int, last_us: int) -> Latencies:
        """Of each result: when it came, and how old its oldest event was then, in ms."""
        found: Latencies = []
        for at, _, payload in [*self._seen]:
            if not first_us <= at <= last_us:
                continue
            rows = decode_batch(payload, self._schema)
            rows = rows.filter(pc.greater(rows[RESULT_WEIGHT], 0))  # not those that are taken back
            if rows.num_rows:
                made = pc.min(rows["newest"]).cast(pa.int64()).as_py()
                found.append((at, (at - made) / 1000))
        return found

    def first_after(self, producer: str, made_us: int) -> int | None:
        """When the first entry came that holds an event of this time or a later one."""
        for at, who, payload in [*self._seen]:
            if at >= made_us and who == producer:
                newest = pc.max(decode_batch(payload, self._schema)["newest"]).cast(pa.int64())
                if newest.is_valid and newest.as_py() >= made_us:
                    return at
        return None


# ---- in the Spark driver


def _start(session: Session, *, replicas: int, checkpoints: str, workers: int) -> None:
    from pyspark.sql import functions as F

    import penstock

    session.spark.sparkContext.setLogLevel("OFF")  # what is killed here is killed on purpose
    events = session.log.stream("events").df(session.spark)
    counts = events.groupBy("key").agg(F.count("*").alias("n"), F.max("ts").alias("newest"))
    session.query = penstock.start(
        counts, to=_RESULT, name=_RESULT, mode="update", workers=workers, log=session.log,
        replicas=replicas, checkpoints=checkpoints, checkpoint_interval=5.0,
    )  # fmt: skip


def _stop(session: Session) -> None:
    session.stop()


def _rescale(session: Session, *, workers: int) -> None:
    session.query.rescale(workers)


#: What `_begin_from_store` replaced.
_SHIPPED: Final[list[Any]] = []


def _make_ready(session: Session) -> None:
    """As it ships."""
    from penstock.runtime.coordinator import Coordinator

    if _SHIPPED:
        Coordinator._prepare = _SHIPPED.pop()  # type: ignore[method-assign]


def _begin_from_store(session: Session) -> None:
    """From here on nobody makes copies for successors."""
    from penstock.runtime.coordinator import Coordinator

    async def prepare_nothing(self: Coordinator, shares: Any, workers: int) -> tuple[int, int]:
        return 0, 0

    _SHIPPED[:] = [Coordinator._prepare]
    Coordinator._prepare = prepare_nothing  # type: ignore[method-assign]


def _flush(session: Session) -> None:
    session.query.processAllAvailable()


def _progress(session: Session) -> dict[str, Any]:
    session.check()
    return session.query.lastProgress or {}


# ---- the load, in a process of its own

_FILL: Final = "fill"
_GO: Final = "go"
_HALT: Final = "halt"


def _serve_load(directory: Path, keys: int, rate: int, commands: Connection) -> None:
    try:
        uvloop.run(_LoadOf(keys, rate).serve(directory, commands))
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the bench ended
    except Exception as error:
        commands.send(Unavailable(f"the load failed: {type(error).__name__}: {error}"))


class _LoadOf:
    def __init__(self, keys: int, rate: int) -> None:
        self._keys = keys
        self._rate = rate
        self._made = 0
        self._turn = 0

    async def serve(self, directory: Path, commands: Connection) -> None:
        async with await AsyncLog.connect(directory_endpoint(directory)) as log:
            appender = await log.own_appender()
            while True:
                command = await asyncio.to_thread(commands.recv)
                if command == _FILL:
                    for first in range(0, self._keys, _FILL_ROWS):
                        numbers = np.arange(first, min(self._keys, first + _FILL_ROWS))
                        await appender.append([self._entry(numbers)])
                elif command == _GO:
                    await self._run(appender, commands)
                commands.send(None)

    async def _run(self, appender: Any, commands: Connection) -> None:
        """Keys in an order that has nothing to do with them, until a word comes."""
        began, sent = time.monotonic(), 0
        while not commands.poll():
            await asyncio.sleep(_TICK_SECONDS)
            due = int((time.monotonic() - began) * self._rate)
            if due > sent:
                numbers = np.arange(self._made, self._made + due - sent, dtype=np.uint64)
                keys = numbers * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)
                appender.append_nowait([self._entry(keys.astype(np.int64) % self._keys)])
                self._made += due - sent
                sent = due
        commands.recv()
        await appender.drained()

    def _entry(self, keys: Any) -> NewEntry:
        times = pa.array(np.full(len(keys), now_us(), np.int64)).cast(pa.timestamp("us", tz="UTC"))
        batch = pa.record_batch({"key": pa.array(keys, pa.int64()), "ts": times})
        self._turn += 1
        tags = Lanes("events", LANES_DEFAULT).tags(self._turn % LANES_DEFAULT)
        return NewEntry(encode_batch(batch), tags, rows=len(keys))
