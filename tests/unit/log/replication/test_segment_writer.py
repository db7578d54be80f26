"""What the writer of a segment knows of nodes that missed something, beside what they really have.

Its other laws are shown by simulation: tests/sim/test_cluster_*.py.
"""

from __future__ import annotations

from random import Random

import pytest

from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.replication.manifest import Ensemble, Segment
from penstock.log.replication.quorum import replicas
from penstock.log.replication.segment_writer import Missed, SegmentWriter, SendBlock

NODES = tuple(NodeId(f"n{number}:c") for number in range(6))


class Nodes:
    """Take every block at once, or are away and take none."""

    def __init__(self, size: int, write_quorum: int, ack_quorum: int) -> None:
        first = Ensemble(BlockId(0), NODES[:size])
        segment = Segment(SegmentId(0), Epoch(1), Lsn(0), (first,), write_quorum, ack_quorum)
        self.core = SegmentWriter(segment)
        self.held: dict[NodeId, set[int]] = {node: set() for node in NODES}
        self.away: set[NodeId] = set()
        self.bringing: list[Missed] = []
        #: What the manifest is about to say.
        self.published: Segment | None = None
        self.full: set[tuple[NodeId, int]] = set()

    def take(self, sends: list[SendBlock]) -> None:
        for send in sends:
            if send.node in self.away:
                self.core.lost(send.node)
            elif (send.node, send.block) in self.full:
                pass  # it is tried again when there is room
            else:
                self.held[send.node].add(send.block)
                self.core.added(send.node, send.block)

    def back(self, node: NodeId) -> None:
        self.away.discard(node)
        self.take(self.core.back(node))
        self.bring_missed(node)

    def bring_missed(self, node: NodeId) -> None:
        missed = None if node in self.core.lost_nodes else self.core.take_missed(node)
        if missed is not None:
            self.bringing.append(missed)

    def refuse(self, node: NodeId) -> None:
        """It has no room for the next block, and takes those after it."""
        self.full.add((node, self.core.next_block))

    def again(self) -> None:
        """There is room now."""
        full, self.full = self.full, set()
        for node, block in sorted(full):
            if node not in self.away and block < self.core.next_block:
                self.take(self.core.again(node, block))
                self.bring_missed(node)

    def bring(self, missed: Missed) -> None:
        core = self.core
        if core.is_owed(missed.node, missed.first):
            if missed.node in core.lost_nodes or missed.node in self.away:
                self.bringing.remove(missed)
                core.not_brought(missed)
                return
            self.held[missed.node].add(missed.first)
        core.brought(missed)
        if missed.first >= missed.end:
            self.bringing.remove(missed)

    def publish(self) -> None:
        segment, self.published = self.published, None
        assert segment is not None
        before = self.core.nodes
        self.take(self.core.replaced(segment))
        for node in (*self.core.nodes, *self.core.left_lacking()):
            if node not in before or node not in self.core.nodes:
                if node not in self.away:
                    self.bring_missed(node)

    def lacking(self) -> int:
        """Durable blocks that some node should have and does not."""
        return sum(
            any(block not in self.held[node] for node in replicas(self.core.segment, block))
            for block in range(self.core.durable_block)
        )


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2), (5, 3, 2)])
@pytest.mark.parametrize("seed", range(20))
def test_what_nodes_lack_is_counted_until_they_have_it(
    quorums: tuple[int, int, int], seed: int
) -> None:
    rng, nodes = Random(seed), Nodes(*quorums)
    replace = rng.choice(("replace", "back"))
    core = nodes.core
    for _ in range(200):
        match rng.choice(("add", "add", "add", "away", "back", "bring", replace, "publish")):
            case "add":
                nodes.take(core.add([b""]))
            case "away" if not nodes.away:
                nodes.away.add(rng.choice(core.nodes))
            case "back" if nodes.away:
                nodes.back(*nodes.away)
            case "bring" if nodes.bringing:
                nodes.bring(rng.choice(nodes.bringing))
            case "replace" if core.lost_nodes and nodes.published is None:
                (old,) = core.lost_nodes
                spare = [n for n in NODES if n not in core.nodes and n not in nodes.away]
                nodes.published = core.replacement(old, rng.choice(spare))
            case "publish" if nodes.published is not None:
                nodes.publish()
            case _:
                continue
        core.check()
        assert core.count_lacking() >= nodes.lacking()
        assert bool(core.count_lacking()) == bool(nodes.lacking())

    if nodes.published is not None:
        nodes.publish()
    for node in list(nodes.away):
        nodes.back(node)
    while nodes.bringing:
        nodes.bring(nodes.bringing[0])
    assert core.count_lacking() == nodes.lacking() == 0


@pytest.mark.parametrize("seed", range(20))
def test_what_nodes_had_no_room_for_is_brought_to_them(seed: int) -> None:
    """Nodes of an older version refuse a block, and take the next ones."""
    rng, nodes = Random(seed), Nodes(3, 3, 2)
    core = nodes.core
    for _ in range(200):
        match rng.choice(("add", "add", "full", "again", "away", "back", "bring")):
            case "add":
                nodes.take(core.add([b""]))
            case "full" if not nodes.full:
                nodes.refuse(rng.choice(core.nodes))
            case "again":
                nodes.again()
            case "away" if not nodes.away and not nodes.full:
                nodes.away.add(rng.choice(core.nodes))
            case "back" if nodes.away:
                nodes.back(*nodes.away)
            case "bring" if nodes.bringing:
                nodes.bring(rng.choice(nodes.bringing))
            case _:
                continue
        core.check()
        if not nodes.full:
            assert core.count_lacking() >= nodes.lacking()

    nodes.again()
    for node in list(nodes.away):
        nodes.back(node)
    while nodes.bringing:
        nodes.bring(nodes.bringing[0])
    assert core.count_lacking() == nodes.lacking() == 0


def test_a_new_member_gets_what_became_durable_while_the_manifest_was_changed() -> None:
    nodes = Nodes(3, 3, 2)
    core = nodes.core
    nodes.away.add(NODES[2])
    nodes.take(core.add([b""]))
    nodes.published = core.replacement(NODES[2], NODES[3])
    for _ in range(5):
        nodes.take(core.add([b""]))
    assert core.durable_block == 6

    nodes.publish()

    (missed,) = nodes.bringing
    assert (missed.node, missed.first, missed.end) == (NODES[3], 1, 6)


def test_a_node_whose_place_was_not_given_away_comes_back() -> None:
    """There was no room in the manifest."""
    nodes = Nodes(3, 3, 2)
    core = nodes.core
    nodes.away.add(NODES[2])
    nodes.take(core.add([b""]))
    core.replacement(NODES[2], NODES[3])
    assert core.back(NODES[2]) == [] and core.lost_nodes == {NODES[2]}

    core.stays()
    nodes.back(NODES[2])

    assert not core.lost_nodes and core.count_lacking() == 1
