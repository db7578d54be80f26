"""Proof that worlds with checkpoints of increments can fail: every mutant is caught by some seed.

Mistakes in what an increment holds, what it goes on from, how it is merged and read, and what is
deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest
from pipeline_mutants import Mutant, catch, world
from simulation.pipeline.swarm import Fault

from penstock.ids import Lsn
from penstock.runtime import checkpointer
from penstock.runtime.checkpointer import Checkpointer
from penstock.runtime.checkpoints import Checkpoints
from penstock.runtime.commit import Commit
from penstock.runtime.trail import Trail
from penstock.state import checkpoint_format, checkpoint_store, fold
from penstock.state.api import Change
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.manifest import IncrementFile
from penstock.state.parts import Parts
from penstock.state.stores.api import Reference

#: Many checkpoints, and instances that begin at them.
CHAINS: dict[str, Any] = {
    "mean_ms": {Fault.KILL: 120},
    "checkpoints": True,
    "checkpoint_interval_ms": 0,
    "checkpoint_bytes_min": 1,
    "checkpoint_us_max": 500,
    "trims": True,
    "trail_bytes": 32 << 20,
}
DAMAGED: dict[str, Any] = {**CHAINS, "mean_ms": {Fault.KILL: 120, Fault.CHECKPOINT: 40}}
SLOW: dict[str, Any] = {**CHAINS, "checkpoint_us_max": 40_000}
ENDING: dict[str, Any] = {**CHAINS, "shape": "window"}
RESCALED: dict[str, Any] = {
    **CHAINS,
    "workers": 2,
    "lanes": 4,
    "mean_ms": {Fault.KILL: 150, Fault.RESCALE: 90},
}


def an_increment_misses_its_first_commit(patch: pytest.MonkeyPatch) -> None:
    original = Trail.between

    def between(self: Trail, after_lsn: int, upto_lsn: int) -> list[bytes] | None:
        found = original(self, after_lsn, upto_lsn)
        return found if found is None or after_lsn < 0 else found[1:]

    patch.setattr(Trail, "between", between)


def what_waits_for_the_store_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The changes of a checkpoint that was not written are not in the next one."""
    original = Checkpointer.write

    async def write(self: Checkpointer, commit: Commit, lsn: Lsn) -> Reference | None:
        named = self._owner.core.checkpoints.named
        if named and self._trail._held:
            self._trail._held.popleft()
        return await original(self, commit, lsn)

    patch.setattr(Checkpointer, "write", write)


def deletions_are_left_out_of_increments(patch: pytest.MonkeyPatch) -> None:
    original = fold.merge_changes

    def merge(changes: Any, parts: Parts, *, is_whole: bool = False) -> list[Change]:
        return [one for one in original(changes, parts, is_whole=is_whole) if one.kind != "delete"]

    patch.setattr(checkpointer, "merge_changes", merge)


def evictions_are_left_out_of_increments(patch: pytest.MonkeyPatch) -> None:
    original = fold.merge_changes

    def merge(changes: Any, parts: Parts, *, is_whole: bool = False) -> list[Change]:
        return [one for one in original(changes, parts, is_whole=is_whole) if one.kind != "evict"]

    patch.setattr(checkpointer, "merge_changes", merge)


def a_merge_of_files_leaves_out_the_newest(patch: pytest.MonkeyPatch) -> None:
    original = checkpoint_store.merge_files

    def merge(sources: Sequence[Any], *values: Any, **options: Any) -> Iterator[Change]:
        return original(sources[:-1], *values, **options)

    patch.setattr(checkpoint_store, "merge_files", merge)


def a_merge_of_files_takes_the_oldest_last(patch: pytest.MonkeyPatch) -> None:
    original = checkpoint_store.merge_files

    def merge(sources: Sequence[Any], *values: Any, **options: Any) -> Iterator[Change]:
        return original([*sources[1:], sources[0]], *values, **options)

    patch.setattr(checkpoint_store, "merge_files", merge)


def the_first_file_of_a_chain_is_not_read(patch: pytest.MonkeyPatch) -> None:
    original = CheckpointStore.read

    def read(
        self: CheckpointStore, ref: CheckpointRef, *, nodes: Collection[int] | None = None
    ) -> list[Change]:
        lines = self.increments(ref)
        if len(lines) < 2:
            return original(self, ref, nodes=nodes)
        return [
            one for line in lines[1:] for one in self._with(line, lambda file: file.read(nodes))
        ]

    patch.setattr(CheckpointStore, "read", read)


def increments_are_deleted_with_the_checkpoint_that_brought_them(
    patch: pytest.MonkeyPatch,
) -> None:
    """By position alone, as whole checkpoints could be."""

    def sweep(self: CheckpointStore, task: str, keep: Sequence[Reference]) -> list[str]:
        lsns = [CheckpointRef.from_json(one).marker_lsn for one in keep]
        return self.sweep_before(task, min(lsns))

    patch.setattr(CheckpointStore, "sweep", sweep)


def only_what_the_newest_checkpoint_needs_is_kept(patch: pytest.MonkeyPatch) -> None:
    def sweep(self: CheckpointStore, task: str, keep: Sequence[Reference]) -> list[str]:
        refs = [CheckpointRef.from_json(one) for one in keep]
        return self.sweep_before(task, min(ref.marker_lsn for ref in refs), refs[:1])

    patch.setattr(CheckpointStore, "sweep", sweep)


def the_second_copy_is_never_read(patch: pytest.MonkeyPatch) -> None:
    def read(self: CheckpointStore, line: IncrementFile, use: Any) -> Any:
        return self._use(line.path, line, use)

    patch.setattr(CheckpointStore, "_with", read)


def damaged_rows_are_taken_for_whole(patch: pytest.MonkeyPatch) -> None:
    def read(read_at: Any, start: int, count: int, crc: int, what: str) -> bytes:
        data: bytes = read_at(start, count)
        return data

    patch.setattr(checkpoint_format, "_read_checked", read)


def a_successor_writes_only_what_it_changed(patch: pytest.MonkeyPatch) -> None:
    """And does not look whether its changes make all of its state."""
    patch.setattr(Checkpoints, "needs_whole", property(lambda self: False))
    patch.setattr(checkpointer, "_check_first", lambda marker: None)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, "marker", swarm)
    for apply, swarm in (
        (an_increment_misses_its_first_commit, CHAINS),
        (what_waits_for_the_store_is_forgotten, SLOW),
        (deletions_are_left_out_of_increments, ENDING),
        (evictions_are_left_out_of_increments, {**CHAINS, "shape": "join"}),
        (a_merge_of_files_leaves_out_the_newest, CHAINS),
        (a_merge_of_files_takes_the_oldest_last, CHAINS),
        (the_first_file_of_a_chain_is_not_read, CHAINS),
        (increments_are_deleted_with_the_checkpoint_that_brought_them, CHAINS),
        (only_what_the_newest_checkpoint_needs_is_kept, CHAINS),
        (the_second_copy_is_never_read, DAMAGED),
        (damaged_rows_are_taken_for_whole, DAMAGED),
        (a_successor_writes_only_what_it_changed, RESCALED),
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


@pytest.mark.parametrize(
    "swarm",
    [CHAINS, DAMAGED, SLOW, ENDING, RESCALED],
    ids=["chains", "damaged", "slow", "ending", "rescaled"],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_worlds_narrowed_for_mutants_are_clean_without_them(
    swarm: dict[str, Any], seed: int
) -> None:
    world(seed, swarm).run()
