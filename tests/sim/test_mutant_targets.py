"""Every mutant of every simulator is a mistake in shipped code, not in the simulator."""

from __future__ import annotations

from collections.abc import Callable

import cluster_mutants
import delivery_mutants
import log_mutants
import pytest
import test_balancing as balancing
import test_commit_protocols_mutants as rivals
import test_exactly_once_mutants as markers
import test_increment_mutants as increments
import test_joined_stages as joined
import test_rescaling_mutants as rescaling
import test_shared_source_mutants as sources
import test_standby_mutants as standbys
import test_strange_reports as reports
import test_suspended as suspended
from mutant_hunt import foreign_homes
from simulation.log.world import World

Apply = Callable[[pytest.MonkeyPatch], None]

#: The mutants of each simulator, by what they are called.
MUTANTS: list[tuple[str, Apply]] = [
    *((f"log: {mutant.name}", mutant.apply) for mutant in log_mutants.MUTANTS),
    *((f"cluster: {mutant.name}", mutant.apply) for mutant in cluster_mutants.MUTANTS),
    *((f"deliveries: {mutant.name}", mutant.apply) for mutant in delivery_mutants.MUTANTS),
    *((f"markers: {mutant.name}", mutant.apply) for mutant in markers.MUTANTS),
    *((f"sources: {mutant.name}", mutant.apply) for mutant in sources.MUTANTS),
    *((f"joined: {mutant.name}", mutant.apply) for mutant in joined.MUTANTS),
    *((f"increments: {mutant.name}", mutant.apply) for mutant in increments.MUTANTS),
    *((f"rescaling: {mutant.name}", mutant.apply) for mutant in rescaling.MUTANTS),
    *((f"standbys: {mutant.name}", mutant.apply) for mutant in standbys.MUTANTS),
    *((f"balancing: {mutant.name}", mutant.apply) for mutant in balancing.MUTANTS),
    *((f"suspended: {mutant.name}", mutant.apply) for mutant in suspended.MUTANTS),
    *((f"reports: {mutant.name}", mutant.apply) for mutant in reports.MUTANTS),
    *((f"rivals: {mutant.name}", mutant.apply) for mutant in [*rivals.MUTANTS, *rivals.RARE]),
]


@pytest.mark.parametrize(("name", "apply"), MUTANTS, ids=[name for name, _ in MUTANTS])
def test_a_mutant_changes_shipped_code_only(name: str, apply: Apply) -> None:
    assert foreign_homes(apply) == []


def test_a_mutant_of_a_simulator_would_be_noticed() -> None:
    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(World, "run", lambda self: None)

    assert foreign_homes(apply) == ["simulation.log.world"]
