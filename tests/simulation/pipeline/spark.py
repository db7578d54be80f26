"""Spark, as far as a query needs it: a driver with its coordinator, and workers in slots.

Owns who runs where. Coordinator and workers are the shipped ones, each in a process of its own. A
worker that ends is started again in its slot, as the next attempt; workers linger for a while after
their driver's death.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock.errors import (
    BadRequest,
    Fenced,
    GuardFailed,
    PenstockError,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock.protocol.names import TaskId
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.node_rates import ByNode
from penstock.runtime.spec import QuerySpec
from penstock.runtime.worker import work
from penstock.state.keys import VIRTUAL_NODES
from simulation.checkers.evidence import Violation
from simulation.pipeline.host import SimHost
from simulation.pipeline.swarm import Fault

if TYPE_CHECKING:
    from simulation.pipeline.world import PipelineWorld


def draw_rates(spec: QuerySpec, random: Random) -> dict[int, ByNode]:
    """Most virtual nodes get little, some get much."""
    return {
        stage: tuple(random.choice((1.0, 2.0, 5.0, 60.0)) for _ in range(VIRTUAL_NODES))
        for stage in spec.running_stages
    }


class SimWorker:
    """One attempt of a slot."""

    def __init__(self, world: PipelineWorld, slot: int, attempt: int) -> None:
        self.attempt = attempt
        self._world = world
        self._host = SimHost(world)
        self.process = world.start_process(f"worker-{slot}-{attempt}")
        self.process.spawn(self._run(slot))

    async def _run(self, slot: int) -> None:
        world = self._world
        try:
            resolve = partial(world.log.resolve_as_worker, world.spec)
            await work(resolve, world.spec, slot, self.attempt, self._host)
        except (Trimmed, Unavailable) as error:
            # It slept for so long that it missed what it was told, or can beat no more.
            world.scheduler.note(f"{self.process.name} ends: {error}")
        world.kill_soon(self.process)

    def orphan(self) -> None:
        """Its executor is gone: the worker notices and leaves."""
        self._host.lose_parent()


class SimDriver:
    """One run of the query."""

    def __init__(self, world: PipelineWorld, number: int) -> None:
        self._world = world
        self._random = world.scheduler.random
        self.process = world.start_process(f"driver-{number}")
        self.workers: dict[int, SimWorker] = {}
        #: Workers that it should have.
        self.wanted = world.swarm.workers
        self.is_over = False
        #: Once the query is claimed.
        self._coordinator: Coordinator | None = None
        world.on_death(self.process, self._linger)
        self.process.spawn(self._run())

    @property
    def is_running(self) -> bool:
        return not self.process.dead and not self.is_over

    @property
    def is_started(self) -> bool:
        return self._coordinator is not None

    @property
    def coordinator(self) -> Coordinator:
        assert self._coordinator is not None
        return self._coordinator

    @property
    def _is_succeeded(self) -> bool:
        """Whether a newer run has claimed the query. A driver that never heard of its own claim
        knows by the drivers that came after it."""
        world = self._world
        if self._coordinator is not None:
            return world.newest_run() > self._coordinator.voice.instance
        later = world.drivers[world.drivers.index(self) + 1 :]
        return any(driver.is_started for driver in later)

    async def _run(self) -> None:
        world = self._world
        error: PenstockError | None
        try:
            self._coordinator = await Coordinator.open(
                world.log.resolve(), world.spec, id="sim", workers=self.wanted,
                trims=world.swarm.trims, host=SimHost(world),
                rescales=Fault.RESCALE in world.swarm.mean_ms,
            )  # fmt: skip
            self._coordinator.on_workers = self._resize
            self._resize(self.wanted)
            await self._coordinator.run()
            error = self._coordinator.error
        except PenstockError as refused:
            error = refused
        if error is None:
            assert world.is_stopping, "nobody has stopped the query"
        elif isinstance(error.__cause__, Fenced | GuardFailed):
            world.count("driver fenced")
        elif isinstance(error, Trimmed | Unknown) and self._is_succeeded:
            # Its successor trimmed what it reads, or wrote and was not answered for.
            world.count("driver fenced")
        else:
            raise Violation("I16", f"the query failed: {error}") from error
        self.is_over = True
        world.kill_soon(self.process)

    def _resize(self, workers: int) -> None:
        self.wanted = workers
        for slot in range(workers):
            if slot not in self.workers or self.workers[slot].process.dead:
                self._start_worker(slot)

    def _start_worker(self, slot: int) -> None:
        if self.process.dead or self.is_over or self._world.is_stopping or slot >= self.wanted:
            return
        if slot in self.workers and not self.workers[slot].process.dead:
            return
        attempt = self.workers[slot].attempt + 1 if slot in self.workers else 0
        worker = SimWorker(self._world, slot, attempt)
        self.workers[slot] = worker
        self._world.on_death(worker.process, lambda: self._worker_died(slot, attempt))

    def _worker_died(self, slot: int, attempt: int) -> None:
        """Spark says so, or not, before or after it starts the next one."""
        if self.process.dead:
            return
        scheduler, random = self._world.scheduler, self._random
        if random.random() < 0.5:
            scheduler.after(random.uniform(0.001, 0.08), self._tell_lost, slot, attempt + 1)
        scheduler.after(random.uniform(0.002, 0.06), self._start_worker, slot)

    def _tell_lost(self, slot: int, attempts: int) -> None:
        if not self.process.dead and not self.is_over:
            self.process.spawn(self._lost(slot, attempts))

    async def _lost(self, slot: int, attempts: int) -> None:
        try:
            await self.coordinator.job_lost(slot, attempts)
        except (Fenced, GuardFailed, Unavailable):
            pass  # the run ends, and says why

    async def rescale(self, workers: int) -> None:
        try:
            await self.coordinator.rescale(workers)
        except (Fenced, GuardFailed, Unavailable):
            pass  # the run ends, and says why

    async def balance(self, rates: dict[int, ByNode]) -> None:
        """As if virtual nodes got so many rows."""
        self.coordinator._rows_by_node = rates
        with suppress(BadRequest, Fenced, GuardFailed, Unavailable):
            await self.coordinator.balance()

    async def vacate(self, slot: int) -> None:
        with suppress(Fenced, GuardFailed, Unavailable):
            await self.coordinator.vacate(slot)

    async def suspend(self, seconds: float, workers: int) -> None:
        """For so long, and then so many workers."""
        await self.rescale(0)
        await asyncio.sleep(seconds)
        if self.coordinator.core.is_suspended and not self.coordinator.core.members:
            self._world.count("suspended")
        if not self.coordinator.core.is_over:
            await self.rescale(workers)

    async def move(self, task: TaskId, worker: str) -> None:
        try:
            await self.coordinator.move(task, worker)
        except (Fenced, GuardFailed, Unavailable):
            pass  # the run ends, and says why

    def _linger(self) -> None:
        """Executors notice after a while that their driver is gone: they die, or their workers
        find themselves alone."""
        self.is_over = True
        for worker in self.workers.values():
            seconds = self._random.uniform(0, 0.25)
            end = worker.orphan if self._random.random() < 0.3 else worker.process.kill
            self._world.scheduler.after(seconds, end)
