"""A driver in the simulation: the coordinator's shell as in runtime/coordinator.py, and its Spark.

Owns the workers that it started, as Spark does: one that dies is started again in its slot, under
another name; they linger for a while after the driver's death.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock_bench.protocols.aligned import Aligned
from penstock_bench.protocols.aligned_conductor import instances_of, is_by, source_tags
from penstock_bench.protocols.aligned_core import AlignedCheckpoints, Part, decode_part
from penstock_bench.protocols.alignment import barrier_entry

from penstock.errors import Fenced, GuardFailed, Trimmed
from penstock.ids import Lsn
from penstock.log.records import Guard, Kind, NewEntry, SetKey
from penstock.protocol.markers import decode_marker
from penstock.protocol.names import (
    TaskId,
    control_tag,
    coordinator_producer,
    run_key,
)
from penstock.runtime.control import Message, Pulse, decode_message, encode_message
from penstock.runtime.coordinator_core import Announce, Claim, CoordinatorCore, Effect, Fail
from penstock.runtime.trim_rule import below_named, needed_from
from simulation.checkers.evidence import Violation
from simulation.pipeline.client import Client, SimAppender
from simulation.pipeline.fibers import Event, Lock, first_of
from simulation.pipeline.workers import SimWorker

if TYPE_CHECKING:
    from simulation.pipeline.world import PipelineWorld

PULSES_PER_TRIM = 3
#: How often a checkpoint that cannot begin, since tasks have no place, is tried again.
_UNPLACED_US = 5000


class SimDriver:
    """One run of the query."""

    def __init__(self, world: PipelineWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.process = world.start_process(f"driver-{number}")
        self.client = Client(self.process, world.log, world.network)
        self.protocol = world.spec.settings.protocol
        self.core = CoordinatorCore(
            world.spec.task_ids,
            world.swarm.workers,
            restarts_together=self.protocol.restarts_together,
        )
        self.checkpoints = AlignedCheckpoints() if isinstance(self.protocol, Aligned) else None
        self.checkpoint_over = Event()
        #: A checkpoint is committed before its tasks are claimed again, or not at all.
        self.ordering = Lock()
        self.workers: dict[int, SimWorker] = {}
        self.is_over = False
        self._voice: SimAppender
        self._guard: Guard
        self._heard_upto = Lsn(0)
        self.process.on_death.append(self._linger)
        self.process.start_main(self.run())

    # -- Spark

    def _start_worker(self, slot: int) -> None:
        if not self.process.is_alive or self.is_over:
            return
        attempt = self.workers[slot].attempt + 1 if slot in self.workers else 0
        worker = SimWorker(self.world, slot, attempt, self.world.next_name(f"{slot}-"))
        self.workers[slot] = worker
        worker.process.on_death.append(lambda: self._worker_died(slot, attempt))

    def _worker_died(self, slot: int, attempt: int) -> None:
        """Spark says so, or not, before or after it starts the next one."""
        random, loop = self.world.loop.random, self.world.loop
        if random.random() < 0.5:
            delay_us = random.randint(1000, 80_000)
            loop.after(delay_us, lambda: self._tell_lost(slot, attempt + 1))
        loop.after(random.randint(2000, 60_000), lambda: self._start_worker(slot))

    def _tell_lost(self, slot: int, attempts: int) -> None:
        self.process.start_main(self._lost(slot, attempts))

    async def _lost(self, slot: int, attempts: int) -> None:
        await self._safely(self.core.on_job_lost(slot, attempts))

    def _linger(self) -> None:
        """The executors notice after a while that their driver is gone."""
        self.is_over = True
        for worker in self.workers.values():
            self.world.loop.after(self.world.loop.random.randint(0, 250_000), worker.process.kill)

    def end(self) -> None:
        self.is_over = True
        self.world.loop.after(0, self.process.kill)

    # -- the coordinator

    async def run(self) -> None:
        try:
            name = self.world.spec.name
            self._voice = await self.client.appender(coordinator_producer(name))
            run = str(self._voice.instance).encode()
            await self._voice.append([], sets=[SetKey(run_key(name), run)])
            self._guard = Guard(run_key(name), run)
            self._heard_upto = (await self.client.bounds()).tail
            for slot in range(self.world.swarm.workers):
                self._start_worker(slot)
            loops = [self.process.start(self._listen()), self.process.start(self._pulse())]
            if self.checkpoints is not None:
                loops.append(self.process.start(self._checkpoint(self.checkpoints)))
            await first_of([loop.ended for loop in loops])
            for loop in loops:
                if loop.ended.is_done:
                    loop.ended.result()
        except (Fenced, GuardFailed, Trimmed) as error:
            if isinstance(error, Trimmed) and self.world.drivers[-1] is self:
                raise  # only a driver trims: nobody else can have trimmed what this one reads
            self.world.count("driver fenced")
            self.end()

    async def _safely(self, effects: Sequence[Effect]) -> None:
        try:
            await self.perform(effects)
        except (Fenced, GuardFailed):
            self.end()

    async def _listen(self) -> None:
        name = self.world.spec.name
        voice = coordinator_producer(name)
        reader = self.client.tail([control_tag(name)], start=self._heard_upto)
        while batch := await reader.next():
            for entry in batch.entries:
                if entry.producer == voice:
                    continue
                message = decode_message(entry.payload)
                effects = [] if message is None else self.core.on_message(message)
                part = decode_part(entry.payload)
                if part is not None and is_by(entry, part):
                    await self.note_part(part)
                await self.perform(effects)

    async def _pulse(self) -> None:
        count = 0
        while True:
            await self._announce(Pulse(None))
            await self.perform(self.core.on_pulse())
            self.core.check()
            count += 1
            if self.world.swarm.trims and count % PULSES_PER_TRIM == 0:
                await self._trim()
            await self.process.sleep(self.world.swarm.pulse_us)

    async def _announce(self, message: Message) -> None:
        tags = (control_tag(self.world.spec.name),)
        await self._voice.append([NewEntry(encode_message(message), tags, Kind.CONTROL)])

    async def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Claim():
                    await self.claim(effect)
                case Announce(message=message):
                    await self._announce(message)
                case Fail(message=message):
                    raise Violation("I16", f"the query failed: {message}")
                case _:
                    raise AssertionError(effect)

    async def claim(self, claim: Claim) -> None:
        instances = {}
        async with self.ordering:
            if self.checkpoints is not None:
                self.checkpoints.end()
                self.checkpoint_over.set()
            for task in claim.tasks:
                instances[task] = await self.claim_one(task, [self._guard])
        self.core.on_committed(await self._last_numbers(claim.tasks))
        await self.perform(self.core.on_claimed(instances))

    async def claim_one(self, task: TaskId, guards: Sequence[Guard]) -> int:
        instance = await self.client.claim(task.producer, guards=guards)
        self.world.story.claims[task.producer, instance] = self._voice.instance
        self.world.count("instance claimed")
        return instance

    # -- aligned checkpoints

    async def _checkpoint(self, checkpoints: AlignedCheckpoints) -> None:
        """Again and again: barriers to the sources; the rest happens in note_part."""
        assert isinstance(self.protocol, Aligned)
        loop, sources = self.world.loop, source_tags(self.world.spec)
        while True:
            due_us = loop.now_us + self.protocol.interval_ms * 1000
            instances = instances_of(self.core)
            if instances is None:
                await self.process.sleep(_UNPLACED_US)
                continue
            self.checkpoint_over.clear()
            await self._voice.append([barrier_entry(checkpoints.begin(instances), sources)])
            await self.checkpoint_over.wait()
            await self.process.sleep(max(0, due_us - loop.now_us))

    async def note_part(self, told: Part) -> None:
        if self.checkpoints is None:
            return
        async with self.ordering:
            complete = self.checkpoints.on_part(told)
            if complete is not None:
                await self._voice.append(complete)
                self.checkpoints.end()
                self.checkpoint_over.set()
                self.world.count("aligned checkpoint")

    async def _last_numbers(self, tasks: Sequence[TaskId]) -> dict[TaskId, int]:
        numbers = {}
        for task in tasks:
            last = await self.client.read_last(task.marker_tag)
            if last is not None:
                numbers[task] = decode_marker(last.payload).number
        return numbers

    async def _trim(self) -> None:
        """As runtime/trim.py, by the same rules; but markers need no help of the second one."""
        points = []
        for task in self.world.spec.task_ids:
            last = await self.client.read_last(task.marker_tag)
            marker = None if last is None else decode_marker(last.payload)
            points.append(needed_from(marker, Lsn(0)))
        point = min(points)
        if self.protocol.name != "marker":
            try:
                point = await self._spare_named(min(point, self.world.shown_upto))
            except Trimmed:
                return  # by the driver that was here before
        if point > (await self.client.bounds()).trim_point:
            self.world.story.trims.append((self.world.log.tail, await self.client.trim(point)))
            self.world.count("trimmed")

    async def _spare_named(self, point: Lsn) -> Lsn:
        """Readers of the result may still fetch what the next commits name."""
        tail = (await self.client.bounds()).tail
        lower = point
        for task in self.world.spec.task_ids:
            tags = self.protocol.naming_tags(task) or (task.marker_tag,)
            found = await self.client.read(tags, start=point, end=tail)
            markers = [decode_marker(entry.payload) for entry in found]
            for marker in markers:
                if marker.number == markers[0].number:
                    lower = min(lower, below_named(point, marker))
        return lower if lower == point else await self._spare_named(lower)
