"""The worlds that catch mutants of queries break no law without them.

Else a world that fails by itself would count as a catch, and its mutant would live on unseen.
"""

from __future__ import annotations

import pytest
import test_balancing
import test_commit_protocols_mutants
import test_exactly_once_mutants
import test_increment_mutants
import test_joined_stages
import test_rescaling_mutants
import test_shared_source_mutants
import test_standby_mutants
from pipeline_mutants import Mutant, world

MUTANTS = [
    mutant
    for module in (
        test_balancing,
        test_commit_protocols_mutants,
        test_exactly_once_mutants,
        test_increment_mutants,
        test_joined_stages,
        test_rescaling_mutants,
        test_shared_source_mutants,
        test_standby_mutants,
    )
    for mutant in module.MUTANTS
]


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_world_that_catches_a_mutant_is_clean_without_it(mutant: Mutant) -> None:
    world(mutant.seed, mutant.swarm, mutant.protocol).run()
