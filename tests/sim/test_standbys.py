"""Copies of state under simulated faults: tasks are moved and lost while others keep their state.

The worlds of test_exactly_once.py, with standbys (runtime/standby.py) and somebody who moves tasks
by hand, again and again: workers, drivers and the log die at every step of a move (protocol P7).
Every instance that begins with a copy is checked against the fold of its task's input (I11, R33).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from campaign import Campaign, absent, fixed_seeds, only_with, time_for
from simulation.pipeline.swarm import Fault
from simulation.pipeline.world import PipelineWorld

SEEDS = fixed_seeds(8)
EVENTS = ("standby taken", "task yielded", "instance fenced", "fault move")


def make_world(seed: int) -> PipelineWorld:
    swarm = PipelineWorld(seed).swarm
    moved = {**swarm.mean_ms, Fault.MOVE: 60 + 40 * (seed % 5)}
    workers = max(2, swarm.workers)
    return PipelineWorld(seed, swarm=replace(swarm, replicas=1, workers=workers, mean_ms=moved))


def new_campaign() -> Campaign[PipelineWorld]:
    return Campaign("standbys", make_world, "test_standbys.py")


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
@only_with(8, SEEDS)
def test_every_event_occurred(campaign: Campaign[PipelineWorld]) -> None:
    assert absent(EVENTS, campaign.counts) == []


@pytest.mark.soak
def test_no_law_is_broken_under_fresh_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    new_campaign().run_fresh(capsys)
