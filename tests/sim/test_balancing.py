"""Virtual nodes that go to other tasks, while workers, drivers and the log die.

The worlds of test_rescaling.py, with somebody who finds virtual nodes hot again and again: a stage
keeps its number of tasks, and some of them keep their virtual nodes. Judged by the same laws: I13
by lineage, I11, I15, I18.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from campaign import Campaign, absent, fixed_seeds, only_with, time_for
from pipeline_mutants import Mutant, catch, world
from simulation.pipeline.swarm import Fault
from simulation.pipeline.world import PipelineWorld

from penstock.protocol.markers import Marker
from penstock.protocol.names import TaskId
from penstock.runtime import coordinator, succession
from penstock.runtime.layout import Layout, Share
from penstock.runtime.spec import QuerySpec
from penstock.runtime.succession import Last

FIXED_SEEDS = 6
SEEDS = fixed_seeds(FIXED_SEEDS)
EVENTS = (
    "fault balance", "nodes moved", "stage kept", "instance fenced", "successor taken",
    "fault executor to go",
)  # fmt: skip


def make_world(seed: int) -> PipelineWorld:
    """Every second one has copies. Of three, one is rescaled as well, and in another one executors
    go in good time, so that tasks leave their workers."""
    swarm = PipelineWorld(seed).swarm
    faults = {**swarm.mean_ms, Fault.BALANCE: 100 + 50 * (seed % 3)}
    if seed % 3 == 2:
        faults[Fault.RESCALE] = 400
    if seed % 3 == 1:
        faults[Fault.VACATE] = 250
    changed = replace(swarm, mean_ms=faults, replicas=seed % 2, workers=2 + seed % 2, lanes=4)
    return PipelineWorld(seed, swarm=changed)


def new_campaign() -> Campaign[PipelineWorld]:
    return Campaign("balancing", make_world, "test_balancing.py")


@pytest.fixture(scope="module")
def campaign() -> Campaign[PipelineWorld]:
    campaign = new_campaign()
    campaign.run(SEEDS)
    return campaign


@time_for(SEEDS)
def test_no_law_is_broken_under_any_of_the_fixed_seeds(
    campaign: Campaign[PipelineWorld], capsys: pytest.CaptureFixture[str]
) -> None:
    campaign.check(capsys)


@time_for(SEEDS)
@only_with(FIXED_SEEDS, SEEDS)
def test_every_event_occurred(campaign: Campaign[PipelineWorld]) -> None:
    assert absent(EVENTS, campaign.counts) == []


@pytest.mark.soak
def test_no_law_is_broken_under_fresh_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    new_campaign().run_fresh(capsys)


BALANCED: dict[str, Any] = {
    "workers": 3,
    "lanes": 4,
    "shape": "count",
    "mean_ms": {Fault.BALANCE: 80, Fault.RESCALE: 500, Fault.KILL: 300},
    "odds": {},
}
Lasts = Mapping[TaskId, Last]


def a_task_that_gets_virtual_nodes_keeps_its_name(patch: pytest.MonkeyPatch) -> None:
    """So it goes on without their state."""

    def share_anew(self: Layout, stage: int, nodes: Sequence[frozenset[int]]) -> tuple[Share, ...]:
        shares = self.stages[stage]
        return tuple(Share(one.index, own) for one, own in zip(shares, nodes, strict=True))

    patch.setattr(Layout, "share_anew", share_anew)


def the_new_tasks_begin_without_the_virtual_nodes_that_came(patch: pytest.MonkeyPatch) -> None:
    """Each has the state of the task in whose place it is, and of no other."""
    original = succession.succeed

    def succeed(old: QuerySpec, new: QuerySpec, lasts: Lasts) -> dict[TaskId, Marker]:
        markers = original(old, new, lasts)
        return {task: replace(one, origins=one.origins[:1]) for task, one in markers.items()}

    patch.setattr(coordinator, "succeed", succeed)


def tasks_that_keep_their_virtual_nodes_hear_nothing_of_the_new_ones(
    patch: pytest.MonkeyPatch,
) -> None:
    original = succession.succeed

    def succeed(old: QuerySpec, new: QuerySpec, lasts: Lasts) -> dict[TaskId, Marker]:
        markers = original(old, new, lasts)
        return {
            task: replace(one, heard=lasts[task].marker.heard) if task in lasts else one
            for task, one in markers.items()
        }

    patch.setattr(coordinator, "succeed", succeed)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, "marker", swarm)
    for apply, swarm in (
        (a_task_that_gets_virtual_nodes_keeps_its_name, BALANCED),
        (the_new_tasks_begin_without_the_virtual_nodes_that_came, BALANCED),
        (
            tasks_that_keep_their_virtual_nodes_hear_nothing_of_the_new_ones,
            {**BALANCED, "shape": "window"},
        ),
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


def test_worlds_narrowed_for_mutants_are_clean_without_them() -> None:
    world(0, BALANCED).run()
