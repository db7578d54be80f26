"""Proof that worlds in which tasks share a source can fail: every mutant is caught by some seed.

Mistakes in who reads which lane, in the time of a source, and in the order of its rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pipeline_mutants import Mutant, catch, world
from simulation.pipeline.swarm import Fault

from penstock.ids import Lsn
from penstock.ops.api import Delta
from penstock.plan import row_order
from penstock.plan.nodes import StageInput
from penstock.protocol import markers, shared_time
from penstock.protocol.markers import Heard, Marker
from penstock.runtime import row_merge
from penstock.runtime.row_merge import RowMerge
from penstock.runtime.task_core import TaskCore
from penstock.stream.lanes import Lanes

DEADLY: dict[str, Any] = {"mean_ms": {Fault.KILL: 90, Fault.PAUSE: 150}, "odds": {Fault.LATE: 0.1}}
LANES: dict[str, Any] = {"lanes": 4, "tasks": 3, "workers": 3}
TIME: dict[str, Any] = {**LANES, "shape": "window"}
ORDER: dict[str, Any] = {**LANES, "shape": "last"}
#: Rows of several source entries are in one entry between stages, and a part of them is let go.
BY_HALVES: dict[str, Any] = {**ORDER, **DEADLY, "commit_interval_ms": 30, "entries": 120}


def a_lane_is_read_by_two_tasks(patch: pytest.MonkeyPatch) -> None:
    original = Lanes.of_nodes

    def of_nodes(self: Lanes, nodes: Any) -> Any:
        return {*original(self, nodes), 0}

    patch.setattr(Lanes, "of_nodes", of_nodes)


def a_lane_is_read_by_nobody(patch: pytest.MonkeyPatch) -> None:
    def of_nodes(self: Lanes, nodes: Any) -> Any:
        return tuple(lane for lane in range(self.count - 1) if lane in nodes)

    patch.setattr(Lanes, "of_nodes", of_nodes)


def time_is_taken_where_one_task_has_looked(patch: pytest.MonkeyPatch) -> None:
    def looked_by_all(words: Any) -> Lsn:
        return Lsn(max((0 if word is None else word.looked for word in words), default=0))

    patch.setattr(shared_time, "looked_by_all", looked_by_all)


def time_is_told_without_a_look_at_the_others(patch: pytest.MonkeyPatch) -> None:
    def settle(word: Heard, reached: Lsn) -> Heard:
        times = [ms for _, ms in word.ahead]
        return replace(word, watermark_ms=times[-1], ahead=()) if times else word

    patch.setattr(shared_time, "_settle", settle)


def what_was_told_ahead_is_forgotten_at_resume(patch: pytest.MonkeyPatch) -> None:
    original = markers._encode_heard

    def encode(word: Heard) -> list[Any]:
        return original(replace(word, ahead=()))

    patch.setattr(markers, "_encode_heard", encode)


def the_time_of_what_waits_is_told_at_once(patch: pytest.MonkeyPatch) -> None:
    """Neighbours become one, told by the earlier instead of the later."""

    original = shared_time.hear

    def hear(word: Heard | None, lsn: Lsn, marker: Marker) -> Heard:
        heard = original(word, lsn, marker)
        if len(heard.ahead) < 2:
            return heard
        (looked, _), *_, (_, ms) = heard.ahead
        return replace(heard, ahead=((looked, ms),))

    patch.setattr("penstock.runtime.task_core.hear", hear)


def tasks_that_share_a_source_overtake_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(row_order, "depends_on_order", lambda node: False)


def rows_are_let_go_where_one_task_has_looked(patch: pytest.MonkeyPatch) -> None:
    def looked(self: TaskCore, place: int) -> Lsn:
        leaf = self._inputs[place]
        assert isinstance(leaf, StageInput)
        words = [self._heard.get(name) for name in self._tasks_of(leaf.stage)]
        return Lsn(max((word.looked for word in words if word is not None), default=0))

    patch.setattr(TaskCore, "_looked", looked)


def rows_that_wait_are_let_go_as_they_came(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(row_merge, "sorted_rows", lambda delta, places: delta)


def rows_that_wait_are_forgotten_at_resume(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskCore, "read_from", property(lambda self: self.position))


def rows_that_were_let_go_are_taken_again(patch: pytest.MonkeyPatch) -> None:
    def add(self: RowMerge, lsn: Lsn, delta: Delta, places: row_merge.Places, at: Lsn) -> None:
        self._held.append(row_merge._Held(lsn, delta, places, at))

    patch.setattr(RowMerge, "add", add)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, "marker", swarm)
    for apply, swarm in (
        (a_lane_is_read_by_two_tasks, LANES),
        (a_lane_is_read_by_nobody, LANES),
        (time_is_taken_where_one_task_has_looked, TIME),
        (time_is_told_without_a_look_at_the_others, TIME),
        (what_was_told_ahead_is_forgotten_at_resume, {**TIME, **DEADLY}),
        (the_time_of_what_waits_is_told_at_once, TIME),
        (tasks_that_share_a_source_overtake_each_other, ORDER),
        (rows_are_let_go_where_one_task_has_looked, ORDER),
        (rows_that_wait_are_let_go_as_they_came, ORDER),
        (rows_that_wait_are_forgotten_at_resume, {**ORDER, **DEADLY}),
        (rows_that_were_let_go_are_taken_again, BY_HALVES),
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


@pytest.mark.parametrize(
    "swarm", [TIME, ORDER, {**ORDER, **DEADLY}], ids=["time", "order", "deadly"]
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2))])
def test_worlds_narrowed_for_mutants_are_clean_without_them(
    swarm: dict[str, Any], seed: int
) -> None:
    world(seed, swarm).run()
