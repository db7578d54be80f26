"""A replicated log for reader.py: segments whose records are fetched block by block.

The reader is ordinary code and never waits: where a block or an index is not here, it raises
`Missing`; `LogView.read` fetches what is missing and runs it again. So the same code reads files
and nodes, on a real loop and on a simulated one.
Law: nothing at or above `durable_lsn` is shown; an index is a cache, rebuilt from the records
whenever none is stored (R11).
"""

from __future__ import annotations

import asyncio
import logging
import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from penstock.errors import BadFormat, Damaged, MissingFile, PenstockError, Trimmed, Unavailable
from penstock.ids import Lsn, SegmentId
from penstock.limits import MIB
from penstock.log.block_format import BlockKind
from penstock.log.core.tag_index import OpenIndex, SealedIndex, TagIndex
from penstock.log.core.tails import DurableGroup
from penstock.log.group_format import decode_body
from penstock.log.proxy.block_source import Block, BlockSource
from penstock.log.record_format import RECORD_HEADER_BYTES, decode_header
from penstock.log.replication.manifest import LogManifest, Segment, SegmentKey
from penstock.log.serving.served_log import log_status
from penstock.log.storage.views import NotHere, SegmentView

logger = logging.getLogger(__name__)

#: Indexes of sealed segments kept in memory, per log.
INDEX_CACHE_BYTES = 32 * MIB


T = TypeVar("T")


class Missing(NotHere):
    """A block (or, with -1, the index) of a segment must be fetched before the read can go on."""

    def __init__(self, segment: Segment, blocks: tuple[int, ...]) -> None:
        super().__init__(f"segment {segment.id}, blocks {blocks}")
        self.segment = segment
        self.blocks = blocks


class SegmentMap:
    """Where the records of a segment lie: its tag index, and where its blocks start."""

    def __init__(self, base_lsn: int) -> None:
        self.index: TagIndex = OpenIndex(base_lsn)
        #: Per data block: bytes of records before it, and its number.
        self.starts = array("I")
        self.blocks = array("I")
        self.end_lsn = base_lsn
        #: The next block to take in.
        self.next_block = 0

    def add(self, block: Block, groups: list[DurableGroup]) -> None:
        """Take in the next block of the segment."""
        header = block.header
        assert header.block == self.next_block and isinstance(self.index, OpenIndex)
        self.next_block += 1
        if header.kind != BlockKind.DATA:
            return
        self.starts.append(header.offset)
        self.blocks.append(header.block)
        at = header.offset
        for group in groups:
            end = at + group.header.record_bytes
            self.index.add(
                group.body,
                first_lsn=group.header.first_lsn,
                time_ms=group.header.time_ms,
                start=at,
                end=end,
            )
            at = end
        self.end_lsn = header.end_lsn

    @property
    def can_encode(self) -> bool:
        """One that was read from its index part need not be written again."""
        return isinstance(self.index, OpenIndex)

    def find(self, position: int) -> int:
        """Which place of `starts` holds a byte of the records."""
        return bisect_right(self.starts, position) - 1

    def encode(self, *, log_mark: int, segment: int, end_lsn: int) -> bytes:
        """The bytes of the index part: block starts, then the index as in an index file."""
        assert isinstance(self.index, OpenIndex)
        index = self.index.encode(log_mark=log_mark, segment=segment, end_lsn=end_lsn)
        starts = np.array(self.starts, "<u4").tobytes()
        blocks = np.array(self.blocks, "<u4").tobytes()
        return struct.pack("<II", len(self.starts), self.next_block) + starts + blocks + index


def decode_map(data: bytes, *, log_mark: int, segment: Segment) -> SegmentMap:
    """The map of a sealed segment from its index part; raises Damaged."""
    if len(data) < 8:
        raise BadFormat("an index part is cut")
    count, next_block = struct.unpack_from("<II", data)
    if 8 + 8 * count > len(data) or next_block != segment.blocks:
        raise BadFormat("an index part has counts that cannot be")
    found = SegmentMap(segment.base_lsn)
    found.starts = array("I", np.frombuffer(data, "<u4", count, 8).tolist())
    found.blocks = array("I", np.frombuffer(data, "<u4", count, 8 + 4 * count).tolist())
    found.index = SealedIndex(
        memoryview(data)[8 + 8 * count :], log_mark=log_mark, segment=segment.id
    )
    found.next_block = next_block
    found.end_lsn = segment.end_lsn
    return found


def groups_of(block: Block) -> list[DurableGroup]:
    """The groups of a data block, each checked."""
    if block.header.kind != BlockKind.DATA:
        return []
    groups = []
    at, lsn, body = 0, int(block.header.base_lsn), block.body
    while at < len(body):
        header = decode_header(body, at)
        end = at + header.record_bytes
        if header.first_lsn != lsn or end > len(body):
            raise BadFormat(f"block {block.header.block}: a record of lsn {header.first_lsn}")
        group = decode_body(body[at + RECORD_HEADER_BYTES : end])
        if group.table_crc != header.table_crc:
            raise BadFormat(f"block {block.header.block}: a record header of another body")
        record = (bytes(body[at : at + RECORD_HEADER_BYTES]), group.data)
        groups.append(DurableGroup(header, group, record))
        lsn += group.count
        at = end
    if lsn != block.header.end_lsn:
        raise BadFormat(f"block {block.header.block} ends at lsn {lsn}")
    return groups


class ColdCopies(Protocol):
    """Where segments can be read when no node has them."""

    async def load(self, log: str, manifest: LogManifest, segment: Segment) -> list[Block]:
        """All blocks of a sealed segment; raises PenstockError, OSError."""


class LogView:
    """What can be read of one log. The owner or follower of the log keeps it up to date."""

    def __init__(
        self,
        log: str,
        source: BlockSource,
        manifest: LogManifest,
        cold: ColdCopies | None = None,
    ) -> None:
        self.log = log
        self._cold = cold
        self.source = source
        self.manifest = manifest
        self.durable_lsn = Lsn(manifest.segments[-1].base_lsn if manifest.segments else 0)
        #: Called before every look at the maps: they must know all that is durable.
        self.catch_up: Callable[[], None] = lambda: None
        #: Maps of the segments that are not sealed, or were not when they were followed here.
        self.maps: dict[SegmentId, SegmentMap] = {}
        self._sealed: OrderedDict[SegmentId, tuple[SegmentMap, int]] = OrderedDict()
        self._sealed_bytes = 0
        self._loading: dict[SegmentId, asyncio.Task[None]] = {}

    @property
    def mark(self) -> int:
        return self.manifest.log_mark

    def status(self) -> dict[str, object]:
        self.catch_up()
        manifest = self.manifest
        segments = [
            {
                "id": segment.id,
                "base_lsn": segment.base_lsn,
                "end_lsn": segment.end_lsn if segment.sealed else self._end_of(segment),
                "bytes": segment.bytes,
                "sealed": segment.sealed,
                "copies": [node.partition(":")[0] for node in segment.ensembles[-1].nodes]
                + ["cold"] * segment.cold,
            }
            for segment in manifest.segments
        ]
        return log_status(manifest.log_id, manifest.epoch, segments)

    def _end_of(self, segment: Segment) -> int:
        found = self.maps.get(segment.id)
        return segment.base_lsn if found is None else found.end_lsn

    async def read(self, function: Callable[..., T], *arguments: object) -> T:
        """Run `function(readable log, *arguments)`, fetching what it misses."""
        pinned: dict[tuple[SegmentId, int], Block] = {}
        while True:
            self.catch_up()
            try:
                return function(BoundLog(self, pinned), *arguments)
            except Missing as missing:
                await self._fetch(missing, pinned)

    async def _fetch(self, missing: Missing, pinned: dict[tuple[SegmentId, int], Block]) -> None:
        segment = missing.segment
        if missing.blocks == (-1,):
            await self._load_map(segment)
            return
        for number in missing.blocks:
            block = await self._get(segment, number)
            pinned[segment.id, number] = block

    async def _get(self, segment: Segment, number: int) -> Block:
        try:
            return await self.source.get(self.log, self.mark, segment, number)
        except Unavailable:
            if self._cold is None or not segment.cold:
                raise
        logger.warning("reading a cold copy log=%s segment=%d", self.log, segment.id)
        blocks = await self._cold.load(self.log, self.manifest, segment)
        for block in blocks:
            self.source.keep(SegmentKey(self.log, segment.id), block)
        return blocks[number]

    # ---- maps of sealed segments

    def map_of(self, segment: Segment) -> SegmentMap | None:
        found = self.maps.get(segment.id)
        if found is not None:
            return found
        known = self._sealed.get(segment.id)
        if known is None:
            return None
        self._sealed.move_to_end(segment.id)
        return known[0]

    async def _load_map(self, segment: Segment) -> None:
        """Several readers may want it at once: one loads it."""
        task = self._loading.get(segment.id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(segment))
            self._loading[segment.id] = task
            task.add_done_callback(partial(self._loaded, segment))
        await asyncio.shield(task)

    def _loaded(self, segment: Segment, task: asyncio.Task[None]) -> None:
        self._loading.pop(segment.id, None)
        if not task.cancelled():
            task.exception()  # whoever waits was told; nobody may wait any more

    async def _load(self, segment: Segment) -> None:
        if not segment.sealed:
            raise MissingFile(f"segment {segment.id} of log {self.log} is not followed here")
        found: SegmentMap | None = None
        size = 0
        if segment.index_blocks:
            try:
                pieces = [
                    (await self.source.get(self.log, self.mark, segment, block, part=1)).body
                    for block in range(segment.index_blocks)
                ]
                data = b"".join(pieces)
                found, size = decode_map(data, log_mark=self.mark, segment=segment), len(data)
            except PenstockError as error:
                logger.warning(
                    "index cannot be read, rebuilding log=%s segment=%d cause=%s",
                    self.log,
                    segment.id,
                    error,
                )
        if found is None:
            found = await self.rebuild_map(segment)
            size = segment.bytes // 16
        self.keep_map(segment, found, size)

    async def rebuild_map(self, segment: Segment) -> SegmentMap:
        """The map of a sealed segment, from its blocks."""
        found = SegmentMap(segment.base_lsn)
        for number in range(segment.blocks):
            block = await self._get(segment, number)
            found.add(block, groups_of(block))
            await asyncio.sleep(0)  # it may be long: others have their turns
        if found.end_lsn != segment.end_lsn:
            raise Damaged(f"segment {segment.id} ends at lsn {found.end_lsn}")
        return found

    def keep_map(self, segment: Segment, found: SegmentMap, size: int) -> None:
        self._sealed_bytes += size
        self._sealed[segment.id] = (found, size)
        while self._sealed_bytes > INDEX_CACHE_BYTES and len(self._sealed) > 1:
            _, (_, dropped) = self._sealed.popitem(last=False)
            self._sealed_bytes -= dropped

    def forget_below(self, segment: int) -> None:
        for number in [n for n in self.maps if n < segment]:
            del self.maps[number]
        for number in [n for n in self._sealed if n < segment]:
            self._sealed_bytes -= self._sealed.pop(number)[1]


class BoundLog:
    """A `ReadableLog` for one run of a reader."""

    def __init__(self, view: LogView, pinned: dict[tuple[SegmentId, int], Block]) -> None:
        self._view = view
        self._pinned = pinned
        self._manifest = view.manifest
        self.durable_lsn = view.durable_lsn

    @property
    def trim_point(self) -> Lsn:
        return self._manifest.trim_point

    @property
    def segments(self) -> Sequence[Segment]:
        return self._manifest.segments

    def segment_at(self, lsn: int) -> SegmentView:
        if lsn < self.trim_point:
            raise Trimmed(f"lsn {lsn} is below the trim point {self.trim_point}")
        segment = next((s for s in reversed(self.segments) if s.base_lsn <= lsn), None)
        if segment is None:
            raise MissingFile(f"no segment holds lsn {lsn}")
        found = self._view.map_of(segment)
        if found is None:
            raise Missing(segment, (-1,))
        end = segment.end_lsn if segment.sealed else min(found.end_lsn, self.durable_lsn)
        file = BlockBytes(self._view, segment, found, self._pinned)
        return SegmentView(segment, Lsn(end), file, found.index, self._view.mark)


class BlockBytes:
    """The records of a segment, read from its blocks; a read ends where a block does."""

    def __init__(
        self,
        view: LogView,
        segment: Segment,
        map: SegmentMap,
        pinned: dict[tuple[SegmentId, int], Block],
    ) -> None:
        self._view = view
        self._segment = segment
        self._map = map
        self._pinned = pinned
        self._key = SegmentKey(view.log, segment.id)

    def read_at(self, position: int, size: int) -> bytes:
        found = self._map
        place = found.find(position)
        number = found.blocks[place]
        block = self._pinned.get((self._segment.id, number))
        if block is None:
            block = self._view.source.cached(self._key, number)
        if block is None:
            raise Missing(self._segment, (number,))
        at = position - found.starts[place]
        return bytes(block.body[at : at + size])
