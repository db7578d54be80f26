"""Mistakes in a player are noticed, by the search of all orders or by a simulated world."""

from __future__ import annotations

import pytest
from delivery_mutants import MUTANTS, run
from mutant_hunt import SEEDS_MAX, Mutant, hunt, one_of_each_world


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutant.apply(monkeypatch)

    seeds_max = SEEDS_MAX if mutant.protocol == "" else 0
    hunt(mutant, lambda seed: run(mutant, seed), capsys, seeds_max)


@pytest.mark.parametrize(
    "mutant",
    one_of_each_world(one for one in MUTANTS if one.protocol == ""),
    ids=lambda mutant: mutant.name,
)
def test_a_world_that_notices_it_is_clean_without_it(mutant: Mutant) -> None:
    run(mutant, mutant.seed)
