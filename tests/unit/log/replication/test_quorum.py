"""Write sets and coverage, against the plainest form of the same sentences."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.replication.manifest import Ensemble, Segment
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
    return tuple(NodeId(f"n{n}:c") for n in range(size))


#: Every (E, Qw, Qa) with E up to 6.
SHAPES = [
    (size, write_quorum, ack_quorum)
    for size in range(1, 7)
    for write_quorum in range(1, size + 1)
    for ack_quorum in range(1, write_quorum + 1)
]


def subsets(nodes: tuple[NodeId, ...]) -> list[tuple[NodeId, ...]]:
    return [found for size in range(len(nodes) + 1) for found in combinations(nodes, size)]


def every_quorum(size: int, write_quorum: int, ack_quorum: int) -> list[tuple[NodeId, ...]]:
    """Each combination of nodes that could acknowledge a block."""
    return [
        quorum
        for block in range(size)
        for quorum in combinations(
            [names(size)[(block + i) % size] for i in range(write_quorum)], ack_quorum
        )
    ]


def test_the_write_set_of_a_block_starts_at_its_number() -> None:
    nodes = names(4)

    assert write_set(nodes, 0, 3) == (nodes[0], nodes[1], nodes[2])
    assert write_set(nodes, 3, 3) == (nodes[3], nodes[0], nodes[1])
    assert write_set(nodes, 1_000_002, 2) == (nodes[2], nodes[3])


@pytest.mark.parametrize(("size", "write_quorum", "ack_quorum"), SHAPES)
def test_write_sets_are_those_of_all_blocks(size: int, write_quorum: int, ack_quorum: int) -> None:
    nodes = names(size)

    found = {frozenset(s) for s in write_sets(nodes, write_quorum)}

    assert found == {frozenset(write_set(nodes, b, write_quorum)) for b in range(3 * size)}


@pytest.mark.parametrize(("size", "write_quorum", "ack_quorum"), SHAPES)
def test_covered_is_when_no_ack_quorum_is_left(
    size: int, write_quorum: int, ack_quorum: int
) -> None:
    """All subsets of nodes: fenced ones cover exactly if each possible ack quorum has one."""
    quorums = every_quorum(size, write_quorum, ack_quorum)

    for answered in subsets(names(size)):
        expected = all(set(quorum) & set(answered) for quorum in quorums)
        coverage = Coverage(names(size), write_quorum=write_quorum, ack_quorum=ack_quorum)
        for node in answered:
            coverage.add(node)

        assert coverage.complete == expected, answered
        assert covers(names(size), answered, write_quorum, ack_quorum) == expected, answered
        assert coverage.silent == tuple(n for n in names(size) if n not in answered)


@pytest.mark.parametrize(("size", "write_quorum", "ack_quorum"), SHAPES)
def test_blocks_can_be_acknowledged_if_every_write_set_has_an_ack_quorum(
    size: int, write_quorum: int, ack_quorum: int
) -> None:
    for usable in subsets(names(size)):
        expected = all(
            any(
                set(quorum) <= set(usable)
                for quorum in combinations(write_set(names(size), block, write_quorum), ack_quorum)
            )
            for block in range(size)
        )

        assert (
            can_ack(names(size), usable, write_quorum=write_quorum, ack_quorum=ack_quorum)
            == expected
        )


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
    segment = Segment(
        SegmentId(1),
        Epoch(1),
        Lsn(0),
        (Ensemble(BlockId(0), old), Ensemble(BlockId(5), new)),
        write_quorum=2,
        ack_quorum=2,
    )

    assert replicas(segment, 4) == (old[1], old[2])
    assert replicas(segment, 5) == (new[2], new[0])
    assert replicas(segment, 0, part=1) == (new[0], new[1])
