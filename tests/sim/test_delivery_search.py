"""Small-scope search (P8): every order of what can happen between players and targets.

The real PlayerCore and TargetQueue, targets that do what api.py says, a log of three entries. The
scopes that every run visits as a whole: two players, of which one is a zombie, and two targets,
with a late answer; the same with a fault, in a log of two entries; two players and one target, or
one player, its successor and two targets, with a fault and a late answer. Long runs have a fault
for two players and two targets, or two of them.

What must hold is in simulation/delivery/search.py. That it can be broken is seen by what the paper
says of its targets (LogPlayer 2.1), and by what terms at the targets can and cannot do.
"""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from delivery_mutants import resume_at_the_last_ack
from simulation.delivery.search import Search
from simulation.delivery.small_player import LOG, MOVING, MOVING_LOG, NARROW_LOG
from simulation.delivery.small_world import Scope

ALL_STATES = {"S", "RF", "FC", "N"}
CUT = frozenset({"cut"})
#: Two players and one target, whose queue holds several batches.
NARROW = Scope(log=NARROW_LOG, queue_bytes_max=3)


def search(scope: Scope, capsys: pytest.CaptureFixture[str]) -> Search:
    """All of it; fails if a law is broken."""
    found = Search(scope).run()
    with capsys.disabled():
        told = [one.name for one in fields(scope) if getattr(scope, one.name) != one.default]
        words = ", ".join(
            f"{name} {getattr(scope, name)}" for name in told if name not in ("log", "layout")
        )
        print(f"\n{found.states} states, {found.steps} steps, {len(scope.log)} entries, {words}")
    assert not found.problem, f"{found.problem}, after {found.story}"
    assert found.is_complete
    return found


def test_a_zombie_and_its_successor_deliver_once_and_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two players, two targets, an answer that comes late."""
    found = search(Scope(faults=0), capsys)

    assert found.queue_states == ALL_STATES
    assert found.states > 100_000


@pytest.mark.soak
def test_a_fault_in_addition_in_a_shorter_log(capsys: pytest.CaptureFixture[str]) -> None:
    found = search(Scope(log=LOG[:2], delays=0), capsys)

    assert found.queue_states == ALL_STATES
    assert found.states > 100_000


def test_without_terms_the_comparison_alone_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    """Two players that nobody stops, one target; a fault, and an answer that comes late."""
    found = search(replace(NARROW, knows_terms=False), capsys)

    assert found.states > 10_000


@pytest.mark.parametrize("window", [1, 2])
def test_batches_in_flight_may_come_in_any_order(
    window: int, capsys: pytest.CaptureFixture[str]
) -> None:
    search(replace(NARROW, window=window), capsys)


def test_whatever_befalls_a_player_or_its_targets_all_get_to_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One player and its successor, two targets; a fault, and an answer that comes late."""
    found = search(Scope(players=1), capsys)

    assert found.queue_states == ALL_STATES
    assert found.states > 40_000


# ---- other shards: a row moves from one target to another


@pytest.mark.parametrize("players", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_rows_that_move_are_in_one_table_and_all_get_to_the_end(
    players: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A player and its successors with two faults; or two players with one. A late answer."""
    scope = Scope(log=MOVING_LOG, layout=MOVING, players=players, faults=3 - players)
    found = search(replace(scope, kinds=scope.kinds - {"restore"}), capsys)

    assert found.queue_states == ALL_STATES
    assert found.states > 10_000


def test_a_target_that_gave_rows_away_may_be_restored(capsys: pytest.CaptureFixture[str]) -> None:
    """It gives them away again; who has taken them has them once."""
    scope = Scope(log=MOVING_LOG, layout=MOVING, players=1, kinds=frozenset({"restore"}))

    search(scope, capsys)


# ---- rules that are not enough


def test_targets_that_do_not_check_are_not_enough_once_a_batch_is_in_flight_over_a_reconnect() -> (
    None
):
    """LogPlayer 2.1. Its model has no network, and so no batch in flight."""
    found = Search(Scope(players=1, rule="nothing", kinds=CUT, delays=0)).run()

    assert "has (100, 101, 100, 101)" in found.problem
    assert [step[1] for step in found.story] == [
        "reaches", "tick", "tail", "is cut off", "reaches", "read", "reaches",
    ]  # fmt: skip


def test_targets_that_do_not_check_need_no_fault_where_there_are_two_players() -> None:
    found = Search(Scope(rule="nothing", knows_terms=False, faults=0, delays=0)).run()

    assert "has (100, 101, 100, 101)" in found.problem


def test_terms_at_the_targets_are_enough_until_acks_are_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A player that goes on where the last ack was, as its fetcher does in the paper's model."""
    resume_at_the_last_ack(monkeypatch)
    scope = replace(NARROW, rule="terms", kinds=frozenset({"cut", "crash"}), late=False)

    search(replace(scope, delays=0), capsys)
    found = Search(scope).run()

    assert "has (100, 100)" in found.problem
    assert "and is not heard" in found.story[2]


def test_terms_of_connections_are_enough_only_where_nothing_comes_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scope = replace(NARROW, rule="terms")

    search(replace(scope, kinds=frozenset({"cut", "crash", "kill"})), capsys)
    found = Search(replace(scope, kinds=frozenset({"disorder"}))).run()

    assert "has (100, 100)" in found.problem


# ---- larger scopes


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_players_and_two_targets_with_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    found = search(Scope(delays=0), capsys)

    assert found.states > 2_000_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_player_and_its_successors_with_two_faults(capsys: pytest.CaptureFixture[str]) -> None:
    search(Scope(players=1, faults=2), capsys)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_without_terms_two_faults(capsys: pytest.CaptureFixture[str]) -> None:
    search(Scope(log=NARROW_LOG, knows_terms=False, faults=2), capsys)
