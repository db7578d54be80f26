"""Exactly once where stages run in the tasks of their readers, and proof that worlds can fail.

All of a query in one task; or several tasks that read sources in lanes by key, each of them whole.
As in test_exactly_once.py and test_exactly_once_mutants.py.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from campaign import Campaign, fixed_seeds, time_for
from pipeline_mutants import Mutant, catch, world
from simulation.pipeline.world import PipelineWorld
from test_shared_source_mutants import (
    DEADLY,
    time_is_taken_where_one_task_has_looked,
    what_was_told_ahead_is_forgotten_at_resume,
)

from penstock.ops.api import Delta
from penstock.ops.chain import Chain
from penstock.plan.stages import Stage
from penstock.runtime.task_core import TaskCore
from penstock.state.api import State
from penstock.state.memory import MemoryState
from penstock.stream.lanes import Lanes

JOINED: dict[str, Any] = {"tasks": 1}
TIMED: dict[str, Any] = {**JOINED, "shape": "join"}
KEYED: dict[str, Any] = {"lanes": 4, "tasks": 2, "workers": 2, "keyed": True}
KEYED_WINDOWS: dict[str, Any] = {**KEYED, "shape": "window"}
SEEDS = fixed_seeds(5)
SWARMS = {"one task": JOINED, "keyed": KEYED}


def new_campaign(name: str) -> Campaign[PipelineWorld]:
    def make(seed: int) -> PipelineWorld:
        several = {"tasks": 2 + seed % 2 * 2} if name == "keyed" else {}
        made = world(seed, {**SWARMS[name], **several})
        assert made.spec.tasks[:-1] == (0,) * (len(made.spec.tasks) - 1)
        return made

    return Campaign(f"joined stages, {name}", make, "test_joined_stages.py")


@time_for(SEEDS)
@pytest.mark.parametrize("name", SWARMS)
def test_no_law_is_broken_where_stages_run_in_their_readers_tasks(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = new_campaign(name)
    campaign.run(SEEDS)
    campaign.check(capsys)


@pytest.mark.soak
@pytest.mark.parametrize("name", SWARMS)
def test_no_law_is_broken_under_fresh_seeds(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    new_campaign(name).run_fresh(capsys)


def test_a_driver_that_sleeps_while_it_starts_finds_its_claim_trimmed_by_its_successor() -> None:
    new_campaign("one task").make(860263171).run()


# -- mutants


def rows_are_handed_on_twice(patch: pytest.MonkeyPatch) -> None:
    original = Chain._hand_on

    def hand_on(self: Chain, id: int, deltas: list[Delta]) -> None:
        original(self, id, deltas)
        if id != self._last:
            original(self, id, deltas)

    patch.setattr(Chain, "_hand_on", hand_on)


def a_stage_within_tells_no_time(patch: pytest.MonkeyPatch) -> None:
    original = Chain.own_time

    def own_time(self: Chain, id: int) -> tuple[int | None, bool]:
        told_ms, is_idle = original(self, id)
        return (told_ms if id == self._last else None), is_idle

    patch.setattr(Chain, "own_time", own_time)


def the_state_of_a_stage_within_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    def state_of(self: Chain, stage: Stage, state: State) -> State:
        return state if stage.id == self._last else MemoryState()

    patch.setattr(Chain, "_state_of", state_of)


def each_task_takes_its_own_time_for_the_sources(patch: pytest.MonkeyPatch) -> None:
    def time_within(self: TaskCore, stage: int) -> tuple[int | None, bool]:
        return self._pipeline.own_time(stage)

    patch.setattr(TaskCore, "_time_within", time_within)


def rows_of_a_keyed_stream_go_by_turns(patch: pytest.MonkeyPatch) -> None:
    def split(self: Lanes, batch: pa.RecordBatch, turn: int) -> Any:
        yield batch, self.tags(turn % self.count)

    patch.setattr(Lanes, "split", split)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, "marker", swarm)
    for apply, swarm in (
        (rows_are_handed_on_twice, JOINED),
        (a_stage_within_tells_no_time, TIMED),
        (the_state_of_a_stage_within_is_not_kept, TIMED),
        (each_task_takes_its_own_time_for_the_sources, KEYED_WINDOWS),
        (time_is_taken_where_one_task_has_looked, KEYED_WINDOWS),
        (rows_of_a_keyed_stream_go_by_turns, KEYED),
        (what_was_told_ahead_is_forgotten_at_resume, {**KEYED_WINDOWS, **DEADLY}),
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)
