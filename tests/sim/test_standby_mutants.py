"""Proof that worlds with standbys can fail: every mutant is caught by some seed.

Mistakes in what a copy holds, when it may take over, and as whom.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pipeline_mutants import Mutant, catch, world
from simulation.pipeline.swarm import Fault

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker
from penstock.protocol.names import parse_task
from penstock.protocol.resume import ChangeFold
from penstock.runtime.control import Place, Yielded
from penstock.runtime.coordinator_core import CoordinatorCore, Effect
from penstock.runtime.standby import Standby, StateCopy
from penstock.runtime.task import Task
from penstock.runtime.task_core import TaskCore

MOVING: dict[str, Any] = {
    "replicas": 1,
    "workers": 3,
    "mean_ms": {Fault.MOVE: 60, Fault.KILL: 250},
    "odds": {Fault.LATE: 0.05},
}


def a_copy_takes_over_before_it_has_reached_the_last_marker(patch: pytest.MonkeyPatch) -> None:
    async def take(self: Standby, last: Entry) -> TaskCore | None:
        copy = self._copy
        self.close()
        return None if copy is None else copy.core

    patch.setattr(Standby, "take", take)


def a_copy_takes_changes_that_no_marker_names(patch: pytest.MonkeyPatch) -> None:
    original = ChangeFold.step

    def step(self: ChangeFold, entry: Entry) -> list[Entry]:
        waiting = list(self._waiting)
        return waiting if original(self, entry) or entry.kind is Kind.MARKER else []

    patch.setattr(ChangeFold, "step", step)


def a_copy_misses_the_changes_of_its_first_marker(patch: pytest.MonkeyPatch) -> None:
    original = StateCopy._apply

    def apply(self: StateCopy, entry: Entry) -> Marker | None:
        if entry.kind is Kind.CHANGE and self._fold.marker is None and self.reached is not None:
            return None
        return original(self, entry)

    patch.setattr(StateCopy, "_apply", apply)


def a_copy_replays_what_its_checkpoint_holds(patch: pytest.MonkeyPatch) -> None:
    original = StateCopy.load

    async def load(self: StateCopy, marker: Any) -> Lsn | None:
        base = await original(self, marker)
        return None if base is None else Lsn(max(0, base - 12))

    patch.setattr(StateCopy, "load", load)


def a_copy_begins_at_the_last_marker_of_a_task_with_state(patch: pytest.MonkeyPatch) -> None:
    original = StateCopy._begin

    async def begin(self: StateCopy, last: Entry | None, marker: Marker | None) -> Lsn | None:
        stateless = None if marker is None else replace(marker, has_state=False)
        return await original(self, last, stateless)

    patch.setattr(StateCopy, "_begin", begin)


def a_copy_goes_on_as_nobody(patch: pytest.MonkeyPatch) -> None:
    """Its markers say that another instance made them."""
    original = Task._restore

    async def restore(self: Task, last: Entry) -> None:
        await original(self, last)
        if self.is_from_standby:
            self.core.instance = 0

    patch.setattr(Task, "_restore", restore)


def a_task_that_yielded_is_not_claimed(patch: pytest.MonkeyPatch) -> None:
    """Its next worker is told to run it as the instance that has just ended."""

    def on_yielded(self: CoordinatorCore, yielded: Yielded) -> list[Effect]:
        task = parse_task(yielded.task)
        state = self.tasks[task]
        if state.place != Place(yielded.worker, yielded.instance) or state.target is None:
            return []
        state.place = Place(state.target, yielded.instance)
        state.target = state.yielding_since = None
        return self._announce()

    patch.setattr(CoordinatorCore, "_on_yielded", on_yielded)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, "marker", MOVING)
    for apply in (
        a_copy_takes_over_before_it_has_reached_the_last_marker,
        a_copy_takes_changes_that_no_marker_names,
        a_copy_misses_the_changes_of_its_first_marker,
        a_copy_replays_what_its_checkpoint_holds,
        a_copy_begins_at_the_last_marker_of_a_task_with_state,
        a_copy_goes_on_as_nobody,
        a_task_that_yielded_is_not_claimed,
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2))])
def test_worlds_narrowed_for_mutants_are_clean_without_them(seed: int) -> None:
    world(seed, MOVING).run()
