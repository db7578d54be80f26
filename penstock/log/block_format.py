"""Blocks: what one replicated write stores on each of its nodes, header and body.

    ┌─ header, 112 bytes ────────────────────────────────────────────────────────┬─ body ─────────┐
    │ magic crc bytes body_crc kind part parts log_mark segment block epoch       │ records, or a  │
    │ durable_block offset base_lsn end_lsn time_ms snapshot_block                │ snapshot piece │
    └─────────────────────────────────────────────────────────────────────────────┴────────────────┘

A *data* block holds the records of one or more groups, a *snapshot* block a piece of the
sequencer's state, a *control* block nothing: it only tells how far the segment is durable
(DistributedLog III-A). Law: the header binds log, segment, block and LSNs to the body, so that a
valid block in the wrong place is noticed; both are under a CRC-32C.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch
from penstock.ids import BlockId, Epoch, Lsn, SegmentId
from penstock.limits import BLOCK_BYTES_MAX
from penstock.log.group_format import Buffer

_BLOCK = struct.Struct("<IIIIIII4xQQQQQQQQQQ")
_REST = struct.Struct("<IIIII4xQQQQQQQQQQ")
BLOCK_HEADER_BYTES = _BLOCK.size
BLOCK_MAGIC = 0x314B4250  # "PBK1"
assert BLOCK_HEADER_BYTES == 112


class BlockKind(IntEnum):
    DATA = 1
    SNAPSHOT = 2
    CONTROL = 3
    #: A piece of a sealed segment's tag index, in the segment's index part.
    INDEX = 4


#: To call the class takes longer than all else of a header.
_KINDS = {int(kind): kind for kind in BlockKind}


class BlockHeader(NamedTuple):
    """What a block says of itself."""

    #: Bytes of header and body.
    block_bytes: int
    body_crc: int
    kind: BlockKind
    #: Place of this piece among the pieces of a snapshot or index; 0 of 1 for all else.
    part: int
    parts: int
    log_mark: int
    segment: SegmentId
    block: BlockId
    #: Of the segment's one writer; the same for all blocks of a segment.
    epoch: Epoch
    #: All blocks of this segment below this one were acknowledged when it was sent (the LAC).
    durable_block: BlockId
    #: Bytes of the records in this segment before this block.
    offset: int
    #: LSNs of its entries: [base_lsn, end_lsn).
    base_lsn: Lsn
    end_lsn: Lsn
    time_ms: int
    #: First block of the newest snapshot at or before this block.
    snapshot_block: BlockId


def encode_block_header(header: BlockHeader) -> bytes:
    rest = _REST.pack(*header)
    return struct.pack("<II", BLOCK_MAGIC, crc32c(rest)) + rest


def decode_block_header(data: Buffer, at: int = 0) -> BlockHeader:
    """Parse the header at `at`; raises BadFormat or ChecksumMismatch."""
    if len(data) - at < BLOCK_HEADER_BYTES:
        raise BadFormat("block header is cut")
    magic, crc, size, body_crc, number, *rest = _BLOCK.unpack_from(data, at)
    if magic != BLOCK_MAGIC:
        raise BadFormat(f"block magic is {magic:#010x}")
    if crc32c(memoryview(data)[at + 8 : at + BLOCK_HEADER_BYTES]) != crc:
        raise ChecksumMismatch("block header is damaged")
    if not BLOCK_HEADER_BYTES <= size <= BLOCK_BYTES_MAX:
        raise BadFormat(f"block of {size} bytes")
    kind = _KINDS.get(number)
    if kind is None:
        raise BadFormat(f"block kind {number} is not known")
    return BlockHeader(size, body_crc, kind, *rest)


def check_block(data: Buffer, at: int = 0) -> tuple[BlockHeader, memoryview]:
    """Header and body of the whole block at `at`; both CRCs are checked."""
    header = decode_block_header(data, at)
    if len(data) - at < header.block_bytes:
        raise BadFormat("block is cut")
    body = memoryview(data)[at + BLOCK_HEADER_BYTES : at + header.block_bytes]
    if crc32c(body) != header.body_crc:
        raise ChecksumMismatch(f"block {header.block} of segment {header.segment} is damaged")
    return header, body
