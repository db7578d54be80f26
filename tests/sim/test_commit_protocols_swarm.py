"""Exactly once with the other commit protocols, under the same faults as with markers.

Transactions and aligned checkpoints are there to be compared with: a comparison is worth something
only if they keep their promise too. A failure names its seed and the command that repeats it.
"""

from __future__ import annotations

import os

import pytest
from penstock_bench.protocols.choosing import ProtocolName
from pipeline_campaign import Campaign, run_seeds
from simulation.pipeline.queries import SHAPES
from simulation.pipeline.swarm import Fault
from simulation.pipeline.world import PipelineWorld

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "40"))
FIRST = int(os.environ.get("PENSTOCK_SIM_FIRST", "20"))
#: Below this, a campaign is a repetition of something and says nothing about coverage.
_CAMPAIGN_SEEDS = 40
SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))

EVENTS = (
    "instance claimed",
    "instance fenced",
    "driver fenced",
    "checkpoint used",
    "staged kept",
    "trimmed",
    *(f"shape {shape}" for shape in SHAPES),
)


def check(
    campaign: Campaign, protocol: ProtocolName, missing: set[str], more: tuple[str, ...]
) -> None:
    """No law was broken, and all that can happen has happened."""
    print(f"\n{protocol}, {campaign.seeds} seeds: {campaign.counts}")
    assert not campaign.failures, "\n\n".join(campaign.failures)
    if campaign.seeds >= _CAMPAIGN_SEEDS:
        wanted = {*(f"fault {kind}" for kind in Fault), *EVENTS, *more} - missing
        assert {what for what in wanted if not campaign.counts[what]} == set()


def test_transactions_survive_any_swarm(capsys: pytest.CaptureFixture[str]) -> None:
    campaign = run_seeds(range(FIRST, FIRST + SEEDS), protocol="transaction")

    with capsys.disabled():
        check(campaign, "transaction", set(), ("checkpoint unusable", "staged fetched"))


def test_aligned_checkpoints_survive_any_swarm(capsys: pytest.CaptureFixture[str]) -> None:
    """But damaged checkpoints: a task's part of the last one is all there is of its state. And
    nothing is trimmed (runtime/trim.py)."""
    campaign = run_seeds(range(FIRST, FIRST + SEEDS), protocol="aligned")

    with capsys.disabled():
        missing = {f"fault {Fault.CHECKPOINT}", "trimmed"}
        check(campaign, "aligned", missing, ("aligned checkpoint", "held"))


@pytest.mark.parametrize("protocol", ["transaction", "aligned"])
def test_the_same_seed_gives_the_same_trace(protocol: ProtocolName) -> None:
    hashes = set()
    for _ in range(2):
        world = PipelineWorld(1, protocol=protocol)
        world.run()
        hashes.add(world.scheduler.trace_hash)

    assert len(hashes) == 1


@pytest.mark.soak
@pytest.mark.parametrize("protocol", ["transaction", "aligned"])
def test_no_law_is_broken_under_fresh_seeds(
    protocol: ProtocolName, capsys: pytest.CaptureFixture[str]
) -> None:
    first = int.from_bytes(os.urandom(4), "little")

    campaign = run_seeds(range(first, first + 10**9), seconds=SOAK_SECONDS, protocol=protocol)

    with capsys.disabled():
        print(f"\n{protocol}, seeds from {first}: {campaign.seeds} seeds, {campaign.steps} steps")
    assert not campaign.failures, "\n\n".join(campaign.failures)
