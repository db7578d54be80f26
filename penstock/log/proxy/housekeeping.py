"""What an owner does for its log when nobody waits: indexes, age, cold copies.

Law: nothing acknowledged depends on it; whatever fails is said and tried again. A copy in the cold
store is removed only for a segment that the manifest has given up (R40).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from crc32c import crc32c

from penstock.errors import Fenced, PenstockError, Unavailable
from penstock.ids import BlockId, Lsn
from penstock.log.block_format import (
    BLOCK_HEADER_BYTES,
    BlockHeader,
    BlockKind,
    encode_block_header,
)
from penstock.log.proxy.block_source import Block, split_blocks
from penstock.log.proxy.log_view import SegmentMap
from penstock.log.proxy.owned_log import PIECE_BYTES, OwnedLog
from penstock.log.proxy.recover_segment import add_block
from penstock.log.replication.manifest import LogManifest, Segment, SegmentKey
from penstock.log.replication.node_api import Nodes
from penstock.log.replication.quorum import replicas

if TYPE_CHECKING:
    from penstock.log.storage.cold import ColdStore  # imports pyarrow, which few proxies need

logger = logging.getLogger(__name__)


class Housekeeper:
    """For all logs of one proxy."""

    def __init__(self, nodes: Nodes, *, ttl_seconds: float, cold_uri: str | None) -> None:
        self._nodes = nodes
        self._ttl_seconds = ttl_seconds
        self.cold = None if cold_uri is None else ColdSegments(_open_cold(cold_uri))

    async def keep(self, log: OwnedLog) -> None:
        """One round; errors are logged and the next round tries again."""
        try:
            for number in [s.id for s in log.manifest.segments if self._is_unfinished(s)]:
                segment = log.manifest.find(number)  # it may have been trimmed meanwhile
                if segment is not None and not segment.index_blocks and segment.blocks:
                    await self.write_index(log, segment)
                segment = log.manifest.find(number)
                if segment is not None and self.cold is not None and not segment.cold:
                    await self._copy(log, segment)
            if self._ttl_seconds:
                before_ms = log.around.wall_ms() - int(self._ttl_seconds * 1000)
                lsn = expired_lsn(log.manifest, before_ms)
                if lsn > log.trim_point:
                    await log.trim(lsn)
            if self.cold is not None:
                while log.given_up:
                    await self.cold.remove(log.manifest.log_id, log.given_up[-1])
                    log.given_up.pop()
        except Fenced as error:
            log.on_fenced(error)
        except (PenstockError, OSError) as error:
            logger.error("housekeeping failed, will be tried again log=%s: %r", log.view.log, error)

    def _is_unfinished(self, segment: Segment) -> bool:
        lacks_index = not segment.index_blocks and segment.blocks > 0
        return segment.sealed and (lacks_index or (self.cold is not None and not segment.cold))

    async def write_index(self, log: OwnedLog, segment: Segment) -> None:
        """Store the tag index of a sealed segment on its nodes, then say so in the manifest."""
        found = log.view.maps.get(segment.id)
        if found is None:
            found = log.view.map_of(segment)
        if found is None or not found.can_encode:
            found = await log.view.rebuild_map(segment)
        data = found.encode(
            log_mark=log.manifest.log_mark, segment=segment.id, end_lsn=segment.end_lsn
        )
        pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
        for number, piece in enumerate(pieces):
            await self._write_piece(log, segment, number, len(pieces), piece)

        def indexed(manifest: LogManifest) -> LogManifest:
            known = manifest.find(segment.id)
            if known is None:
                return manifest  # given up meanwhile
            return manifest.with_segment(replace(known, index_blocks=len(pieces)))

        await log.register.update(indexed)
        log.view.manifest = log.manifest
        self._shelve(log, segment, found, len(data))

    def _shelve(self, log: OwnedLog, segment: Segment, found: SegmentMap, size: int) -> None:
        """From now on its index can be read: it need not stay in memory."""
        if log.view.maps.pop(segment.id, None) is not None:
            log.view.keep_map(segment, found, size)

    async def _write_piece(
        self, log: OwnedLog, segment: Segment, number: int, pieces: int, body: bytes
    ) -> None:
        header = BlockHeader(
            BLOCK_HEADER_BYTES + len(body),
            crc32c(body),
            BlockKind.INDEX,
            number,
            pieces,
            log.manifest.log_mark,
            segment.id,
            BlockId(number),
            segment.epoch,
            BlockId(number),
            0,
            segment.base_lsn,
            segment.end_lsn,
            segment.last_ms,
            BlockId(0),
        )
        key = SegmentKey(log.view.log, segment.id, 1)
        block = (encode_block_header(header), body)
        nodes = replicas(segment, number, part=1)
        epoch = log.manifest.epoch
        clients = [client for client in map(self._nodes.client, nodes) if client is not None]
        answers = await asyncio.gather(
            *(add_block(client, key, epoch, block) for client in clients), return_exceptions=True
        )
        refusal = next((a for a in answers if isinstance(a, Fenced)), None)
        if refusal is not None:
            # By a newer owner, or because the segment was given up: the manifest knows.
            await log.register.refresh()
            raise Unavailable(f"the index of segment {segment.id} was refused: {refusal}")
        if sum(answer is None for answer in answers) < segment.ack_quorum:
            raise Unavailable(f"too few nodes took the index of segment {segment.id}: {answers}")

    async def _copy(self, log: OwnedLog, segment: Segment) -> None:
        assert self.cold is not None
        blocks = [
            await log.view.source.get(log.view.log, log.view.mark, segment, number)
            for number in range(segment.blocks)
        ]
        await self.cold.put(log.manifest.log_id, segment, blocks)

        def copied(manifest: LogManifest) -> LogManifest:
            known = manifest.find(segment.id)
            return manifest if known is None else manifest.with_segment(replace(known, cold=True))

        await log.register.update(copied)
        log.view.manifest = log.manifest
        if log.manifest.find(segment.id) is None:
            log.given_up.append(segment.id)  # trimmed while it was copied


class ColdSegments:
    """Sealed segments in a cold store: all blocks of one, one after the other, in one object."""

    def __init__(self, store: ColdStore) -> None:
        self._store = store

    async def put(self, log_id: bytes, segment: Segment, blocks: Sequence[Block]) -> None:
        data = b"".join(
            part for block in blocks for part in (encode_block_header(block.header), block.body)
        )
        await asyncio.to_thread(self._store.put, _cold_name(log_id, segment.id), data)

    async def load(self, log: str, manifest: LogManifest, segment: Segment) -> list[Block]:
        """All blocks of a segment that no node can show any more; raises Damaged, OSError."""

        def read() -> bytes:
            file = self._store.open(_cold_name(manifest.log_id, segment.id))
            try:
                return file.read_at(0, file.size)
            finally:
                file.close()

        key = SegmentKey(log, segment.id)
        data = await asyncio.to_thread(read) if segment.blocks else b""
        blocks = split_blocks(data, key, manifest.log_mark, segment, 0)
        if len(blocks) != segment.blocks:
            raise Unavailable(f"the cold copy of segment {segment.id} of log {log} is damaged")
        return blocks

    async def remove(self, log_id: bytes, segment: int) -> None:
        await asyncio.to_thread(self._store.remove, _cold_name(log_id, segment))


def _cold_name(log_id: bytes, segment: int) -> str:
    return f"{log_id.hex()}/seg-{segment:010d}.blocks"


def _open_cold(uri: str) -> ColdStore:
    from penstock.log.storage.cold import FileSystemColdStore  # pyarrow: half of the start-up time

    return FileSystemColdStore(uri)


def expired_lsn(manifest: LogManifest, before_ms: int) -> Lsn:
    """End of the last sealed segment that is wholly older than `before_ms`."""
    lsn = manifest.trim_point
    for segment in manifest.segments:
        if not segment.sealed or segment.last_ms >= before_ms:
            break
        lsn = max(lsn, segment.end_lsn)
    return lsn
