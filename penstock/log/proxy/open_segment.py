"""The segment that is being written: segment_writer.py on real nodes.

Owns the headers of its blocks, sending, and the replacement of nodes that are gone. Law: a node's
place is given to another by a versioned change of the manifest before the other's answers count; a
node that is being replaced is not heard any more. One that answers that it has no room is not gone.
One that is back gets what is not durable yet at once, and then, in the background, what became
durable without it; this also if it has lost its place, since older blocks are still its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from crc32c import crc32c

from penstock.errors import BadRequest, Fenced, Overloaded, PenstockError, Unavailable
from penstock.ids import BlockId, Lsn, NodeId
from penstock.log.block_format import (
    BLOCK_HEADER_BYTES,
    BlockHeader,
    BlockKind,
    encode_block_header,
)
from penstock.log.group_format import Buffer
from penstock.log.proxy.block_source import Block
from penstock.log.proxy.recover_segment import add_block
from penstock.log.replication.manifest import Segment, SegmentKey
from penstock.log.replication.node_api import Nodes
from penstock.log.replication.segment_writer import Missed, SegmentWriter, SendBlock

logger = logging.getLogger(__name__)

#: A node that does not answer is tried again this often, and replaced if it is gone for longer.
RETRY_SECONDS = 0.2
REPLACE_SECONDS = 1.0

#: Who could take a node's place; None: nobody now. Raises Unavailable if nobody may.
ChooseReplacement = Callable[[tuple[NodeId, ...], NodeId], NodeId | None]
#: Reads a durable block from whoever has it.
Fetch = Callable[[Segment, int], Awaitable[Block]]


class OpenSegment:
    """See the module's docstring. All methods are for the event loop."""

    def __init__(
        self,
        log: str,
        log_mark: int,
        segment: Segment,
        nodes: Nodes,
        *,
        on_durable: Callable[[OpenSegment], None],
        on_fenced: Callable[[PenstockError], None],
        choose: ChooseReplacement,
        fetch: Fetch,
        publish: Callable[[Segment], Awaitable[None]],
    ) -> None:
        self.core = SegmentWriter(segment)
        self.key = SegmentKey(log, segment.id)
        self._log_mark = log_mark
        self._nodes = nodes
        self._on_durable = on_durable
        self._on_fenced = on_fenced
        self._choose = choose
        self._fetch = fetch
        self._publish = publish
        #: Bytes of records so far.
        self.bytes = 0
        self.last_ms = segment.first_ms
        #: First block of the newest snapshot whose pieces were all sent.
        self._snapshot_block = BlockId(0)
        #: The largest durable block that a header has told.
        self._told_block = BlockId(0)
        self._loop = asyncio.get_running_loop()
        self._mender: asyncio.Task[None] | None = None
        self._refills: set[asyncio.Task[None]] = set()
        self._lost_at: dict[NodeId, float] = {}
        #: Of the lost ones, those that answer, and are to be replaced all the same.
        self._moving: set[NodeId] = set()
        self._closed = False
        #: Ends the watch for nodes that have lost their place and lack blocks of before.
        self._unwatch: Callable[[], None] | None = None

    @property
    def segment(self) -> Segment:
        return self.core.segment

    @property
    def durable_block(self) -> BlockId:
        return self.core.durable_block

    @property
    def wants_control(self) -> bool:
        """Everything is durable, and no header has told that yet."""
        core = self.core
        return core.durable_block == core.next_block > self._told_block and not core.fenced

    def write(
        self,
        kind: BlockKind,
        body: Sequence[Buffer],
        *,
        base_lsn: Lsn,
        end_lsn: Lsn,
        time_ms: int,
        part: int = 0,
        parts: int = 1,
    ) -> BlockHeader:
        """Send the next block, and return its header; `on_durable` follows, in order."""
        core = self.core
        block = core.next_block
        body_bytes, body_crc = 0, 0
        for piece in body:
            body_bytes += len(piece)
            body_crc = crc32c(piece, body_crc)
        header = BlockHeader(
            BLOCK_HEADER_BYTES + body_bytes,
            body_crc,
            kind,
            part,
            parts,
            self._log_mark,
            core.segment.id,
            block,
            core.segment.epoch,
            core.durable_block,
            self.bytes,
            base_lsn,
            end_lsn,
            time_ms,
            self._snapshot_block,
        )
        self._told_block = core.durable_block
        if kind == BlockKind.CONTROL and core.durable_block == block:
            # All before it is told. It need not be told of itself, or an idle log would write on.
            self._told_block = BlockId(block + 1)
        if kind == BlockKind.DATA:
            self.bytes += body_bytes
        if kind == BlockKind.SNAPSHOT and part == parts - 1:
            self._snapshot_block = BlockId(block - part)
        self.last_ms = max(self.last_ms, time_ms)
        self._send(core.add((encode_block_header(header), *body)))
        return header

    def _send(self, sends: list[SendBlock]) -> None:
        epoch = self.core.segment.epoch
        for send in sends:
            client = self._nodes.client(send.node)
            if client is None:
                self._lost(send.node)
            else:
                client.add(self.key, epoch, send.data, partial(self._added, send.node, send.block))

    def _added(self, node: NodeId, block: BlockId, error: PenstockError | None) -> None:
        if self._closed:
            return
        if error is None:
            if self._lost_at:
                self._lost_at.pop(node, None)
            if self.core.added(node, block):
                self._on_durable(self)
        elif isinstance(error, Fenced):
            self.core.refused()
            self._on_fenced(error)
        elif isinstance(error, Overloaded):
            # What it acknowledged stands, or it would all be sent again to who has no room for it.
            self._loop.call_later(RETRY_SECONDS, self._send_again, node, block)
        else:
            if node not in self.core.lost_nodes:  # once, not for every block that was on its way
                logger.warning("a node did not take a block node=%s cause=%s", node, error)
            self._lost(node)

    def _send_again(self, node: NodeId, block: BlockId) -> None:
        if not self._closed:
            self._send(self.core.again(node, block))
            self._bring_missed(node)

    def close(self) -> asyncio.Task[None] | None:
        """Nothing is heard any more, and no node replaced; returns what is about to end, if any."""
        self._closed = True
        if self._unwatch is not None:
            self._unwatch()
        for refill in self._refills:
            refill.cancel()
        mender, self._mender = self._mender, None
        if mender is not None:
            mender.cancel()
        return mender

    # ---- lost nodes

    def move_off(self, node: NodeId) -> None:
        """Let another take the place of a node that is to be emptied, if there is one.

        From here on the node does not count, as if it were lost. One at a time: the others must
        be able to acknowledge.
        """
        if node not in self.core.nodes or self.core.lost_nodes or self._closed:
            return
        try:
            if self._choose(self.core.nodes, node) is None:
                return
        except PenstockError as error:
            logger.warning("no node can replace node=%s cause=%s", node, error)
            return
        self._moving.add(node)
        self._lost(node)

    def _lost(self, node: NodeId) -> None:
        self.core.lost(node)
        if node in self.core.lost_nodes:
            self._lost_at.setdefault(node, self._loop.time())
            if self._mender is None and not self._closed:
                self._mender = self._loop.create_task(self._mend())

    async def _mend(self) -> None:
        """Until no node is lost: try each again, or find another in its place."""
        try:
            while self.core.lost_nodes and not self.core.fenced:
                await asyncio.sleep(RETRY_SECONDS)
                for node in sorted(self.core.lost_nodes):
                    try:
                        await self._mend_node(node)
                    except Fenced:
                        raise
                    except PenstockError as error:
                        logger.error("a node cannot be replaced node=%s cause=%r", node, error)
        except Fenced as error:
            self.core.refused()
            self._on_fenced(error)
        finally:
            self._mender = None

    async def _mend_node(self, node: NodeId) -> None:
        gone_seconds = self._loop.time() - self._lost_at.get(node, self._loop.time())
        is_moving = node in self._moving
        if node in self._nodes.alive() and gone_seconds < REPLACE_SECONDS and not is_moving:
            self._back(node)
            return
        self._moving.discard(node)
        try:
            new = self._choose(self.core.nodes, node)
        except PenstockError as error:
            logger.warning("no node can replace node=%s cause=%s", node, error)
            new = None
        if new is None:
            self._back(node)
            return
        segment = self.core.replacement(node, new)
        try:
            await self._publish(segment)
        except BadRequest:  # there is no room for it in the manifest
            self.core.stays()
            self._back(node)
            raise
        logger.info("replaced a node log=%s old=%s new=%s", self.key.log, node, new)
        self._lost_at.pop(node, None)
        self._send(self.core.replaced(segment))
        self._bring_missed(new)
        self._bring_left()

    def _back(self, node: NodeId) -> None:
        """Send it what it lacks; if it is still away, it is lost again at once."""
        if node not in self._nodes.alive():
            return
        self._send(self.core.back(node))
        self._bring_missed(node)

    def _bring_left(self) -> None:
        """Whoever has lost its place and is there again gets what it missed before."""
        if self._closed:
            return
        lacking = self.core.left_lacking()
        for node in lacking:
            if node in self._nodes.alive():
                self._bring_missed(node)
        if lacking and self._unwatch is None:
            self._unwatch = self._nodes.watch(self._bring_left)

    def _bring_missed(self, node: NodeId) -> None:
        missed = None if node in self.core.lost_nodes else self.core.take_missed(node)
        if missed is not None:
            refill = self._loop.create_task(self._refill(missed))
            self._refills.add(refill)
            refill.add_done_callback(self._refills.discard)

    async def _refill(self, missed: Missed) -> None:
        """One block after the other: nobody waits for it, and what is new comes first."""
        node = missed.node
        while missed.first < missed.end:
            while self.core.is_owed(node, missed.first):
                has_left = node not in self.core.nodes and node not in self._nodes.alive()
                if node in self.core.lost_nodes or has_left:
                    self.core.not_brought(missed)
                    self._bring_left()
                    return
                try:
                    await self._copy(node, missed.first)
                    break
                except Fenced as error:
                    self.core.refused()
                    self._on_fenced(error)
                    return
                except PenstockError as error:
                    logger.warning("a node lacks blocks still node=%s cause=%s", node, error)
                    await asyncio.sleep(REPLACE_SECONDS)
            self.core.brought(missed)

    async def _copy(self, node: NodeId, block: int) -> None:
        found = await self._fetch(self.segment, block)
        client = self._nodes.client(node)
        if client is None:
            raise Unavailable(f"node {node} is not there")
        data = (encode_block_header(found.header), found.body)
        await add_block(client, self.key, self.core.segment.epoch, data)
