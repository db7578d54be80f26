"""A worker: one long-lived Spark task that runs tasks of a query, as the log tells it.

Owns a process's share of a query: it says hello, obeys the coordinator's newest Assign, reports how
its tasks stand, and leaves when it is told to, when its Spark task is gone, or when nobody
coordinates any more. Beats have a connection of their own and run apart from the tasks, so that
long work in user code is not taken for death. Nothing here is trusted by the log: what a task may
write is decided by its claim.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvloop

from penstock.errors import Fenced, PenstockError, Retryable, Unavailable, Unknown
from penstock.log.client.client import AsyncLog, Resolve
from penstock.log.core.rights import allow_caveat
from penstock.log.embedded import endpoint, find_token
from penstock.log.records import Entry, Kind, NewEntry
from penstock.protocol.names import TaskId, control_tag, coordinator_producer, parse_task
from penstock.runtime.commit_protocol import Cohort
from penstock.runtime.control import (
    Assign,
    Beat,
    Ended,
    Finish,
    Goodbye,
    Hello,
    Leave,
    Message,
    Pulse,
    Yield,
    Yielded,
    decode_message,
    encode_message,
)
from penstock.runtime.host import THIS_PROCESS, Apart, Host
from penstock.runtime.layout import Layout, decode_layout
from penstock.runtime.meter import Meter
from penstock.runtime.spec import QuerySpec
from penstock.runtime.standby import Kept, Standby, TaskCopy
from penstock.runtime.succession import plan_origin, predecessors
from penstock.runtime.successor import SuccessorCopy
from penstock.runtime.task import Task
from penstock.runtime.task_core import TaskCore
from penstock.wire.token import is_narrowed, make_token, narrow_token

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.25
#: How often a beat carries the tasks' reports.
REPORT_SECONDS = 1.0
#: Characters of a traceback, so that any error can be told in one entry.
TRACEBACK_MAX = 20_000
#: A log that is away pauses the query; so no request of a worker gives up before this.
PATIENCE_SECONDS = 24 * 3600.0
CONNECT_SECONDS = 5.0
#: How long a client may take to finish what it submitted, when its process is wanted no more.
CLOSE_SECONDS = 5.0
#: Without a pulse of the coordinator for so long, over a connection that works, nobody is there.
ORPHAN_SECONDS = 20.0
#: How long tasks may take to commit what they have when the query is stopped.
DRAIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LogAddress:
    """Where the log is, for a process on any machine, and with what it is opened there."""

    target: str
    token_file: str | None = None
    tls_ca: str | None = None
    #: Instead of a file: what a driver hands to its workers, good for their query only.
    token: str | None = field(default=None, repr=False)

    def resolve(self) -> Resolve:
        return endpoint(
            self.target, token_file=self.token_file, tls_ca=self.tls_ca, token=self.token
        )

    def narrowed(self, spec: QuerySpec, id: str) -> LogAddress:
        """For the workers of a query: with a token that allows what they do, and nothing else.

        `id`: drawn at random, of the token that is made if ours is the root token.
        """
        ours = self.token or find_token(self.target, self.token_file)
        caveats = [allow_caveat(worker_rights(spec))]
        token = narrow_token(ours, caveats) if is_narrowed(ours) else make_token(ours, id, caveats)
        return LogAddress(self.target, None, self.tls_ca, token)


def worker_rights(spec: QuerySpec) -> list[str]:
    """What the workers of a query may do."""
    written = [stream for stream in (spec.to, spec.settings.dead_letter) if stream is not None]
    return [
        f"run:{spec.name}",
        *(f"read:{stream}" for stream in sorted(spec.sources)),
        *(f"append:{stream}" for stream in written),
    ]


def run_worker(address: LogAddress, spec: QuerySpec, slot: int, attempt: int) -> None:
    """Run in this process until told to stop; called inside a Spark task."""
    gc.collect()
    gc.freeze()  # what is loaded now stays: collections need not look at it, at 10 ms a time
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(address.resolve, spec, slot, attempt))
    finally:
        gc.unfreeze()  # Spark uses the process again


async def work(
    resolve: Callable[[], Resolve],
    spec: QuerySpec,
    slot: int,
    attempt: int,
    host: Host = THIS_PROCESS,
) -> None:
    """One attempt of one Spark task. `resolve` makes a way to the log for each client."""
    id, parent = f"{slot}-{host.token(6)}", host.parent_id()
    name = f"worker-{spec.name}-{slot}"
    log = await _connect(resolve, name, lambda: host.parent_id() == parent)
    if log is not None:
        await Worker(log, resolve, spec, id, slot, attempt, host, parent).run()


async def _connect(
    resolve: Callable[[], Resolve], name: str, is_wanted: Callable[[], bool]
) -> AsyncLog | None:
    """Connect, however long the log is away, for as long as somebody may want this process."""
    while is_wanted():
        try:
            log = await AsyncLog.connect(resolve(), name=name, timeout=CONNECT_SECONDS)
        except Retryable as error:
            logger.info("client=%s waits for the log: %s", name, error)
            continue
        log.timeout = PATIENCE_SECONDS
        return log
    return None


class _Assigned:
    """One instance of a task that this worker was told to run."""

    def __init__(
        self,
        id: TaskId,
        instance: int,
        standby: Standby | None,
        run: Callable[[_Assigned], Coroutine[Any, Any, None]],
    ) -> None:
        self.id = id
        self.instance = instance
        #: What it begins with, if a copy of its state was kept here.
        self.standby = standby
        #: None while it is opened.
        self.task: Task | None = None
        self.is_draining = False
        #: Whether it was told to stop, and somebody waits to hear that it has.
        self.is_yielding = False
        self.running = asyncio.ensure_future(run(self))
        self.running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Future[None]) -> None:
        """Also if it was cancelled before it began."""
        if self.standby is not None:
            self.standby.close()

    def drain(self) -> None:
        self.is_draining = True
        if self.task is not None:
            self.task.drain()

    def report(self) -> tuple[dict[str, Any], Meter | None]:
        """How its task stands, and what can be asked of that later, from another thread."""
        bare = {"instance": self.instance, "is_running": False}
        if self.task is None:
            return bare, None
        try:
            return self.task.report(), self.task.meter
        except Exception as error:  # whatever becomes of a report, the task goes on
            logger.warning("task=%s cannot say how it stands cause=%r", self.id, error)
            return bare, self.task.meter


class Worker:
    """One attempt of one Spark task that has reached the log, from `run` to its end."""

    def __init__(
        self,
        log: AsyncLog,
        resolve: Callable[[], Resolve],
        spec: QuerySpec,
        id: str,
        slot: int,
        attempt: int,
        host: Host,
        parent: int,
    ) -> None:
        self._log = log
        self._resolve = resolve
        self._spec = spec
        self._slot = slot
        self._attempt = attempt
        self._host = host
        self._parent = parent
        self._id = id
        self._tasks: dict[TaskId, _Assigned] = {}
        #: Instances that ran here: each is adopted once.
        self._used: set[tuple[TaskId, int]] = set()
        #: The newest Assign that was obeyed: coordinator's instance, number.
        self._obeyed = (0, 0)
        #: When the coordinator was last heard, on the event loop's clock.
        self._pulsed = 0.0
        #: Copies of tasks that run elsewhere.
        self._standbys: dict[TaskId, Standby] = {}
        #: The query under the layout to come, and what is made ready for its tasks.
        self._next: QuerySpec | None = None
        self._successors: dict[TaskId, Standby] = {}
        #: Tasks whose standbys were made so: beside those that were before them, and no others.
        self._was_next: set[TaskId] = set()
        #: By task, what it reported, and the meter of one that runs. Never changed, but replaced:
        #: beats are sent from a thread of their own.
        self._reports: dict[str, tuple[dict[str, Any], Meter | None]] = {}
        self._standby_reports: dict[str, dict[str, Any]] = {}
        self._successor_reports: dict[str, dict[str, Any]] = {}
        self._leaving = threading.Event()
        self._beating: Apart | None = None

    async def run(self) -> None:
        self._pulsed = asyncio.get_running_loop().time()
        try:
            start = (await self._log.bounds()).tail
            name, pid = self._host.name(), self._host.process_id()
            executor = f"{name}/{self._parent}"
            await self._say(Hello(self._id, self._slot, name, pid, self._attempt, executor))
            self._beating = self._host.run_apart(self._beat, "penstock-beat")
            obeying = asyncio.ensure_future(self._obey(start))
            watching = asyncio.ensure_future(self._watch())
            await asyncio.wait({obeying, watching}, return_when=asyncio.FIRST_COMPLETED)
            for loop in (obeying, watching):
                loop.cancel()
            await asyncio.gather(obeying, watching, return_exceptions=True)
            await self._drain()
            for loop in (obeying, watching):
                if not loop.cancelled():
                    loop.result()
        finally:
            self._leaving.set()
            for assigned in self._tasks.values():
                assigned.running.cancel()
            _close_all(self._standbys)
            _close_all(self._successors)
            await close_within(self._log, CLOSE_SECONDS)
            if self._beating is not None:
                await self._beating.wait()

    async def _say(self, message: Message) -> None:
        tags = (control_tag(self._spec.name),)
        await self._log.append([NewEntry(encode_message(message), tags, Kind.CONTROL)])

    # -- what the coordinator says

    async def _obey(self, start: int) -> None:
        voice = coordinator_producer(self._spec.name)
        async with self._log.tail([control_tag(self._spec.name)], start=start) as reader:
            async for batch in reader:
                for entry in batch.entries:
                    if entry.producer == voice and self._hear(entry):
                        return

    def _hear(self, entry: Entry) -> bool:
        """True if this worker is to leave."""
        match decode_message(entry.payload):
            case Pulse():
                self._pulsed = asyncio.get_running_loop().time()
            case Assign() as assign if (entry.instance, assign.number) > self._obeyed:
                self._obeyed = (entry.instance, assign.number)
                self._learn_layout(assign)
                self._reconcile(assign, entry)
            case Yield(task=name, instance=instance):
                self._yield(parse_task(name), instance)
            case Leave(worker=worker):
                return worker == self._id
            case Finish():
                return True
            case _:
                pass
        return False

    def _learn_layout(self, assign: Assign) -> None:
        """What was made ready for it is kept, unless that would take longer than the store.

        Copies that were made under another one know their inputs by other names.
        """
        layout = self._decode_layout(assign.layout)
        if layout is None or layout.version == self._spec.layout.version:
            return
        self._spec = self._spec.under(layout)
        self._keep_copies(set())
        if self._is_planned(layout):
            ready = {task for task, one in self._successors.items() if one.has_caught_up}
            self._standbys = {task: self._successors.pop(task) for task in sorted(ready)}
            self._was_next = ready

    def _decode_layout(self, values: dict[str, Any]) -> Layout | None:
        return decode_layout(values, self._spec.version) if values else None

    def _is_planned(self, layout: Layout | None) -> bool:
        """Whether this is the layout that copies are made ready for."""
        planned = None if self._next is None else self._next.layout
        if planned is None or layout is None:
            return False
        return (planned.version, planned.stages) == (layout.version, layout.stages)

    def _reconcile(self, assign: Assign, entry: Entry) -> None:
        """Run what is ours, as the instances that were claimed for us, and nothing else."""
        places = assign.places()
        mine = {
            parse_task(name): place.instance
            for name, place in places.items()
            if place.worker == self._id
        }
        for task, assigned in list(self._tasks.items()):
            if mine.get(task) != assigned.instance:
                assigned.running.cancel()
                del self._tasks[task]
        instances = {name: place.instance for name, place in places.items()}
        cohort = Cohort(entry.lsn, instances, entry.instance)
        for task, instance in mine.items():
            if task in self._tasks or (task, instance) in self._used:
                continue
            self._used.add((task, instance))
            standby = self._standbys.pop(task, None)
            run = partial(self._run_task, cohort)
            self._tasks[task] = _Assigned(task, instance, standby, run)
        placed = {task for task in self._was_next if str(task) in places}
        for task in placed & self._standbys.keys():
            self._standbys.pop(task).close()  # it has begun elsewhere, and will go on from there
        self._was_next -= placed
        self._keep_copies({parse_task(t) for t, who in assign.standbys.items() if self._id in who})
        self._make_ready(assign)

    def _keep_copies(self, wanted: set[TaskId]) -> None:
        """Of these tasks; one that runs here needs none."""
        wanted = {task for task in wanted if task not in self._tasks}
        self._keep(self._standbys, wanted, partial(self._make_copy, self._spec))

    def _make_ready(self, assign: Assign) -> None:
        """For the tasks of the next layout that will run here."""
        layout = self._decode_layout(assign.next_layout)
        spec = None if layout is None else self._spec.under(layout)
        if not self._is_planned(layout):
            _close_all(self._successors)
            self._next = spec
        if spec is not None:
            mine = {parse_task(t) for t, who in assign.successors.items() if who == self._id}
            self._keep(self._successors, mine, partial(self._make_copy, spec))

    def _keep(
        self,
        kept: dict[TaskId, Standby],
        wanted: set[TaskId],
        make_copy: Callable[[TaskId], Kept],
    ) -> None:
        for task in kept.keys() - wanted:
            kept.pop(task).close()
        for task in sorted(wanted - kept.keys()):
            kept[task] = Standby(self._log, task, partial(make_copy, task))

    def _make_copy(self, spec: QuerySpec, task: TaskId) -> Kept:
        """Of a task under this layout: of its own changes if it has any, or of those before it."""
        uri = spec.settings.checkpoints
        store = None if uri is None else self._host.open_checkpoints(uri, self._log.log_id)
        room = self._host.room(spec.settings.state_memory)
        core = TaskCore(spec, task, 0, self._host.now_ms, room)
        if self._spec.layout.has(task.stage, task.index):
            return TaskCopy(self._log, core, store)
        before = predecessors(self._spec, spec, task)
        origins = [plan_origin(self._spec, one) for one in before]
        return SuccessorCopy(self._log, core, store, origins)

    def _yield(self, task: TaskId, instance: int) -> None:
        assigned = self._tasks.get(task)
        if assigned is not None and assigned.instance == instance:
            assigned.is_yielding = True
            assigned.drain()

    async def _run_task(self, cohort: Cohort, assigned: _Assigned) -> None:
        """To its end; whoever assigned it is told why, unless somebody else owns it now."""
        name, instance = str(assigned.id), assigned.instance
        try:
            assigned.task = task = await Task.open(
                self._log, self._spec, assigned.id, instance, cohort, self._host, assigned.standby
            )
            self._reports = self._gather_reports()  # its first step may be a long one
            if assigned.is_draining:
                task.drain()
            await task.run()
            if assigned.is_yielding:
                await self._say(Yielded(self._id, name, instance))
        except Fenced as error:
            logger.info("task=%s instance=%d fenced: %s", name, instance, error)
        except Exception as error:
            is_retryable = isinstance(error, Retryable | Unknown)
            text = "".join(traceback.format_exception(error))[-TRACEBACK_MAX:]
            logger.warning("task=%s instance=%d ended: %s", name, instance, error)
            message = f"{type(error).__name__}: {error}"[:TRACEBACK_MAX]
            await self._say(Ended(self._id, name, instance, is_retryable, message, text))

    async def _drain(self) -> None:
        """Let every task commit what it has worked on."""
        for assigned in self._tasks.values():
            assigned.drain()
        if self._tasks:
            running = [assigned.running for assigned in self._tasks.values()]
            await asyncio.wait(running, timeout=DRAIN_SECONDS)
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                reports = _told(self._gather_reports())  # what the last commits have done
                await self._say(Beat(self._id, reports))
                await self._say(Goodbye(self._id))
        except (TimeoutError, PenstockError):
            pass  # the coordinator finds out by itself

    # -- life

    def _is_wanted(self) -> bool:
        """It has not been told to leave, and what started it is there."""
        return self._host.parent_id() == self._parent and not self._leaving.is_set()

    async def _watch(self) -> None:
        """Ends when this process serves nobody any more."""
        loop = asyncio.get_running_loop()
        seen = loop.time()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now = loop.time()
            if self._log.connection is None or now - seen > 1.0:
                self._pulsed = now  # the log was away, or we were: nobody could be heard
            seen = now
            self._reports = self._gather_reports()
            self._standby_reports = _reports_of(self._standbys)
            self._successor_reports = _reports_of(self._successors)
            for assigned in self._tasks.values():
                if assigned.running.done() and not assigned.running.cancelled():
                    assigned.running.result()  # an end that could not be told
            if self._beating is None or not self._beating.is_alive():
                raise Unavailable("this worker can beat no more")
            if not self._is_wanted():
                logger.warning("worker=%s leaves: its Spark executor is gone", self._id)
                return
            if now - self._pulsed > ORPHAN_SECONDS:
                logger.warning(
                    "worker=%s leaves: no coordinator for %d s", self._id, ORPHAN_SECONDS
                )
                return

    def _gather_reports(self) -> dict[str, tuple[dict[str, Any], Meter | None]]:
        return {str(task): assigned.report() for task, assigned in self._tasks.items()}

    async def _beat(self) -> None:
        """Apart from the tasks: say that the process lives, whatever they are busy with."""
        try:
            log = await _connect(self._resolve, f"beat-{self._id}", self._is_wanted)
            if log is not None:
                await self._beat_again_and_again(log)
        except (PenstockError, TimeoutError) as error:
            logger.warning("beats ended: %s", error)

    async def _beat_again_and_again(self, log: AsyncLog) -> None:
        loop = asyncio.get_running_loop()
        tags = (control_tag(self._spec.name),)
        try:
            reported = -REPORT_SECONDS
            while not self._leaving.is_set():
                is_due = loop.time() - reported >= REPORT_SECONDS
                reports = _told(self._reports) if is_due else {}
                reported = loop.time() if reports else reported
                copies = (self._standby_reports, self._successor_reports)
                beat = encode_message(Beat(self._id, reports, *copies))
                pending = asyncio.ensure_future(log.append([NewEntry(beat, tags, Kind.CONTROL)]))
                while not pending.done() and not self._leaving.is_set():
                    await asyncio.wait({pending}, timeout=BEAT_SECONDS)
                if not pending.done():
                    pending.cancel()
                    return
                await asyncio.sleep(BEAT_SECONDS)
        finally:
            await close_within(log, CLOSE_SECONDS)


def _close_all(kept: dict[TaskId, Standby]) -> None:
    while kept:
        kept.popitem()[1].close()


def _told(reports: Mapping[str, tuple[dict[str, Any], Meter | None]]) -> dict[str, dict[str, Any]]:
    """With where the time has gone by now: a task that is long at one step could not say it."""
    return {
        name: report if meter is None else {**report, **meter.report()}
        for name, (report, meter) in reports.items()
    }


def _reports_of(kept: dict[TaskId, Standby]) -> dict[str, dict[str, Any]]:
    return {str(task): standby.report() for task, standby in sorted(kept.items())}


async def close_within(log: AsyncLog, seconds: float) -> None:
    """Close a client; if the log is away, abandon what it submitted."""
    try:
        async with asyncio.timeout(seconds):
            await log.close()
    except TimeoutError:
        log.abandon()
