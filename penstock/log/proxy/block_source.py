"""Blocks of all logs, from whichever node is best to ask, with a cache that all readers share.

Owns the cache and the speculation: the nearest node is asked first, another after a delay, and what
several readers want at once is asked for once (DistributedLog IV-b, V-B). Law (I17): a block is
checked before it is cached or handed out; one that is damaged counts as not there, and the next
node is asked.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.errors import BadFormat, Damaged, PenstockError, Unavailable
from penstock.ids import BlockId, NodeId
from penstock.limits import DELIVERY_BYTES, KIB, MIB
from penstock.log.block_format import BlockHeader, check_block
from penstock.log.group_format import Buffer
from penstock.log.replication.manifest import Segment, SegmentKey
from penstock.log.replication.node_api import Blocks, Found, NodeClient, Nodes
from penstock.log.replication.quorum import replicas
from penstock.log.replication.read_order import (
    Answered,
    Nobody,
    NodeHealth,
    NotYet,
    SpeculativeRead,
    read_order,
)

CACHE_BYTES = 128 * MIB
#: What a block in the cache costs beside its bytes: a million commits are a million small blocks.
_BLOCK_MEMORY_BYTES = 512
#: A first request, and how far it grows while a reader goes on where the last one ended.
READ_BYTES_MIN = 64 * KIB
READ_BYTES_MAX = DELIVERY_BYTES
#: When the second node is asked, and when the reader hears that nobody can serve it.
SPECULATE_MS = 50.0
DEADLINE_MS = 10_000.0
#: How long a node may wait with its answer to a reader at the tail, and when another is asked too.
POLL_MS = 1_000
POLL_SPECULATE_MS = 250.0


class Block(NamedTuple):
    """A block that was checked."""

    header: BlockHeader
    body: memoryview


class Fetched(NamedTuple):
    """Blocks that follow each other, and how far the node knew the segment to be durable."""

    blocks: list[Block]
    durable_block: BlockId


_Place = tuple[SegmentKey, int]


def _cost(block: Block) -> int:
    return block.header.block_bytes + _BLOCK_MEMORY_BYTES


class BlockSource:
    """See the module's docstring. All methods are for the event loop."""

    def __init__(
        self,
        nodes: Nodes,
        *,
        region: str = "default",
        rack: str = "default",
        cache_bytes: int = CACHE_BYTES,
        seed: int = 0,
    ) -> None:
        self._nodes = nodes
        self._region = region
        self._rack = rack
        self._seed = seed
        self._cache: OrderedDict[_Place, Block] = OrderedDict()
        self._cache_bytes = 0
        self._cache_bytes_max = cache_bytes
        self._fetching: dict[_Place, asyncio.Task[Fetched]] = {}
        self._health: dict[NodeId, NodeHealth] = {}
        #: Per segment: where the last request ended, and how much it asked for.
        self._windows: OrderedDict[SegmentKey, tuple[int, int]] = OrderedDict()
        self._loop = asyncio.get_running_loop()
        self.fetched_bytes = 0
        self.speculated = 0

    # ---- cache

    def cached(self, key: SegmentKey, block: int) -> Block | None:
        found = self._cache.get((key, block))
        if found is not None:
            self._cache.move_to_end((key, block))
        return found

    def keep(self, key: SegmentKey, block: Block) -> None:
        """Put a block that was written or read here into the cache."""
        place = (key, int(block.header.block))
        if place not in self._cache:
            self._cache_bytes += _cost(block)
        self._cache[place] = block
        while self._cache_bytes > self._cache_bytes_max and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cache_bytes -= _cost(dropped)

    # ---- reads

    async def get(
        self, log: str, mark: int, segment: Segment, block: int, *, part: int = 0
    ) -> Block:
        """One block that is known to be durable; what follows it is read ahead."""
        key = SegmentKey(log, segment.id, part)
        found = self.cached(key, block)
        if found is not None:
            return found
        place = (key, block)
        task = self._fetching.get(place)
        if task is None:
            task = self._loop.create_task(self._get(key, mark, segment, block))
            self._fetching[place] = task
            task.add_done_callback(partial(self._fetched, place))
        return (await asyncio.shield(task)).blocks[0]

    def _fetched(self, place: _Place, task: asyncio.Task[Fetched]) -> None:
        del self._fetching[place]
        if not task.cancelled():
            task.exception()  # whoever waits was told; nobody may wait any more

    async def _get(self, key: SegmentKey, mark: int, segment: Segment, block: int) -> Fetched:
        end = segment.index_blocks if key.part else segment.blocks
        durable = end if segment.sealed else block + 1
        size = self._window(key, block)
        fetched = await self._read(
            key,
            mark,
            segment,
            block,
            durable_block=max(durable, block + 1),
            bytes_max=size,
            wait_ms=0,
        )
        self._windows[key] = (block + len(fetched.blocks), size)
        return fetched

    def _window(self, key: SegmentKey, block: int) -> int:
        """Read-ahead: who goes on where the last request ended gets twice as much."""
        end, size = self._windows.pop(key, (-1, 0))
        if len(self._windows) > 10_000:
            self._windows.popitem(last=False)
        return min(READ_BYTES_MAX, 2 * size) if end == block else READ_BYTES_MIN

    async def poll(
        self, log: str, mark: int, segment: Segment, block: int, *, durable: int, bytes_max: int
    ) -> Fetched:
        """Blocks from `block` on; waits for a while if it is not durable yet. May be empty."""
        key = SegmentKey(log, segment.id)
        wait_ms = 0 if block < durable else POLL_MS
        return await self._read(
            key, mark, segment, block, durable_block=durable, bytes_max=bytes_max, wait_ms=wait_ms
        )

    async def _read(
        self,
        key: SegmentKey,
        mark: int,
        segment: Segment,
        block: int,
        *,
        durable_block: int,
        bytes_max: int,
        wait_ms: int,
    ) -> Fetched:
        blocks: list[Block] = []
        newest = BlockId(durable_block)

        async def ask(client: NodeClient) -> Found:
            nonlocal newest
            answer = await client.read(
                key, block, durable_block=durable_block, bytes_max=bytes_max, wait_ms=wait_ms
            )
            newest = max(newest, answer.durable_block)
            if answer.found == Found.HERE and not blocks:
                blocks.extend(self._take_in(key, mark, segment, block, answer))
            # Who waits is answered as well by a node that only knows that the block is durable.
            return Found.HERE if wait_ms and newest > block else answer.found

        nodes = replicas(segment, block, key.part)
        order = self._order(nodes)
        if wait_ms:
            # What tells of the last block was written to other nodes than it, but for some.
            order += self._order([n for n in segment.ensembles[-1].nodes if n not in nodes])
        what = f"block {block} of segment {segment.id} of log {key.log}"
        await self._speculate(order, ask, what, waits=bool(wait_ms))
        return Fetched(blocks, newest)

    def _order(self, nodes: Sequence[NodeId]) -> tuple[NodeId, ...]:
        return read_order(
            nodes,
            self._nodes.alive(),
            region=self._region,
            rack=self._rack,
            health=self._health,
            now_ms=self._loop.time() * 1000,
            seed=self._seed,
        )

    def _take_in(
        self, key: SegmentKey, mark: int, segment: Segment, first: int, answer: Blocks
    ) -> list[Block]:
        found = split_blocks(answer.data, key, mark, segment, first)
        if len(found) > 1:
            # Each has its own bytes, or one that stays in the cache would keep the whole answer.
            found = [Block(block.header, memoryview(bytes(block.body))) for block in found]
        for block in found:
            self.fetched_bytes += block.header.block_bytes
            self.keep(key, block)
        return found

    async def _speculate(
        self,
        order: tuple[NodeId, ...],
        ask: Callable[[NodeClient], Coroutine[Any, Any, Found]],
        what: str,
        *,
        waits: bool,
    ) -> None:
        loop = self._loop
        read = SpeculativeRead(
            order,
            delay_ms=POLL_SPECULATE_MS if waits else SPECULATE_MS,
            deadline_ms=loop.time() * 1000 + DEADLINE_MS,
        )
        tasks: dict[asyncio.Task[Found], tuple[NodeId, float]] = {}

        def start(nodes: list[NodeId]) -> None:
            waiting = list(nodes)
            while waiting:
                node = waiting.pop(0)
                now_ms = loop.time() * 1000
                client = self._nodes.client(node)
                if client is None:
                    gone = Unavailable("it is not registered")
                    waiting += read.on_error(node, gone, now_ms)
                    continue
                self.speculated += bool(tasks)
                tasks[loop.create_task(ask(client))] = (node, now_ms)

        try:
            start(read.start(loop.time() * 1000))
            while read.outcome is None:
                due = read.due_ms
                assert due is not None
                timeout = max(due - loop.time() * 1000, 0) / 1000
                done, _ = (
                    await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                    if tasks
                    else (set(), set())
                )
                if not tasks:
                    await asyncio.sleep(timeout)
                now_ms = loop.time() * 1000
                for task in [task for task in tasks if task in done]:
                    node, asked_ms = tasks.pop(task)
                    start(self._heard(read, node, task, now_ms, asked_ms, waits))
                if not done:
                    start(read.on_time(now_ms))
        finally:
            for task in tasks:
                task.cancel()
        if isinstance(read.outcome, Answered) and not waits:
            self._passed_over(tasks.values())
        match read.outcome:
            case Answered() | NotYet():
                return
            case Nobody():
                raise read.outcome.error(what)

    def _passed_over(self, asked: Iterable[tuple[NodeId, float]]) -> None:
        """Nodes that had not answered when a later one had: they take at least so long now."""
        now_ms = self._loop.time() * 1000
        for node, asked_ms in asked:
            if now_ms - asked_ms >= SPECULATE_MS:
                health = self._health.get(node, NodeHealth())
                self._health[node] = health.answered(now_ms - asked_ms, now_ms)

    def _heard(
        self,
        read: SpeculativeRead,
        node: NodeId,
        task: asyncio.Task[Found],
        now_ms: float,
        asked_ms: float,
        waits: bool,
    ) -> list[NodeId]:
        error = task.exception()
        health = self._health.get(node, NodeHealth())
        if isinstance(error, PenstockError):
            self._health[node] = health.failed(now_ms)
            return read.on_error(node, error, now_ms)
        if error is not None:
            raise error
        if not waits:  # how long a poll took says nothing of the node
            self._health[node] = health.answered(now_ms - asked_ms, now_ms)
        return read.on_answer(node, task.result(), now_ms)


def split_blocks(
    data: Buffer, key: SegmentKey, mark: int, segment: Segment, first: int
) -> list[Block]:
    """The blocks of an answer, each checked and in its place; at least one, or Damaged.

    What comes after a damaged one is left away: another node will be asked for it.
    """
    view = memoryview(data)
    blocks: list[Block] = []
    at = 0
    try:
        while at < len(view):
            header, body = check_block(view, at)
            place = (header.log_mark, header.segment, header.block)
            if place != (mark, segment.id, first + len(blocks)):
                raise BadFormat(f"block {first + len(blocks)} of {key}: one of {place}")
            blocks.append(Block(header, body))
            at += header.block_bytes
    except Damaged:
        if not blocks:
            raise
    if not blocks:
        raise BadFormat(f"an answer without the block {first} of {key}")
    return blocks
