"""What the checkers must see of the shipped shells while a world runs, beside what the log shows.

Wraps methods of the shipped classes, whatever they are at that moment (a mutant's, say), and passes
every call on unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock_bench.protocols.alignment import Alignment

from penstock.errors import Fenced
from penstock.ids import Lsn
from penstock.log.records import Entry
from penstock.protocol.committed import Marked
from penstock.protocol.markers import Marker, decode_marker
from penstock.protocol.names import TaskId
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.coordinator_core import CoordinatorCore
from penstock.runtime.standby import Standby, StateCopy
from penstock.runtime.task import Task
from penstock.runtime.task_core import TaskCore
from penstock.state.unread import UnreadLost
from simulation.checkers.evidence import Violation
from simulation.kernel import Scheduler
from simulation.kernel.shipped import Tap, tapped, told
from simulation.pipeline.report_law import check_report
from simulation.pipeline.story import PipelineStory, Recovery, contents_of


class Tapped(Protocol):
    """A world, or a bench."""

    scheduler: Scheduler
    story: PipelineStory

    def count(self, what: str) -> None: ...

    def check_kept(self, tags: Sequence[str], marked: Marked[Entry]) -> None:
        """What a reader kept of what a marker names is what it would fetch."""


@dataclass(slots=True)
class _Resuming:
    """What an instance has found so far."""

    #: LSN of the marker of the checkpoint that was used.
    base: Lsn | None = None
    #: LSNs of the changes that were applied after it.
    replayed: list[Lsn] = field(default_factory=list)


def taps(world: Tapped) -> AbstractContextManager[None]:
    """For as long as a world runs."""
    listener = _Taps(world)
    wrapped: list[tuple[type, str, Tap]] = [
        (StateCopy, "load", listener.load),
        (StateCopy, "_apply", listener.apply),
        (Standby, "take", listener.take),
        (TaskCore, "begin", listener.begin),
        (Task, "open", listener.run),
        (Task, "run", listener.run),
        (Task, "_fetch", listener.fetch),
        (Coordinator, "_claim", listener.claim),
        (Coordinator, "_report", listener.report),
        (CoordinatorCore, "on_message", told(lambda _, core, *values: core.check())),
        (CoordinatorCore, "_on_yielded", told(lambda _, core, __: world.count("task yielded"))),
        (CoordinatorCore, "on_pulse", told(lambda _, core: core.check())),
        (Alignment, "hold", listener.hold),
    ]
    return tapped(wrapped)


class _Taps:
    """Each method takes what it listens to, and returns what is called instead."""

    def __init__(self, world: Tapped) -> None:
        self._world = world
        #: By the core that is restored, or kept as a copy.
        self._resuming: dict[TaskCore, _Resuming] = {}

    def _of(self, core: TaskCore) -> _Resuming:
        return self._resuming.setdefault(core, _Resuming())

    def load(self, load: Any) -> Any:
        async def loaded(copy: StateCopy[Any], marker: Marker | None) -> Lsn | None:
            base: Lsn | None = await load(copy, marker)
            self._of(copy.core).base = base
            return base

        return loaded

    def apply(self, apply: Any) -> Any:
        def applied(copy: StateCopy[Any], entry: Entry) -> Marker | None:
            fold, replayed = copy._fold, self._of(copy.core).replayed
            step = fold.step

            def stepped(entry: Entry) -> list[Entry]:
                changes = step(entry)
                replayed.extend(change.lsn for change in changes)
                return changes

            fold.step = stepped  # type: ignore[method-assign]
            try:
                reached: Marker | None = apply(copy, entry)
                return reached
            finally:
                del fold.step

        return applied

    def take(self, take: Any) -> Any:
        async def taken(standby: Standby, last: Entry) -> TaskCore | None:
            core: TaskCore | None = await take(standby, last)
            which = "successor" if decode_marker(last.payload).begins_a_task else "standby"
            self._world.count(f"{which} taken" if core is not None else f"{which} given up")
            return core

        return taken

    def begin(self, begin: Any) -> Any:
        def began(core: TaskCore, marker: Marker | None, **options: Any) -> None:
            resumed = self._resuming.pop(core, None) or _Resuming()
            story = self._world.story
            story.instances.setdefault(core.task, []).append(core.instance)
            if marker is not None:
                with suppress(UnreadLost):  # it is not there yet, and will notice
                    contents = contents_of(core.state)
                    found = core.task, core.instance, marker, resumed.base, resumed.replayed
                    story.recoveries.append(Recovery(*found, contents))
            begin(core, marker, **options)

        return began

    def run(self, run: Any) -> Any:
        async def ran(*args: Any) -> Any:
            try:
                return await run(*args)
            except Fenced:
                self._world.count("instance fenced")
                raise

        return ran

    def fetch(self, fetch: Any) -> Any:
        async def fetched(task: Task, marked: Marked[Entry]) -> None:
            self._world.check_kept(task.core.tags, marked)
            await fetch(task, marked)

        return fetched

    def claim(self, claim: Any) -> Any:
        async def claimed(run: Coordinator, tasks: Sequence[TaskId]) -> dict[TaskId, int]:
            instances: dict[TaskId, int] = await claim(run, tasks)
            for task, instance in instances.items():
                self._world.story.claims[task.producer, instance] = run.voice.instance
                self._world.count("instance claimed")
            return instances

        return claimed

    def report(self, report: Any) -> Any:
        async def reported(run: Coordinator) -> dict[str, Any]:
            before = run.recent[-1] if run.recent else None
            layouts = [run.spec.layout]
            told: dict[str, Any] = await report(run)
            layouts.append(run.spec.layout)
            try:
                check_report(told, before, layouts)
            except Violation as violation:  # the shell would only log it
                self._world.scheduler.fail_here(violation, "a report breaks a law")
            self._world.count("report made")
            return told

        return reported

    def hold(self, hold: Any) -> Any:
        def held(alignment: Alignment, *values: Any) -> None:
            self._world.count("held")
            hold(alignment, *values)

        return held
