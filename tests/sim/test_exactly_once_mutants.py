"""Proof that the simulation of exactly once can fail: every mutant is caught by some seed.

Each mutant is one plausible mistake in shipped code, made by monkeypatch; some only show under
certain faults, and name the swarm that their worlds are narrowed to. The output says by which law
each was caught.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pipeline_mutants import (
    WORLDS,
    Mutant,
    catch,
    claim_after_announcing,
    next_instance,
    tell_before_it_is_durable,
    world,
)
from simulation.pipeline.swarm import Fault

from penstock.errors import Damaged, Unavailable
from penstock.ids import Lsn
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.appender_core import AppenderCore
from penstock.log.client.client import AsyncLog
from penstock.log.core import sequencer
from penstock.log.records import Entry, Kind
from penstock.protocol.committed import CommittedReader, Marked
from penstock.protocol.markers import Marker, Range
from penstock.protocol.names import TaskId
from penstock.protocol.resume import ChangeFold
from penstock.runtime import trim
from penstock.runtime.checkpointer import Checkpointer
from penstock.runtime.commit import Commit, Cut
from penstock.runtime.commit_protocol import MarkerCommitter, range_of
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.coordinator_core import CoordinatorCore, Effect
from penstock.runtime.standby import StateCopy
from penstock.runtime.task import Task
from penstock.runtime.task_core import TaskCore
from penstock.runtime.trail import Trail
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.stores.api import Reference
from penstock.stream import earliest
from penstock.stream.earliest import Earliest

DEADLY: dict[str, Any] = {"mean_ms": {Fault.KILL: 90, Fault.PAUSE: 150}, "odds": {Fault.LATE: 0.1}}
ZOMBIES: dict[str, Any] = {"mean_ms": {Fault.PAUSE: 60}, "odds": {Fault.LATE: 0.2}, "workers": 2}
REPLACED: dict[str, Any] = {"mean_ms": {Fault.DRIVER_PAUSE: 120}, "workers": 2}
SLEEPY: dict[str, Any] = {"mean_ms": {Fault.PAUSE: 250}, "workers": 1}
FLUSHING: dict[str, Any] = {**DEADLY, "group_entries": 1, "kept_bytes": 0}
DYING: dict[str, Any] = {**FLUSHING, "mean_ms": {Fault.KILL: 50}, "slow_odds": 0.3}
CHECKPOINTING: dict[str, Any] = {
    **DEADLY,
    "checkpoints": True,
    "checkpoint_interval_ms": 30,
    "checkpoint_bytes_min": 1,
    "checkpoint_us_max": 20_000,
    "trail_bytes": 32 << 20,
}
REPLAYING: dict[str, Any] = {**CHECKPOINTING, "shape": "join", "trims": False}
#: Checkpoints take longer to write than the next one takes to come.
OVERLAPPING: dict[str, Any] = {
    **CHECKPOINTING,
    "checkpoint_interval_ms": 0,
    "checkpoint_us_max": 150_000,
}


# ---- fencing


def marker_is_appended_by_an_anonymous_producer(patch: pytest.MonkeyPatch) -> None:
    async def commit(self: MarkerCommitter, commit: Commit) -> None:
        log, cut = self._task.log, commit.cut()
        assert isinstance(log, AsyncLog)
        ranges = [range_of(await log.append(group)) for group in cut.ahead]
        done = await log.append(cut.group(ranges))
        self._task.visible(commit, Lsn(done.first_lsn + done.count - 1))

    patch.setattr(MarkerCommitter, "commit", commit)


def instances_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    original = sequencer.decide_seq

    def decide_seq(body: Any, known: Any) -> Any:
        if known is not None and body.first_seq == known.next_seq:
            return None
        return original(body, known)

    patch.setattr(sequencer, "decide_seq", decide_seq)


def last_marker_is_read_before_the_claim(patch: pytest.MonkeyPatch) -> None:
    """The worker resumes first and claims then, for itself."""

    async def claim(self: Coordinator, tasks: Sequence[TaskId]) -> dict[TaskId, int]:
        return {task: await next_instance(self._log, task.producer) for task in tasks}

    resume, adopt = Task._resume, AsyncLog.adopt

    async def resume_and_claim(self: Task, careful_upto: Lsn | None) -> None:
        await resume(self, careful_upto)
        self.instance = self.core.instance = await self.log.claim(self.task.producer)
        self.appender = await adopt(self.log, self.task.producer, self.instance)

    async def adopt_unclaimed(self: AsyncLog, producer: str, instance: int) -> AsyncAppender:
        core = AppenderCore(producer=producer, instance=instance, next_seq=0)
        return self._open_appender(core, retire_on_close=False)

    patch.setattr(Coordinator, "_claim", claim)
    patch.setattr(Task, "_resume", resume_and_claim)
    patch.setattr(AsyncLog, "adopt", adopt_unclaimed)


def coordinator_announces_before_it_claims(patch: pytest.MonkeyPatch) -> None:
    claim_after_announcing(patch)


def a_moved_task_keeps_its_instance(patch: pytest.MonkeyPatch) -> None:
    async def claim(self: Coordinator, tasks: Sequence[TaskId]) -> dict[TaskId, int]:
        instances = {}
        for task in tasks:
            claimed = await next_instance(self._log, task.producer) - 1
            instances[task] = claimed or await self._log.claim(task.producer)
        return instances

    patch.setattr(Coordinator, "_claim", claim)


def claims_are_not_guarded_by_the_run(patch: pytest.MonkeyPatch) -> None:
    """A driver that was replaced fences the tasks of its successor, and cannot say so."""

    async def claim(self: Coordinator, tasks: Sequence[TaskId]) -> dict[TaskId, int]:
        return {task: await self._log.claim(task.producer) for task in tasks}

    patch.setattr(Coordinator, "_claim", claim)


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


def data_is_appended_before_its_marker(patch: pytest.MonkeyPatch) -> None:
    async def commit(self: MarkerCommitter, commit: Commit) -> None:
        append, cut = self._task.appender.append_nowait, commit.cut()
        ranges = [range_of(await append(group)) for group in cut.ahead]
        *inline, marker = cut.group(ranges)
        if inline:
            await append(inline)
        done = await append([marker])
        self._task.visible(commit, done.first_lsn)

    patch.setattr(MarkerCommitter, "commit", commit)


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
    fetch, take = Task._fetch, TaskCore.take

    async def look_and_fetch(self: Task, marked: Marked[Entry]) -> None:
        self.core.looked(Lsn(marked.lsn + 1))
        await fetch(self, marked)

    def go_back_and_take(self: TaskCore, entry: Entry, *values: Any) -> None:
        self._next.position = entry.lsn
        take(self, entry, *values)

    patch.setattr(Task, "_fetch", look_and_fetch)
    patch.setattr(TaskCore, "take", go_back_and_take)


def instance_goes_on_after_its_last_marker(patch: pytest.MonkeyPatch) -> None:
    """At the marker's own place instead of at the position that it names."""
    original = Task._resume

    async def resume(self: Task, careful_upto: Lsn | None) -> None:
        last = await self.log.read_last(self.task.marker_tag)
        await original(self, careful_upto)
        if last is not None:
            self.core.looked(Lsn(last.lsn + 1))

    patch.setattr(Task, "_resume", resume)


def instance_goes_on_one_entry_early(patch: pytest.MonkeyPatch) -> None:
    original = TaskCore.begin

    def begin(self: TaskCore, marker: Marker | None, **options: Any) -> None:
        if marker is not None:
            marker = replace(marker, position=Lsn(max(0, marker.position - 1)))
        original(self, marker, **options)

    patch.setattr(TaskCore, "begin", begin)


def commits_overtake_each_other(patch: pytest.MonkeyPatch) -> None:
    original = MarkerCommitter.commit

    async def commit(self: MarkerCommitter, commit: Commit) -> None:
        async def later() -> None:
            await asyncio.sleep(WORLDS[-1].scheduler.random.uniform(0, 0.004))
            await original(self, commit)

        self._task.beside(later())

    patch.setattr(MarkerCommitter, "commit", commit)


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
    original = StateCopy.load

    async def load(self: StateCopy, marker: Marker | None) -> Lsn | None:
        await original(self, marker)
        return None

    patch.setattr(StateCopy, "load", load)


def checkpoint_is_newer_than_its_marker(patch: pytest.MonkeyPatch) -> None:
    original = Trail.between

    def between(self: Trail, after_lsn: int, upto_lsn: int) -> list[bytes] | None:
        return original(self, after_lsn, 10**9)

    patch.setattr(Trail, "between", between)


def checkpoint_is_named_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    tell_before_it_is_durable(patch)


def sweep_deletes_the_older_checkpoint(patch: pytest.MonkeyPatch) -> None:
    def sweep(self: CheckpointStore, task: str, keep: Sequence[Reference]) -> list[str]:
        newest = CheckpointRef.from_json(keep[0])
        return self.sweep_before(task, newest.marker_lsn, [newest])

    patch.setattr(CheckpointStore, "sweep", sweep)


def sweep_keeps_what_the_next_marker_will_name(patch: pytest.MonkeyPatch) -> None:
    """And not what the last one names: the engine did so until seed 2021 of an older simulator."""

    async def write(self: Checkpointer, commit: Commit, lsn: Lsn) -> None:
        try:
            reference = await self._make(commit, lsn)
        except (Unavailable, Damaged):
            return
        self._owner.core.checkpointed(dict(reference))
        self._on_named()
        named = self._owner.core.checkpoints.named
        if len(named) == 2:
            await asyncio.to_thread(self._store.sweep, str(self._owner.task), named)

    patch.setattr(Checkpointer, "write", write)


def a_slow_checkpoint_comes_before_a_newer_one(patch: pytest.MonkeyPatch) -> None:
    """A state is written while another still is, and whoever is done last is taken for newest."""
    original = Checkpointer.committed

    def committed(self: Checkpointer, commit: Commit, lsn: Lsn) -> None:
        self._writing = None
        original(self, commit, lsn)

    def checkpointed(self: TaskCore, reference: dict[str, object]) -> None:
        self.checkpoints.named = (reference, *self.checkpoints.named[:1])
        self._next.is_due = True

    patch.setattr(Checkpointer, "committed", committed)
    patch.setattr(TaskCore, "checkpointed", checkpointed)


# ---- trimming


def trimming_trusts_the_newest_checkpoint(patch: pytest.MonkeyPatch) -> None:
    def needed_from(marker: Marker | None, start: Lsn) -> Lsn:
        if marker is None or (marker.has_state and not marker.checkpoints):
            return start
        lsns = [CheckpointRef.from_json(one).marker_lsn for one in marker.checkpoints[:1]]
        return Lsn(min([marker.needs_from, *lsns]))

    patch.setattr(trim, "needed_from", needed_from)


def earliest_is_the_trim_point(patch: pytest.MonkeyPatch) -> None:
    """A marker there may name what is gone: so it was until a trim fell in between."""

    async def find(log: AsyncLog, streams: Sequence[str], beginning: Lsn) -> Earliest:
        point = (await log.bounds()).trim_point
        return Earliest(point, point)

    patch.setattr(earliest, "find_earliest", find)


def earliest_is_after_the_first_commit_that_lost_rows(patch: pytest.MonkeyPatch) -> None:
    original = earliest.choose_earliest

    def choose(markers: Mapping[Lsn, tuple[Range, ...]], start: Lsn, trim_point: Lsn) -> Earliest:
        found = original({}, start, trim_point)
        for lsn in sorted(markers):
            found = original({lsn: markers[lsn]}, start, trim_point)
            if found.commits:
                break
        return found

    patch.setattr(earliest, "choose_earliest", choose)


def earliest_passes_over_commits_that_are_whole(patch: pytest.MonkeyPatch) -> None:
    original = earliest.choose_earliest

    def choose(markers: Mapping[Lsn, tuple[Range, ...]], start: Lsn, trim_point: Lsn) -> Earliest:
        found = original(markers, start, Lsn(trim_point + 10))
        return replace(found, trim_point=trim_point)

    patch.setattr(earliest, "choose_earliest", choose)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, "marker", swarm)
    for apply, swarm in (
        (marker_is_appended_by_an_anonymous_producer, DEADLY),
        (instances_are_not_fenced, ZOMBIES),
        (last_marker_is_read_before_the_claim, ZOMBIES),
        (coordinator_announces_before_it_claims, {}),
        (a_moved_task_keeps_its_instance, ZOMBIES),
        (
            claims_are_not_guarded_by_the_run,
            {"mean_ms": {Fault.DRIVER_PAUSE: 120}, "workers": 2},
        ),
        (a_worker_that_slept_is_never_taken_back, SLEEPY),
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
        (changes_before_the_checkpoint_are_replayed, REPLAYING),
        (checkpoint_is_newer_than_its_marker, CHECKPOINTING),
        (checkpoint_is_named_before_it_is_durable, CHECKPOINTING),
        (sweep_deletes_the_older_checkpoint, CHECKPOINTING),
        (sweep_keeps_what_the_next_marker_will_name, CHECKPOINTING),
        (a_slow_checkpoint_comes_before_a_newer_one, OVERLAPPING),
        (trimming_trusts_the_newest_checkpoint, {**CHECKPOINTING, "trims": True}),
        (earliest_is_the_trim_point, FLUSHING),
        (earliest_is_after_the_first_commit_that_lost_rows, FLUSHING),
        (earliest_passes_over_commits_that_are_whole, FLUSHING),
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


@pytest.mark.parametrize(
    "swarm",
    [DEADLY, ZOMBIES, REPLACED, SLEEPY, FLUSHING, CHECKPOINTING],
    ids=["deadly", "zombies", "replaced", "sleepy", "flushing", "checkpointing"],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_worlds_narrowed_for_mutants_are_clean_without_them(
    swarm: dict[str, Any], seed: int
) -> None:
    world(seed, swarm).run()
