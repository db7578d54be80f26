"""Find the end of a segment whose writer is gone, and make its tail durable: fence, read, write.

Owns the decision where the segment ends. Knows no sockets and no clock: the shell performs the
effects and reports each answer; what did not answer is reported by `failed` and asked again by
`retry`.

    fence all nodes ──enough──► from the LAC on, per block: read (fencing) from its write set
                                  ├─ somebody has it ──► add to the write set, ack_quorum ──► next
                                  └─ write_quorum - ack_quorum + 1 say ABSENT ──► the end

Laws: (I5) blocks are read only after so many nodes are fenced that no block of an older epoch can
be acknowledged any more, and every read fences its node before it answers (R02, BookKeeper #2614);
(I6) the end is at or above every acknowledged block; silence, UNKNOWN and errors never count as
ABSENT (R04, R05). Which of two rival recoverers decides is settled by the manifest's version: this
machine only promises that its own answer is safe.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import BadFormat, Damaged
from penstock.ids import BlockId, Epoch, NodeId
from penstock.log.block_format import BlockHeader, check_block
from penstock.log.group_format import Buffer
from penstock.log.replication.manifest import Segment
from penstock.log.replication.node_api import Blocks, Fence, Found
from penstock.log.replication.quorum import Coverage, refusals_enough, write_set


@dataclass(frozen=True, slots=True)
class FenceNode:
    node: NodeId


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """A recovery read: it fences the node in the same step."""

    node: NodeId
    block: BlockId


@dataclass(frozen=True, slots=True)
class AddBack:
    """Write a recovered block again, byte for byte."""

    node: NodeId
    block: BlockId
    data: Buffer


Effect = FenceNode | ReadBlock | AddBack


class SegmentRecovery:
    """One attempt by one recoverer. `end` is set when it is done, `lost` when a newer one came."""

    def __init__(self, segment: Segment, epoch: Epoch, log_mark: int) -> None:
        self.segment = segment
        self.epoch = epoch
        self._log_mark = log_mark
        self._ensemble = segment.ensembles[-1]
        self._fenced = Coverage(
            self._ensemble.nodes,
            write_quorum=segment.write_quorum,
            ack_quorum=segment.ack_quorum,
        )
        #: All blocks below are acknowledged: those of older ensembles surely are.
        self.durable_block = self._ensemble.first_block
        #: The block that is looked for, None while fencing.
        self._block: BlockId | None = None
        self._absent: set[NodeId] = set()
        self._data: Buffer | None = None
        self._added: set[NodeId] = set()
        #: Effects that failed and wait for `retry`.
        self._again: list[Effect] = []
        #: Number of blocks of the segment, once known.
        self.end: BlockId | None = None
        #: A newer owner fenced the segment: give up.
        self.lost = False

    def start(self) -> list[Effect]:
        return [FenceNode(node) for node in self._ensemble.nodes]

    def fenced(self, node: NodeId, fence: Fence) -> list[Effect]:
        self.durable_block = max(self.durable_block, fence.durable_block)
        enough = self._fenced.add(node)
        if self._block is not None or not enough:
            return []
        return self._look_for(self.durable_block)

    def read(self, node: NodeId, block: int, found: Blocks) -> list[Effect]:
        """What the node said of a block. UNKNOWN and LATER are no answers: they are asked again."""
        if block != self._block or self._data is not None or self.end is not None:
            return []
        if found.found == Found.HERE:
            try:
                header = self._checked(found.data, block)
            except Damaged:
                return self.failed(ReadBlock(node, BlockId(block)))
            self._data = memoryview(found.data)[: header.block_bytes]
            self._again = [e for e in self._again if not isinstance(e, ReadBlock)]
            return [AddBack(to, BlockId(block), self._data) for to in self._write_set(block)]
        if found.found != Found.ABSENT:
            return self.failed(ReadBlock(node, BlockId(block)))
        self._absent.add(node)
        if len(self._absent) >= refusals_enough(self.segment.write_quorum, self.segment.ack_quorum):
            self.end = BlockId(block)
        return []

    def added(self, node: NodeId, block: int) -> list[Effect]:
        if block != self._block or self._data is None:
            return []
        self._added.add(node)
        if len(self._added) < self.segment.ack_quorum:
            return []
        return self._look_for(BlockId(block + 1))

    def refused(self) -> None:
        """A node is fenced for a newer epoch."""
        self.lost = True

    def failed(self, effect: Effect) -> list[Effect]:
        """No answer, or one that says nothing."""
        self._again.append(effect)
        return []

    def retry(self) -> list[Effect]:
        """What to ask again, after a while."""
        again, self._again = self._again, []
        return [effect for effect in again if self._is_wanted(effect)]

    def _is_wanted(self, effect: Effect) -> bool:
        match effect:
            case FenceNode():
                return self._block is None
            case ReadBlock():
                return effect.block == self._block and self._data is None
            case AddBack():
                return effect.block == self._block

    def _look_for(self, block: BlockId) -> list[Effect]:
        self._block, self._data = block, None
        self._absent, self._added = set(), set()
        return [ReadBlock(node, block) for node in self._write_set(block)]

    def _write_set(self, block: int) -> tuple[NodeId, ...]:
        return write_set(self._ensemble.nodes, block, self.segment.write_quorum)

    def _checked(self, data: Buffer, block: int) -> BlockHeader:
        header, _ = check_block(data)
        place = (header.log_mark, header.segment, header.block, header.epoch)
        if place != (self._log_mark, self.segment.id, block, self.segment.epoch):
            raise BadFormat(f"block {block} of segment {self.segment.id}: one of {place}")
        return header
