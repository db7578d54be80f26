"""Mistakes made on purpose, and worlds that must notice: for the tests of commit protocols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from penstock_bench.protocols.choosing import ProtocolName
from simulation.pipeline.swarm import draw_swarm
from simulation.pipeline.world import PipelineWorld

SEEDS_MAX = 300
#: Mistakes in a mutant itself, not in what it does to the engine.
_BROKEN_MUTANT = (TypeError, AttributeError, NameError, ImportError)
#: The world that runs.
WORLDS: list[PipelineWorld] = []


@dataclass(frozen=True)
class Mutant:
    """One mistake: a sentence, how to make it, and what its worlds need."""

    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    swarm: dict[str, Any] = field(default_factory=dict)
    protocol: ProtocolName = "marker"
    #: The first seed: the hunt for a rare race begins near one that was found.
    first: int = 0


def world(seed: int, changes: dict[str, Any], protocol: ProtocolName = "marker") -> PipelineWorld:
    """The world of a seed, narrowed to what a mutant needs."""
    swarm = replace(draw_swarm(Random(seed), protocol), **changes) if changes else None
    made = PipelineWorld(seed, swarm=swarm, protocol=protocol)
    WORLDS[:] = [made]
    return made


def catch(mutant: Mutant, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if no world notices; says after how many seeds, and by which law, one did."""
    mutant.apply(patch)
    for seed in range(mutant.first, mutant.first + SEEDS_MAX):
        try:
            world(seed, mutant.swarm, mutant.protocol).run()
        except _BROKEN_MUTANT:
            raise
        except Exception as caught:
            what = f"{type(caught).__name__}: {caught}".splitlines()[0]
            with capsys.disabled():
                print(f"\nmutant {mutant.name!r}: {seed - mutant.first + 1} seeds, {what[:120]}")
            return
    pytest.fail(f"mutant {mutant.name!r} survived {SEEDS_MAX} seeds")
