"""Proof that worlds which are rescaled can fail: every mutant is caught by some seed.

Mistakes in where successors begin, with whose state, with what they have heard, and in what may be
trimmed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pipeline_mutants import Mutant, catch, world
from simulation.pipeline.swarm import Fault

from penstock.ids import Lsn
from penstock.log.records import Entry
from penstock.protocol.markers import Heard, Marker, Origin, decode_marker
from penstock.protocol.names import TaskId, parse_task
from penstock.runtime import (
    coordinator,
    flushing,
    inheritance,
    standby,
    succession,
    successor,
    trim,
)
from penstock.runtime.coordinator_core import CoordinatorCore
from penstock.runtime.layout import Layout
from penstock.runtime.spec import QuerySpec
from penstock.runtime.standby import Standby, StateCopy
from penstock.runtime.succession import Last
from penstock.runtime.successor import Bequest, SuccessorCopy
from penstock.runtime.task import Task
from penstock.runtime.task_core import TaskCore
from penstock.runtime.trim_rule import needed_from
from penstock.runtime.worker import Worker
from penstock.state.api import Change
from penstock.state.memory import MemoryState

RESCALED: dict[str, Any] = {
    "workers": 2,
    "lanes": 4,
    "mean_ms": {Fault.RESCALE: 120, Fault.KILL: 300},
    "odds": {},
}
COUNTED: dict[str, Any] = {**RESCALED, "shape": "count"}
TIMED: dict[str, Any] = {**RESCALED, "shape": "window"}
RUNS: dict[str, Any] = {
    **COUNTED,
    "mean_ms": {Fault.RESCALE: 100, Fault.DRIVER: 200, Fault.DRIVER_PAUSE: 250},
}
TRIMMED: dict[str, Any] = {
    **COUNTED, "trims": True, "checkpoints": True, "checkpoint_interval_ms": 0,
    "checkpoint_us_max": 500, "checkpoint_bytes_min": 1,
}  # fmt: skip
SLOW: dict[str, Any] = {
    **COUNTED, "slow_odds": 0.2, "mean_ms": {Fault.RESCALE: 150, Fault.KILL: 60, Fault.PAUSE: 150},
}  # fmt: skip
HASTY: dict[str, Any] = {**COUNTED, "mean_ms": {Fault.RESCALE: 30}}
Lasts = Mapping[TaskId, Last]


def _first_markers(patch: pytest.MonkeyPatch, change: Any) -> None:
    """Let something be wrong with the markers at which successors begin."""
    original = succession.succeed

    def succeed(old: QuerySpec, new: QuerySpec, lasts: Lasts) -> dict[TaskId, Marker]:
        return {task: change(marker) for task, marker in original(old, new, lasts).items()}

    patch.setattr(coordinator, "succeed", succeed)


def a_successor_begins_one_entry_later(patch: pytest.MonkeyPatch) -> None:
    _first_markers(patch, lambda one: replace(one, position=Lsn(one.position + 1)))


def a_successor_has_no_predecessors_state(patch: pytest.MonkeyPatch) -> None:
    _first_markers(patch, lambda one: replace(one, has_state=False))


def a_successor_takes_one_predecessor_only(patch: pytest.MonkeyPatch) -> None:
    _first_markers(patch, lambda one: replace(one, origins=one.origins[:1]))


def a_successor_has_heard_of_no_time(patch: pytest.MonkeyPatch) -> None:
    def forget(one: Marker) -> Marker:
        words = {name: replace(word, watermark_ms=None) for name, word in one.heard.items()}
        return replace(one, heard=words)

    _first_markers(patch, forget)


def the_earliest_time_of_a_shared_source_is_handed_on(patch: pytest.MonkeyPatch) -> None:
    original = succession._one_word

    def one_word(words: Sequence[Heard], looked: Lsn, *, is_largest: bool) -> Heard:
        return original(words, looked, is_largest=False)

    patch.setattr(succession, "_one_word", one_word)


def a_successor_takes_rows_of_all_virtual_nodes(patch: pytest.MonkeyPatch) -> None:
    def apply_to(self: MemoryState, part: Any, change: Change, nodes: Any) -> None:
        part.apply(change)

    patch.setattr(MemoryState, "_apply_to", apply_to)


def a_predecessor_keeps_what_others_had_since(patch: pytest.MonkeyPatch) -> None:
    """Of what its own predecessors left, it takes more virtual nodes than it had."""
    original = inheritance.Predecessor.__init__

    def init(
        self: Any, spec: QuerySpec, origin: Origin, wanted: frozenset[int], room: Any = None
    ) -> None:
        original(self, spec, replace(origin, nodes=frozenset(range(64))), wanted)

    patch.setattr(inheritance.Predecessor, "__init__", init)


def the_changes_after_a_predecessors_checkpoint_are_left_out(patch: pytest.MonkeyPatch) -> None:
    original = StateCopy.follow

    async def follow(self: Any, base: Lsn | None, end: Lsn | None = None, **more: Any) -> None:
        if isinstance(self.core, standby.Predecessor) and base is not None:
            self.reached = base
            return
        await original(self, base, end, **more)

    patch.setattr(StateCopy, "follow", follow)


def a_task_goes_on_beyond_its_cut_when_it_is_restarted(patch: pytest.MonkeyPatch) -> None:
    original = TaskCore.begin

    def begin(self: TaskCore, marker: Marker | None, **options: Any) -> None:
        original(self, marker, **options)
        self.is_cut = False

    patch.setattr(TaskCore, "begin", begin)


def a_task_commits_once_more_after_its_cut(patch: pytest.MonkeyPatch) -> None:
    original = Task._run_loops

    async def run_loops(self: Task) -> None:
        await original(self)
        if self.core.is_cut:
            await asyncio.sleep(0.03)
            commit = self.core._capture(self.core.position)
            await self._committer.commit(commit)

    patch.setattr(Task, "_run_loops", run_loops)


def all_stages_are_cut_at_once(patch: pytest.MonkeyPatch) -> None:
    """Rows are on their way between stages then."""
    patch.setattr(flushing, "levels", lambda spec: [list(spec.running_stages)])


def a_cut_of_another_run_counts(patch: pytest.MonkeyPatch) -> None:
    """A task ends at the cut of a coordinator that is gone, and nobody goes on with it."""
    original = TaskCore.take_held
    patch.setattr(CoordinatorCore, "prepared", (0, 0))  # nobody waits for copies: more is cut

    def take_held(self: TaskCore, entry: Entry, counted: Any) -> None:
        original(self, entry, counted)
        self.is_cut |= entry.payload.startswith(b"cut ")

    patch.setattr(TaskCore, "take_held", take_held)


def a_run_begins_with_the_layout_of_the_registration(patch: pytest.MonkeyPatch) -> None:
    """Whatever was changed since: retired tasks run again."""
    patch.setattr(coordinator, "read_layout", lambda data, version: None)


def a_predecessors_state_is_trimmed(patch: pytest.MonkeyPatch) -> None:
    def needed(marker: Marker | None, start: Lsn) -> Lsn:
        if marker is not None and marker.origins:
            return marker.needs_from
        return needed_from(marker, start)

    patch.setattr(trim, "needed_from", needed)


def a_successor_begins_before_its_copies_are_at_the_last_markers(
    patch: pytest.MonkeyPatch,
) -> None:
    original = SuccessorCopy.goals

    def goals(self: SuccessorCopy, last: Entry) -> dict[TaskId, Lsn] | None:
        return None if original(self, last) is None else {}

    patch.setattr(SuccessorCopy, "goals", goals)
    patch.setattr(Standby, "has_caught_up", True)


def copies_for_a_successor_hold_all_virtual_nodes(patch: pytest.MonkeyPatch) -> None:
    def restored(self: Bequest, changes: Sequence[Change], size: int) -> None:
        taken = [self.left.take(change, self._heir.stages) for change in changes]
        self._heir.restored([change for change in taken if change is not None], size)

    patch.setattr(Bequest, "restored", restored)


def a_predecessor_is_not_followed(patch: pytest.MonkeyPatch) -> None:
    original = SuccessorCopy.__init__

    def init(self: Any, log: Any, core: Any, store: Any, origins: Sequence[Origin]) -> None:
        original(self, log, core, store, origins)
        self.parts = self.parts[:1]

    def goals(self: Any, last: Entry) -> dict[TaskId, Lsn]:
        origins = decode_marker(last.payload).origins
        known = {part.core.task for part in self.parts}
        lsns = {parse_task(one.task): one.lsn for one in origins}
        return {task: lsn for task, lsn in lsns.items() if task in known}

    patch.setattr(SuccessorCopy, "__init__", init)
    patch.setattr(SuccessorCopy, "goals", goals)
    patch.setattr(Standby, "has_caught_up", True)


def copies_for_another_layout_are_used(patch: pytest.MonkeyPatch) -> None:
    """It was planned, and another one of the same number came instead."""

    def is_planned(self: Worker, layout: Layout | None) -> bool:
        planned = None if self._next is None else self._next.layout
        return planned is not None and layout is not None and planned.version == layout.version

    patch.setattr(Worker, "_is_planned", is_planned)


def a_successor_has_the_values_of_one_predecessor(patch: pytest.MonkeyPatch) -> None:
    original = successor.decided

    def decided(state: Any, stages: Any, left: Sequence[Any]) -> Any:
        return original(state, stages, left[:1])

    patch.setattr(successor, "decided", decided)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, "marker", swarm)
    for apply, swarm in (
        (a_successor_begins_one_entry_later, COUNTED),
        (a_successor_has_no_predecessors_state, COUNTED),
        (a_successor_takes_one_predecessor_only, COUNTED),
        (a_successor_has_heard_of_no_time, TIMED),
        (the_earliest_time_of_a_shared_source_is_handed_on, TIMED),
        (a_successor_takes_rows_of_all_virtual_nodes, COUNTED),
        (a_predecessor_keeps_what_others_had_since, COUNTED),
        (the_changes_after_a_predecessors_checkpoint_are_left_out, TRIMMED),
        (a_task_goes_on_beyond_its_cut_when_it_is_restarted, COUNTED),
        (a_task_commits_once_more_after_its_cut, COUNTED),
        (all_stages_are_cut_at_once, COUNTED),
        (a_cut_of_another_run_counts, RUNS),
        (a_run_begins_with_the_layout_of_the_registration, RUNS),
        (a_predecessors_state_is_trimmed, TRIMMED),
        (a_successor_begins_before_its_copies_are_at_the_last_markers, SLOW),
        (copies_for_a_successor_hold_all_virtual_nodes, COUNTED),
        (a_predecessor_is_not_followed, COUNTED),
        (copies_for_another_layout_are_used, HASTY),
        (a_successor_has_the_values_of_one_predecessor, TIMED),
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_worlds_narrowed_for_mutants_are_clean_without_them(seed: int) -> None:
    for swarm in (COUNTED, TIMED, TRIMMED, RUNS, SLOW, HASTY):
        world(seed, swarm).run()
