"""Proof that the simulation can fail: every mutant of the log is caught.

A checker that never complained proves nothing. Each mutant is one plausible mistake in the real
code (log_mutants.py); the output says by what it was caught.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from log_mutants import MUTANTS
from mutant_hunt import Mutant, hunt, one_of_each_world
from simulation.log.swarm import draw_swarm
from simulation.log.world import World
from test_world import FIXED_SEEDS


def world(seed: int, changes: dict[str, Any]) -> World:
    """The world of a seed, narrowed to what a mutant needs."""
    return World(seed, swarm=replace(draw_swarm(Random(seed)), **changes) if changes else None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutant.apply(monkeypatch)

    hunt(mutant, lambda seed: world(seed, mutant.swarm).run(), capsys)


@pytest.mark.parametrize("mutant", one_of_each_world(MUTANTS), ids=lambda mutant: mutant.name)
def test_the_world_that_catches_a_mutant_is_clean_without_it(mutant: Mutant) -> None:
    """What was noticed is the mutant's doing."""
    if mutant.swarm or mutant.seed >= FIXED_SEEDS:
        world(mutant.seed, mutant.swarm).run()
    # Else test_world.py runs this very world.


@pytest.mark.soak
@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.swarm], ids=lambda mutant: mutant.name
)
def test_worlds_narrowed_for_a_mutant_are_clean_without_it(mutant: Mutant) -> None:
    for seed in range(5):
        world(seed, mutant.swarm).run()
