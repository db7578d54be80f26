"""What a proxy keeps of blocks that it wrote or read."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any, cast

from penstock.ids import Lsn
from penstock.log.block_format import BlockHeader, BlockId, BlockKind, Epoch, SegmentId
from penstock.log.proxy.block_source import Block, BlockSource
from penstock.log.replication.manifest import SegmentKey

CACHE_BYTES = 1 << 20


def small(number: int) -> Block:
    """A block without entries, as a commit of nothing but guards makes one."""
    header = BlockHeader(
        96, number, BlockKind.CONTROL, 0, 1, 7, SegmentId(1), BlockId(number), Epoch(number),
        BlockId(number), number << 40, Lsn(number << 41), Lsn(number << 41), number << 42,
        BlockId(0),
    )  # fmt: skip
    return Block(header, memoryview(bytes(48)))


def test_many_small_blocks_take_no_more_than_the_cache_may() -> None:
    async def run() -> int:
        source = BlockSource(cast(Any, None), cache_bytes=CACHE_BYTES)
        key = SegmentKey("main", 1)
        tracemalloc.start()
        try:
            for number in range(20_000):
                source.keep(key, small(number))
            assert source.cached(key, 19_999) is not None and source.cached(key, 0) is None
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert asyncio.run(run()) < 2 * CACHE_BYTES
