"""Write sets and coverage, against the plainest form of the same sentences."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_clusters import ids, segment

from penstock.errors import BadRequest
from penstock.ids import NodeId
from penstock.log.replication.quorum import (
    Coverage,
    can_ack,
    check_quorums,
    covers,
    refusals_enough,
    replicas,
    write_set,
    write_sets,
)


def names(size: int) -> tuple[NodeId, ...]:
    return ids(*range(size))


#: Every (E, Qw, Qa) with E up to 6.
SHAPES = [
    (size, write_quorum, ack_quorum)
    for size in range(1, 7)
    for write_quorum in range(1, size + 1)
    for ack_quorum in range(1, write_quorum + 1)
]


def subsets(nodes: tuple[NodeId, ...]) -> list[tuple[NodeId, ...]]:
    return [found for size in range(len(nodes) + 1) for found in combinations(nodes, size)]


def test_the_write_set_of_a_block_starts_at_its_number() -> None:
    nodes = names(4)

    assert write_set(nodes, 0, 3) == (nodes[0], nodes[1], nodes[2])
    assert write_set(nodes, 3, 3) == (nodes[3], nodes[0], nodes[1])
    assert write_set(nodes, 1_000_002, 2) == (nodes[2], nodes[3])


@pytest.mark.parametrize(("size", "write_quorum", "ack_quorum"), SHAPES)
def test_sets_of_nodes_are_judged_as_the_sentences_say(
    size: int, write_quorum: int, ack_quorum: int
) -> None:
    """Fenced nodes cover exactly if each possible ack quorum has one; blocks can be acknowledged if
    every write set has an ack quorum that is usable. All subsets of nodes are tried."""
    nodes, law = names(size), {"write_quorum": write_quorum, "ack_quorum": ack_quorum}
    sets = [write_set(nodes, block, write_quorum) for block in range(3 * size)]
    assert {frozenset(s) for s in write_sets(nodes, write_quorum)} == set(map(frozenset, sets))
    quorums = [[set(q) for q in combinations(found, ack_quorum)] for found in sets[:size]]

    for some in subsets(nodes):
        is_covered = all(quorum & set(some) for of_block in quorums for quorum in of_block)
        coverage = Coverage(nodes, **law)
        for node in some:
            coverage.add(node)

        assert coverage.complete == covers(nodes, some, write_quorum, ack_quorum) == is_covered, (
            some
        )
        assert coverage.silent == tuple(n for n in nodes if n not in some)
        has_quorums = all(any(quorum <= set(some) for quorum in each) for each in quorums)
        assert can_ack(nodes, some, **law) == has_quorums, some


def test_the_order_of_answers_and_repeats_do_not_matter() -> None:
    nodes = names(4)
    for order in permutations(nodes[:3]):
        coverage = Coverage(nodes, write_quorum=3, ack_quorum=2)

        said = [coverage.add(node) for node in (order[0], order[0], NodeId("x:c"), *order[1:])]

        assert said[:3] == [False, False, False]
        assert said[-1] is True


@given(st.sampled_from(SHAPES), st.data())
def test_hope_ends_when_the_silent_ones_are_too_many(
    shape: tuple[int, int, int], data: st.DataObject
) -> None:
    size, write_quorum, ack_quorum = shape
    nodes = names(size)
    answered = data.draw(st.sets(st.sampled_from(nodes)))
    hopeless = data.draw(st.sets(st.sampled_from(nodes)))
    coverage = Coverage(nodes, write_quorum=write_quorum, ack_quorum=ack_quorum)
    for node in sorted(answered):
        coverage.add(node)

    could = coverage.can_complete(hopeless)

    assert could == covers(nodes, answered | (set(nodes) - hopeless), write_quorum, ack_quorum)
    assert coverage.complete == covers(nodes, answered, write_quorum, ack_quorum)


def test_one_refusal_less_is_not_enough() -> None:
    """R02, R04: of Qw 3 and Qa 2, two nodes that say no prove it, one does not."""
    assert refusals_enough(3, 2) == 2
    assert refusals_enough(5, 3) == 3
    assert refusals_enough(3, 3) == 1


@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0), (2, 3, -1)])
def test_quorums_that_make_no_sense_are_refused(shape: tuple[int, int, int]) -> None:
    size, write_quorum, ack_quorum = shape

    with pytest.raises(BadRequest, match="quorum"):
        check_quorums(size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)


def test_replicas_follow_the_ensemble_of_the_block() -> None:
    old, new = names(3), (*names(2), NodeId("n9:c"))
    changed = segment(1, (0, old), (5, new), quorums=(2, 2))

    assert replicas(changed, 4) == (old[1], old[2])
    assert replicas(changed, 5) == (new[2], new[0])
    assert replicas(changed, 0, part=1) == (new[0], new[1])
