"""Proof that the cluster's simulation can fail: every mutant is caught within a few seeds.

Each mutant is one plausible mistake in the shipped code (cluster_mutants.py), which names the first
seed that catches it. If that one does not any more, others are tried; the output says which seed
caught it, and what was noticed.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import ModuleType

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
    for seed in (mutant.seed, *range(SEEDS_MAX)):
        try:
            world(mutant, seed).run()
        except _BROKEN_MUTANT:
            raise
        except Exception as caught:
            if isinstance(caught.__cause__, _BROKEN_MUTANT):
                raise
            what = f"{type(caught).__name__}: {caught}".splitlines()[0]
            moved = "" if seed == mutant.seed else f" (not {mutant.seed}: record the new one)"
            with capsys.disabled():
                print(f"\nmutant {mutant.name!r}: seed {seed}{moved}, {what[:120]}")
            return
    pytest.fail(f"mutant {mutant.name!r} survived {SEEDS_MAX} seeds")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_that_catches_a_mutant_is_clean_without_it(mutant: Mutant) -> None:
    """What was noticed is the mutant's doing."""
    for seed in {mutant.seed, mutant.seed + 1 if mutant.swarm else mutant.seed}:
        world(mutant, seed).run()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_shipped_code(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)

    changed = [owner for owner, _, _ in monkeypatch._setattr]
    assert changed
    for owner in changed:
        module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
        assert module.startswith("penstock.log.")
