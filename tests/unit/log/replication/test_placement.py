"""Placement: even over regions, then racks, then load; the region law holds or nothing is placed.

`check_placement` tries every ack quorum; the first tests show that it sees what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_clusters import Nodes, ids, log_of, node, nodes_at, nodes_of, segment, without

from penstock.errors import BadRequest, Unavailable
from penstock.ids import NodeId
from penstock.log.replication.placement import (
    check_placement,
    choose_ensemble,
    choose_replacement,
    machine_of,
    would_lose_quorum,
)

N = ids(*range(8))
#: (E, Qw, Qa, min_regions)
Shape = tuple[int, int, int, int]


def law_of(write_quorum: int = 3, ack_quorum: int = 2, min_regions: int = 1) -> Any:
    return {"write_quorum": write_quorum, "ack_quorum": ack_quorum, "min_regions": min_regions}


ANYWHERE, TWO_REGIONS = law_of(), law_of(min_regions=2)


def evenest(capacities: dict[str, int], size: int) -> list[int]:
    """The most even counts, sorted: one at a time to whoever has fewest and has room."""
    taken = dict.fromkeys(capacities, 0)
    for _ in range(size):
        name = min((n for n in taken if taken[n] < capacities[n]), key=lambda n: (taken[n], n))
        taken[name] += 1
    return sorted(taken.values())


# ---- the checker


def test_the_checker_sees_a_quorum_inside_one_region() -> None:
    nodes = nodes_at("a", "a", "b")

    found = check_placement(N[:3], nodes, **TWO_REGIONS)

    assert found == [
        f"block {block} may be acknowledged by {', '.join(pair)}: only in a"
        for block, pair in ((0, ids(0, 1)), (1, ids(1, 0)), (2, ids(0, 1)))
    ]


def test_the_checker_sees_the_one_bad_write_set() -> None:
    """E 4, Qw 2: only the set that wraps around is inside one region."""
    nodes = nodes_at("a", "b", "b", "a")

    found = check_placement(N[:4], nodes, **law_of(2, 2, 2))

    assert [line.split(" may")[0] for line in found] == ["block 1", "block 3"]


def test_the_checker_sees_a_machine_twice() -> None:
    nodes = nodes_of(node("n0", "a"), node("n0", "b", cookie="d"), node("n1", "c"))

    found = check_placement(tuple(nodes), nodes, **TWO_REGIONS)

    assert found == ["n0 stands 2 times in it"]


# ---- a new ensemble


def test_regions_then_racks_then_load_decide() -> None:
    nodes = nodes_at("a/1", "a/1", "a/2", "a/2", "b/1", "b/1", "b/2", "b/2")
    # Both nodes of a/1 have less to do than those of a/2, and all of a less than those of b.
    load = dict(zip(N, (1, 0, 5, 6, 11, 10, 15, 16), strict=True))

    for seed in range(20):
        found = choose_ensemble(nodes, size=4, load=load, seed=seed, **law_of(4, 3, 2))

        assert set(found) == set(ids(1, 2, 5, 6))


def test_the_seed_decides_between_equals_and_nothing_else_does() -> None:
    nodes = nodes_at(*["a/1"] * 5)
    backwards = dict(reversed(nodes.items()))

    def choice(found: Nodes, seed: int) -> tuple[NodeId, ...]:
        return choose_ensemble(found, size=3, seed=seed, **ANYWHERE)

    assert all(choice(nodes, seed) == choice(backwards, seed) for seed in range(50))
    used = Counter(n for seed in range(200) for n in choice(nodes, seed))
    assert set(used) == set(nodes)
    assert min(used.values()) > 80  # 120 of each if all are equal


def test_a_rack_is_not_in_a_write_set_twice_if_it_can_be_avoided() -> None:
    """E 4, Qw 2, racks with 2, 1 and 1 nodes: the two must not be neighbours, wrapping included."""
    nodes = nodes_at("a/1", "a/1", "a/2", "a/3")

    for seed in range(50):
        found = choose_ensemble(nodes, size=4, seed=seed, **law_of(2, 2))

        racks = [nodes[n].rack for n in found]
        assert all(racks[i] != racks[(i + 1) % 4] for i in range(4)), racks


def test_draining_nodes_take_nothing_new_and_no_machine_stands_twice() -> None:
    twice, draining = node("n0", "b", cookie="d"), node("n2", "c", draining=True)
    nodes = nodes_of(node("n0", "a"), twice, node("n1", "b"), draining, node("n3", "c"))

    for seed in range(30):
        found = choose_ensemble(nodes, size=3, seed=seed, **ANYWHERE)

        assert sorted(machine_of(n) for n in found) == ["n0", "n1", "n3"]
    with pytest.raises(Unavailable, match="1 more storage nodes are missing"):
        choose_ensemble(nodes, size=4, seed=0, **ANYWHERE)


@pytest.mark.parametrize(
    ("places", "shape", "words"),
    [
        (["a", "a", "a"], (3, 3, 2, 2), "1 more regions .* are missing; usable nodes: a 3"),
        (["a", "a", "b"], (3, 3, 2, 2), "usable nodes: a 2, b 1"),
        ([], (3, 3, 2, 1), "3 more storage nodes are missing; usable nodes: none"),
        # Among any three neighbours on a circle of four, two of the same region meet.
        (["a", "a", "b", "b", "c", "c"], (4, 3, 2, 2), "more regions"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_what_is_missing(
    places: list[str], shape: Shape, words: str
) -> None:
    with pytest.raises(Unavailable, match=words):
        choose_ensemble(nodes_at(*places), size=shape[0], seed=1, **law_of(*shape[1:]))


def test_a_region_with_draining_nodes_only_is_named() -> None:
    nodes = nodes_at("a", "a", "b", "a") | nodes_of(node("n2", "b", draining=True))

    with pytest.raises(Unavailable, match="only draining ones: b"):
        choose_ensemble(nodes, size=3, seed=1, **TWO_REGIONS)


def test_more_regions_than_an_ack_quorum_has_nodes_make_no_sense() -> None:
    with pytest.raises(BadRequest, match="cannot span 3 regions"):
        choose_ensemble(nodes_at("a", "b", "c"), size=3, seed=1, **law_of(min_regions=3))


#: With at least two regions, up to E 5.
REGION_SHAPES = [
    (size, write_quorum, ack_quorum, min_regions)
    for size in range(2, 6)
    for write_quorum in range(2, size + 1)
    for ack_quorum in range(2, write_quorum + 1)
    for min_regions in range(2, ack_quorum + 1)
]


@pytest.mark.parametrize("shape", REGION_SHAPES, ids=str)
def test_small_clusters_are_placed_exactly_if_it_is_possible(shape: Shape) -> None:
    """Every cluster of four regions with up to three nodes each, the write sets that wrap too."""
    size, law = shape[0], law_of(*shape[1:])
    for counts in combinations_with_replacement(range(4), 4):
        nodes = nodes_at(*(r for r, n in zip("abcd", counts, strict=True) for _ in range(n)))
        for seed in range(2):
            try:
                found = choose_ensemble(nodes, size=size, seed=seed, **law)
            except Unavailable:
                assert not any_order_is_lawful(nodes, size, law), counts
                break
            assert check_placement(found, nodes, **law) == [], counts


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    size = draw(st.integers(1, 6))
    write_quorum = draw(st.integers(1, size))
    ack_quorum = draw(st.integers(1, write_quorum))
    return size, write_quorum, ack_quorum, draw(st.integers(1, min(3, ack_quorum)))


PLACES = st.sampled_from([f"{region}/{rack}" for region in "abcd" for rack in "12"])


LOADS = st.dictionaries(st.sampled_from(ids(*range(16))), st.integers(0, 3))


@given(st.lists(PLACES, max_size=16), shapes(), st.integers(0, 99), LOADS)
def test_the_law_holds_or_no_placement_exists(
    places: list[str], shape: Shape, seed: int, load: dict[NodeId, int]
) -> None:
    """Whatever is chosen passes the checker and is even; what is refused, brute force cannot do."""
    size, law = shape[0], law_of(*shape[1:])
    nodes = nodes_at(*places)

    try:
        found = choose_ensemble(nodes, size=size, load=load, seed=seed, **law)
    except Unavailable:
        assert not any_order_is_lawful(nodes, size, law)
        return

    assert len(found) == size
    assert check_placement(found, nodes, **law) == []
    capacities = Counter(info.region for info in nodes.values())
    chosen = Counter(nodes[n].region for n in found)
    assert sorted(chosen[r] for r in capacities) == evenest(capacities, size)
    for region, count in chosen.items():
        racks = Counter(info.rack for info in nodes.values() if info.region == region)
        in_rack = Counter(nodes[n].rack for n in found if nodes[n].region == region)
        assert sorted(in_rack[r] for r in racks) == evenest(racks, count)


def any_order_is_lawful(nodes: Nodes, size: int, law: Any) -> bool:
    """Every sequence of regions, tried; the nodes of a region are all alike to the law."""
    capacities = Counter(info.region for info in nodes.values())
    orders = product(sorted(capacities), repeat=size) if len(nodes) >= size else ()
    return any(
        not check_placement(tuple(nodes_at(*order)), nodes_at(*order), **law)
        for order in orders
        if all(order.count(region) <= room for region, room in capacities.items())
    )


# ---- replacement


def replaced(ensemble: Sequence[NodeId], old: NodeId, new: NodeId) -> tuple[NodeId, ...]:
    return tuple(new if n == old else n for n in ensemble)


def replacement(alive: Nodes, failed: NodeId = N[1], law: Any = TWO_REGIONS, **more: Any) -> Any:
    """Of one of n0, n1 and n2."""
    return choose_replacement(N[:3], failed, alive, **{"seed": 1, **law, **more})


def test_the_replacement_keeps_the_ack_quorum_in_two_regions() -> None:
    """R50: region b has one idle node, a has many; b's failed member must be replaced from b."""
    alive = without(nodes_at("a", "b", "c", "a", "a", "b"), N[1])

    assert {replacement(alive, seed=seed) for seed in range(20)} == {N[5]}


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (
            ["a", "b", "c", "a", "c"],
            "nodes in a 1, c 1, free nodes are only in a, c; "
            "a node of b or of another region is missing",
        ),
        (["", "b", "c", ""], "keeps"),
    ],
    ids=["says what is missing", "a region without a name is a region"],
)
def test_a_replacement_that_breaks_the_law_is_refused(places: list[str], words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        replacement(nodes_at(*places))


def test_a_member_of_unknown_region_counts_as_the_worst() -> None:
    """n2 is gone too and may come back in any region, so that no choice is safe without `known`."""
    nodes = nodes_at("a", "b", "c", "d", "b")
    alive = without(nodes, N[1], N[2])

    with pytest.raises(Unavailable, match="a 1, unknown 1"):
        replacement(alive)
    assert replacement(alive, known=nodes) in N[3:5]
    assert replacement(alive, leaving=[N[2]]) in N[3:5]


def test_the_new_life_of_the_failed_machine_may_come_back_in() -> None:
    alive = nodes_of(node("n0", "a"), node("n1", "a", cookie="d"), node("n2", "a"))

    assert replacement(alive, N[1], ANYWHERE) == NodeId("n1:d")
    # n1 stands in it already, in an older life.
    assert replacement(alive, N[2], ANYWHERE) is None


def test_a_replacement_is_never_a_node_that_is_being_drained() -> None:
    alive = nodes_at("a", "a", "a", "a", "a") | nodes_of(node("n3", "a", draining=True))

    assert replacement(alive, law=ANYWHERE) == N[4]
    assert replacement(without(alive, N[1], N[4]), law=ANYWHERE) is None


@given(st.lists(PLACES, min_size=3, max_size=10), shapes(), st.integers(0, 99), st.data())
def test_after_any_chain_of_failures_the_law_still_holds(
    places: list[str], shape: Shape, seed: int, data: st.DataObject
) -> None:
    size, law = shape[0], law_of(*shape[1:])
    nodes = nodes_at(*places)
    try:
        ensemble = choose_ensemble(nodes, size=size, seed=seed, **law)
    except Unavailable:
        return
    dead: set[NodeId] = set()

    for _ in range(4):
        failed = data.draw(st.sampled_from(ensemble))
        dead.add(failed)
        alive = without(nodes, *dead)
        free = [n for n in alive if n not in ensemble]
        lawful = [
            n for n in free if not check_placement(replaced(ensemble, failed, n), nodes, **law)
        ]
        try:
            new = choose_replacement(ensemble, failed, alive, seed=seed, known=nodes, **law)
        except Unavailable:
            assert free and not lawful
            return
        if new is None:
            assert not free
            return
        assert new in lawful
        ensemble = replaced(ensemble, failed, new)


def test_a_replacement_goes_to_the_emptier_region_then_rack_then_node() -> None:
    nodes = nodes_at("a/1", "a/2", "a/3", "b/1", "a/4", "b/1", "b/2", "b/2")

    load = {N[6]: 3, N[7]: 2}
    assert choose_replacement(N[:4], N[1], nodes, load=load, seed=1, **law_of(4, 2)) == N[7]


# ---- the decommission check


def test_a_node_may_go_if_every_block_keeps_its_ack_quorum_and_another_is_free() -> None:
    nodes = nodes_at("a", "a", "a", "a")
    wide = {"main": log_of(segment(0, (0, N[:3])))}

    assert would_lose_quorum(wide, N[0], nodes) == would_lose_quorum(wide, N[3], nodes) == []


def test_what_would_be_lost_is_said_in_words() -> None:
    log = log_of(
        segment(0, (0, N[:3]), quorums=(2, 2), blocks=1),
        segment(1, (0, N[:3]), (1, ids(2, 0, 1)), quorums=(2, 2), blocks=1, index=3),
        segment(2, (0, ids(2, 0)), quorums=(2, 2)),
    )

    found = would_lose_quorum({"main": log}, N[0], without(nodes_at("a", "a", "a"), N[1]))

    assert found == [
        "log main, segment 0: block 0 would have no living copy",
        "log main, segment 0: no other node is free to take the place of n0:c",
        "log main, segment 1: block 0 would have no living copy",
        "log main, segment 1: index block 1 would have no living copy",
        "log main, segment 1: no other node is free to take the place of n0:c",
        "log main, segment 1: no other node is free to take the place of n0:c",
        "log main, segment 2: block 0 would have 1 living copy, the ack quorum is 2",
        "log main, segment 2: no other node is free to take the place of n0:c",
    ]


def test_a_node_that_no_other_region_can_replace_must_stay() -> None:
    log = log_of(segment(0, (0, N[:2]), quorums=(2, 2), blocks=4))

    found = would_lose_quorum({"main": log}, N[1], nodes_at("a", "b", "a"), min_regions=2)

    assert len(found) == 2
    assert "block 0 would have 1 living copy" in found[0]
    assert "a node of b or of another region is missing" in found[1]
