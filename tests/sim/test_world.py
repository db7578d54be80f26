"""The log under simulated faults: fixed seeds on every run, fresh ones in long runs.

A failure names its seed and the one command that repeats it. What a campaign never met was not
tested: a fault, message or event that did not occur fails it too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from simulation.log.swarm import Fault
from simulation.log.world import World

from penstock.wire.messages import MESSAGES, GetStatus, Ping, Pong, Status

#: Seeds of every run; `PENSTOCK_SIM_SEEDS=5000` looks further, `PENSTOCK_SIM_FIRST=n` elsewhere.
SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "1000"))
FIRST = int(os.environ.get("PENSTOCK_SIM_FIRST", "0"))
#: Below this, a campaign is a repetition of something and says nothing about coverage.
_CAMPAIGN_SEEDS = 100
SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
_TRACE_LINES = 40

#: Status is for people, a ping only asks who is there: they promise nothing that could be checked.
_UNCHECKED = {GetStatus, Status, Ping, Pong}
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


@dataclass
class Campaign:
    """What happened over many seeds."""

    counts: Counter[str] = field(default_factory=Counter)
    seeds: int = 0
    steps: int = 0
    failures: list[str] = field(default_factory=list)


def run_seeds(seeds: Iterable[int], *, seconds: float = 1e9, failures_max: int = 3) -> Campaign:
    """Run worlds until the seeds or the time or the patience run out."""
    campaign = Campaign()
    deadline = time.monotonic() + seconds
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            campaign.failures.append(story_of(world, error))
        campaign.counts += world.counts
        campaign.seeds += 1
        campaign.steps += world.steps
        if len(campaign.failures) == failures_max or time.monotonic() > deadline:
            break
    return campaign


def story_of(world: World, error: Exception) -> str:
    """Everything that is needed to look at a failure."""
    command = f"PENSTOCK_SIM_FIRST={world.seed} PENSTOCK_SIM_SEEDS=1 pytest tests/sim/test_world.py"
    lines = "\n  ".join(world.scheduler.trace_lines(_TRACE_LINES))
    return (
        f"seed {world.seed}: {type(error).__name__}: {error}\nrepeat with: {command}\n"
        f"swarm: {world.swarm}\nlast of {len(world.scheduler.trace)} trace lines:\n  {lines}"
    )


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    return run_seeds(range(FIRST, FIRST + SEEDS))


def test_no_law_is_broken_under_any_of_the_fixed_seeds(
    campaign: Campaign, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nsimulated seeds {FIRST} to {FIRST + campaign.seeds - 1}: {campaign.steps} steps")
    assert not campaign.failures, "\n\n".join(campaign.failures)


@pytest.mark.skipif(SEEDS < _CAMPAIGN_SEEDS, reason="a few seeds cannot meet everything")
def test_every_fault_every_message_and_every_event_occurred(campaign: Campaign) -> None:
    wanted = [f"fault {kind}" for kind in Fault]
    wanted += [
        f"message {message.__name__}" for message in MESSAGES.values() if message not in _UNCHECKED
    ]
    wanted += EVENTS

    assert [what for what in wanted if not campaign.counts[what]] == []


def test_the_same_seed_gives_the_same_trace() -> None:
    for seed in range(FIRST, FIRST + 10):
        first, second = World(seed), World(seed)
        first.run()
        second.run()
        assert first.trace_hash == second.trace_hash, f"seed {seed}"


def test_the_trace_depends_on_nothing_but_the_seed() -> None:
    """Another process, with other hash seeds: no set or dict order may leak into what happens."""
    program = (
        "from simulation.log.world import World\n"
        "for seed in range(3):\n"
        "    world = World(seed); world.run(); print(world.trace_hash)\n"
    )
    hashes = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]

    assert hashes[0] == hashes[1]
    assert len(hashes[0].split()) == 3


@pytest.mark.soak
def test_no_law_is_broken_under_fresh_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    first = int.from_bytes(os.urandom(4), "little")

    campaign = run_seeds(range(first, first + 10**9), seconds=SOAK_SECONDS)

    with capsys.disabled():
        print(f"\nsimulated seeds from {first}: {campaign.seeds} seeds, {campaign.steps} steps")
    assert not campaign.failures, "\n\n".join(campaign.failures)
