"""Exactly once with the other commit protocols, under the same faults as with markers.

Transactions and aligned checkpoints are there to be compared with: a comparison is worth something
only if they keep their promise too.
"""

from __future__ import annotations

from functools import partial

import pytest
from campaign import Campaign, absent, fixed_seeds, time_for, trace_of
from penstock_bench.protocols.choosing import ProtocolName
from simulation.pipeline.queries import SHAPES
from simulation.pipeline.swarm import ASKED_FOR, Fault
from simulation.pipeline.world import PipelineWorld

SEEDS = fixed_seeds(3, first=20)

EVENTS = (
    "instance claimed",
    "instance fenced",
    "driver fenced",
    "checkpoint used",
    "staged kept",
    "trimmed",
    *(f"shape {shape}" for shape in SHAPES),
)


WANTED = {*(f"fault {kind}" for kind in Fault if kind not in ASKED_FOR), *EVENTS}
#: What must have happened in a campaign. With aligned checkpoints none is damaged: a task's part of
#: the last one is all there is of its state. And nothing is trimmed (runtime/trim.py).
WANTED_OF: dict[ProtocolName, set[str]] = {
    "transaction": {*WANTED, "checkpoint unusable", "staged fetched"},
    "aligned": {*WANTED, "aligned checkpoint", "held"} - {f"fault {Fault.CHECKPOINT}", "trimmed"},
}
each_protocol = pytest.mark.parametrize("protocol", WANTED_OF)


def new_campaign(protocol: ProtocolName) -> Campaign[PipelineWorld]:
    test = f"test_commit_protocols_swarm.py -k {protocol}"
    return Campaign(protocol, partial(PipelineWorld, protocol=protocol), test)


@time_for(SEEDS)
@each_protocol
def test_a_protocol_survives_any_swarm(
    protocol: ProtocolName, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = new_campaign(protocol)
    campaign.run(SEEDS)

    campaign.check(capsys)
    if len(SEEDS) >= 25:
        assert absent(sorted(WANTED_OF[protocol]), campaign.counts) == []


@each_protocol
def test_the_same_seed_gives_the_same_trace(protocol: ProtocolName) -> None:
    traces = {trace_of(PipelineWorld(1, protocol=protocol)) for _ in range(2)}

    assert len(traces) == 1


@pytest.mark.soak
@each_protocol
def test_no_law_is_broken_under_fresh_seeds(
    protocol: ProtocolName, capsys: pytest.CaptureFixture[str]
) -> None:
    new_campaign(protocol).run_fresh(capsys)
