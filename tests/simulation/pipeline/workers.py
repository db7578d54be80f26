"""A worker in the simulation: the same effects in the same order as runtime/worker.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import Fenced, PenstockError, Retryable, Trimmed, Unknown
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind, NewEntry
from penstock.protocol.names import TaskId, control_tag, coordinator_producer, parse_task
from penstock.runtime.commit_protocol import Cohort
from penstock.runtime.control import (
    Assign,
    Beat,
    Ended,
    Finish,
    Hello,
    Message,
    Place,
    decode_message,
    encode_message,
)
from simulation.pipeline.client import Client
from simulation.pipeline.fibers import Fiber
from simulation.pipeline.tasks import SimTask

if TYPE_CHECKING:
    from simulation.pipeline.world import PipelineWorld


class SimWorker:
    """One process of Spark's; it lives until it is killed."""

    def __init__(self, world: PipelineWorld, slot: int, attempt: int, id: str) -> None:
        self.world = world
        self.slot = slot
        self.attempt = attempt
        self.id = id
        self.process = world.start_process(f"worker-{id}")
        self.client = Client(self.process, world.log, world.network)
        self.tasks: dict[TaskId, tuple[int, SimTask, Fiber]] = {}
        self._used: set[tuple[TaskId, int]] = set()
        self.obeyed = (0, 0)
        self._tags = (control_tag(world.spec.name),)
        self._main: Fiber = self.process.start_main(self.run())

    async def run(self) -> None:
        start = (await self.client.bounds()).tail
        await self.say(Hello(self.id, self.slot, "host", 1, self.attempt))
        self.process.start_main(self.beat())
        try:
            await self.obey(start)
        except Trimmed:
            # It slept for so long that it missed what it was told: Spark starts another.
            self.process.loop.after(0, self.process.kill)

    async def say(self, message: Message) -> None:
        await self.client.append([NewEntry(encode_message(message), self._tags, Kind.CONTROL)])

    async def beat(self) -> None:
        while True:
            reports: dict[str, dict[str, Any]] = {
                str(task): one.report() for task, (_, one, _) in self.tasks.items()
            }
            await self.say(Beat(self.id, reports))
            await self.process.sleep(self.world.swarm.pulse_us)

    async def obey(self, start: int) -> None:
        voice = coordinator_producer(self.world.spec.name)
        reader = self.client.tail(self._tags, start=start)
        while batch := await reader.next():
            for entry in batch.entries:
                if entry.producer == voice and self.hear(entry):
                    return

    def hear(self, entry: Entry) -> bool:
        match decode_message(entry.payload):
            case Assign() as assign if (entry.instance, assign.number) > self.obeyed:
                self.obeyed = (entry.instance, assign.number)
                self.reconcile(assign.places(), entry.lsn)
            case Finish():
                return True
            case _:
                pass
        return False

    def reconcile(self, places: dict[str, Place], lsn: Lsn) -> None:
        mine = {
            parse_task(name): place.instance
            for name, place in places.items()
            if place.worker == self.id
        }
        for task, (instance, made, running) in list(self.tasks.items()):
            if mine.get(task) != instance:
                running.cancel()
                made.cancel()
                del self.tasks[task]
        cohort = Cohort(lsn, {name: place.instance for name, place in places.items()})
        for task, instance in mine.items():
            if task in self.tasks or (task, instance) in self._used:
                continue
            self._used.add((task, instance))
            made = SimTask(self.world, self.process, self.client, task, instance, cohort)
            self.tasks[task] = (instance, made, self.process.start_main(self.run_task(made)))

    async def run_task(self, task: SimTask) -> None:
        try:
            await task.run()
        except Fenced:
            self.world.count("instance fenced")
        except PenstockError as error:
            is_retryable = isinstance(error, Retryable | Unknown)
            text = f"{type(error).__name__}: {error}"
            self.world.loop.note(f"{task.task} instance {task.instance} ended: {text}")
            await self.say(Ended(self.id, str(task.task), task.instance, is_retryable, text))
