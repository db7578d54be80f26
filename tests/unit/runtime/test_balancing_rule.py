"""The rule by which virtual nodes go to other tasks: its laws, and mistakes that break them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.pipeline.queries import make_spec

from penstock.ids import Lsn
from penstock.runtime import balancing
from penstock.runtime.balancing import (
    GAIN,
    REPORTS,
    SECONDS,
    Advice,
    Balancer,
    even_out,
    groups,
    weigh,
)
from penstock.runtime.node_rates import ByNode
from penstock.runtime.spec import QuerySpec, Settings
from penstock.state.keys import VIRTUAL_NODES

ALL = frozenset(range(VIRTUAL_NODES))
rates_of_nodes = st.lists(
    st.one_of(st.just(0.0), st.floats(0.5, 1000.0)),
    min_size=VIRTUAL_NODES, max_size=VIRTUAL_NODES,
).map(tuple)  # fmt: skip
#: Which task has each virtual node; each has some.
owners = st.integers(2, 6).flatmap(
    lambda tasks: st.lists(
        st.integers(0, tasks - 1), min_size=VIRTUAL_NODES - tasks, max_size=VIRTUAL_NODES - tasks
    ).map(lambda more: [*range(tasks), *more])
)


def shares_of(owned: Sequence[int]) -> list[frozenset[int]]:
    return [
        frozenset(node for node, owner in enumerate(owned) if owner == task)
        for task in range(max(owned) + 1)
    ]


def busiest(shares: Sequence[frozenset[int]], rates: ByNode) -> float:
    return max(sum(rates[node] for node in sorted(nodes)) for nodes in shares)


def check_even(owned: Sequence[int], rates: ByNode) -> None:
    shares = shares_of(owned)
    made = balancing.even_out(shares, rates)
    assert len(made) == len(shares) and all(made)
    assert sorted(node for nodes in made for node in nodes) == list(range(VIRTUAL_NODES))
    assert busiest(made, rates) <= busiest(shares, rates) * (1 + 1e-9)
    left = [rates[node] for nodes in made for node in nodes]
    # No task takes more than an even share and one virtual node, but for one that has a single one.
    assert busiest(made, rates) <= 1.1 * sum(rates) / len(made) + max(left) + 1e-6


@given(owners, rates_of_nodes)
def test_each_virtual_node_keeps_one_task_and_the_busiest_takes_no_more(
    owned: list[int], rates: ByNode
) -> None:
    check_even(owned, rates)


@given(owners, rates_of_nodes)
def test_what_is_even_is_left_alone(owned: list[int], rates: ByNode) -> None:
    made = even_out(shares_of(owned), rates)
    assert even_out(made, rates) == made


# ---- when


def spec_of(tasks: int = 2, shape: str = "count") -> QuerySpec:
    return make_spec(shape, Settings(), lanes=4, workers=tasks)


def rates_with(hot: dict[int, float], else_each: float = 1.0) -> dict[int, ByNode]:
    """Of the stage that keeps state."""
    return {1: tuple(hot.get(node, else_each) for node in range(VIRTUAL_NODES))}


#: Four virtual nodes of one of two tasks get most rows.
SKEWED = rates_with({0: 90.0, 2: 90.0, 4: 90.0, 6: 90.0})
#: One virtual node gets most rows.
LONELY = rates_with({0: 900.0})
EVEN = rates_with({})


def always_skewed(spec: QuerySpec) -> dict[int, ByNode]:
    """Whatever moves: four virtual nodes of its first task get most rows."""
    nodes = sorted(spec.layout.stages[1][0].nodes)[:4]
    return rates_with(dict.fromkeys(nodes, 90.0))


Look = dict[int, ByNode] | Callable[[QuerySpec], dict[int, ByNode]]


def advised(looks: Sequence[Look], *, seconds: float = 1.0) -> list[Advice]:
    """By a query that follows each advice."""
    spec, balancer, found = spec_of(), Balancer(is_automatic=True), []
    for number, look in enumerate(looks):
        rates = look(spec) if callable(look) else look
        advice = balancer.look(spec, rates, int(1000 * seconds * number))
        if advice is not None:
            found.append(advice)
            spec = spec.under(spec.layout.next(advice.shares, (), Lsn(0)))
    return found


def test_a_stage_that_stays_uneven_is_balanced_once() -> None:
    [advice] = advised([SKEWED] * (REPORTS + 30))
    assert {one.node for one in advice.moved} <= {0, 2, 4, 6} and len(advice.moved) == 2
    assert "automatically: the busiest task of stage 1 took" in advice.why
    [new] = advice.shares.values()
    assert [share.index for share in new] == [2, 3], "both get other virtual nodes"


def test_what_is_uneven_for_a_moment_is_not() -> None:
    looks = ([SKEWED] * (REPORTS - 1) + [EVEN]) * 6
    assert advised(looks) == []


def test_a_query_is_not_balanced_again_at_once() -> None:
    looks = [always_skewed] * (REPORTS + 40)
    assert len(advised(looks)) == 1
    assert len(advised(looks, seconds=SECONDS / 30)) == 2


def test_one_virtual_node_that_has_most_rows_is_told_of_and_never_moved() -> None:
    assert advised([LONELY] * 100, seconds=10.0) == []
    balancer = Balancer(is_automatic=True)
    for number in range(REPORTS + 1):
        balancer.look(spec_of(), LONELY, number)
    assert balancer.told is not None and "virtual node 0 alone takes 93 %" in balancer.told.replace(
        "93%", "93 %"
    )
    assert "aggregate in two steps" in balancer.told
    assert balancer.by_hand(spec_of(), rates_with({0: 1e9}, 0.0)) is None


def test_what_would_gain_too_little_is_told_of_and_done_by_hand() -> None:
    """Most rows are one virtual node's, and some of the others beside it may move."""
    rates = rates_with({0: 200.0, 2: 12.0, 4: 12.0})
    balancer = Balancer(is_automatic=True)
    for number in range(3 * REPORTS):
        assert balancer.look(spec_of(), rates, number) is None
    assert "less if virtual nodes move; by itself it is done for 20%" in str(balancer.told)
    assert balancer.by_hand(spec_of(), rates) is not None
    assert balancer.told is None


def test_few_rows_say_nothing() -> None:
    few = {1: tuple(rate / 100 for rate in SKEWED[1])}
    assert advised([few] * 20) == []
    balancer = Balancer()
    assert balancer.by_hand(spec_of(), few) is None and "too few" in str(balancer.told)
    assert balancer.by_hand(spec_of(), {}) is None and "ask again" in str(balancer.told)


def test_a_query_with_one_task_is_told_that_there_is_nothing_to_balance() -> None:
    balancer = Balancer()
    assert balancer.by_hand(spec_of(1), SKEWED) is None
    assert "nothing to balance: no stage has several tasks" in str(balancer.told)


def test_by_hand_nothing_has_to_last_and_it_is_off_by_default() -> None:
    balancer = Balancer()
    assert balancer.look(spec_of(), SKEWED, 0) is None
    advice = balancer.by_hand(spec_of(), SKEWED)
    assert advice is not None and advice.why.startswith("by hand")
    assert balancer.by_hand(spec_of(), EVEN) is None
    assert balancer.told == "even: the busiest task of a stage takes 1.00 times the mean"


def test_a_task_that_keeps_its_virtual_nodes_stays() -> None:
    spec = spec_of(4)
    hot = rates_with({0: 90.0, 4: 90.0})
    advice = Balancer().by_hand(spec, hot)
    assert advice is not None
    [shares] = advice.shares.values()
    old = spec.layout.stages[1]
    kept = [one for one in shares if one in old]
    assert kept and all(one.index >= 4 for one in shares if one not in kept)


# ---- which


def test_stages_that_run_together_and_stages_of_one_task_are_left_alone() -> None:
    assert groups(spec_of(1)) == []
    keyed = make_spec("count", Settings(), lanes=4, workers=2, keyed=True)
    assert groups(keyed) == []
    assert groups(spec_of()) == [(0,), (1,)], "lanes of its source, and keys"
    assert groups(replace(spec_of(), shares_sources=False)) == []


def test_stages_that_read_the_same_rows_get_the_same_shares() -> None:
    assert groups(spec_of(2, "join")) == [(0,), (1,), (2,)]
    spec = spec_of(2)
    rates = {0: SKEWED[1], 1: SKEWED[1]}
    assert [one.stages for one in weigh(spec, rates)] == [(0,), (1,)]


# ---- mistakes


def no_hysteresis(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(balancing, "REPORTS", 1)


def it_is_done_again_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(balancing, "SECONDS", 0)


def moves_without_gain(patch: pytest.MonkeyPatch) -> None:
    """The hot virtual node itself goes to and fro."""

    def swap(shares: Sequence[frozenset[int]], rates: ByNode) -> list[frozenset[int]]:
        return [*shares[1:], shares[0]]

    patch.setattr(balancing, "even_out", swap)
    patch.setattr(balancing, "GAIN", -GAIN)


def wrong_nodes(patch: pytest.MonkeyPatch) -> None:
    """The coldest ones are left out."""
    original = even_out

    def forget(shares: Sequence[frozenset[int]], rates: ByNode) -> list[frozenset[int]]:
        made = original(shares, rates)
        return [frozenset(sorted(made[0])[1:]), *made[1:]]

    patch.setattr(balancing, "even_out", forget)


def the_largest_that_there_is_moves(patch: pytest.MonkeyPatch) -> None:
    """Whatever the other task takes then."""

    def largest(shares: Sequence[frozenset[int]], rates: ByNode) -> list[frozenset[int]]:
        order = sorted(range(len(shares)), key=lambda one: busiest([shares[one]], rates))
        cool, hot = order[0], order[-1]
        node = max(sorted(shares[hot]), key=lambda one: rates[one])
        made = list(shares)
        made[hot], made[cool] = made[hot] - {node}, made[cool] | {node}
        return made

    patch.setattr(balancing, "even_out", largest)


def check_lonely() -> None:
    test_one_virtual_node_that_has_most_rows_is_told_of_and_never_moved()


def check_shares() -> None:
    lonely = tuple(float(10 if node == 0 else 1) for node in range(VIRTUAL_NODES))
    check_even([0, *[1] * 2, *[0] * (VIRTUAL_NODES - 3)], SKEWED[1])
    check_even([node % 2 for node in range(VIRTUAL_NODES)], lonely)
    check_even([0, 1] + [1] * (VIRTUAL_NODES - 2), rates_with({0: 1e6})[1])


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (no_hysteresis, test_what_is_uneven_for_a_moment_is_not),
        (it_is_done_again_at_once, test_a_query_is_not_balanced_again_at_once),
        (moves_without_gain, check_lonely),
        (wrong_nodes, check_shares),
        (the_largest_that_there_is_moves, check_shares),
    ],
)
def test_a_mistake_in_the_rule_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None],
    check: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        check()
