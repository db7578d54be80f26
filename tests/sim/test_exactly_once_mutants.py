"""Proof that the simulation of exactly once can fail: every mutant is caught within a few seeds.

Each mutant is one plausible mistake, in the engine or in the order of effects of a shell, made by
monkeypatch; some only show under certain faults, and name the swarm that their worlds are narrowed
to. The output says after how many seeds, and by which law, each was caught.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pipeline_mutants import WORLDS, Mutant, catch, world
from simulation.pipeline import drivers
from simulation.pipeline import world as world_module
from simulation.pipeline.drivers import SimDriver
from simulation.pipeline.store import SimStore
from simulation.pipeline.swarm import Fault
from simulation.pipeline.tasks import SimTask

from penstock.ids import Lsn
from penstock.log.core import sequencer
from penstock.log.records import Entry, Kind
from penstock.protocol.committed import CommittedReader, Marked
from penstock.protocol.markers import Marker, Range
from penstock.protocol.resume import ChangeFold
from penstock.runtime.commit import Commit, Cut
from penstock.runtime.coordinator_core import Claim, CoordinatorCore, Effect
from penstock.runtime.task_core import TaskCore
from penstock.state.checkpoint_store import CheckpointRef

DEADLY: dict[str, Any] = {"mean_ms": {Fault.KILL: 90, Fault.PAUSE: 150}, "odds": {Fault.LATE: 0.1}}
ZOMBIES: dict[str, Any] = {"mean_ms": {Fault.PAUSE: 60}, "odds": {Fault.LATE: 0.2}, "workers": 2}
FLUSHING: dict[str, Any] = {**DEADLY, "group_entries": 1, "kept_bytes": 0}
DYING: dict[str, Any] = {**FLUSHING, "mean_ms": {Fault.KILL: 50}, "slow_odds": 0.3}
CHECKPOINTING: dict[str, Any] = {
    **DEADLY,
    "checkpoints": True,
    "checkpoint_interval_ms": 30,
    "checkpoint_bytes_min": 1,
    "checkpoint_us_max": 20_000,
}
#: Checkpoints take longer to write than the next one takes to come.
OVERLAPPING: dict[str, Any] = {
    **CHECKPOINTING,
    "checkpoint_interval_ms": 0,
    "checkpoint_us_max": 150_000,
}


# ---- fencing


def marker_is_appended_by_an_anonymous_producer(patch: pytest.MonkeyPatch) -> None:
    async def append(self: SimTask, commit: Commit) -> None:
        cut, ranges = commit.cut(), []
        for group in cut.ahead:
            done = await self.client.append(group)
            ranges.append(Range(done.first_lsn, done.count))
        await self.client.append(cut.group(ranges))

    patch.setattr(SimTask, "append", append)


def instances_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    original = sequencer.decide_seq

    def decide_seq(body: Any, known: Any) -> Any:
        if known is not None and body.first_seq == known.next_seq:
            return None
        return original(body, known)

    patch.setattr(sequencer, "decide_seq", decide_seq)


def last_marker_is_read_before_the_claim(patch: pytest.MonkeyPatch) -> None:
    """The worker resumes first and claims then, for itself."""

    async def claim(self: SimDriver, claim: Claim) -> None:
        instances = {}
        for task in claim.tasks:
            instances[task] = (await self.client.producer(task.producer)).instance + 1
        await self.perform(self.core.on_claimed(instances))

    original = SimTask.resume

    async def resume(self: SimTask) -> None:
        await original(self)
        self.instance = self.core.instance = await self.client.claim(self.task.producer)
        self.appender = await self.client.adopt(self.task.producer, self.instance)

    async def adopt(self: Any, name: str, instance: int) -> Any:
        known = await self.producer(name)
        return world_client.SimAppender(self, name, instance, known.next_seq)

    from simulation.pipeline import client as world_client

    patch.setattr(SimDriver, "claim", claim)
    patch.setattr(SimTask, "resume", resume)
    patch.setattr(world_client.Client, "adopt", adopt)


def coordinator_announces_before_it_claims(patch: pytest.MonkeyPatch) -> None:
    async def claim(self: SimDriver, claim: Claim) -> None:
        instances = {}
        for task in claim.tasks:
            instances[task] = (await self.client.producer(task.producer)).instance + 1
        await self.perform(self.core.on_claimed(instances))
        for task in claim.tasks:
            await self.client.claim(task.producer, guards=[self._guard])

    patch.setattr(SimDriver, "claim", claim)


def a_moved_task_keeps_its_instance(patch: pytest.MonkeyPatch) -> None:
    async def claim(self: SimDriver, claim: Claim) -> None:
        instances = {}
        for task in claim.tasks:
            known = await self.client.producer(task.producer)
            instances[task] = known.instance or await self.client.claim(task.producer)
        await self.perform(self.core.on_claimed(instances))

    patch.setattr(SimDriver, "claim", claim)


def claims_are_not_guarded_by_the_run(patch: pytest.MonkeyPatch) -> None:
    """A driver that was replaced fences the tasks of its successor, and cannot say so."""

    async def claim(self: SimDriver, claim: Claim) -> None:
        instances = {task: await self.claim_one(task, []) for task in claim.tasks}
        await self.perform(self.core.on_claimed(instances))

    patch.setattr(SimDriver, "claim", claim)


def a_worker_that_slept_is_never_taken_back(patch: pytest.MonkeyPatch) -> None:
    def take_back(self: CoordinatorCore, worker: str) -> list[Effect]:
        return []

    patch.setattr(CoordinatorCore, "_take_back", take_back)


# ---- what counts


def staged_entries_count_without_their_marker(patch: pytest.MonkeyPatch) -> None:
    original = CommittedReader.take

    def take(self: CommittedReader[Entry], entry: Entry) -> Any:
        if entry.kind is Kind.STAGED:
            return entry
        counted = original(self, entry)
        if isinstance(counted, Marked):
            for named in counted.marker.ranges:
                counted.supply(named, ())
        return counted

    patch.setattr(CommittedReader, "take", take)
    patch.setattr(world_module.PipelineWorld, "check_kept", lambda *_: None)


def data_is_appended_before_its_marker(patch: pytest.MonkeyPatch) -> None:
    async def append(self: SimTask, commit: Commit) -> None:
        cut, ranges = commit.cut(), []
        for group in cut.ahead:
            done = await self.appender.append(group)
            ranges.append(Range(done.first_lsn, done.count))
        *inline, marker = cut.group(ranges)
        if inline:
            await self.appender.append(inline)
        await self.appender.append([marker])

    patch.setattr(SimTask, "append", append)


def what_is_flushed_early_is_plain_data(patch: pytest.MonkeyPatch) -> None:
    original = Commit.cut

    def cut(self: Commit) -> Cut:
        staged = original(self)
        ahead = tuple(
            tuple(
                entry._replace(kind=Kind.DATA) if entry.kind is Kind.STAGED else entry
                for entry in group
            )
            for group in staged.ahead
        )
        return replace(staged, ahead=ahead)

    patch.setattr(Commit, "cut", cut)


# ---- positions


def position_runs_ahead_of_the_rows(patch: pytest.MonkeyPatch) -> None:
    """A commit captures the position, and leaves what was not worked on to the next."""

    def take_commit(self: TaskCore) -> Commit | None:
        waiting, self._arrivals._waiting = self._arrivals._waiting, []
        commit = original(self)
        self._arrivals._waiting = waiting
        return commit

    original = TaskCore.take_commit
    patch.setattr(TaskCore, "take_commit", take_commit)


def position_passes_a_marker_before_its_staged_rows_are_fetched(patch: pytest.MonkeyPatch) -> None:
    async def take(self: SimTask, entry: Entry) -> None:
        counted = self.reader.take(entry)
        self.core.looked(Lsn(entry.lsn + 1))
        if isinstance(counted, Marked):
            for named in counted.marker.ranges:
                counted.supply(named, await self.fetch(named))
        self.core._next.position = entry.lsn
        self.core.take(entry, counted)

    patch.setattr(SimTask, "take", take)


def instance_goes_on_after_its_last_marker(patch: pytest.MonkeyPatch) -> None:
    """At the marker's own place instead of at the position that it names."""
    original = SimTask.resume

    async def resume(self: SimTask) -> None:
        last = await self.client.read_last(self.task.marker_tag)
        await original(self)
        if last is not None:
            self.core.looked(Lsn(last.lsn + 1))

    patch.setattr(SimTask, "resume", resume)


def instance_goes_on_one_entry_early(patch: pytest.MonkeyPatch) -> None:
    original = TaskCore.begin

    def begin(self: TaskCore, marker: Marker | None, **options: Any) -> None:
        if marker is not None:
            marker = replace(marker, position=Lsn(max(0, marker.position - 1)))
        original(self, marker, **options)

    patch.setattr(TaskCore, "begin", begin)


def commits_overtake_each_other(patch: pytest.MonkeyPatch) -> None:
    original = SimTask.append

    async def append(self: SimTask, commit: Commit) -> None:
        async def later() -> None:
            await self.process.sleep(self.world.loop.random.randint(0, 4000))
            await original(self, commit)

        self.process.start(later())

    patch.setattr(SimTask, "append", append)


def heard_watermarks_are_forgotten_at_resume(patch: pytest.MonkeyPatch) -> None:
    original = TaskCore.begin

    def begin(self: TaskCore, marker: Marker | None, **options: Any) -> None:
        original(self, None if marker is None else replace(marker, heard={}), **options)

    patch.setattr(TaskCore, "begin", begin)


# ---- state


def uncommitted_changes_are_applied(patch: pytest.MonkeyPatch) -> None:
    original = ChangeFold.step

    def step(self: ChangeFold, entry: Entry) -> list[Entry]:
        original(self, entry)
        return [entry] if entry.kind is Kind.CHANGE else []

    patch.setattr(ChangeFold, "step", step)


def changes_that_were_flushed_early_are_dropped(patch: pytest.MonkeyPatch) -> None:
    original = ChangeFold.step

    def step(self: ChangeFold, entry: Entry) -> list[Entry]:
        counted = original(self, entry)
        inline = 0 if self.marker is None else self.marker.inline
        return [one for one in counted if entry.lsn - inline <= one.lsn]

    patch.setattr(ChangeFold, "step", step)


def changes_before_the_checkpoint_are_replayed(patch: pytest.MonkeyPatch) -> None:
    original = SimTask.load_checkpoint

    async def load_checkpoint(self: SimTask, marker: Marker) -> Lsn | None:
        await original(self, marker)
        return None

    patch.setattr(SimTask, "load_checkpoint", load_checkpoint)


def checkpoint_is_newer_than_its_marker(patch: pytest.MonkeyPatch) -> None:
    original = SimTask.checkpoint

    async def checkpoint(self: SimTask, commit: Commit, lsn: Lsn) -> None:
        await self.process.sleep(3000)
        await original(self, replace(commit, frozen=self.core.state.freeze()), lsn)

    patch.setattr(SimTask, "checkpoint", checkpoint)


def checkpoint_is_named_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    async def checkpoint(self: SimTask, commit: Commit, lsn: Lsn) -> None:
        assert commit.frozen is not None
        store, spec = self.world.store, self.world.spec
        reference, data = store.encode(
            str(self.task), lsn, self.instance, spec.fingerprint, commit.frozen
        )
        self.core.checkpointed(reference.to_json(), reference.bytes)
        self.due.set()
        await self.process.sleep(20_000)
        store.publish(reference, data, self.world.log.tail)

    patch.setattr(SimTask, "checkpoint", checkpoint)


def sweep_deletes_the_older_checkpoint(patch: pytest.MonkeyPatch) -> None:
    original = SimStore.sweep

    def sweep(self: SimStore, task: str, keep_from_lsn: int, tail: int) -> None:
        original(self, task, keep_from_lsn + 10**6, tail)

    patch.setattr(SimStore, "sweep", sweep)


def sweep_keeps_what_the_next_marker_will_name(patch: pytest.MonkeyPatch) -> None:
    """And not what the last one names: the engine did so until seed 2021."""
    original = TaskCore.checkpointed

    def checkpointed(self: TaskCore, reference: dict[str, object], size: int) -> None:
        older = self._checkpoints[-1] if len(self._checkpoints) == 2 else None
        original(self, reference, size)
        if older is not None and older not in self._checkpoints:
            world = WORLDS[-1]
            keep_from = CheckpointRef.from_json(older).marker_lsn
            world.store.sweep(str(self.task), keep_from, world.log.tail)

    patch.setattr(TaskCore, "checkpointed", checkpointed)


def a_slow_checkpoint_comes_before_a_newer_one(patch: pytest.MonkeyPatch) -> None:
    def checkpointed(self: TaskCore, reference: dict[str, object], size: int) -> None:
        self._checkpoints = (reference, *self._checkpoints[:1])
        self._next.is_due = True

    patch.setattr(TaskCore, "checkpointed", checkpointed)


# ---- trimming


def trimming_trusts_the_newest_checkpoint(patch: pytest.MonkeyPatch) -> None:
    def needed_from(marker: Marker | None, start: Lsn) -> Lsn:
        if marker is None or (marker.has_state and not marker.checkpoints):
            return start
        lsns = [CheckpointRef.from_json(one).marker_lsn for one in marker.checkpoints[:1]]
        return Lsn(min([marker.needs_from, *lsns]))

    patch.setattr(drivers, "needed_from", needed_from)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, swarm)
    for apply, swarm in (
        (marker_is_appended_by_an_anonymous_producer, DEADLY),
        (instances_are_not_fenced, ZOMBIES),
        (last_marker_is_read_before_the_claim, ZOMBIES),
        (coordinator_announces_before_it_claims, {}),
        (a_moved_task_keeps_its_instance, ZOMBIES),
        (claims_are_not_guarded_by_the_run, {"mean_ms": {Fault.DRIVER_PAUSE: 120}, "workers": 2}),
        (a_worker_that_slept_is_never_taken_back, {"mean_ms": {Fault.PAUSE: 250}, "workers": 1}),
        (staged_entries_count_without_their_marker, FLUSHING),
        (data_is_appended_before_its_marker, DEADLY),
        (what_is_flushed_early_is_plain_data, FLUSHING),
        (position_runs_ahead_of_the_rows, FLUSHING),
        (position_passes_a_marker_before_its_staged_rows_are_fetched, FLUSHING),
        (instance_goes_on_after_its_last_marker, DEADLY),
        (instance_goes_on_one_entry_early, DEADLY),
        (commits_overtake_each_other, {}),
        (heard_watermarks_are_forgotten_at_resume, {**DEADLY, "shape": "join"}),
        (uncommitted_changes_are_applied, DYING),
        (changes_that_were_flushed_early_are_dropped, FLUSHING),
        (changes_before_the_checkpoint_are_replayed, {**CHECKPOINTING, "shape": "join"}),
        (checkpoint_is_newer_than_its_marker, CHECKPOINTING),
        (checkpoint_is_named_before_it_is_durable, CHECKPOINTING),
        (sweep_deletes_the_older_checkpoint, CHECKPOINTING),
        (sweep_keeps_what_the_next_marker_will_name, OVERLAPPING),
        (a_slow_checkpoint_comes_before_a_newer_one, OVERLAPPING),
        (trimming_trusts_the_newest_checkpoint, {**CHECKPOINTING, "trims": True}),
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


@pytest.mark.parametrize(
    "swarm",
    [DEADLY, ZOMBIES, FLUSHING, CHECKPOINTING, {**ZOMBIES, "workers": 1}],
    ids=["deadly", "zombies", "flushing", "checkpointing", "one worker"],
)
def test_worlds_narrowed_for_mutants_are_clean_without_them(swarm: dict[str, Any]) -> None:
    for seed in range(2):
        world(seed, swarm).run()
