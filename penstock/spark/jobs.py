"""Workers as Spark jobs: one job of one long-lived Spark task per worker, kept running.

One job each, not one job of many tasks: in local mode a lost task fails its whole job, and anywhere
a job ends after a number of lost tasks that no long life stays below. Spark restarts a lost task
itself where it can; when the job fails after all, it is submitted again here. What a job that was
cancelled still writes is fenced by the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from penstock.connector.registering import choose_python
from penstock.runtime.spec import QuerySpec
from penstock.runtime.worker import LogAddress
from penstock.spark.cores import (
    WAIT_SECONDS,
    Cores,
    check_workers,
    executor_of,
    going_executors,
    read_cores,
    waiting_stages,
)

logger = logging.getLogger(__name__)

#: Waits before a failed job is submitted again, in seconds; the last one repeats.
BACKOFF_SECONDS: Final = (0.05, 0.2, 1.0, 3.0)
#: Failures in a row, each before the worker said hello, after which Spark cannot run the query.
FAILURES_MAX: Final = 3
#: How often Spark is asked whether it lost a task.
WATCH_SECONDS: Final = 0.1
#: After so many times, a look at which jobs there are.
WATCHES_PER_LOOK: Final = 10
#: What the queries of this program want of their Sparks' cores, by a run's first group: the
#: application, the query and its workers.
_WANTED: Final[dict[str, tuple[str, str, int]]] = {}


def ship_launch(spark: Any, address: LogAddress, spec: QuerySpec) -> Any:
    """What workers are started with, as a broadcast; raises if a user's function has no pickle."""
    from pyspark.serializers import CPickleSerializer

    choose_python(spark.sparkContext)
    # Functions of a user's own script or closures are shipped as Spark ships them: by value.
    return spark.sparkContext.broadcast(CPickleSerializer().dumps((address, spec)))


def _hide_progress_bar(sc: Any) -> None:
    """Spark's bar of stages in the terminal: those of workers never end, so it would stay there.

    It cannot be shown again in this Spark. Where `spark.ui.showConsoleProgress` is off, there is
    none.
    """
    bar = sc._jsc.sc().progressBar()
    if bar.isDefined():
        bar.get().stop()


class WorkerJobs:
    """The Spark jobs of one run of a query."""

    def __init__(
        self,
        spark: Any,
        launch: Any,
        *,
        query: str,
        workers: int,
        run_id: str,
        is_over: Callable[[], bool],
        hellos: Callable[[int], int],
        on_lost: Callable[[int, int | None], None],
        on_vacated: Callable[[int], None],
        on_hopeless: Callable[[str], None],
        on_cores: Callable[[dict[str, Any]], None],
    ) -> None:
        """`launch`: see `ship_launch`."""
        self._sc = spark.sparkContext
        self._launch = launch
        self._prefix = f"penstock-{query}-{run_id}"
        self._groups = [self._group(slot) for slot in range(workers)]
        #: Slots from here on are wanted no more.
        self._wanted = workers
        self._name = query
        self._is_over = is_over
        self._hellos = hellos
        self._on_lost = on_lost
        self._on_vacated = on_vacated
        self._on_hopeless = on_hopeless
        self._on_cores = on_cores
        #: Since when workers wait for a core, and whether that was told.
        self._waits_since: float | None = None
        self._wait_told = False
        self._stopping = threading.Event()
        #: By slot, what keeps its worker running.
        self._keepers = {slot: self._make_thread(self._keep, slot) for slot in range(workers)}
        self._watcher = self._make_thread(self._watch)
        self._lock = threading.Lock()

    def _group(self, slot: int) -> str:
        return f"{self._prefix}-{slot}"

    @property
    def spark_context(self) -> Any:
        return self._sc

    def _make_thread(self, work: Callable[..., None], *args: int) -> threading.Thread:
        from pyspark import InheritableThread

        name = f"penstock-jobs-{self._name}"
        return InheritableThread(target=work, args=args, name=name, daemon=True)

    def start(self) -> None:
        cores = self._read_cores()
        _WANTED[self._groups[0]] = (self._sc.applicationId, self._name, len(self._groups))
        level = logging.WARNING if cores.left is not None and cores.left <= 0 else logging.INFO
        logger.log(level, "query=%s starts: %s", self._name, cores.describe())
        self._on_cores(cores.as_json(held=0, waiting=None))
        _hide_progress_bar(self._sc)
        for thread in [*self._keepers.values(), self._watcher]:
            thread.start()

    def resize(self, workers: int) -> None:
        """So many workers from now on. Those of other slots are told to leave by the coordinator,
        and are not started again. BadRequest if Spark can never run so many: whoever asks through
        the log knows nothing of Spark."""
        if self._sc._jsc is not None and workers:
            check_workers(self._sc, workers)
        with self._lock:
            if self._stopping.is_set():
                return
            self._wanted = workers
            _WANTED[self._groups[0]] = (self._sc.applicationId, self._name, workers)
            self._groups += [self._group(slot) for slot in range(len(self._groups), workers)]
            joins = any(keeper.is_alive() for keeper in self._keepers.values())
            for slot in range(workers):
                keeper = self._keepers.get(slot)
                if keeper is None or not keeper.is_alive():
                    self._keepers[slot] = self._make_thread(self._keep, slot, joins)
                    self._keepers[slot].start()
        self._cancel_waiting(self._groups[workers:])

    def _cancel_waiting(self, groups: Sequence[str]) -> None:
        """Jobs that still wait for a core are wanted no more: none is to be found for them."""
        if groups and self._sc._jsc is not None:
            queued = waiting_stages(self._sc)
            for group in groups:
                if self._find_stage(group) in queued:
                    self._sc.cancelJobGroup(group)

    def _is_leaving(self, slot: int) -> bool:
        """Its worker is wanted no more; if it is again, somebody else keeps it from here on."""
        with self._lock:
            if slot < self._wanted:
                return False
            if self._keepers.get(slot) is threading.current_thread():
                del self._keepers[slot]
            return True

    def _keep(self, slot: int, joins: bool = False) -> None:
        """Run a worker's job, again whenever it fails, until stopped."""
        self._sc.setJobGroup(self._groups[slot], f"penstock query {self._name}, worker {slot}")
        failures = 0
        while not self._stopping.is_set() and not self._is_leaving(slot):
            hellos = self._hellos(slot)
            error: Exception | None = None
            try:
                self._run_once(slot, joins and not failures)
            except Exception as raised:
                error = raised
            if self._is_over():
                return
            if self._sc._jsc is None:
                self._on_hopeless("the Spark session was stopped: call query.stop() before")
                return
            if self._is_leaving(slot):
                return
            failures = 1 if self._hellos(slot) > hellos else failures + 1
            logger.warning("query=%s worker=%d lost: %s", self._name, slot, _first_line(error))
            self._on_lost(slot, self._all_attempts(slot))
            if failures > FAILURES_MAX:
                self._on_hopeless(f"Spark could not run its worker {slot}. {_explain(error)}")
                return
            self._stopping.wait(BACKOFF_SECONDS[min(failures - 1, len(BACKOFF_SECONDS) - 1)])

    def _watch(self) -> None:
        """Where Spark restarts lost tasks itself, its job lives on: ask how many were lost.

        So survivors take over at once, instead of when the lost worker's lease has passed or its
        successor, which has much to load first, says hello.
        """
        stages: list[int | None] = []
        lost_before: dict[int, int] = {}
        count = 0
        while not self._stopping.wait(WATCH_SECONDS) and self._sc._jsc is not None:
            # Few calls: each takes a part of a millisecond, of Python and of the JVM.
            if count % WATCHES_PER_LOOK == 0:
                stages = [self._find_stage(group) for group in self._groups[: self._wanted]]
                self._look_at_cores(stages)
                self._look_at_executors(stages)
            count += 1
            for slot, stage in enumerate(stages):
                lost = 0 if stage is None else self._count_lost(stage)
                if lost > lost_before.get(slot, 0):
                    lost_before[slot] = lost
                    self._on_lost(slot, lost)

    def _look_at_executors(self, stages: Sequence[int | None]) -> None:
        """Where Spark is about to let one go, tasks leave it before it does."""
        found = going_executors(self._sc)
        if found:
            for slot, stage in enumerate(stages):
                if stage is not None and executor_of(self._sc, stage) in found:
                    self._on_vacated(slot)

    def _look_at_cores(self, stages: Sequence[int | None]) -> None:
        """Say what the workers hold; and if some wait for long, for what."""
        queued = waiting_stages(self._sc)
        waiting = sum(stage is None or stage in queued for stage in stages)
        cores = self._read_cores()
        now = time.monotonic()
        self._waits_since = (self._waits_since or now) if waiting else None
        seconds = 0.0 if self._waits_since is None else now - self._waits_since
        text = cores.describe_wait(waiting, seconds) if seconds >= WAIT_SECONDS else None
        if text is not None and not self._wait_told:
            logger.warning("query=%s %s", self._name, text)
        elif self._wait_told and not waiting:
            logger.info("query=%s all its workers have a core now", self._name)
        self._wait_told = text is not None
        self._on_cores(cores.as_json(held=len(stages) - waiting, waiting=text))

    def _read_cores(self) -> Cores:
        """Other queries count by what they want: one that waits takes the next that is free."""
        others: dict[str, int] = {}
        for group, (application, name, workers) in list(_WANTED.items()):
            if application == self._sc.applicationId and group != self._groups[0]:
                others[name] = others.get(name, 0) + workers
        return read_cores(self._sc, self._wanted, others)

    def _find_stage(self, group: str) -> int | None:
        """Of the newest job; it has one."""
        tracker = self._sc.statusTracker()
        job = tracker.getJobInfo(max(tracker.getJobIdsForGroup(group), default=-1))
        return int(job.stageIds[0]) if job is not None and len(job.stageIds) else None

    def _all_attempts(self, slot: int) -> int | None:
        """All attempts of the slot's newest job are below this number."""
        stage = self._find_stage(self._groups[slot])
        return None if stage is None else attempt_number(stage + 1, 0)

    def _count_lost(self, stage: int) -> int:
        """Attempts below this number were lost."""
        info = self._sc._jsc.statusTracker().getStageInfo(stage)
        return 0 if info is None else attempt_number(stage, info.numFailedTasks())

    def _run_once(self, slot: int, joins: bool) -> None:
        work = make_work(self._launch, joins)
        self._sc.parallelize([slot], 1).mapPartitions(work).collect()

    def stop(self, timeout: float) -> None:
        """Cancel what still runs after so many seconds, and wait for the threads.

        A worker that has never said hello has no task to commit, and would wait for a coordinator
        that is gone: it is not waited for.
        """
        with self._lock:
            self._stopping.set()
            threads = [*self._keepers.values(), self._watcher]
        _WANTED.pop(self._groups[0], None)
        unheard = [group for slot, group in enumerate(self._groups) if not self._hellos(slot)]
        if self._sc._jsc is not None:
            for group in unheard:  # with a job that is still on its way to Spark
                self._sc._jsc.sc().cancelJobGroupAndFutureJobs(group)
        deadline = time.monotonic() + timeout
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._sc._jsc is None:
            return  # the session was stopped, and everything of it
        if any(thread.is_alive() for thread in threads):
            for group in self._groups:
                self._sc.cancelJobGroup(group)
            for thread in threads:
                if thread.ident is not None:
                    thread.join(5.0)
        if not unheard:  # else a worker may be about to fetch it, and Spark's cleaner removes it
            self._launch.destroy()


def make_work(launch: Any, joins: bool) -> Callable[[Iterator[int]], Iterator[int]]:
    """What a Spark task does that is a worker.

    `joins`: the query runs on other workers meanwhile, so it is in nobody's way while it loads. For
    that it must name nothing of this module, which would be loaded before it is called.
    """

    def work(slots: Iterator[int]) -> Iterator[int]:
        if joins:
            from penstock.spark.loading import load_aside

            load_aside()
        from pyspark import TaskContext
        from pyspark.serializers import CPickleSerializer

        from penstock.runtime.worker import run_worker
        from penstock.spark.jobs import attempt_number

        context = TaskContext.get()
        assert context is not None
        attempt = attempt_number(context.stageId(), context.attemptNumber())
        address, spec = CPickleSerializer().loads(launch.value)
        for slot in slots:
            run_worker(address, spec, slot, attempt)
        return iter(())

    return work


def attempt_number(stage: int, number: int) -> int:
    """One number for Spark's attempts: each job of a slot has one stage, a larger one each time."""
    return stage * 1_000_000 + number


def _explain(error: Exception | None) -> str:
    text = str(error)
    if "No module named" in text:
        missing = text.split("No module named", 1)[1].split("\n", 1)[0].strip()
        return (
            f"Its Python has no module {missing}: install penstock and what the query uses there, "
            "or let PYSPARK_PYTHON name a Python that has them, or ship a module of yours with "
            f"sparkContext.addPyFile. {text}"
        )
    return text


def _first_line(error: Exception | None) -> str:
    if error is None:
        return "it left by itself"
    return str(error).strip().split("\n", 1)[0][:300]
