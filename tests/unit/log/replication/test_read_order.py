"""From which replica to read: the order of asking, and one read step by step."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ChecksumMismatch, PenstockError, Unavailable
from penstock.ids import NodeId
from penstock.log.replication.node_api import Found, NodeInfo
from penstock.log.replication.read_order import (
    HEALTH_HALF_LIFE_MS,
    Answered,
    Nobody,
    NodeHealth,
    NotYet,
    SpeculativeRead,
    read_order,
)

A, B, C = NodeId("a:1"), NodeId("b:1"), NodeId("c:1")


def infos(**places: str) -> dict[NodeId, NodeInfo]:
    """Nodes by name, each at `region/rack`."""
    found = {}
    for name, place in places.items():
        region, rack = place.split("/")
        info = NodeInfo(name, "1", "h", 1, region=region, rack=rack)
        found[info.id] = info
    return found


def order(
    nodes: dict[NodeId, NodeInfo],
    seed: int = 0,
    health: dict[NodeId, NodeHealth] | None = None,
    now_ms: float = 0.0,
) -> str:
    """The letters of the nodes as a reader in east/1 asks them."""
    found = read_order(
        sorted(nodes), nodes, region="east", rack="1", health=health, now_ms=now_ms, seed=seed
    )
    return "".join(node[0] for node in found)


# ---- the order (DistributedLog V-B)


def test_nearest_then_another_rack_then_another_region_then_the_rest() -> None:
    nodes = infos(a="east/1", b="east/1", c="east/2", d="east/3", e="west/1", f="west/2")

    for seed in range(50):
        found = order(nodes, seed)

        assert found[0] in "ab"
        assert found[1] in "cd"
        assert found[2] in "ef"
        assert found[3] in "ab" and found[4] in "cd" and found[5] in "ef"


def test_one_of_the_nearest_is_first_at_random() -> None:
    nodes = infos(a="east/1", b="east/1", c="east/1", d="west/1")

    first = Counter(order(nodes, seed)[0] for seed in range(300))

    assert set(first) == set("abc")
    assert min(first.values()) > 60


def test_without_anybody_near_the_second_is_still_in_another_rack() -> None:
    nodes = infos(a="west/1", b="west/1", c="west/2", d="north/1")

    for seed in range(30):
        found = order(nodes, seed)
        places = [nodes[NodeId(f"{name}:1")] for name in found]

        assert (places[0].region, places[0].rack) != (places[1].region, places[1].rack)
        assert len({info.region for info in places[:3]}) == 2


def test_a_node_that_is_not_registered_comes_last() -> None:
    nodes = infos(a="west/1", b="east/1")

    found = read_order((C, A, B), nodes, region="east", rack="1", seed=1)

    assert found == (B, A, C)


def test_a_failed_node_sinks_back_and_returns_after_a_while() -> None:
    nodes = infos(a="east/1", b="east/2", c="west/1")
    health = {A: NodeHealth().failed(1000.0)}

    assert order(nodes, health=health, now_ms=1001.0) == "bca"
    assert order(nodes, health=health, now_ms=1000.0 + HEALTH_HALF_LIFE_MS - 1) == "bca"
    assert order(nodes, health=health, now_ms=1000.0 + HEALTH_HALF_LIFE_MS + 1) == "abc"


def test_more_failures_sink_deeper_and_take_longer_to_forget() -> None:
    nodes = infos(a="east/1", b="east/2", c="west/1")
    health = {A: NodeHealth().failed(0.0).failed(0.0), B: NodeHealth().failed(0.0)}

    assert order(nodes, health=health, now_ms=1.0) == "cba"
    assert order(nodes, health=health, now_ms=1.5 * HEALTH_HALF_LIFE_MS) == "bca"


def test_answers_forgive_failures() -> None:
    health = NodeHealth().failed(0.0)

    assert health.answered(1.0, 0.0).failures == 0.5
    assert health.answered(1.0, 0.0).answered(1.0, 0.0).failures == 0.25


def test_a_slow_node_sinks_back_but_distance_is_no_illness() -> None:
    nodes = infos(a="east/1", b="east/2", c="west/1")
    fast, far, slow = (NodeHealth().answered(ms, 0.0) for ms in (1.0, 80.0, 500.0))

    assert order(nodes, health={A: fast, B: fast, C: far}) == "abc"
    assert order(nodes, health={A: slow, B: fast, C: far}) == "bca"
    assert order(nodes, health={A: slow, C: far}) == "bca"
    assert order(nodes, health={A: slow}) == "abc"


@given(st.lists(st.tuples(st.sampled_from("af"), st.floats(0, 1e4), st.floats(0, 1e6))))
def test_health_stays_within_what_was_seen(events: list[tuple[str, float, float]]) -> None:
    """Also when the clock goes back."""
    health = NodeHealth()
    seen = [0.0]
    failures = 0

    for kind, value, now_ms in events:
        before = health
        if kind == "a":
            health = health.answered(value, now_ms)
            seen.append(value)
        else:
            health = health.failed(now_ms)
            failures += 1
        assert health.at_ms >= before.at_ms

    assert -1e-6 <= health.latency_ms <= max(seen) + 1e-6
    assert 0 <= health.weight <= 1
    assert 0 <= health.failures <= failures


@given(
    st.lists(st.sampled_from(["east/1", "east/2", "west/1", "west/2", ""]), max_size=7),
    st.integers(0, 9),
    st.sets(st.integers(0, 6)),
)
def test_every_node_is_in_the_order_once(places: list[str], seed: int, failed: set[int]) -> None:
    names = [NodeId(f"n{n}:1") for n in range(len(places))]
    known = infos(**{f"n{n}": place for n, place in enumerate(places) if place})
    health = {name: NodeHealth().failed(0.0) for n, name in enumerate(names) if n in failed}

    found = read_order(names, known, region="east", rack="1", health=health, seed=seed)

    assert sorted(found) == sorted(names)
    sick = [name not in known or name in health for name in found]
    assert sick == sorted(sick)


# ---- one read


def read(*nodes: NodeId, delay_ms: float = 10.0, deadline_ms: float = 1000.0) -> SpeculativeRead:
    return SpeculativeRead(nodes or (A, B, C), delay_ms=delay_ms, deadline_ms=deadline_ms)


def test_the_first_good_answer_wins_and_later_ones_are_ignored() -> None:
    one = read()

    assert one.start(0.0) == [A]
    assert one.on_time(9.0) == []
    assert one.on_time(10.0) == [B]
    late = deepcopy(one)
    assert late.on_answer(A, Found.HERE, 11.0) == []
    assert late.outcome == Answered(A), "a late answer of the first still counts"
    assert one.on_answer(B, Found.HERE, 11.0) == []
    assert one.outcome == Answered(B)
    assert one.due_ms is None
    assert one.on_answer(A, Found.HERE, 12.0) == []
    assert one.on_answer(A, Found.ABSENT, 12.0) == one.on_time(500.0) == []
    assert one.outcome == Answered(B)


def test_delays_grow_exponentially() -> None:
    nodes = [NodeId(f"n{n}:1") for n in range(5)]
    one = read(*nodes, deadline_ms=10_000.0)
    asked = [(0.0, one.start(0.0))]

    while (due_ms := one.due_ms) is not None:
        asked.append((due_ms, one.on_time(due_ms)))

    assert asked == [
        (0.0, [nodes[0]]),
        (10.0, [nodes[1]]),
        (30.0, [nodes[2]]),
        (70.0, [nodes[3]]),
        (150.0, [nodes[4]]),
        (310.0, []),
        (10_000.0, []),
    ]


@pytest.mark.parametrize("found", [Found.LATER, Found.ABSENT, Found.UNKNOWN])
def test_whoever_has_it_not_makes_the_next_be_asked_at_once(found: Found) -> None:
    one = read()
    one.start(0.0)

    assert one.on_answer(A, found, 1.0) == [B]
    assert one.on_answer(A, found, 1.0) == []
    assert one.on_error(B, ChecksumMismatch("block 3 is damaged"), 2.0) == [C]
    assert one.outcome is None
    assert one.on_answer(C, Found.HERE, 3.0) == []
    assert one.outcome == Answered(C)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        (
            [Found.ABSENT, Found.LATER, Unavailable("gone")],
            NotYet(((A, "says ABSENT"), (B, "says LATER"), (C, "failed (Unavailable: gone)"))),
        ),
        (
            [Found.ABSENT, Found.UNKNOWN, ChecksumMismatch("bad")],
            Nobody(
                ((A, "says ABSENT"), (B, "says UNKNOWN"), (C, "failed (ChecksumMismatch: bad)"))
            ),
        ),
        ([], Nobody(tuple((node, "does not answer") for node in (A, B, C)))),
    ],
    ids=["not yet only if somebody said so", "what each said", "silence never becomes not yet"],
)
def test_the_outcome_is_what_was_said(
    answers: list[Found | PenstockError], outcome: NotYet | Nobody
) -> None:
    one = read()
    one.start(0.0)
    for node, answer in zip((A, B, C), answers, strict=False):
        if isinstance(answer, Found):
            one.on_answer(node, answer, 1.0)
        else:
            one.on_error(node, answer, 1.0)
    for now_ms in (10.0, 30.0, 1000.0):
        one.on_time(now_ms)

    assert one.outcome == outcome


def test_nobody_is_an_error_that_names_what_each_said() -> None:
    error = Nobody(((A, "says ABSENT"), (B, "does not answer"))).error("block 3 of segment 7")

    assert isinstance(error, Unavailable)
    assert str(error) == (
        "no node can serve block 3 of segment 7: a:1 says ABSENT, b:1 does not answer"
    )


def test_time_is_no_answer() -> None:
    """R04: all nodes are asked and two say no; without the third nothing is known."""
    one = read()
    one.start(0.0)
    one.on_answer(A, Found.ABSENT, 1.0)
    one.on_answer(B, Found.ABSENT, 2.0)

    for now_ms in (50.0, 100.0, 999.0):
        assert one.on_time(now_ms) == []
        assert one.outcome is None
    one.on_time(1000.0)

    assert one.outcome == Nobody(((A, "says ABSENT"), (B, "says ABSENT"), (C, "does not answer")))


def test_without_nodes_nobody_can_serve_it() -> None:
    one = SpeculativeRead((), delay_ms=1.0, deadline_ms=5.0)

    assert one.start(0.0) == []
    assert isinstance(one.outcome, Nobody)
    assert "there is none to ask" in str(one.outcome.error("block 0"))


def test_answers_of_nodes_that_were_not_asked_are_ignored() -> None:
    one = read()
    one.start(0.0)

    assert one.on_answer(C, Found.HERE, 1.0) == []
    assert one.on_answer(C, Found.ABSENT, 1.0) == []
    assert one.outcome is None


EVENTS = st.tuples(
    st.sampled_from(["time", "error", *Found]), st.integers(0, 4), st.floats(0.0, 30.0)
)


@given(st.integers(0, 4), st.lists(EVENTS, max_size=30))
def test_any_story_ends_with_what_was_really_said(
    size: int, events: list[tuple[str | Found, int, float]]
) -> None:
    """Every node is asked at most once; the outcome follows from explicit answers alone."""
    nodes = [NodeId(f"n{n}:1") for n in range(size)]
    one = SpeculativeRead(nodes, delay_ms=10.0, deadline_ms=400.0)
    asked = one.start(0.0)
    said: dict[NodeId, str | Found] = {}
    now_ms = 0.0

    for kind, which, passed_ms in [*events, ("time", 0, 400.0)]:
        now_ms += passed_ms
        if one.outcome is not None:
            break
        if kind == "time":
            asked += one.on_time(now_ms)
        elif which < len(asked) and asked[which] not in said:
            said[asked[which]] = kind
            if isinstance(kind, Found):
                asked += one.on_answer(asked[which], kind, now_ms)
            else:
                asked += one.on_error(asked[which], Unavailable("x"), now_ms)

    assert asked == nodes[: len(asked)]
    if isinstance(one.outcome, Answered):
        assert said[one.outcome.node] == Found.HERE
        return
    assert Found.HERE not in said.values()
    assert isinstance(one.outcome, NotYet if Found.LATER in said.values() else Nobody)
    assert now_ms >= 400.0 or set(said) == set(nodes)
    assert [node for node, _ in one.outcome.said] == asked
    for node, words in one.outcome.said:
        assert (words == "does not answer") == (node not in said)
