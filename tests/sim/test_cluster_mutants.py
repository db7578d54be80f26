"""Proof that the cluster's simulation can fail: every mutant is caught within a few seeds.

Each mutant is one plausible mistake in the shipped code (cluster_mutants.py). The output says what
was noticed.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from cluster_mutants import MUTANTS
from mutant_hunt import Mutant, hunt, one_of_each_world
from simulation.cluster.swarm import draw_for
from simulation.cluster.world import ClusterWorld
from test_cluster_world import FIXED_SEEDS, PROTOCOLS

SEEDS_MAX = 100


def world(mutant: Mutant, seed: int) -> ClusterWorld:
    """The world of a seed, narrowed to what a mutant needs."""
    drawn = draw_for(mutant.protocol, Random(f"{mutant.protocol}/{seed}"))
    return ClusterWorld(seed, swarm=replace(drawn, **mutant.swarm))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_cluster_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutant.apply(monkeypatch)

    hunt(mutant, lambda seed: world(mutant, seed).run(), capsys, SEEDS_MAX)


@pytest.mark.parametrize("mutant", one_of_each_world(MUTANTS), ids=lambda mutant: mutant.name)
def test_the_world_that_catches_a_mutant_is_clean_without_it(mutant: Mutant) -> None:
    """What was noticed is the mutant's doing."""
    if mutant.swarm or mutant.seed >= FIXED_SEEDS:
        world(mutant, mutant.seed).run()
    else:
        assert mutant.protocol in PROTOCOLS  # test_cluster_world.py runs this very world
