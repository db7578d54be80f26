"""Records: what a log stores and sends, a body with its place in front of it.

Owns the 64-byte header with everything that ordering adds (LSN, epoch, segment, time, durable LSN).
A *note* is a header without a body. Law: the header binds LSN, epoch, segment and log to the body,
so that a valid record in the wrong place is noticed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch
from penstock.ids import Epoch, Lsn, SegmentId
from penstock.limits import SLICE_BYTES_MAX
from penstock.log.group_format import (
    Body,
    Buffer,
    PickedRow,
    TableView,
    decode_body,
    slice_body,
)

_RECORD = struct.Struct("<IIIIQQQQQQ")  # docs/formats.md, "Record"
_REST = struct.Struct("<IIQQQQQQ")
RECORD_HEADER_BYTES = _RECORD.size
RECORD_MAGIC = 0x31524750  # "PGR1"
assert RECORD_HEADER_BYTES == 64


class RecordHeader(NamedTuple):
    """What ordering adds to a body."""

    record_bytes: int
    table_crc: int
    first_lsn: Lsn
    epoch: Epoch
    segment: SegmentId
    time_ms: int
    #: Everything below this LSN was durable when the record was written (DistributedLog's LAC).
    durable_lsn: Lsn
    #: First eight bytes of the log's id.
    log_mark: int

    @property
    def is_note(self) -> bool:
        """A note has no body: it only says how far the log was durable when all was quiet."""
        return self.record_bytes == RECORD_HEADER_BYTES


def encode_header(header: RecordHeader) -> bytes:
    return _encode_header(*header)


def encode_note(*, lsn: int, epoch: int, segment: int, time_ms: int, log_mark: int) -> bytes:
    """A record without a body: everything below `lsn` is durable."""
    return _encode_header(RECORD_HEADER_BYTES, 0, lsn, epoch, segment, time_ms, lsn, log_mark)


def _encode_header(*fields: int) -> bytes:
    rest = _REST.pack(*fields)
    return struct.pack("<II", RECORD_MAGIC, crc32c(rest)) + rest


def decode_header(data: Buffer, at: int = 0) -> RecordHeader:
    """Parse the 64 bytes at `at`; raises BadFormat or ChecksumMismatch."""
    if len(data) - at < RECORD_HEADER_BYTES:
        raise BadFormat("record header is cut")
    magic, crc, *fields = _RECORD.unpack_from(data, at)
    if magic != RECORD_MAGIC:
        raise BadFormat(f"record magic is {magic:#010x}")
    if crc32c(memoryview(data)[at + 8 : at + RECORD_HEADER_BYTES]) != crc:
        raise ChecksumMismatch("record header is damaged")
    size = fields[0]
    if not RECORD_HEADER_BYTES <= size <= RECORD_HEADER_BYTES + SLICE_BYTES_MAX:
        raise BadFormat(f"record of {size} bytes")
    return RecordHeader._make(fields)


def decode_record(data: Buffer) -> tuple[RecordHeader, Body]:
    """Parse one whole record with a body; payload CRCs are left to `Body.entries`."""
    header = decode_header(data)
    if header.record_bytes != len(data) or header.is_note:
        raise BadFormat(f"record of {len(data)} bytes says {header.record_bytes}")
    body = decode_body(memoryview(data)[RECORD_HEADER_BYTES:])
    if body.table_crc != header.table_crc:
        raise BadFormat("record header belongs to another body")
    return header, body


def slice_record(
    header: RecordHeader, body: Body | TableView, keep: Sequence[int], payloads: Sequence[Buffer]
) -> bytes:
    """A record with the entries at indexes `keep` only; `payloads` are theirs."""
    return slice_rows(header, body, keep, body.pick(keep), payloads)


def slice_rows(
    header: RecordHeader,
    body: Body | TableView,
    keep: Sequence[int],
    picked: Sequence[PickedRow],
    payloads: Sequence[Buffer],
) -> bytes:
    """`slice_record` for rows that were picked before."""
    data = slice_body(body, keep, picked, payloads)
    table_crc = int.from_bytes(data[:4], "little")
    return _encode_header(RECORD_HEADER_BYTES + len(data), table_crc, *header[2:]) + data
