"""Drive segment_recovery.py: ask the nodes, ask again those that are silent, until it is decided.

Law: an answer that did not come is never made up; while too many nodes are away, this waits for
them, and says so in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from penstock.errors import Fenced, PenstockError, Unavailable
from penstock.ids import BlockId, Epoch, NodeId
from penstock.log.group_format import Buffer
from penstock.log.replication.manifest import Segment, SegmentKey
from penstock.log.replication.node_api import Blocks, Fence, NodeClient, Nodes
from penstock.log.replication.segment_recovery import (
    AddBack,
    Effect,
    FenceNode,
    ReadBlock,
    SegmentRecovery,
)

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
COMPLAIN_SECONDS = 5.0

_Answer = Fence | Blocks | None | PenstockError


async def recover_segment(
    nodes: Nodes, log: str, segment: Segment, *, epoch: Epoch, log_mark: int
) -> BlockId:
    """Fence a segment and find its end; returns its number of blocks, all durable.

    Raises Fenced if a newer owner was faster.
    """
    recovery = SegmentRecovery(segment, epoch, log_mark)
    key = SegmentKey(log, segment.id)
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[tuple[Effect, _Answer]] = asyncio.Queue()
    tasks: set[asyncio.Task[None]] = set()

    async def perform(effect: Effect) -> None:
        try:
            answer: _Answer = await _ask(nodes, key, effect, epoch)
        except PenstockError as error:
            answer = error
        answers.put_nowait((effect, answer))

    def start(effects: Sequence[Effect]) -> None:
        for effect in effects:
            task = loop.create_task(perform(effect))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    try:
        start(recovery.start())
        retry_at = loop.time() + RETRY_SECONDS
        complain_at = loop.time() + COMPLAIN_SECONDS
        silent: set[NodeId] = set()
        while recovery.end is None:
            try:
                async with asyncio.timeout_at(retry_at):
                    effect, answer = await answers.get()
                if isinstance(answer, PenstockError):
                    silent.add(effect.node)
                start(_take_in(recovery, effect, answer))
            except TimeoutError:
                retry_at = loop.time() + RETRY_SECONDS
                start(recovery.retry())
            if recovery.lost:
                raise Fenced(f"segment {segment.id} of log {log} is fenced by a newer owner")
            if loop.time() >= complain_at:
                complain_at = loop.time() + COMPLAIN_SECONDS
                logger.warning(
                    "cannot recover yet log=%s segment=%d silent=%s",
                    log,
                    segment.id,
                    ",".join(sorted(silent)),
                )
        return recovery.end
    finally:
        for task in list(tasks):
            task.cancel()


def _take_in(recovery: SegmentRecovery, effect: Effect, answer: _Answer) -> list[Effect]:
    if isinstance(answer, Fenced):
        recovery.refused()
        return []
    if isinstance(answer, PenstockError):
        return recovery.failed(effect)
    match effect:
        case FenceNode():
            assert isinstance(answer, Fence)
            return recovery.fenced(effect.node, answer)
        case ReadBlock():
            assert isinstance(answer, Blocks)
            return recovery.read(effect.node, effect.block, answer)
        case AddBack():
            return recovery.added(effect.node, effect.block)


async def _ask(
    nodes: Nodes, key: SegmentKey, effect: Effect, epoch: Epoch
) -> Fence | Blocks | None:
    client = nodes.client(effect.node)
    if client is None:
        raise Unavailable(f"node {effect.node} is not there")
    match effect:
        case FenceNode():
            return await client.fence(key, epoch)
        case ReadBlock():
            return await client.read(key, effect.block, fence_epoch=epoch)
        case AddBack():
            await add_block(client, key, epoch, (effect.data,))
            return None


async def add_block(
    client: NodeClient, key: SegmentKey, epoch: int, block: Sequence[Buffer]
) -> None:
    """`NodeClient.add` for who can wait; raises what it was told."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def added(error: PenstockError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    client.add(key, epoch, block, added)
    await future
