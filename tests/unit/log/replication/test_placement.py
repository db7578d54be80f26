"""Placement: even over regions, then racks, then load; the region law holds or nothing is placed.

`check_placement` tries every ack quorum; the first tests show that it sees what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest, Unavailable
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.replication.manifest import Ensemble, LogManifest, Segment
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.placement import (
    check_placement,
    choose_ensemble,
    choose_replacement,
    machine_of,
    would_lose_quorum,
)

Nodes = dict[NodeId, NodeInfo]


def node(name: str, place: str = "r1/k1", *, cookie: str = "c", draining: bool = False) -> NodeInfo:
    region, _, rack = place.partition("/")
    return NodeInfo(name, cookie, "h", 1, region=region, rack=rack or "k1", draining=draining)


def nodes_at(*places: str) -> Nodes:
    """Nodes n0, n1, … at `region/rack` each."""
    infos = [node(f"n{number}", place) for number, place in enumerate(places)]
    return {info.id: info for info in infos}


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(f"n{n}:c") for n in numbers)


def regions(nodes: Nodes, ensemble: Sequence[NodeId]) -> Counter[str]:
    return Counter(nodes[n].region for n in ensemble)


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

    found = check_placement(ids(0, 1, 2), nodes, write_quorum=3, ack_quorum=2, min_regions=2)

    assert found == [
        f"block {block} may be acknowledged by {', '.join(pair)}: only in a"
        for block, pair in ((0, ids(0, 1)), (1, ids(1, 0)), (2, ids(0, 1)))
    ]


def test_the_checker_sees_the_one_bad_write_set() -> None:
    """E 4, Qw 2: only the set that wraps around is inside one region."""
    nodes = nodes_at("a", "b", "b", "a")

    found = check_placement(ids(0, 1, 2, 3), nodes, write_quorum=2, ack_quorum=2, min_regions=2)

    assert [line.split(" may")[0] for line in found] == ["block 1", "block 3"]


def test_the_checker_sees_a_machine_twice() -> None:
    infos = [node("n0", "a"), node("n0", "b", cookie="d"), node("n1", "c")]
    nodes = {info.id: info for info in infos}

    found = check_placement(tuple(nodes), nodes, write_quorum=3, ack_quorum=2, min_regions=2)

    assert found == ["n0 stands 2 times in it"]


# ---- a new ensemble


def test_regions_then_racks_then_load_decide() -> None:
    nodes = nodes_at("a/1", "a/1", "a/2", "a/2", "b/1", "b/1", "b/2", "b/2")
    # Both nodes of a/1 have less to do than those of a/2, and all of a less than those of b.
    load = {NodeId(f"n{n}:c"): load for n, load in enumerate((1, 0, 5, 6, 11, 10, 15, 16))}

    for seed in range(20):
        found = choose_ensemble(
            nodes, size=4, write_quorum=4, ack_quorum=3, min_regions=2, load=load, seed=seed
        )

        assert set(found) == set(ids(1, 2, 5, 6))


def test_the_seed_decides_between_equals_and_nothing_else_does() -> None:
    nodes = nodes_at(*["a/1"] * 5)
    backwards = dict(reversed(nodes.items()))

    def choice(found: Nodes, seed: int) -> tuple[NodeId, ...]:
        return choose_ensemble(found, size=3, write_quorum=3, ack_quorum=2, seed=seed)

    assert all(choice(nodes, seed) == choice(backwards, seed) for seed in range(50))
    used = Counter(n for seed in range(200) for n in choice(nodes, seed))
    assert set(used) == set(nodes)
    assert min(used.values()) > 80  # 120 of each if all are equal


def test_a_rack_is_not_in_a_write_set_twice_if_it_can_be_avoided() -> None:
    """E 4, Qw 2, racks with 2, 1 and 1 nodes: the two must not be neighbours, wrapping included."""
    nodes = nodes_at("a/1", "a/1", "a/2", "a/3")

    for seed in range(50):
        found = choose_ensemble(nodes, size=4, write_quorum=2, ack_quorum=2, seed=seed)

        racks = [nodes[n].rack for n in found]
        assert all(racks[i] != racks[(i + 1) % 4] for i in range(4)), racks


def test_draining_nodes_take_nothing_new_and_no_machine_stands_twice() -> None:
    infos = [
        node("n0", "a"),
        node("n0", "b", cookie="d"),
        node("n1", "b"),
        node("n2", "c", draining=True),
        node("n3", "c"),
    ]
    nodes = {info.id: info for info in infos}

    for seed in range(30):
        found = choose_ensemble(nodes, size=3, write_quorum=3, ack_quorum=2, seed=seed)

        assert sorted(machine_of(n) for n in found) == ["n0", "n1", "n3"]
    with pytest.raises(Unavailable, match="1 more storage nodes are missing"):
        choose_ensemble(nodes, size=4, write_quorum=3, ack_quorum=2, seed=0)


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
    places: list[str], shape: tuple[int, int, int, int], words: str
) -> None:
    size, write_quorum, ack_quorum, min_regions = shape

    with pytest.raises(Unavailable, match=words):
        choose_ensemble(
            nodes_at(*places),
            size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            min_regions=min_regions,
            seed=1,
        )


def test_a_region_with_draining_nodes_only_is_named() -> None:
    infos = [node("n0", "a"), node("n1", "a"), node("n2", "b", draining=True), node("n3", "a")]

    with pytest.raises(Unavailable, match="only draining ones: b"):
        choose_ensemble(
            {info.id: info for info in infos},
            size=3,
            write_quorum=3,
            ack_quorum=2,
            min_regions=2,
            seed=1,
        )


def test_more_regions_than_an_ack_quorum_has_nodes_make_no_sense() -> None:
    with pytest.raises(BadRequest, match="cannot span 3 regions"):
        choose_ensemble(
            nodes_at("a", "b", "c"), size=3, write_quorum=3, ack_quorum=2, min_regions=3, seed=1
        )


#: (E, Qw, Qa, min_regions) with at least two regions, up to E 5.
REGION_SHAPES = [
    (size, write_quorum, ack_quorum, min_regions)
    for size in range(2, 6)
    for write_quorum in range(2, size + 1)
    for ack_quorum in range(2, write_quorum + 1)
    for min_regions in range(2, ack_quorum + 1)
]


@pytest.mark.parametrize("shape", REGION_SHAPES, ids=str)
def test_small_clusters_are_placed_exactly_if_it_is_possible(
    shape: tuple[int, int, int, int],
) -> None:
    """Every cluster of four regions with up to three nodes each, the write sets that wrap too."""
    size, write_quorum, ack_quorum, min_regions = shape
    law = {"write_quorum": write_quorum, "ack_quorum": ack_quorum, "min_regions": min_regions}
    for counts in combinations_with_replacement(range(4), 4):
        nodes = nodes_at(*(r for r, n in zip("abcd", counts, strict=True) for _ in range(n)))
        for seed in range(2):
            try:
                found = choose_ensemble(nodes, size=size, seed=seed, **law)
            except Unavailable:
                assert not any_order_is_lawful(nodes, size, **law), counts
                break
            assert check_placement(found, nodes, **law) == [], counts


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    size = draw(st.integers(1, 6))
    write_quorum = draw(st.integers(1, size))
    ack_quorum = draw(st.integers(1, write_quorum))
    return size, write_quorum, ack_quorum, draw(st.integers(1, min(3, ack_quorum)))


PLACES = st.sampled_from([f"{region}/{rack}" for region in "abcd" for rack in "12"])


@given(st.lists(PLACES, max_size=16), shapes(), st.integers(0, 99), st.data())
def test_the_law_holds_or_no_placement_exists(
    places: list[str], shape: tuple[int, int, int, int], seed: int, data: st.DataObject
) -> None:
    """Whatever is chosen passes the checker and is even; what is refused, brute force cannot do."""
    size, write_quorum, ack_quorum, min_regions = shape
    nodes = nodes_at(*places)
    load = (
        data.draw(st.dictionaries(st.sampled_from(sorted(nodes)), st.integers(0, 3)))
        if nodes
        else {}
    )
    law = {"write_quorum": write_quorum, "ack_quorum": ack_quorum, "min_regions": min_regions}

    try:
        found = choose_ensemble(nodes, size=size, load=load, seed=seed, **law)
    except Unavailable:
        assert not any_order_is_lawful(nodes, size, **law)
        return

    assert len(found) == size
    assert check_placement(found, nodes, **law) == []
    capacities = Counter(info.region for info in nodes.values())
    chosen = regions(nodes, found)
    assert sorted(chosen[r] for r in capacities) == evenest(capacities, size)
    for region, count in chosen.items():
        racks = Counter(info.rack for info in nodes.values() if info.region == region)
        in_rack = Counter(nodes[n].rack for n in found if nodes[n].region == region)
        assert sorted(in_rack[r] for r in racks) == evenest(racks, count)


def any_order_is_lawful(
    nodes: Nodes, size: int, *, write_quorum: int, ack_quorum: int, min_regions: int
) -> bool:
    """Every sequence of regions, tried; the nodes of a region are all alike to the law."""
    capacities = Counter(info.region for info in nodes.values())
    if sum(capacities.values()) < size:
        return False
    for order in product(sorted(capacities), repeat=size):
        if any(order.count(region) > room for region, room in capacities.items()):
            continue
        fake = nodes_at(*order)
        if not check_placement(
            tuple(fake),
            fake,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            min_regions=min_regions,
        ):
            return True
    return False


# ---- replacement


def replaced(ensemble: Sequence[NodeId], old: NodeId, new: NodeId) -> tuple[NodeId, ...]:
    return tuple(new if n == old else n for n in ensemble)


def test_the_replacement_keeps_the_ack_quorum_in_two_regions() -> None:
    """R50: region b has one idle node, a has many; b's failed member must be replaced from b."""
    nodes = nodes_at("a", "b", "c", "a", "a", "b")
    alive = {n: info for n, info in nodes.items() if n != NodeId("n1:c")}

    for seed in range(20):
        found = choose_replacement(
            ids(0, 1, 2), ids(1)[0], alive, write_quorum=3, ack_quorum=2, min_regions=2, seed=seed
        )

        assert found == NodeId("n5:c")


def test_a_replacement_that_breaks_the_law_is_refused_and_says_what_is_missing() -> None:
    nodes = nodes_at("a", "b", "c", "a", "c")

    with pytest.raises(
        Unavailable,
        match=r"nodes in a 1, c 1, free nodes are only in a, c; a node "
        r"of b or of another region is missing",
    ):
        choose_replacement(
            ids(0, 1, 2), ids(1)[0], nodes, write_quorum=3, ack_quorum=2, min_regions=2, seed=1
        )


def test_a_member_of_unknown_region_counts_as_the_worst() -> None:
    """n2 is gone too and may come back in any region, so that no choice is safe without `known`."""
    nodes = nodes_at("a", "b", "c", "d", "b")
    alive = {n: nodes[n] for n in ids(0, 3, 4)}

    def choice(**more: Nodes | list[NodeId]) -> NodeId | None:
        return choose_replacement(
            ids(0, 1, 2),
            ids(1)[0],
            alive,
            write_quorum=3,
            ack_quorum=2,
            min_regions=2,
            seed=1,
            **more,  # type: ignore[arg-type]
        )

    with pytest.raises(Unavailable, match="a 1, unknown 1"):
        choice()
    assert choice(known=nodes) in ids(3, 4)
    assert choice(leaving=[ids(2)[0]]) in ids(3, 4)


def test_a_region_without_a_name_is_a_region() -> None:
    nodes = nodes_at("", "b", "c", "")

    with pytest.raises(Unavailable):
        choose_replacement(
            ids(0, 1, 2), ids(1)[0], nodes, write_quorum=3, ack_quorum=2, min_regions=2, seed=1
        )


def test_the_new_life_of_the_failed_machine_may_come_back_in() -> None:
    infos = [node("n0", "a"), node("n1", "a", cookie="d"), node("n2", "a")]
    alive = {info.id: info for info in infos}

    found = choose_replacement(ids(0, 1, 2), ids(1)[0], alive, write_quorum=3, ack_quorum=2, seed=1)
    other = choose_replacement(ids(0, 1, 2), ids(2)[0], alive, write_quorum=3, ack_quorum=2, seed=1)

    assert found == NodeId("n1:d")
    assert other is None  # n1 stands in it already, in an older life


def test_a_replacement_is_never_a_node_that_is_being_drained() -> None:
    nodes = nodes_at("a", "a", "a", "a", "a")
    alive = nodes | {ids(3)[0]: node("n3", "a", draining=True)}

    def choice(found: Nodes) -> NodeId | None:
        return choose_replacement(
            ids(0, 1, 2), ids(1)[0], found, write_quorum=3, ack_quorum=2, seed=1
        )

    assert choice(alive) == ids(4)[0]
    assert choice({n: alive[n] for n in ids(0, 2, 3)}) is None


@given(st.lists(PLACES, min_size=3, max_size=10), shapes(), st.integers(0, 99), st.data())
def test_after_any_chain_of_failures_the_law_still_holds(
    places: list[str], shape: tuple[int, int, int, int], seed: int, data: st.DataObject
) -> None:
    size, write_quorum, ack_quorum, min_regions = shape
    nodes = nodes_at(*places)
    law = {"write_quorum": write_quorum, "ack_quorum": ack_quorum, "min_regions": min_regions}
    try:
        ensemble = choose_ensemble(nodes, size=size, seed=seed, **law)
    except Unavailable:
        return
    dead: set[NodeId] = set()

    for _ in range(4):
        failed = data.draw(st.sampled_from(ensemble))
        dead.add(failed)
        alive = {n: info for n, info in nodes.items() if n not in dead}
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

    found = choose_replacement(
        ids(0, 1, 2, 3),
        ids(1)[0],
        nodes,
        write_quorum=4,
        ack_quorum=2,
        load={ids(6)[0]: 3, ids(7)[0]: 2},
        seed=1,
    )

    assert found == ids(7)[0]


# ---- the decommission check


def segment(
    id: int, *ensembles: tuple[int, tuple[NodeId, ...]], blocks: int | None, index: int = 0
) -> Segment:
    return Segment(
        SegmentId(id),
        Epoch(1),
        Lsn(10 * id),
        tuple(Ensemble(BlockId(first), nodes) for first, nodes in ensembles),
        write_quorum=2,
        ack_quorum=2,
        sealed=blocks is not None,
        end_lsn=Lsn(10 * id + 10),
        blocks=blocks or 0,
        index_blocks=index,
    )


def log_of(*segments: Segment) -> dict[str, LogManifest]:
    manifest = LogManifest(bytes(16), Epoch(1), "p", Lsn(0), SegmentId(0), segments)
    manifest.check()
    return {"main": manifest}


def test_a_node_may_go_if_every_block_keeps_its_ack_quorum_and_another_is_free() -> None:
    nodes = nodes_at("a", "a", "a", "a")
    wide = Segment(SegmentId(0), Epoch(1), Lsn(0), (Ensemble(BlockId(0), ids(0, 1, 2)),), 3, 2)

    assert would_lose_quorum(log_of(wide), ids(0)[0], nodes) == []
    assert would_lose_quorum(log_of(wide), ids(3)[0], nodes) == []


def test_what_would_be_lost_is_said_in_words() -> None:
    nodes = nodes_at("a", "a", "a")
    alive = {n: nodes[n] for n in ids(0, 2)}
    logs = log_of(
        segment(0, (0, ids(0, 1, 2)), blocks=1),
        segment(1, (0, ids(0, 1, 2)), (1, ids(2, 0, 1)), blocks=1, index=3),
        segment(2, (0, ids(2, 0)), blocks=None),
    )

    found = would_lose_quorum(logs, ids(0)[0], alive)

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
    nodes = nodes_at("a", "b", "a")
    logs = log_of(segment(0, (0, ids(0, 1)), blocks=4))

    found = would_lose_quorum(logs, ids(1)[0], nodes, min_regions=2)

    assert len(found) == 2
    assert "block 0 would have 1 living copy" in found[0]
    assert "a node of b or of another region is missing" in found[1]
