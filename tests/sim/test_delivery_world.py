"""A delivery under simulated faults (P8): shipped players and log, four tables that crash and are
restored, fixed seeds on every run, fresh ones in long runs.
"""

from __future__ import annotations

import pytest
from campaign import Campaign, absent, check_world_traces, fixed_seeds, only_with, time_for
from simulation.delivery.swarm import Fault
from simulation.delivery.world import DeliveryWorld

FIXED_SEEDS = 20
SEEDS = fixed_seeds(FIXED_SEEDS)

EVENTS = (
    "batch applied",
    "batch refused",
    "position moved",
    "own read",
    "joined behind a read",
    "dead letter",
    "trimmed",
    "restored below the trim point",
    "target fenced",
    "player ended by Fenced",
    "other targets",
    "row given away",
)


def new_campaign() -> Campaign[DeliveryWorld]:
    return Campaign("delivery", DeliveryWorld, "test_delivery_world.py")


@pytest.fixture(scope="module")
def campaign() -> Campaign[DeliveryWorld]:
    campaign = new_campaign()
    campaign.run(SEEDS)
    return campaign


@time_for(SEEDS)
def test_no_law_is_broken_under_any_of_the_fixed_seeds(
    campaign: Campaign[DeliveryWorld], capsys: pytest.CaptureFixture[str]
) -> None:
    campaign.check(capsys)


@time_for(SEEDS)
@only_with(FIXED_SEEDS, SEEDS)
def test_every_fault_and_every_event_occurred(campaign: Campaign[DeliveryWorld]) -> None:
    wanted = [*(f"fault {kind}" for kind in Fault), *EVENTS]

    assert absent(wanted, campaign.counts) == []


@time_for(SEEDS)
def test_the_same_seed_gives_the_same_trace_in_every_process(
    campaign: Campaign[DeliveryWorld],
) -> None:
    check_world_traces(DeliveryWorld, 4, [campaign.trace(seed) for seed in range(4)])


@pytest.mark.soak
def test_no_law_is_broken_under_fresh_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    new_campaign().run_fresh(capsys)
