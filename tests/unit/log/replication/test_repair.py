"""The auditor's plan: what is under-replicated is copied, and nothing else happens.

The property test performs plans against nodes that are sets of blocks, and audits again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_clusters import Nodes, ids, log_of, nodes_at, segment, without

from penstock.errors import Unavailable, VersionConflict
from penstock.ids import BlockId, NodeId
from penstock.log.replication.block_ranges import count, subtract, union
from penstock.log.replication.manifest import Ensemble, LogManifest, SegmentKey
from penstock.log.replication.placement import check_placement, choose_ensemble
from penstock.log.replication.quorum import replicas
from penstock.log.replication.repair import (
    Copy,
    Refill,
    RepairPlan,
    Replacement,
    plan_repairs,
)

#: What really lies on each node, in these tests.
Disks = dict[tuple[NodeId, SegmentKey], set[int]]

N = ids(*range(7))
KEY = SegmentKey("main", 0)
#: Nine blocks on n0, n1 and n2. Of these n1 is dead; n3 is free.
LOG = log_of(segment(0, (0, N[:3]), blocks=9))
ALIVE = without(nodes_at(*"aaaa"), N[1])
NOTHING = RepairPlan((), {}, (), 0)


def full_disks(manifest: LogManifest) -> Disks:
    """Every block on its whole write set."""
    disks: Disks = {}
    for found in manifest.segments:
        for part, blocks in ((0, found.blocks), (1, found.index_blocks)):
            key = SegmentKey("main", found.id, part)
            for block in range(blocks):
                for node in replicas(found, block, part):
                    disks.setdefault((node, key), set()).add(block)
    return disks


def plan(
    manifest: LogManifest = LOG,
    alive: Nodes = ALIVE,
    disks: Disks | None = None,
    *,
    silent: tuple[NodeId, ...] = (),
    **limits: int,
) -> RepairPlan:
    """The plan, with every living node asked about every part but the silent ones."""
    disks = full_disks(manifest) if disks is None else disks
    keys = [SegmentKey("main", found.id, part) for found in manifest.segments for part in (0, 1)]
    asked = [node for node in alive if node not in silent]
    held = {
        key: {node: [(b, b + 1) for b in disks.get((node, key), ())] for node in asked}
        for key in keys
    }
    return plan_repairs({"main": manifest}, alive, held, seed=1, **limits)


def copied(repair: Replacement | Refill) -> list[tuple[int, int]]:
    return [(copy.first, copy.end) for copy in repair.copies]


# ---- single rules


def test_where_all_is_well_nothing_is_done() -> None:
    manifest = log_of(segment(0, (0, N[:3]), (4, ids(0, 3, 2)), blocks=9, index=2))

    assert plan(manifest, nodes_at(*"aaaaa")) == NOTHING


def test_a_dead_member_is_replaced_after_all_its_blocks_are_copied() -> None:
    manifest = log_of(segment(0, (0, N[:3]), blocks=9, index=2))

    found = plan(manifest)

    [repair] = found.repairs
    assert isinstance(repair, Replacement)
    assert (repair.old, repair.target, repair.living) == (N[1], N[3], 2)
    assert [(c.key, c.first, c.end, set(c.sources)) for c in repair.copies] == [
        (KEY, 0, 9, set(ids(0, 2))),
        (SegmentKey("main", 0, 1), 0, 2, set(ids(0, 2))),
    ]
    assert found.under_replicated == {("main", 0): 11}
    after = repair.apply(manifest)
    assert after.segments[0].ensembles == (Ensemble(BlockId(0), ids(0, 3, 2)),)


def test_a_wide_ensemble_copies_only_what_the_place_of_the_member_has() -> None:
    """E 4, Qw 2: n1 has the blocks 0, 1, 4, 5, 8, of which 1 is on n2 too and 0 on n0."""
    manifest = log_of(segment(0, (0, N[:4]), blocks=9, quorums=(2, 2)))

    [repair] = plan(manifest, without(nodes_at(*"aaaaa"), N[1])).repairs

    sources = {0: N[0], 1: N[2], 4: N[0], 5: N[2], 8: N[0]}
    assert repair.copies == tuple(Copy(KEY, b, b + 1, (node,)) for b, node in sources.items())


def test_a_segment_that_is_not_sealed_is_left_alone() -> None:
    assert plan(log_of(replace(LOG.segments[0], sealed=False))) == NOTHING


def test_a_draining_node_is_replaced_and_is_a_source() -> None:
    nodes = nodes_at(*"aaaa")
    draining = nodes | {N[1]: replace(nodes[N[1]], draining=True)}

    found = plan(alive=draining)

    [repair] = found.repairs
    assert isinstance(repair, Replacement)
    assert (repair.old, repair.target, repair.living) == (N[1], N[3], 3)
    assert set(repair.copies[0].sources) == set(N[:3])
    assert found.under_replicated == {("main", 0): 9}


def test_a_member_that_may_have_the_last_copy_stays_in_the_manifest() -> None:
    """R40: n1 is gone, and block 4 is nowhere else. To replace it would be to give block 4 up."""
    disks = full_disks(LOG)
    for node in ids(0, 2):
        disks[node, KEY].discard(4)

    found = plan(disks=disks)

    assert found.repairs == ()
    assert any("has blocks 4 to 4, which n1:c should have" in words for words in found.stuck)


def test_a_living_member_gets_the_blocks_that_it_lacks() -> None:
    disks = full_disks(LOG)
    disks[N[1], KEY] -= {3, 4, 7}

    found = plan(alive=nodes_at(*"aaaa"), disks=disks)

    [repair] = found.repairs
    assert isinstance(repair, Refill) and repair.target == N[1]
    assert copied(repair) == [(3, 5), (7, 8)]
    assert found.under_replicated == {("main", 0): 3}


def test_a_member_that_has_said_nothing_is_not_refilled_and_no_source() -> None:
    found = plan(alive=nodes_at(*"aaaa"), silent=ids(1))

    assert found.repairs == ()
    assert found.under_replicated == {("main", 0): 9}


def test_what_a_node_said_before_it_died_counts_no_more() -> None:
    said = {KEY: {node: [(0, 9)] for node in N[:3]}}

    [repair] = plan_repairs({"main": LOG}, ALIVE, said, seed=1).repairs

    assert repair.living == 2
    assert set(repair.copies[0].sources) == set(ids(0, 2))


def test_what_the_new_node_has_already_is_not_copied_again() -> None:
    """The copy before was broken off."""
    [repair] = plan(disks=full_disks(LOG) | {(N[3], KEY): set(range(6))}).repairs

    assert copied(repair) == [(6, 9)]


def test_fewest_living_copies_come_first_and_the_plan_is_bounded() -> None:
    places = (ids(0, 1, 2), ids(0, 1, 3), ids(0, 4, 5), ids(2, 3, 4))
    manifest = log_of(*(segment(n, (0, nodes), blocks=9) for n, nodes in enumerate(places)))
    alive = without(nodes_at(*"aaaaaaa"), *ids(0, 1))

    whole = plan(manifest, alive)
    short = plan(manifest, alive, repairs_max=1)

    assert [(r.segment, r.living) for r in whole.repairs] == [(0, 1), (1, 1), (2, 2)]
    assert whole.left_over == 2  # the second dead member of segments 0 and 1: one after the other
    assert short.repairs == whole.repairs[:1]
    assert short.left_over == 4
    missing = dict.fromkeys([("main", 0), ("main", 1), ("main", 2)], 9)
    assert short.under_replicated == whole.under_replicated == missing


@pytest.mark.parametrize(
    ("regions", "min_regions", "words"),
    [
        ("aaa", 1, "log main, segment 0: no node is free to take the place of n1:c"),
        # R50: only region a has a free node, and n1 was the one of region b.
        ("abca", 2, "no replacement for n1:c keeps"),
    ],
    ids=["no free node", "the region law"],
)
def test_what_cannot_be_replaced_is_not_planned_and_said(
    regions: str, min_regions: int, words: str
) -> None:
    found = plan(alive=without(nodes_at(*regions), N[1]), min_regions=min_regions)

    assert found.repairs == ()
    assert len(found.stuck) == 1 and words in found.stuck[0]


def test_two_dead_members_whose_regions_nobody_knows_are_replaced_one_after_the_other() -> None:
    alive = without(nodes_at(*"abcbc"), *ids(1, 2))
    manifest, disks = LOG, full_disks(LOG)

    for _ in range(2):
        [repair] = plan(manifest, alive, disks, min_regions=2).repairs
        manifest = perform(repair, manifest, alive, disks)

    assert set(manifest.segments[0].ensembles[0].nodes) == set(ids(0, 3, 4))
    assert plan(manifest, alive, disks, min_regions=2) == NOTHING


def test_an_empty_segment_lets_a_dead_member_go_without_copies() -> None:
    [repair] = plan(log_of(segment(0, (0, N[:3]), blocks=0))).repairs

    assert repair.copies == ()


def test_a_manifest_that_moved_on_is_not_changed() -> None:
    [repair] = plan().repairs
    assert isinstance(repair, Replacement)
    [sealed] = LOG.segments
    ensembles = [(Ensemble(BlockId(0), nodes),) for nodes in (ids(0, 2, 4), ids(0, 1, 3))]
    others = [replace(sealed, sealed=False), *(replace(sealed, ensembles=e) for e in ensembles)]

    moved_on = [replace(LOG, segments=()), *map(LOG.with_segment, others), repair.apply(LOG)]
    for other in moved_on:
        with pytest.raises(VersionConflict):
            repair.apply(other)


# ---- ranges

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def blocks_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {block for first, end in ranges for block in range(first, end)}


@given(RANGES, RANGES)
def test_ranges_are_sets_of_blocks(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    joined, rest = union(one + two), subtract(one, two)

    assert blocks_of(joined) == blocks_of(one) | blocks_of(two)
    assert blocks_of(rest) == blocks_of(one) - blocks_of(two)
    assert count(joined) == len(blocks_of(joined)) and count(rest) == len(blocks_of(rest))
    for found in (joined, rest):
        flat = [edge for pair in found for edge in pair]
        assert flat == sorted(set(flat))


# ---- plans performed


def perform(
    repair: Replacement | Refill, manifest: LogManifest, alive: Nodes, disks: Disks
) -> LogManifest:
    """Copy as the plan says, from a source that has the blocks; then change the manifest."""
    for copy in repair.copies:
        wanted = set(range(copy.first, copy.end))
        assert wanted and copy.sources
        for source in copy.sources:
            assert source in alive and source != repair.target
            assert wanted <= disks[source, copy.key]
        disks.setdefault((repair.target, copy.key), set()).update(wanted)
    return repair.apply(manifest) if isinstance(repair, Replacement) else manifest


@st.composite
def clusters(draw: st.DrawFn) -> tuple[LogManifest, Nodes, int]:
    """A log of sealed segments and an open one on nodes of three regions, placed by the law."""
    nodes = nodes_at(*draw(st.lists(st.sampled_from("abc"), min_size=5, max_size=10)))
    size, write_quorum, ack_quorum = draw(
        st.sampled_from([(3, 3, 2), (4, 3, 2), (4, 2, 2), (5, 3, 2), (2, 2, 1), (1, 1, 1)])
    )
    min_regions = draw(st.integers(1, ack_quorum))
    law = {"write_quorum": write_quorum, "ack_quorum": ack_quorum, "min_regions": min_regions}
    segments = []
    for number in range(draw(st.integers(1, 3))):
        ensembles, first = [], 0
        for _ in range(draw(st.integers(1, 2))):
            try:
                chosen = choose_ensemble(nodes, size=size, seed=draw(st.integers(0, 9)), **law)
            except Unavailable:
                return log_of(), nodes, min_regions
            ensembles.append((first, chosen))
            first += draw(st.integers(1, 6))
        blocks, index = draw(st.integers(0, 12)), draw(st.integers(0, 5))
        quorums = (write_quorum, ack_quorum)
        segments.append(segment(number, *ensembles, blocks=blocks, index=index, quorums=quorums))
    if draw(st.booleans()):
        segments[-1] = replace(segments[-1], sealed=False)
    return log_of(*segments), nodes, min_regions


@given(clusters(), st.data())
def test_plans_heal_what_can_be_healed_and_harm_nothing(
    cluster: tuple[LogManifest, Nodes, int], data: st.DataObject
) -> None:
    """Any nodes die, drain or lack blocks; plans are performed until there is nothing to do."""
    manifest, nodes, min_regions = cluster
    before = manifest
    names = sorted(nodes)
    dead = data.draw(st.sets(st.sampled_from(names), max_size=2))
    drained = data.draw(st.sets(st.sampled_from(names), max_size=1))
    alive = {n: replace(nodes[n], draining=n in drained) for n in names if n not in dead}
    disks = full_disks(manifest)
    for place in sorted(disks):
        disks[place] -= data.draw(st.sets(st.integers(0, 12), max_size=2))
    disks_before = {place: set(blocks) for place, blocks in disks.items()}

    for _ in range(30):
        found = plan(manifest, alive, disks, min_regions=min_regions)
        check_plan(found, manifest, alive, min_regions)
        if not found.repairs:
            break
        for repair in found.repairs:
            manifest = perform(repair, manifest, alive, disks)
            manifest.check()
    else:
        raise AssertionError("the plans do not come to an end")

    assert all(blocks <= disks[place] for place, blocks in disks_before.items())
    assert [s for s in manifest.segments if not s.sealed] == list(before.open_segments)
    if not found.stuck:
        assert found.under_replicated == {}
        for sealed in filter(lambda segment: segment.sealed, manifest.segments):
            quorums = {"write_quorum": sealed.write_quorum, "ack_quorum": sealed.ack_quorum}
            law = {**quorums, "min_regions": min_regions}
            for ensemble in sealed.ensembles:
                assert all(n in alive and not alive[n].draining for n in ensemble.nodes)
                if min_regions > 1:
                    assert not check_placement(ensemble.nodes, nodes, **law)


def check_plan(found: RepairPlan, manifest: LogManifest, alive: Nodes, min_regions: int) -> None:
    """What must hold of every plan before anything is done."""
    living = [repair.living for repair in found.repairs]
    assert living == sorted(living)
    replaced: Counter[tuple[int, int]] = Counter()
    for repair in found.repairs:
        segment = manifest.find(repair.segment)
        assert segment is not None and segment.sealed
        assert repair.target in alive
        if isinstance(repair, Refill):
            assert any(repair.target in e.nodes for e in segment.ensembles)
            continue
        [ensemble] = [e for e in segment.ensembles if e.first_block == repair.first_block]
        assert repair.target not in ensemble.nodes and not alive[repair.target].draining
        assert repair.old not in alive or alive[repair.old].draining
        replaced[repair.segment, repair.first_block] += 1
    assert all(times == 1 for times in replaced.values())
