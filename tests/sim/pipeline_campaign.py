"""Many seeds of a simulated query, and what happened in all of them: for tests of exactly once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock_bench.protocols.choosing import ProtocolName
from simulation.pipeline.world import PipelineWorld

_TRACE_LINES = 40


@dataclass
class Campaign:
    """What happened over many seeds."""

    counts: Counter[str] = field(default_factory=Counter)
    seeds: int = 0
    steps: int = 0
    #: Per task of a world with lethal faults, how many instances ran.
    instances: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run_seeds(
    seeds: Iterable[int],
    *,
    seconds: float = 1e9,
    failures_max: int = 3,
    protocol: ProtocolName = "marker",
) -> Campaign:
    """Run worlds until the seeds or the time or the patience run out."""
    campaign = Campaign()
    deadline = time.monotonic() + seconds
    for seed in seeds:
        world = PipelineWorld(seed, protocol=protocol)
        try:
            world.run()
        except Exception as error:
            campaign.failures.append(story_of(world, error))
        campaign.counts += world.counts
        campaign.counts[f"shape {world.swarm.shape}"] += 1
        campaign.seeds += 1
        campaign.steps += world.scheduler.steps
        if world.counts["fault kill"] + world.counts["fault driver"] > 2:
            campaign.instances += [len(one) for one in world.story.instances.values()]
        if len(campaign.failures) == failures_max or time.monotonic() > deadline:
            break
    return campaign


def story_of(world: PipelineWorld, error: Exception) -> str:
    """Everything that is needed to look at a failure."""
    is_marker = world.swarm.protocol == "marker"
    file = "test_exactly_once.py" if is_marker else "test_commit_protocols_swarm.py"
    command = f"PENSTOCK_SIM_FIRST={world.seed} PENSTOCK_SIM_SEEDS=1 pytest tests/sim/{file}"
    lines = "\n  ".join(world.scheduler.trace_lines(_TRACE_LINES))
    return (
        f"seed {world.seed}: {type(error).__name__}: {error}\nrepeat with: {command}\n"
        f"swarm: {world.swarm}\nlast of {len(world.scheduler.trace)} trace lines:\n  {lines}"
    )
