"""The replicated log under simulated faults: fixed seeds on every run, fresh ones in long runs.

One campaign per protocol of the log (reliability 2.3), each with the options that stress it:

P1  append, ack quorum, LAC        nodes killed, cut off, slow, wiped, damaged; one owner
P2  fence, recovery, seal          owners that die and sleep, and rivals that take the log unasked
P3  ownership, roll, metadata      sessions that end, lost requests and replies, tiny segments
P4  tags, indexes, trim            a trimmer, four readers, caches that hold nothing
P6  idempotent producers           failovers while groups are in flight, late requests, zombies

and two more: "losses" of disks (a bit in other blocks on two nodes, a segment file: a block with a
good copy is readable all the same, and the log opens); and "limits" on bytes in flight of a few
blocks, met by large groups and large state, and by nodes that refuse.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from campaign import Campaign, absent, check_world_traces, fixed_seeds, only_with, time_for
from harness.soak import SOAK_SECONDS
from simulation.cluster.swarm import Fault, draw_for
from simulation.cluster.world import ClusterWorld

PROTOCOLS = ("P1", "P2", "P3", "P4", "P6", "losses", "limits")
#: Of each protocol, in every run.
FIXED_SEEDS = 10
SEEDS = fixed_seeds(FIXED_SEEDS)

#: Things that must have happened in all campaigns together, beyond every fault.
EVENTS = (
    "acked",
    "answer GuardFailed",
    "answer duplicate",
    "block waited for room",
    "crowded node read on",
    "gave up",
    "journal torn",
    "late request",
    "log followed",
    "log opened",
    "node fsync failed",
    "node refused a block",
    "reader trimmed",
    "repair begun",
    "rival opened",
    "session expired in a pause",
    "session lost",
    "silent node given up",
    "silent proxy left",
    "told StaleInstance",
    "told Unknown",
    "trimmed",
    "write cut",
    "write kept",
    "zombie stopped",
)


def new_campaign(protocol: str) -> Campaign[ClusterWorld]:
    def make(seed: int) -> ClusterWorld:
        return ClusterWorld(seed, swarm=draw_for(protocol, Random(f"{protocol}/{seed}")))

    return Campaign(protocol, make, f"test_cluster_world.py -k {protocol}")


@pytest.fixture(scope="module")
def met() -> Counter[str]:
    """Faults and events of all campaigns of this run."""
    return Counter()


@time_for(SEEDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_law_is_broken_under_any_of_the_fixed_seeds(
    protocol: str, met: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = new_campaign(protocol)
    campaign.run(SEEDS)

    met.update(campaign.counts)
    campaign.check(capsys)


@only_with(FIXED_SEEDS, SEEDS)
def test_every_fault_and_every_event_occurred(met: Counter[str]) -> None:
    if not met:
        pytest.skip("the campaigns were not run")

    assert absent([*(f"fault {kind}" for kind in Fault), *EVENTS], met) == []


def test_who_waits_for_a_log_that_a_stopping_proxy_opens_is_told_so() -> None:
    """It was told that it had been cancelled itself."""
    new_campaign("P2").make(233).run()


def test_a_map_that_nobody_waits_for_any_more_may_fail_to_load() -> None:
    """Its error was nobody's."""
    new_campaign("P6").make(200253).run()


def test_the_trace_depends_on_nothing_but_the_seed() -> None:
    check_world_traces(ClusterWorld, 4)


@pytest.mark.soak
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_law_is_broken_under_fresh_seeds(
    protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new_campaign(protocol).run_fresh(capsys, SOAK_SECONDS / len(PROTOCOLS))
