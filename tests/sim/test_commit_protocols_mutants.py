"""Proof that the simulation of transactions and aligned checkpoints can fail.

Each mutant is one plausible mistake in a protocol, its coordinator or what readers keep. The output
says by which law each was caught. Nobody but a benchmark runs these protocols, so these are of the
long runs; worlds without mutants run always (test_commit_protocols_swarm.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest
from penstock_bench.protocols import aligned
from penstock_bench.protocols import transactions as transactions_module
from penstock_bench.protocols.aligned import AlignedCommitter
from penstock_bench.protocols.aligned_conductor import AlignedConductor
from penstock_bench.protocols.aligned_core import AlignedCheckpoints, Part
from penstock_bench.protocols.alignment import Alignment, Step
from penstock_bench.protocols.choosing import ProtocolName
from penstock_bench.protocols.shared import all_of
from penstock_bench.protocols.transaction_records import (
    CommitRecord,
    TransactionRecord,
    commit_record_tag,
    decode_record,
    transaction_tag,
)
from penstock_bench.protocols.transactions import Substreams, TransactionCommitter
from pipeline_mutants import (
    WORLDS,
    Mutant,
    catch,
    claim_after_announcing,
    tell_before_it_is_durable,
    world,
)
from simulation.pipeline.swarm import Fault

from penstock.errors import Fenced
from penstock.ids import Lsn
from penstock.log.records import Appended, Entry, Kind, NewEntry
from penstock.protocol.committed import CommittedReader
from penstock.protocol.markers import Range
from penstock.runtime.commit import Commit
from penstock.runtime.commit_protocol import Cohort
from penstock.runtime.coordinator_core import CoordinatorCore
from penstock.runtime.task import Task
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore

pytestmark = pytest.mark.soak
Patch = pytest.MonkeyPatch

DEADLY: dict[str, Any] = {"mean_ms": {Fault.KILL: 90, Fault.PAUSE: 150}, "odds": {Fault.LATE: 0.1}}
#: Dies again before much was done, on a slow network: between any two appends.
DYING: dict[str, Any] = {"mean_ms": {Fault.KILL: 50}, "slow_odds": 0.3, "fsync_us_max": 5000}
STRUCK: dict[str, Any] = {
    "mean_ms": {Fault.KILL: 120, Fault.PAUSE: 120},
    "slow_odds": 0.2,
    "workers": 3,
    "commit_interval_ms": 0,
    "checkpoint_us_max": 20_000,
}
#: Workers die while what they told is being committed, and Spark says so at once.
RACING: dict[str, Any] = {
    **STRUCK, "mean_ms": {Fault.KILL: 40}, "checkpoint_us_max": 500, "fsync_us_max": 5000,
}  # fmt: skip
REPLACED: dict[str, Any] = {
    **STRUCK, "mean_ms": {Fault.DRIVER: 60, Fault.DRIVER_PAUSE: 60}, "fsync_us_max": 5000,
}  # fmt: skip
SLEEPY: dict[str, Any] = {
    "mean_ms": {Fault.PAUSE: 50}, "slow_odds": 0.3, "workers": 2, "commit_interval_ms": 0,
    "checkpoint_us_max": 20_000, "waiting_max": 64,
}  # fmt: skip
#: What goes to one stream takes several groups.
GROUPS: dict[str, Any] = {"group_entries": 1, "payload_bytes": 600, "rows_max": 16}
#: Readers keep little of what they were shown.
FORGETFUL: dict[str, Any] = {"kept_bytes": 500, "rows_max": 16}


# ---- transactions


def settle_does_nothing(patch: Patch) -> None:
    async def settle(self: TransactionCommitter) -> None:
        pass

    patch.setattr(TransactionCommitter, "settle", settle)


def settle_writes_all_records_again(patch: Patch) -> None:
    async def settle(self: TransactionCommitter) -> None:
        last = await self._log.read_last(transaction_tag(self._task))
        if last is None or decode_record(last.payload).state != "prepared":
            return
        record = decode_record(last.payload)
        entries = [transactions_module._entry(one) for one in record.records]
        await all_of([self._appender.append_nowait([entry]) for entry in entries])
        await self._note(TransactionRecord("done", record.number))

    patch.setattr(TransactionCommitter, "settle", settle)


def settle_takes_one_record_for_all(patch: Patch) -> None:
    """Records are written one after the other here, which is no mistake but makes room for it."""

    async def close(
        self: TransactionCommitter, commit: Commit, records: Sequence[CommitRecord]
    ) -> None:
        for record in records:
            done = await self._appender.append_nowait([transactions_module._entry(record)])
        self._owner.visible(commit, done.first_lsn)
        await self._note(TransactionRecord("done", commit.marker.number))

    original = TransactionCommitter.settle

    async def settle(self: TransactionCommitter) -> None:
        last = await self._log.read_last(transaction_tag(self._task))
        tags, tail = [commit_record_tag(self._task)], (await self._log.bounds()).tail
        if last is not None and await self._log.read(tags, start=last.lsn, end=tail):
            record = decode_record(last.payload)
            if record.state == "prepared":
                await self._note(TransactionRecord("done", record.number))
            return
        await original(self)

    patch.setattr(TransactionCommitter, "settle", settle)
    patch.setattr(TransactionCommitter, "_close", close)


def instance_settles_after_it_has_resumed(patch: Patch) -> None:
    resume, settle = Task._resume, TransactionCommitter.settle

    async def later(self: TransactionCommitter) -> None:
        pass

    async def resume_and_settle(self: Task, careful_upto: Lsn | None) -> None:
        await resume(self, careful_upto)
        assert isinstance(self._committer, TransactionCommitter)
        await settle(self._committer)

    patch.setattr(TransactionCommitter, "settle", later)
    patch.setattr(Task, "_resume", resume_and_settle)


def commit_records_come_before_prepared(patch: Patch) -> None:
    original = TransactionCommitter._note

    async def note(self: TransactionCommitter, record: TransactionRecord) -> None:
        if record.state == "prepared":
            entries = [transactions_module._entry(one) for one in record.records]
            await all_of([self._appender.append_nowait([entry]) for entry in entries])
            await original(self, record)
            await original(self, TransactionRecord("done", record.number))
        elif record.state == "begun":
            await original(self, record)

    async def close(self: TransactionCommitter, commit: Commit, records: Any) -> None:
        pass

    patch.setattr(TransactionCommitter, "_note", note)
    patch.setattr(TransactionCommitter, "_close", close)


def next_transaction_does_not_wait_for_phase_two(patch: Patch) -> None:
    original = TransactionCommitter.commit

    async def commit(self: TransactionCommitter, commit: Commit) -> None:
        self._closing = None
        await original(self, commit)

    patch.setattr(TransactionCommitter, "commit", commit)


def prepared_is_noted_before_the_changes_are_acknowledged(patch: Patch) -> None:
    """It says where they will stand, if nobody comes in between."""

    async def append_all(
        self: TransactionCommitter, commit: Commit, parts: dict[str, list[NewEntry]]
    ) -> dict[str, list[Range]]:
        named = await original(self, replace(commit, changes=()), parts)
        if commit.changes:
            self._appender.append_nowait(commit.changes)
            after = max(one.end for ranges in named.values() for one in ranges)
            named[self._task.change_tag] = [Range(after, len(commit.changes))]
        return named

    original = TransactionCommitter._append_all
    patch.setattr(TransactionCommitter, "_append_all", append_all)


def own_record_is_written_first(patch: Patch) -> None:
    """Whoever waits for the task's marker does not find the result."""
    original = TransactionCommitter._make_records

    def make_records(self: TransactionCommitter, commit: Commit, named: Any) -> Any:
        return tuple(reversed(original(self, commit, named)))

    patch.setattr(TransactionCommitter, "_make_records", make_records)


def entries_of_transactions_count_at_once(patch: Patch) -> None:
    class Plain:
        STAGED = Kind.DATA
        MARKER = Kind.MARKER
        CONTROL = Kind.CONTROL

    patch.setattr(transactions_module, "Kind", Plain)


def a_node_is_in_the_substream_of_another_reader(patch: Patch) -> None:
    original = Substreams.split

    def split(self: Substreams, commit: Commit) -> dict[str, list[NewEntry]]:
        self._of_node = dict.fromkeys(self._of_node, self._readers[0]) if self._readers else {}
        return original(self, commit)

    patch.setattr(Substreams, "split", split)


def a_record_names_only_the_first_group_of_a_stream(patch: Patch) -> None:
    original = TransactionCommitter._make_records

    def make_records(
        self: TransactionCommitter, commit: Commit, named: dict[str, list[Range]]
    ) -> tuple[CommitRecord, ...]:
        return original(self, commit, {stream: found[:1] for stream, found in named.items()})

    patch.setattr(TransactionCommitter, "_make_records", make_records)


# ---- what readers keep


def evicted_entries_are_forgotten_silently(patch: Patch) -> None:
    original = CommittedReader._evict

    def evict(self: CommittedReader[Any]) -> None:
        start = self._from
        original(self)
        self._from = start

    patch.setattr(CommittedReader, "_evict", evict)


def entries_before_the_reader_began_are_not_fetched(patch: Patch) -> None:
    original = CommittedReader.__init__

    def init(self: CommittedReader[Any], start: int, **options: Any) -> None:
        original(self, 0, **options)

    patch.setattr(CommittedReader, "__init__", init)


# ---- aligned checkpoints


def nothing_is_held_behind_barriers(patch: Patch) -> None:
    original = Alignment.step

    def step(self: Alignment, entry: Entry) -> Step:
        found = original(self, entry)
        return Step.TAKE if found is Step.HOLD else found

    patch.setattr(Alignment, "step", step)


def entries_of_older_instances_are_taken(patch: Patch) -> None:
    original = Alignment.step

    def step(self: Alignment, entry: Entry) -> Step:
        if self._upstream.get(entry.producer) not in (None, entry.instance):
            return Step.TAKE if entry.kind is Kind.DATA else Step.DROP
        return original(self, entry)

    patch.setattr(Alignment, "step", step)


def only_the_lost_tasks_start_anew(patch: Patch) -> None:
    original = CoordinatorCore.__init__

    def init(self: CoordinatorCore, *args: Any, **options: Any) -> None:
        original(self, *args, **{**options, "restarts_together": False})

    patch.setattr(CoordinatorCore, "__init__", init)


def checkpoint_is_completed_beside_a_claim(patch: Patch) -> None:
    """Without the lock, and its append takes its time."""

    async def complete(self: AlignedConductor, markers: list[NewEntry]) -> None:
        try:
            await asyncio.sleep(WORLDS[-1].scheduler.random.uniform(0, 0.06))
            await self._run.voice.append_nowait(markers)
        except Fenced:
            return
        self._end()

    async def on_part(self: AlignedConductor, part: Part) -> None:
        markers = self.checkpoints.on_part(part)
        if markers is not None:
            asyncio.get_running_loop().create_task(complete(self, markers))

    patch.setattr(AlignedConductor, "on_part", on_part)


def a_claim_does_not_end_the_checkpoint(patch: Patch) -> None:
    original = AlignedCheckpoints.on_part

    def on_part(self: AlignedCheckpoints, told: Part) -> list[NewEntry] | None:
        found = original(self, told)
        if found is not None:
            self._is_complete = True  # type: ignore[attr-defined]
        return found

    def end(self: AlignedCheckpoints) -> None:
        if getattr(self, "_is_complete", True):
            self._is_complete = False  # type: ignore[attr-defined]
            self._instances, self._told = {}, {}

    patch.setattr(AlignedCheckpoints, "on_part", on_part)
    patch.setattr(AlignedCheckpoints, "end", end)


def parts_of_other_instances_count(patch: Patch) -> None:
    """A slow worker's old instances tell of a barrier that was meant for its new ones."""
    original = AlignedCheckpoints.on_part

    def on_part(self: AlignedCheckpoints, told: Part) -> list[NewEntry] | None:
        known = {str(task): instance for task, instance in self._instances.items()}
        return original(self, replace(told, instance=known.get(told.task, 0)))

    patch.setattr(AlignedCheckpoints, "on_part", on_part)


def markers_of_a_checkpoint_are_appended_one_by_one(patch: Patch) -> None:
    async def on_part(self: AlignedConductor, part: Part) -> None:
        async with self._ordering:
            markers = self.checkpoints.on_part(part)
            for marker in markers or ():
                await self._run.voice.append_nowait([marker])
            if markers is not None:
                self._end()

    patch.setattr(AlignedConductor, "on_part", on_part)


def part_is_told_before_its_results_are_durable(patch: Patch) -> None:
    original = AlignedCommitter._tell

    async def tell(
        self: AlignedCommitter, commit: Commit, number: int, staged: list[Any], streams: Any
    ) -> None:
        there = [future for future in staged if future.done()]
        await original(self, commit, number, there, streams)

    patch.setattr(AlignedCommitter, "_tell", tell)


def part_is_told_before_its_state_is_durable(patch: Patch) -> None:
    tell_before_it_is_durable(patch)


def barriers_of_an_older_cohort_are_obeyed(patch: Patch) -> None:
    original = Alignment.__init__

    def init(self: Alignment, cohort: Cohort, upstream: Any, tags: Any) -> None:
        original(self, Cohort(Lsn(-1), cohort.instances), upstream, tags)

    patch.setattr(Alignment, "__init__", init)


def parts_are_swept_before_the_new_one_is_told(patch: Patch) -> None:
    """On the thread that writes, which no cancellation stops: the engine did so at first. A zombie
    obeys its successor's barrier, and deletes what the last complete checkpoint needs."""
    write, written = CheckpointStore.write, dict[tuple[str, int], int]()

    def write_and_sweep(
        self: CheckpointStore, task: str, *, marker_lsn: int, instance: int, **options: Any
    ) -> CheckpointRef:
        reference = write(self, task, marker_lsn=marker_lsn, instance=instance, **options)
        if (task, instance) in written:
            self.sweep_before(task, written[task, instance])
        written[task, instance] = marker_lsn
        return reference

    async def sweep(self: AlignedCommitter, position: Lsn) -> None:
        pass

    patch.setattr(CheckpointStore, "write", write_and_sweep)
    patch.setattr(AlignedCommitter, "_sweep", sweep)


def state_is_frozen_after_what_was_held_is_in(patch: Patch) -> None:
    original = AlignedCommitter.pass_on

    def pass_on(self: AlignedCommitter, commit: Commit, number: int) -> Coroutine[Any, Any, None]:
        core = self._owner.core
        assert self.alignment is not None
        for entry, staged in self.alignment.release():
            core.take_held(entry, staged)
        core.work()
        return original(self, replace(commit, frozen=core.state.freeze()), number)

    patch.setattr(AlignedCommitter, "pass_on", pass_on)


def barrier_overtakes_the_rows_before_it(patch: Patch) -> None:
    original = aligned.pack

    def pack(entries: Sequence[NewEntry]) -> Any:
        return original(sorted(entries, key=lambda one: one.kind is not Kind.CONTROL))

    patch.setattr(aligned, "pack", pack)


def results_count_before_their_checkpoint(patch: Patch) -> None:
    original: Callable[..., Any] = AlignedCommitter._append

    def append(self: AlignedCommitter, commit: Commit, barrier: list[NewEntry]) -> None:
        real = self._appender

        class Plain:
            def append_nowait(_, entries: Sequence[NewEntry]) -> Awaitable[Appended]:
                plain = [
                    one._replace(kind=Kind.DATA) if one.kind is Kind.STAGED else one
                    for one in entries
                ]
                return real.append_nowait(plain)

        self._appender = Plain()
        original(self, commit, barrier)
        self._appender = real

    patch.setattr(AlignedCommitter, "_append", append)


def claims_come_after_the_announcement(patch: Patch) -> None:
    claim_after_announcing(patch)


def mutants(
    protocol: ProtocolName, *rows: tuple[Callable[[Patch], None], dict[str, Any]]
) -> list[Mutant]:
    return [
        Mutant(apply.__name__.replace("_", " "), apply, protocol, swarm) for apply, swarm in rows
    ]


MUTANTS = [
    *mutants(
        "transaction",
        (settle_does_nothing, DYING),
        (settle_writes_all_records_again, DYING),
        (settle_takes_one_record_for_all, DYING),
        (instance_settles_after_it_has_resumed, DYING),
        (commit_records_come_before_prepared, {}),
        (next_transaction_does_not_wait_for_phase_two, {}),
        (prepared_is_noted_before_the_changes_are_acknowledged, {}),
        (own_record_is_written_first, {}),
        (entries_of_transactions_count_at_once, {}),
        (a_node_is_in_the_substream_of_another_reader, {}),
        (a_record_names_only_the_first_group_of_a_stream, GROUPS),
        (evicted_entries_are_forgotten_silently, FORGETFUL),
        (entries_before_the_reader_began_are_not_fetched, DEADLY),
    ),
    *mutants(
        "aligned",
        (nothing_is_held_behind_barriers, {}),
        (entries_of_older_instances_are_taken, DEADLY),
        (only_the_lost_tasks_start_anew, DEADLY),
        (checkpoint_is_completed_beside_a_claim, RACING),
        (a_claim_does_not_end_the_checkpoint, DEADLY),
        (markers_of_a_checkpoint_are_appended_one_by_one, {}),
        (part_is_told_before_its_results_are_durable, {"shape": "count"}),
        (part_is_told_before_its_state_is_durable, {}),
        (barriers_of_an_older_cohort_are_obeyed, STRUCK),
        (barrier_overtakes_the_rows_before_it, {}),
        (results_count_before_their_checkpoint, {"shape": "count"}),
        (claims_come_after_the_announcement, DEADLY),
    ),
]


RARE = mutants(
    "aligned",
    # The log's fencing and the checkpoints' numbers hide it, but for parts of equal numbers that
    # two drivers asked for within a moment.
    (parts_of_other_instances_count, REPLACED),
    # test_commit_protocols_pins.py shows it in one schedule.
    (parts_are_swept_before_the_new_one_is_told, SLEEPY),
    # Something must be held just before the checkpoint that is resumed from.
    (state_is_frozen_after_what_was_held_is_in, {**STRUCK, "shape": "count"}),
)


@pytest.mark.parametrize("mutant", RARE, ids=lambda mutant: mutant.name)
def test_the_world_catches_in_the_end(
    mutant: Mutant, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


@pytest.mark.parametrize("swarm", [DEADLY, DYING, STRUCK], ids=["deadly", "dying", "struck"])
@pytest.mark.parametrize("protocol", ["transaction", "aligned"])
def test_worlds_narrowed_for_mutants_are_clean_without_them(
    protocol: ProtocolName, swarm: dict[str, Any]
) -> None:
    world(0, swarm, protocol).run()
