"""What the checkers must see of the shipped shells while a world runs, beside what the log shows.

Wraps methods of the shipped classes, whatever they are at that moment (a mutant's, say), and passes
every call on unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock_bench.protocols.alignment import Alignment

from penstock.errors import Fenced
from penstock.ids import Lsn
from penstock.log.records import Entry
from penstock.protocol.committed import Marked
from penstock.protocol.markers import Marker
from penstock.protocol.names import TaskId
from penstock.protocol.resume import ChangeFold
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.coordinator_core import CoordinatorCore
from penstock.runtime.task import Task
from penstock.runtime.task_core import TaskCore
from simulation.kernel.shipped import Tap, tapped, told
from simulation.pipeline.story import PipelineStory, Recovery, contents_of


class Tapped(Protocol):
    """A world, or a bench."""

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
        (Task, "_load_checkpoint", listener.load_checkpoint),
        (ChangeFold, "step", listener.step),
        (TaskCore, "begin", listener.begin),
        (Task, "open", listener.run),
        (Task, "run", listener.run),
        (Task, "_fetch", listener.fetch),
        (Coordinator, "_claim", listener.claim),
        (CoordinatorCore, "on_message", told(lambda _, core, *values: core.check())),
        (CoordinatorCore, "on_pulse", told(lambda _, core: core.check())),
        (Alignment, "hold", listener.hold),
    ]
    return tapped(wrapped)


class _Taps:
    """Each method takes what it listens to, and returns what is called instead."""

    def __init__(self, world: Tapped) -> None:
        self._world = world
        #: By the asyncio task that resumes.
        self._resuming: dict[object, _Resuming] = {}

    def _now(self) -> _Resuming:
        return self._resuming.setdefault(asyncio.current_task(), _Resuming())

    def load_checkpoint(self, load: Any) -> Any:
        async def loaded(task: Task, marker: Marker) -> Lsn | None:
            base: Lsn | None = await load(task, marker)
            self._now().base = base
            return base

        return loaded

    def step(self, step: Any) -> Any:
        def stepped(fold: ChangeFold, entry: Entry) -> list[Entry]:
            changes: list[Entry] = step(fold, entry)
            self._now().replayed += [change.lsn for change in changes]
            return changes

        return stepped

    def begin(self, begin: Any) -> Any:
        def began(core: TaskCore, marker: Marker | None, **options: Any) -> None:
            resumed = self._resuming.pop(asyncio.current_task(), None) or _Resuming()
            story = self._world.story
            story.instances.setdefault(core.task, []).append(core.instance)
            if marker is not None:
                contents = contents_of(core.state)
                story.recoveries.append(
                    Recovery(
                        core.task, core.instance, marker, resumed.base, resumed.replayed, contents
                    )
                )
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

    def hold(self, hold: Any) -> Any:
        def held(alignment: Alignment, *values: Any) -> None:
            self._world.count("held")
            hold(alignment, *values)

        return held
