"""Mistakes made on purpose, and worlds that must notice: for the tests of commit protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from mutant_hunt import Mutant, hunt
from penstock_bench.protocols.choosing import ProtocolName
from simulation.pipeline.store import SimFolder
from simulation.pipeline.swarm import draw_swarm
from simulation.pipeline.world import PipelineWorld

from penstock.errors import PenstockError
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.protocol.names import TaskId
from penstock.runtime.checkpointer import Checkpointer
from penstock.runtime.commit import Commit
from penstock.runtime.control import Assign, Message
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.task import Task
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.stores.api import Increment
from penstock.wire import messages as m

SEEDS_MAX = 300
#: The world that runs.
WORLDS: list[PipelineWorld] = []


def world(seed: int, changes: dict[str, Any], protocol: ProtocolName = "marker") -> PipelineWorld:
    """The world of a seed, narrowed to what a mutant needs."""
    swarm = replace(draw_swarm(Random(seed), protocol), **changes) if changes else None
    made = PipelineWorld(seed, swarm=swarm, protocol=protocol)
    WORLDS[:] = [made]
    return made


def catch(mutant: Mutant, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if no world notices; says by which law one did."""
    mutant.apply(patch)

    def run(seed: int) -> None:
        world(seed, mutant.swarm, mutant.protocol).run()

    hunt(mutant, run, capsys, SEEDS_MAX)


async def next_instance(log: AsyncLog, producer: str) -> int:
    """What a claim of the producer would make it."""
    known, _ = await log.call(m.GetProducer(producer), m.Producer)
    return known.instance + 1


# ---- mistakes that several protocols can make


def claim_after_announcing(patch: pytest.MonkeyPatch) -> None:
    """The coordinator says who runs what, as which instance, before the log has claimed it."""
    announce = Coordinator._announce
    announced: list[TaskId] = []

    async def claim(self: Coordinator, tasks: Sequence[TaskId]) -> dict[TaskId, int]:
        async with self._conductor.claiming():
            announced[:] = tasks
            return {task: await next_instance(self._log, task.producer) for task in tasks}

    async def announce_and_claim(self: Coordinator, message: Message) -> None:
        await announce(self, message)
        if isinstance(message, Assign):
            tasks, announced[:] = announced[:], []
            for task in tasks:
                await self._log.claim(task.producer, guards=[self._guard])

    patch.setattr(Coordinator, "_claim", claim)
    patch.setattr(Coordinator, "_announce", announce_and_claim)


def tell_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A task tells of a checkpoint that it is still writing."""
    written = Task.write_state
    put = CheckpointStore.put

    async def write_state(self: Task, commit: Commit, lsn: Lsn) -> CheckpointRef:
        self.beside(_later(partial(written, self, commit, lsn)))
        assert commit.frozen is not None
        return CheckpointStore("elsewhere", self.log.log_id, SimFolder()).write(
            str(self.task), marker_lsn=lsn, instance=self.instance,
            fingerprint=self.spec.fingerprint, parts=self.core.state.parts(),
            changes=commit.frozen,
        )  # fmt: skip

    async def put_from(self: Checkpointer, base: Any, base_lsn: int | None, lsn: Lsn) -> Any:
        told: list[Increment] = []
        real = self._store
        elsewhere = SimFolder()
        elsewhere.files = dict(real._folder.files)  # type: ignore[attr-defined]

        def tell(store: CheckpointStore, increment: Increment, base: Any) -> Any:
            told.append(increment)
            return put(CheckpointStore("elsewhere", real._log_id, elsewhere), increment, base)

        self._store.put = partial(tell, real)  # type: ignore[method-assign]
        try:
            reference = await original(self, base, base_lsn, lsn)
        finally:
            del self._store.put
        task = self._owner
        assert isinstance(task, Task)
        task.beside(_later(partial(asyncio.to_thread, put, real, told[0], base)))
        return reference

    original = Checkpointer._put_from
    patch.setattr(Task, "write_state", write_state)
    patch.setattr(Checkpointer, "_put_from", put_from)


async def _later(work: Callable[[], Awaitable[Any]]) -> None:
    await asyncio.sleep(0.02)
    with suppress(PenstockError):
        await work()
