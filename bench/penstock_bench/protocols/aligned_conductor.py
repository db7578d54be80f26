"""Aligned checkpoints, the coordinator's shell: barriers to the sources, and one commit for all.

Owns the pace: the next checkpoint begins after the interval, and not before the last one is over.
Law: a checkpoint is committed before its tasks are claimed again, or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from penstock.log.records import Entry
from penstock.plan.nodes import Scan
from penstock.protocol.names import TaskId, flush_tag, parse_task
from penstock.runtime.commit_protocol import ConductedRun, Conductor
from penstock.runtime.coordinator_core import CoordinatorCore
from penstock.runtime.spec import QuerySpec
from penstock_bench.protocols.aligned_core import AlignedCheckpoints, Part, decode_part
from penstock_bench.protocols.alignment import barrier_entry

#: How often a checkpoint that cannot begin, since tasks have no place, is tried again.
_UNPLACED_SECONDS: Final = 0.05


class AlignedConductor(Conductor):
    def __init__(self, run: ConductedRun, interval: float) -> None:
        self._run = run
        self._interval = interval
        self.checkpoints = AlignedCheckpoints()
        self._over = asyncio.Event()
        #: Held while a checkpoint is committed, and while tasks are claimed.
        self._ordering = asyncio.Lock()

    def loops(self) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._begin_again_and_again(),)

    async def _begin_again_and_again(self) -> None:
        tags, clock = source_tags(self._run.spec), asyncio.get_running_loop().time
        while True:
            started = clock()
            instances = instances_of(self._run.core)
            if instances is None:
                await asyncio.sleep(_UNPLACED_SECONDS)
                continue
            self._over.clear()
            barrier = barrier_entry(self.checkpoints.begin(instances), tags)
            await self._run.voice.append_nowait([barrier])
            await self._over.wait()
            await asyncio.sleep(max(0.0, started + self._interval - clock()))

    async def hear(self, entry: Entry) -> None:
        part = decode_part(entry.payload)
        if part is not None and is_by(entry, part):
            await self.on_part(part)

    async def on_part(self, part: Part) -> None:
        """The last part completes the checkpoint: its markers are appended in one group."""
        async with self._ordering:
            markers = self.checkpoints.on_part(part)
            if markers is not None:
                await self._run.voice.append_nowait(markers)
                self._end()

    def claiming(self) -> AbstractAsyncContextManager[None]:
        return self._claiming()

    @asynccontextmanager
    async def _claiming(self) -> AsyncIterator[None]:
        """Tasks get other instances: the checkpoint on its way is given up."""
        async with self._ordering:
            self._end()
            yield

    def _end(self) -> None:
        self.checkpoints.end()
        self._over.set()


def source_tags(spec: QuerySpec) -> tuple[str, ...]:
    """Where barriers go, so that they stand among the sources' own entries."""
    return tuple(
        flush_tag(spec.name, spec.version, stage)
        for stage in spec.running_stages
        if any(isinstance(leaf, Scan) for leaf in spec.inputs(stage))
    )


def instances_of(core: CoordinatorCore) -> dict[TaskId, int] | None:
    """Who runs what; None while any task has no place."""
    if core.is_over or any(state.claiming for state in core.tasks.values()):
        return None
    instances = {
        task: state.place.instance for task, state in core.tasks.items() if state.place is not None
    }
    return instances if len(instances) == len(core.tasks) else None


def is_by(entry: Entry, part: Part) -> bool:
    """Whether the task that a part speaks of wrote it."""
    return (entry.producer, entry.instance) == (parse_task(part.task).producer, part.instance)
