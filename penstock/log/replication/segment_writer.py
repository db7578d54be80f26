"""Write the blocks of one segment to their nodes and acknowledge them in order.

Owns which node gets which block and which blocks count as durable. Knows no sockets and no clock:
the shell performs each `SendBlock` and reports `added`, `again`, `lost`, `back`, and, after a
versioned update of the manifest, `replaced`.

    add ──► sent to the write set ──► acknowledged by ack_quorum of it, and all before it: durable

Laws: (I1) a block is durable only when `ack_quorum` nodes of its write set, each in good standing,
have fsynced it; (I2) blocks become durable in order. A node that was lost takes back its
acknowledgements of all blocks that are not durable yet: the manifest may name another in its place
from the first of them on, and then they must count without it (R06, R09). (I5) After one node has
answered that the segment is fenced nothing becomes durable any more. What became durable without a
node that should have it is known until the node has it, so that the shell can bring it, and whoever
asks is told how much there is: while the node was lost, had no room, or was about to get its place;
also of one that has lost its place since.
DistributedLog III-A, III-B.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import InvariantBroken
from penstock.ids import BlockId, NodeId
from penstock.log.group_format import Buffer
from penstock.log.replication.block_ranges import Range, count, owed, union
from penstock.log.replication.manifest import Ensemble, Segment
from penstock.log.replication.quorum import write_set


@dataclass(frozen=True, slots=True)
class SendBlock:
    """Send the block to the node; the buffers never change (R20)."""

    node: NodeId
    block: BlockId
    data: Sequence[Buffer]


@dataclass(slots=True)
class _Pending:
    """A block that is not durable yet."""

    block: BlockId
    data: Sequence[Buffer]
    nodes: tuple[NodeId, ...]
    #: Nodes of the write set, in good standing, that have fsynced it.
    acks: set[NodeId] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Missed:
    """What a node that is back is being brought: its blocks of [first, end), all durable."""

    node: NodeId
    first: int
    end: int


class SegmentWriter:
    """See the module's docstring."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        #: First block that is not durable; what headers carry as the LAC.
        self.durable_block = BlockId(0)
        self.next_block = BlockId(0)
        self.fenced = False
        self._pending: deque[_Pending] = deque()
        #: Nodes of the newest ensemble that cannot be reached.
        self.lost_nodes: set[NodeId] = set()
        #: Of those, the one whose place is about to be another's: it is not taken back.
        self._leaving: NodeId | None = None
        #: By node: it has all its blocks below, but for those that it had no room for.
        self._acked_end: dict[NodeId, BlockId] = {}
        #: By node: it may lack what it should have from here on.
        self._missed_from: dict[NodeId, BlockId] = {}
        #: Of nodes that are back: what is on its way to them.
        self._bringing: list[Missed] = []

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The newest ensemble."""
        return self.segment.ensembles[-1].nodes

    def add(self, data: Sequence[Buffer]) -> list[SendBlock]:
        """The next block, `next_block`, whose header the caller has made."""
        block = self.next_block
        pending = _Pending(block, data, self._write_set(block))
        self.next_block = BlockId(block + 1)
        self._pending.append(pending)
        return [
            SendBlock(node, block, data) for node in pending.nodes if node not in self.lost_nodes
        ]

    def added(self, node: NodeId, block: int) -> int:
        """The node has fsynced the block; returns how many blocks became durable by it."""
        self._acked_end[node] = BlockId(block + 1)
        if self.fenced or node in self.lost_nodes or not self._pending:
            return 0
        at = block - self._pending[0].block
        if not 0 <= at < len(self._pending) or node not in self._pending[at].nodes:
            return 0  # late: durable without it, or the node was replaced
        self._pending[at].acks.add(node)
        return self._advance()

    def again(self, node: NodeId, block: int) -> list[SendBlock]:
        """The node had no room for the block: it gets it once more, or it is missed."""
        at = block - self.durable_block
        if at < 0 or node in self.lost_nodes:
            self._missed_since(node, BlockId(block))
            return []
        if self.fenced or at >= len(self._pending):
            return []
        pending = self._pending[at]
        return [SendBlock(node, pending.block, pending.data)] if node in pending.nodes else []

    def refused(self) -> None:
        """A node answered that a newer owner has fenced the segment."""
        self.fenced = True

    def lost(self, node: NodeId) -> None:
        """The node does not answer. What it acknowledged does not count until it is back."""
        if node in self.nodes:
            self.lost_nodes.add(node)
            self._missed_since(node, self._acked_end.get(node, BlockId(0)))
            for pending in self._pending:
                pending.acks.discard(node)

    def back(self, node: NodeId) -> list[SendBlock]:
        """The node, in the same life, can be reached again: it gets all that is not durable."""
        if node not in self.lost_nodes or node == self._leaving:
            return []
        self.lost_nodes.discard(node)
        return [
            SendBlock(node, pending.block, pending.data)
            for pending in self._pending
            if node in pending.nodes
        ]

    def take_missed(self, node: NodeId) -> Missed | None:
        """Of a node that can be reached: the durable blocks among which are those it missed."""
        first = self._missed_from.pop(node, self.durable_block)
        if first >= self.durable_block:
            return None
        missed = Missed(node, first, self.durable_block)
        self._bringing.append(missed)
        return missed

    def brought(self, missed: Missed) -> None:
        """The node has the first of these blocks, or it is not the node's."""
        missed.first += 1
        if missed.first >= missed.end:
            self._bringing.remove(missed)

    def not_brought(self, missed: Missed) -> None:
        """The node was lost again, or replaced: these blocks are missing as before."""
        self._bringing.remove(missed)
        self._missed_since(missed.node, BlockId(missed.first))

    def _missed_since(self, node: NodeId, block: BlockId) -> None:
        """From here on the node may lack blocks, as long as it is lost."""
        self._missed_from[node] = min(block, self._missed_from.get(node, block))

    def left_lacking(self) -> list[NodeId]:
        """Nodes that have lost their place and may lack blocks of before."""
        return sorted(
            node
            for node, first in self._missed_from.items()
            if node not in self.nodes and any(self._owed(node, first, self.durable_block))
        )

    def count_lacking(self) -> int:
        """Durable blocks that a node which should have them may lack; 0 only if none does."""
        missing = [(each.node, each.first, each.end) for each in self._bringing]
        for node, first in self._missed_from.items():
            missing.append((node, first, self.durable_block))
        return count(union([part for each in missing for part in self._owed(*each)]))

    def _owed(self, node: NodeId, first: int, end: int) -> Iterator[Range]:
        """Of these blocks, those that the node should have."""
        ensembles = self.segment.ensembles
        ends = [int(ensemble.first_block) for ensemble in ensembles[1:]] + [end]
        for ensemble, last in zip(ensembles, ends, strict=True):
            if node in ensemble.nodes:
                bounds = (max(first, ensemble.first_block), min(end, last))
                place, size = ensemble.nodes.index(node), len(ensemble.nodes)
                yield from owed(bounds, place, size, self.segment.write_quorum)

    def is_owed(self, node: NodeId, block: int) -> bool:
        """Whether the node should have the block."""
        nodes = self.segment.ensemble_of(block).nodes
        return node in write_set(nodes, block, self.segment.write_quorum)

    def replacement(self, old: NodeId, new: NodeId) -> Segment:
        """The segment as the manifest must name it before `replaced` is called.

        From here on what counts must count under the old ensemble and the new one, whatever becomes
        of the manifest: the old node is not heard any more. The new ensemble starts at the first
        block that is not durable. If that is where the newest one started, it takes its place:
        ensembles never overlap.
        """
        if old not in self.lost_nodes or new in self.nodes:
            raise InvariantBroken(f"{new} cannot replace {old}: {self.nodes}")
        self._leaving = old
        nodes = tuple(new if node == old else node for node in self.nodes)
        first = self.durable_block
        kept = tuple(e for e in self.segment.ensembles if e.first_block < first)
        return replace(self.segment, ensembles=(*kept, Ensemble(first, nodes)))

    def stays(self) -> None:
        """The manifest was surely not changed: the node that was to leave may come back."""
        self._leaving = None

    def replaced(self, segment: Segment) -> list[SendBlock]:
        """The manifest names these ensembles now. Sends to the new node what is not durable.

        What became durable since `replacement` was asked for, it has missed.
        """
        old, self.segment = set(self.nodes), segment
        self._leaving = None
        self.lost_nodes &= set(self.nodes)
        first = segment.ensembles[-1].first_block
        for node in self.nodes:
            if node not in old and first < self.durable_block:
                self._missed_since(node, first)
        sends = []
        for pending in self._pending:
            pending.nodes = self._write_set(pending.block)
            pending.acks &= set(pending.nodes)
            sends += [
                SendBlock(node, pending.block, pending.data)
                for node in pending.nodes
                if node not in old
            ]
        return sends

    def _write_set(self, block: int) -> tuple[NodeId, ...]:
        return write_set(self.nodes, block, self.segment.write_quorum)

    def _advance(self) -> int:
        before = self.durable_block
        while self._pending and len(self._pending[0].acks) >= self.segment.ack_quorum:
            self.durable_block = BlockId(self._pending.popleft().block + 1)
        return self.durable_block - before

    def check(self) -> None:
        """Assert every invariant that can be seen from here."""
        block = self.durable_block
        for pending in self._pending:
            assert pending.block == block
            assert pending.acks <= set(pending.nodes) - self.lost_nodes
            block = BlockId(block + 1)
        assert block == self.next_block
        assert self.lost_nodes <= set(self.nodes)
