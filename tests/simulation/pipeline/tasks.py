"""The shell of a task in the simulation: the same effects in the same order as runtime/task.py.

Owns nothing that decides: TaskCore, ChangeFold, the commit protocols and the formats are the real
ones. What differs from the real shell is only that clock, log and store are the world's.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from penstock_bench.protocols.aligned import AlignedCommitter

from penstock.errors import Damaged, Unavailable
from penstock.ids import Lsn
from penstock.log.records import Entry
from penstock.protocol.committed import CommittedReader, Marked, read_entries
from penstock.protocol.markers import Marker, Range, decode_marker
from penstock.protocol.names import TaskId
from penstock.protocol.resume import ChangeFold
from penstock.runtime.commit import Commit
from penstock.runtime.commit_protocol import Cohort, Committer, MarkerCommitter
from penstock.runtime.task_core import TaskCore, check_marker
from penstock.state.api import Change
from penstock.state.changelog import decode_changes
from penstock.state.checkpoint_store import CheckpointRef
from simulation.pipeline.client import Client, SimAppender
from simulation.pipeline.fibers import Event, Fiber, Process, Promise, first_of

if TYPE_CHECKING:
    from simulation.pipeline.world import PipelineWorld

TICK_US = 20_000
REFRESH_US = 100_000


class SimTask:
    """One instance of one task, from `run` to its end."""

    def __init__(
        self,
        world: PipelineWorld,
        process: Process,
        client: Client,
        task: TaskId,
        instance: int,
        cohort: Cohort,
    ) -> None:
        self.world = world
        self.process = process
        self.client = self.log = client
        self.spec = world.spec
        self.task = task
        self.instance = instance
        self.cohort = cohort
        self.core = TaskCore(world.spec, task, instance, world.now_ms)
        self.appender: SimAppender
        self.committer: Committer
        self.reader: CommittedReader[Entry]
        self.due = Event()
        self.committed = Event()
        self.last_marker: Marker | None = None
        self.base: Lsn | None = None
        self.replayed: list[Lsn] = []
        self._fibers: list[Fiber] = []
        #: Parts of commits on their way beside the loops; one that fails ends the task.
        self._running_beside: dict[Fiber, None] = {}
        self._failed: Promise[None] = Promise()

    async def run(self) -> None:
        self.appender = await self.client.adopt(self.task.producer, self.instance)
        self.committer = self.spec.settings.protocol.committer(self)
        await self.resume()
        self._fibers = [
            self.process.start(self.read()),
            self.process.start(self.commit_again_and_again()),
            self.process.start(self.tick()),
        ]
        endings = [*(fiber.ended for fiber in self._fibers), self._failed]
        await first_of(endings)
        ended = [promise for promise in endings if promise.is_done]
        self.cancel()
        for promise in ended:
            promise.result()

    def cancel(self) -> None:
        for fiber in (*self._fibers, *self._running_beside):
            fiber.cancel()

    def beside(self, work: Coroutine[Any, Any, Any]) -> Promise[Any]:
        """A part of a commit beside the loops: its failure ends the task as theirs does."""
        fiber = self.process.start(work)
        self._running_beside[fiber] = None

        def note() -> None:
            self._running_beside.pop(fiber, None)
            try:
                fiber.ended.result()
            except Exception as error:
                self._failed.fail(error)

        fiber.ended.then(note)
        return fiber.ended

    # -- resume

    async def resume(self) -> None:
        """State and position of the last marker. The claim came before: no other can follow."""
        await self.committer.settle()
        last = await self.client.read_last(self.task.marker_tag)
        marker: Marker | None = None
        if last is not None:
            marker = decode_marker(last.payload)
            check_marker(marker, self.task)
            is_restored = await self.committer.restore(marker)
            if marker.has_state and not is_restored:
                self.base = await self.load_checkpoint(marker)
                await self.replay(self.base, last)
        self.last_marker = marker
        self.world.story.resumed(self, None if last is None else last.lsn)
        self.core.begin(marker)

    async def load_checkpoint(self, marker: Marker) -> Lsn | None:
        for found in marker.checkpoints:
            try:
                reference = CheckpointRef.from_json(found)
                changes = await self.read_state(reference)
            except Damaged:
                self.world.count("checkpoint unusable")
                continue
            self.core.restored(changes, 0)
            return Lsn(reference.marker_lsn)
        return None

    async def replay(self, base: Lsn | None, last: Entry) -> None:
        if base is None:
            start = (await self.client.bounds()).trim_point
        else:
            start = Lsn(base + 1)
        fold = ChangeFold()
        tags = (self.task.marker_tag, self.task.change_tag)
        reader = self.client.tail(tags, start=start, end=last.lsn + 1)
        while batch := await reader.next():
            for entry in batch.entries:
                is_first = fold.marker is None
                for change in fold.step(entry):
                    self.replayed.append(change.lsn)
                    self.core.restored(decode_changes(change.payload), len(change.payload))
                if is_first and fold.marker is not None and base is None:
                    if fold.marker.number != 0 and fold.marker.has_state:
                        raise Damaged(f"changes of {self.task} were trimmed")

    # -- run

    async def read(self) -> None:
        core = self.core
        self.due.set()
        self.reader = read_entries(core.position, self.world.swarm.kept_bytes)
        reader = self.client.tail(core.tags, start=core.position)
        while batch := await reader.next():
            for entry in batch.entries:
                await self.take(entry)
            core.looked(batch.looked_up_to)
            if not batch.entries:
                continue
            core.work()
            if core.has_work:
                self.due.set()
            while core.is_full:
                self.committed.clear()
                await self.committed.wait()

    async def take(self, entry: Entry) -> None:
        counted = self.reader.take(entry)
        if isinstance(counted, Marked):
            self.world.check_kept(self.core.tags, counted)
            for named in counted.missing:
                counted.supply(named, await self.fetch(named))
        if self.committer.admits(entry, counted):
            self.core.take(entry, counted)

    async def fetch(self, named: Range) -> list[Entry]:
        self.world.count("staged fetched")
        return await self.client.read(self.core.tags, start=named.first_lsn, end=named.end)

    async def tick(self) -> None:
        refreshed = self.process.loop.now_us
        while True:
            await self.process.sleep(TICK_US)
            self.core.work()
            if self.core.has_work:
                self.due.set()
            if self.process.loop.now_us - refreshed > REFRESH_US:
                refreshed = self.process.loop.now_us
                self.core.refresh()
                self.due.set()

    # -- commit

    async def commit_again_and_again(self) -> None:
        while True:
            await self.due.wait()
            self.due.clear()
            commit = self.core.take_commit()
            if commit is not None:
                await self.append(commit)
            self.committed.set()
            if self.core.has_work:
                self.due.set()
            interval = self.world.spec.settings.commit_interval_ms
            if interval and commit is not None:
                await self.process.sleep(interval * 1000)

    async def append(self, commit: Commit) -> None:
        if isinstance(self.committer, MarkerCommitter):
            self.world.counts["flushed early"] += len(commit.cut().ahead)
        await self.committer.commit(commit)

    def durable(self, commit: Commit) -> None:
        self.last_marker = commit.marker

    def visible(self, commit: Commit, lsn: Lsn) -> None:
        """Readers see what the commit holds."""
        self.durable(commit)
        self.world.loop.note(f"{self.task} instance {self.instance} committed at {lsn}")
        if commit.frozen is not None:
            self.process.start_main(self.checkpoint(commit, lsn))

    async def checkpoint(self, commit: Commit, lsn: Lsn) -> None:
        """Make the state at a marker durable; the next marker then names it."""
        assert commit.frozen is not None
        store = self.world.store
        try:
            reference = await self.write_state(commit, lsn)
        except Unavailable:
            return
        self.core.checkpointed(reference.to_json(), reference.bytes)
        self.due.set()
        named = () if self.last_marker is None else self.last_marker.checkpoints
        if len(named) == 2:
            keep_from = CheckpointRef.from_json(named[-1]).marker_lsn
            store.sweep(str(self.task), keep_from, self.world.log.tail)

    async def write_state(self, commit: Commit, lsn: Lsn) -> CheckpointRef:
        """Durable when it returns."""
        assert commit.frozen is not None
        store, random = self.world.store, self.world.loop.random
        reference, data = store.encode(
            str(self.task), lsn, self.instance, self.world.spec.fingerprint, commit.frozen
        )
        await self.process.sleep(random.randint(100, self.world.swarm.checkpoint_us_max))
        if self.world.does_store_fail():
            raise Unavailable("the store cannot be reached")
        store.publish(reference, data, self.world.log.tail)
        await self.process.sleep(random.randint(10, 1000))
        return reference

    async def read_state(self, reference: CheckpointRef) -> Sequence[Change]:
        await self.process.sleep(100)
        changes = self.world.store.read(reference)
        self.world.count("checkpoint used")
        return changes

    async def sweep_states(self, keep_from: Lsn) -> None:
        await self.process.sleep(self.world.loop.random.randint(10, 1000))
        self.world.store.sweep(str(self.task), keep_from, self.world.log.tail)

    def capture_all(self, position: Lsn) -> Commit | None:
        assert isinstance(self.committer, AlignedCommitter)
        assert self.committer.alignment is not None
        self.world.counts["held"] += len(self.committer.alignment._held)
        return self.core.take_all(position)

    def report(self) -> dict[str, Any]:
        marker = self.last_marker
        return {
            "position": self.core.position,
            "commits_ever": -1 if marker is None else marker.number,
        }
