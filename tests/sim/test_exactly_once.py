"""Exactly once under simulated faults: a query's tasks, workers, drivers, log and store in one
thread (protocols P5 and P9), fixed seeds on every run, fresh ones in long runs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from campaign import Campaign, absent, check_world_traces, fixed_seeds, only_with, time_for
from simulation.pipeline.laws import check_all
from simulation.pipeline.queries import SHAPES
from simulation.pipeline.swarm import ASKED_FOR, Fault, Swarm
from simulation.pipeline.world import PipelineWorld

#: In every run; long ones have fresh seeds.
FIXED_SEEDS = 31
SEEDS = fixed_seeds(FIXED_SEEDS)
#: Instances per task in worlds whose workers or drivers are struck.
INSTANCES_MIN = 3.0

EVENTS = (
    "instance claimed",
    "instance fenced",
    "driver fenced",
    "flushed early",
    "staged fetched",
    "checkpoint used",
    "checkpoint unusable",
    "copy unusable",
    "trimmed",
    "trimmed by hand",
    "commit cut by a trim",
    *(f"shape {shape}" for shape in SHAPES),
)


def new_campaign() -> Campaign[PipelineWorld]:
    return Campaign("exactly once", PipelineWorld, "test_exactly_once.py")


@pytest.fixture(scope="module")
def instances() -> list[int]:
    """Per task of a world with lethal faults, how many ran."""
    return []


@pytest.fixture(scope="module")
def campaign(instances: list[int]) -> Campaign[PipelineWorld]:
    def look(world: PipelineWorld) -> None:
        if world.counts["fault kill"] + world.counts["fault driver"] > 2:
            instances.extend(len(lives) for lives in world.story.instances.values())

    campaign = new_campaign()
    campaign.look = look
    campaign.run(SEEDS)
    return campaign


@time_for(SEEDS)
def test_no_law_is_broken_under_any_of_the_fixed_seeds(
    campaign: Campaign[PipelineWorld], capsys: pytest.CaptureFixture[str]
) -> None:
    campaign.check(capsys)


@time_for(SEEDS)
@only_with(FIXED_SEEDS, SEEDS)
def test_every_fault_and_every_event_occurred(campaign: Campaign[PipelineWorld]) -> None:
    elsewhere = (Fault.MOVE, *ASKED_FOR)
    wanted = [f"fault {kind}" for kind in Fault if kind not in elsewhere]
    assert absent([*wanted, *EVENTS], campaign.counts) == []


@time_for(SEEDS)
@only_with(FIXED_SEEDS, SEEDS)
def test_tasks_had_several_instances_where_workers_and_drivers_died(
    campaign: Campaign[PipelineWorld], instances: list[int]
) -> None:
    assert sum(instances) / len(instances) >= INSTANCES_MIN


@time_for(SEEDS)
def test_the_same_seed_gives_the_same_trace_in_every_process(
    campaign: Campaign[PipelineWorld],
) -> None:
    check_world_traces(PipelineWorld, 4, [campaign.trace(seed) for seed in range(4)])


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(s, marks=pytest.mark.soak) for s in (3, 4, 5))]
)
def test_rows_of_a_key_are_taken_in_the_order_of_their_source(seed: int) -> None:
    PipelineWorld(seed, swarm=replace(PipelineWorld(seed).swarm, shape="last")).run()


@pytest.mark.parametrize("ms", [0.5, 2.0, 4.0])
def test_another_driver_may_come_while_the_query_catches_up(ms: float) -> None:
    """Seeds 135 and 163 with transactions: what a driver was asked for when it was replaced is
    asked of the next one."""
    world = PipelineWorld(1, swarm=Swarm(entries=8, safety_ms=200))
    with world.open():
        world.populate()
        world.run_for(0.3)
        world.heal()
        world.scheduler.after(ms / 1000, world.start_driver)
        world.catch_up()
        world.stop()

    assert world.counts["driver fenced"] == 1
    check_all(world)


@pytest.mark.soak
def test_no_law_is_broken_under_fresh_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    new_campaign().run_fresh(capsys)
