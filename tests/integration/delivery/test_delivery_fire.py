"""A changing result in PostgreSQL and SQLite while players, backends and servers are killed.

Goal: at every moment each table is the committed result at the position that is stored beside it,
and in the end the whole result. Method: see delivery_fire.py; the judge is a fold over what was
committed, which knows nothing of deliveries.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delivery_fire import Stand, stand
from fire_player import MUTANTS
from harness.soak import fresh_seeds

if TYPE_CHECKING:
    from harness.postgres import PostgresServer

FIRE_SECONDS = 7.0
SOAK_KILLS = 60
#: Each by how often it is drawn.
ACTIONS = {
    "kill_player": 8,
    "end_backends": 6,
    "kill_server": 3,
    "add_a_zombie": 2,
    "add_a_rival": 2,
    "restart_postgres": 1,
}


def check(run: Stand) -> None:
    problems = run.problems()
    assert not problems, f"{len(problems)} of {len(run.samples)}: {problems[0]}\n{said(run)}"
    assert {sample.shard for sample in run.samples} == set(range(len(run.databases)))
    assert len({sample.position for sample in run.samples}) > 20, "too little was seen"


def said(run: Stand) -> str:
    return run.errors.read_text()[-2000:] if run.errors.exists() else ""


@pytest.mark.parametrize(
    "keyed",
    [pytest.param(True, id="keyed"), pytest.param(False, id="multiset", marks=pytest.mark.soak)],
)
def test_tables_are_the_result_at_their_positions_whatever_is_killed(
    tmp_path: Path, postgres: PostgresServer, keyed: bool
) -> None:
    with stand(tmp_path, postgres, keyed=keyed, seed=7) as run:
        run.start_player()
        with run.at_work():
            run.await_progress()
            run.burn(FIRE_SECONDS, ACTIONS)
        run.settle()
        check(run)
        print(dict(run.kills), len(run.samples), "looks", len(run.result.commits), "commits")

    assert sum(run.kills.values()) >= 5


@pytest.mark.soak
def test_tables_are_the_result_through_many_kills(tmp_path: Path, postgres: PostgresServer) -> None:
    for number, seed in enumerate(fresh_seeds()):
        place = tmp_path / str(number)
        place.mkdir()
        with stand(place, postgres, keyed=bool(number % 2), seed=seed) as run:
            run.start_player()
            with run.at_work():
                run.await_progress()
                while sum(run.kills.values()) < SOAK_KILLS:
                    run.burn(5.0, ACTIONS)
            run.settle()
            check(run)
            print(dict(run.kills), len(run.samples), "looks", len(run.result.commits), "commits")


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_target_that_breaks_the_rule_is_found_out(
    tmp_path: Path, postgres: PostgresServer, mutant: str
) -> None:
    """Each mistake is made by the shipped command, in the same fire."""
    with stand(tmp_path, postgres, keyed=False, seed=11, mutant=mutant, late=0.3) as run:
        run.start_player()
        with run.at_work():
            run.await_progress()
            for _ in range(20):
                run.burn(1.0, {"kill_player": 1, "add_a_rival": 3})
                if run.problems():
                    return

    pytest.fail(f"{mutant} was not noticed in {len(run.samples)} looks\n{said(run)}")
