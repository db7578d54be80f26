"""Proof that the cluster's simulation can fail: every mutant is caught within a few seeds.

Each mutant is one plausible mistake in the real code (cluster_mutants.py); the output says after
how many seeds, and by what, it was caught.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from cluster_mutants import MUTANTS, Mutant
from simulation.cluster.swarm import draw_for
from simulation.cluster.world import ClusterWorld

SEEDS_MAX = 100
#: Mistakes in a mutant itself, not in what it does to the log.
_BROKEN_MUTANT = (TypeError, AttributeError, NameError, ImportError)


def world(mutant: Mutant, seed: int) -> ClusterWorld:
    """The world of a seed, narrowed to what a mutant needs."""
    drawn = draw_for(mutant.protocol, Random(f"{mutant.protocol}/{seed}"))
    return ClusterWorld(seed, swarm=replace(drawn, **mutant.swarm))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_cluster_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutant.apply(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            world(mutant, seed).run()
        except _BROKEN_MUTANT:
            raise
        except Exception as caught:
            if isinstance(caught.__cause__, _BROKEN_MUTANT):
                raise
            what = f"{type(caught).__name__}: {caught}".splitlines()[0]
            with capsys.disabled():
                print(f"\nmutant {mutant.name!r}: {seed + 1} seeds, {what[:120]}")
            return
    pytest.fail(f"mutant {mutant.name!r} survived {SEEDS_MAX} seeds")


@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.swarm], ids=lambda mutant: mutant.name
)
def test_worlds_narrowed_for_a_mutant_are_clean_without_it(mutant: Mutant) -> None:
    for seed in range(2):
        world(mutant, seed).run()
