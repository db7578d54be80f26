"""The cores of Spark that queries hold, in words: what is held, what is left, who waits for one.

A worker is a Spark task that runs for as long as its query: its core is nobody else's meanwhile.
Spark says nothing when a job waits for a core, so we do. A core here is a place for one task
(`spark.task.cpus` may make more than one of the machine's of it).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import BadRequest

logger = logging.getLogger(__name__)

#: So long a job may wait for a core until that is told.
WAIT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Cores:
    """How the cores of one Spark stand, for one query."""

    #: Of the query: each of its workers wants one.
    wanted: int
    #: What other queries of this program want, by name; not all may have it.
    others: Mapping[str, int]
    #: All that Spark has now; None: not known, or none yet.
    total: int | None = None
    #: Of them, those that run a task, of whatever job.
    busy: int = 0

    @property
    def left(self) -> int | None:
        """For other Spark jobs, once all queries have what they want; below 0: too few."""
        if self.total is None:
            return None
        return self.total - self.wanted - sum(self.others.values())

    def describe(self) -> str:
        """What is held and what is left, when the query starts."""
        workers = f"{self.wanted} workers hold" if self.wanted > 1 else "worker holds"
        text = f"its {workers} one core{' each' * (self.wanted > 1)} for as long as it runs"
        if self.left is None:
            return f"{text}; how many Spark has is not known yet"
        text += f"; Spark has {_count(self.total or 0, 'core')}{self._held_by_others()}"
        if self.left > 0:
            return f"{text}; {self.left} left for other Spark jobs"
        return (
            f"{text}; none is left: other Spark jobs and further queries wait until a query stops. "
            f"{self._advise()}"
        )

    def describe_wait(self, waiting: int, seconds: float) -> str:
        """Why so many workers have not started, and what to do."""
        text = (
            f"{_count(waiting, 'worker')} of {self.wanted} waited {seconds:.0f} s for a core: "
            f"{_count(self.wanted, 'core')} wanted, {self.wanted - waiting} had; "
        )
        if self.total is None:
            return f"{text}Spark has no cores: look whether its executors could start"
        free = max(0, self.total - self.busy)
        text += f"Spark has {self.total}, {free} of them free{self._held_by_others()}. "
        if free >= waiting:
            return f"{text}Spark should start them: look at its own log, and at its executors"
        return text + self._advise()

    def _held_by_others(self) -> str:
        if not self.others:
            return ""
        held = [f"{name} ({count})" for name, count in sorted(self.others.items())]
        return f", others are for query {', '.join(held)}"

    def _advise(self) -> str:
        """One core more than all queries want, or fewer workers."""
        enough = self.wanted + sum(self.others.values()) + 1
        fewer = "start it with fewer workers, " if self.wanted > 1 else ""
        return (
            f"Give Spark more cores (local[{enough}], or more executors), {fewer}or stop another "
            "query or job"
        )

    def as_json(self, *, held: int, waiting: str | None) -> dict[str, Any]:
        """For progress and status."""
        facts: dict[str, Any] = {"wanted": self.wanted, "held": held, "total": self.total}
        facts["left"] = None if self.left is None else max(0, self.left)
        return facts if waiting is None else {**facts, "waiting": waiting}


def check_workers(sc: Any, count: int) -> None:
    """BadRequest if Spark can never run so many at once."""
    if type(count) is not int or count < 1:
        raise BadRequest(f"workers={count!r}: give a whole number, at least 1")
    cores = int(sc.defaultParallelism)
    if sc.master.startswith("local[") and count > cores:
        raise BadRequest(
            f"workers={count}, but {sc.master} has {cores} cores: each worker "
            "holds one for as long as the query runs. Start it with fewer workers, or Spark with "
            f"local[{count + 1}], which leaves one for other jobs"
        )


def read_cores(sc: Any, wanted: int, others: Mapping[str, int]) -> Cores:
    """How they stand now, as Spark's own account of its executors says."""
    try:
        executors = sc._jsc.sc().statusStore().executorList(True)
        found = [executors.apply(index) for index in range(executors.length())]
        total = sum(int(one.maxTasks()) for one in found)
        busy = sum(int(one.activeTasks()) for one in found)
    except Exception as error:  # a query runs as well without it, and the session may be stopping
        logger.debug("Spark does not tell its cores: %s", error)
        total = busy = 0
    return Cores(wanted, others, total or None, busy)


def going_executors(sc: Any) -> set[str]:
    """The executors that Spark decommissions: they start nothing any more, and go when they may."""
    if sc.getConf().get("spark.decommission.enabled", "false") != "true":
        return set()
    try:
        scheduler = sc._jsc.sc().taskScheduler()
        executors = sc._jsc.sc().statusStore().executorList(True)
        names = [str(executors.apply(index).id()) for index in range(executors.length())]
        known = {name: scheduler.getExecutorDecommissionState(name) for name in names}
        return {name for name, state in known.items() if state.isDefined()}
    except Exception as error:  # as above
        logger.debug("Spark does not tell which executors go: %s", error)
        return set()


def executor_of(sc: Any, stage: int) -> str | None:
    """Where the one task of a stage runs."""
    try:
        tasks = sc._jsc.sc().statusStore().taskList(stage, 0, 100)
        found = [tasks.apply(index) for index in range(tasks.length())]
        running = [str(one.executorId()) for one in found if str(one.status()) == "RUNNING"]
        return running[-1] if running else None
    except Exception as error:  # as above
        logger.debug("Spark does not tell where a stage runs: %s", error)
        return None


def waiting_stages(sc: Any) -> set[int]:
    """The stages whose tasks all wait for a core, as Spark's scheduler says.

    Spark's status store may be ten seconds late: it skips writes until an executor's next sign. The
    scheduler's queue has what it may still have to start, so what is not in it does not wait.
    """
    try:
        sets = sc._jsc.sc().taskScheduler().rootPool().getSortedTaskSetQueue()
        found = [sets.apply(index) for index in range(sets.length())]
        return {int(one.stageId()) for one in found if one.runningTasks() == 0}
    except Exception as error:  # as above
        logger.debug("Spark does not tell which stages wait: %s", error)
        return set()


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
