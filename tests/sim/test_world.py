"""The log under simulated faults: fixed seeds on every run, fresh ones in long runs."""

from __future__ import annotations

import pytest
from campaign import (
    Campaign,
    absent,
    check_world_traces,
    fixed_seeds,
    only_with,
    time_for,
    trace_of,
)
from simulation.log.swarm import Fault
from simulation.log.world import World

from penstock.wire.messages import (
    MESSAGES,
    Challenge,
    GetMetrics,
    GetStatus,
    Meet,
    MeetAs,
    MetricsText,
    Ping,
    Pong,
    Status,
)

#: In every run.
FIXED_SEEDS = 100
SEEDS = fixed_seeds(FIXED_SEEDS)

#: Status and metrics are for people, a ping only asks who is there: they promise nothing that could
#: be checked. Without the first two messages of a connection no other would ever come.
_UNCHECKED = {GetStatus, Status, GetMetrics, MetricsText, Ping, Pong, Meet, MeetAs, Challenge}
#: Things that must have happened in a campaign, beyond every fault and every message.
EVENTS = (
    "answer GuardFailed",
    "answer SeqGap",
    "answer StaleInstance",
    "answer Trimmed",
    "answer Unavailable",
    "answer duplicate",
    "answer old duplicate",
    "claim lost to a rival",
    "connection silenced",
    "fsync failed",
    "gave up",
    "inline write",
    "late request",
    "lost in flight",
    "no descriptor left for sockets",
    "read behind",
    "read failed",
    "reader left",
    "reader trimmed",
    "retired",
    "roll",
    "segment cooled",
    "segment finished",
    "segment trimmed",
    "told DeadlineExceeded",
    "told Unknown",
    "torn tail cut",
    "trimmed by age",
    "unsynced at power cut",
    "zombie stopped",
)


def new_campaign() -> Campaign[World]:
    return Campaign("log", World, "test_world.py")


@pytest.fixture(scope="module")
def campaign() -> Campaign[World]:
    campaign = new_campaign()
    campaign.run(SEEDS)
    return campaign


@time_for(SEEDS)
def test_no_law_is_broken_under_any_of_the_fixed_seeds(
    campaign: Campaign[World], capsys: pytest.CaptureFixture[str]
) -> None:
    campaign.check(capsys)


@time_for(SEEDS)
@only_with(FIXED_SEEDS, SEEDS)
def test_every_fault_every_message_and_every_event_occurred(campaign: Campaign[World]) -> None:
    wanted = [f"fault {kind}" for kind in Fault]
    wanted += [
        f"message {message.__name__}" for message in MESSAGES.values() if message not in _UNCHECKED
    ]
    wanted += EVENTS

    assert absent(wanted, campaign.counts) == []


@time_for(SEEDS)
def test_the_same_seed_gives_the_same_trace(campaign: Campaign[World]) -> None:
    for seed in SEEDS[:10]:
        assert trace_of(World(seed)) == campaign.trace(seed), f"seed {seed}"


@time_for(SEEDS)
def test_the_trace_depends_on_nothing_but_the_seed(campaign: Campaign[World]) -> None:
    check_world_traces(World, 3, [campaign.trace(seed) for seed in range(3)])


@pytest.mark.soak
def test_no_law_is_broken_under_fresh_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    new_campaign().run_fresh(capsys)
