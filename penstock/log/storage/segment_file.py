"""A segment file: its 64-byte header, walking its records, and finding where it truly ends.

Owns the difference between a torn tail and damage. Law (I1, I17, R46): bytes that were ever
acknowledged are never cut. A bad record is a torn tail only if nothing says that it was durable:
not the length noted at a clean stop, and not a later note whose `durable_lsn` lies above it.
Everything else is `Damaged`. A note carries the segment's key, a random number that no client ever
sees: whatever an entry holds, it proves nothing. Segments of older versions have none, and there
any later record counts.

What cannot be told apart: damage to the very last write, within NOTE_DELAY_MS before a crash, looks
like the torn write that it then is (the note that would vouch for it had no time to be written).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch, Damaged
from penstock.ids import Epoch, Lsn, SegmentId
from penstock.limits import GROUP_BYTES_MAX, MIB
from penstock.log.group_format import Body, decode_body
from penstock.log.record_format import (
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    RecordHeader,
    decode_header,
)
from penstock.log.storage.disk import File
from penstock.log.storage.manifest import Manifest, SegmentInfo

SEGMENT_MAGIC = 0x32475350  # "PSG2"
#: Without a key: zeros in its place.
_OLD_MAGIC = 0x31475350  # "PSG1"
_HEADER = struct.Struct("<II16sQQQQQ")
SEGMENT_HEADER_BYTES = _HEADER.size
assert SEGMENT_HEADER_BYTES == 64

_MAGIC_BYTES = RECORD_MAGIC.to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as found at bytes [start, end) of a segment file."""

    header: RecordHeader
    body: Body
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """Where the intact records of an open segment end."""

    #: First byte after the last intact record; what follows was never acknowledged.
    bytes: int
    #: First byte that no record vouches for as durable; written again before it is trusted.
    vouched_bytes: int
    end_lsn: Lsn
    torn_bytes: int


def segment_name(segment: SegmentId) -> str:
    return f"seg-{segment:010d}.log"


def index_name(segment: SegmentId) -> str:
    return f"seg-{segment:010d}.idx"


def encode_segment_header(
    *, log_id: bytes, segment: SegmentId, epoch: Epoch, base_lsn: Lsn, created_ms: int, key: int
) -> bytes:
    header = _HEADER.pack(SEGMENT_MAGIC, 0, log_id, segment, epoch, base_lsn, created_ms, key)
    return header[:4] + crc32c(header[8:]).to_bytes(4, "little") + header[8:]


def check_segment_header(data: bytes, info: SegmentInfo, manifest: Manifest) -> int:
    """Raise Damaged unless this is the header of that segment of that log; returns its key.

    0: it is of an older version, and has none.
    """
    if len(data) < SEGMENT_HEADER_BYTES:
        raise BadFormat(f"{segment_name(info.id)}: header is cut")
    magic, crc, log_id, segment, _, base_lsn, _, key = _HEADER.unpack_from(data)
    if magic not in (SEGMENT_MAGIC, _OLD_MAGIC):
        raise BadFormat(f"{segment_name(info.id)} at byte 0: no segment header")
    if crc32c(data[8:SEGMENT_HEADER_BYTES]) != crc:
        raise ChecksumMismatch(f"{segment_name(info.id)} at byte 0: segment header is damaged")
    if (log_id, segment, base_lsn) != (manifest.log_id, info.id, info.base_lsn):
        raise BadFormat(f"{segment_name(info.id)}: holds segment {segment} of another place or log")
    return int(key) if magic == SEGMENT_MAGIC else 0


class SegmentWalk:
    """Iterate over the groups of a segment in order, checking everything that can be checked.

    Stops at the first byte that is not part of an intact, expected record, and says why in
    `problem` (None at a clean end).
    """

    def __init__(
        self, file: File, info: SegmentInfo, manifest: Manifest, *, end: int | None = None
    ) -> None:
        self._file = file
        self._info = info
        self._manifest = manifest
        self._end = file.size if end is None else end
        self.position = SEGMENT_HEADER_BYTES
        self.next_lsn = info.base_lsn
        #: The segment's, from the first record on; see `check_segment_header`.
        self.key = 0
        self.problem: Damaged | None = None
        #: Highest LSN that a record so far called durable.
        self.durable_lsn = info.base_lsn
        self.time_ms = 0
        self._epoch = 0
        self._buffer = b""
        self._buffer_at = 0

    def __iter__(self) -> Iterator[StoredGroup]:
        start = self._file.read_at(0, SEGMENT_HEADER_BYTES)
        self.key = check_segment_header(start, self._info, self._manifest)
        while self.position < self._end:
            try:
                group = self._next()
            except Damaged as error:
                self.problem = error
                return
            if group is not None:
                yield group

    def _next(self) -> StoredGroup | None:
        start = self.position
        header = decode_header(self._bytes(start, RECORD_HEADER_BYTES))
        manifest = self._manifest
        is_keyed = self.key and header.is_note
        if (
            header.log_mark != (self.key if is_keyed else manifest.log_mark)
            or header.segment != self._info.id
            or header.first_lsn != self.next_lsn
            or header.time_ms < self.time_ms
            or header.epoch < self._epoch
            or header.durable_lsn > header.first_lsn
        ):
            raise BadFormat(f"a record for lsn {header.first_lsn} does not belong here")
        if header.epoch > manifest.epoch:
            raise BadFormat(
                f"a record of epoch {header.epoch} is newer than the manifest's {manifest.epoch}"
            )
        if header.is_note:
            body = None
        else:
            data = self._bytes(start, header.record_bytes)
            body = decode_body(data[RECORD_HEADER_BYTES:])
            if body.table_crc != header.table_crc or body.places is not None:
                raise BadFormat("a record header belongs to another body")
            body.check_payloads()
            self.next_lsn = Lsn(self.next_lsn + body.count)
        self.position = start + header.record_bytes
        self.durable_lsn = max(self.durable_lsn, header.durable_lsn)
        self.time_ms = header.time_ms
        self._epoch = header.epoch
        return None if body is None else StoredGroup(header, body, start, self.position)

    def _bytes(self, start: int, size: int) -> bytes:
        if start + size > self._end:
            raise BadFormat("a record is cut")
        at = start - self._buffer_at
        if at < 0 or at + size > len(self._buffer):
            wanted = min(max(size, 1 * MIB), self._end - start)
            self._buffer = self._file.read_at(start, wanted)
            self._buffer_at = start
            at = 0
            if len(self._buffer) < size:
                raise BadFormat("a record is cut")
        return self._buffer[at : at + size]


def find_segment_end(
    file: File, info: SegmentInfo, manifest: Manifest
) -> Iterator[StoredGroup | SegmentEnd]:
    """Walk an open segment after a crash: yields its groups, then its end; or raises Damaged."""
    walk = SegmentWalk(file, info, manifest)
    vouched = SEGMENT_HEADER_BYTES
    ends: list[tuple[int, int]] = []  # end LSN and end byte of groups that nothing vouches for yet
    for group in walk:
        ends.append((group.header.first_lsn + group.body.count, group.end))
        vouched = _vouched(ends, walk.durable_lsn, vouched)
        yield group
    vouched = _vouched(ends, walk.durable_lsn, vouched)
    if walk.problem is not None:
        place = f"{segment_name(info.id)} at byte {walk.position}, lsn {walk.next_lsn}"
        if walk.position < manifest.clean_bytes:
            raise type(walk.problem)(
                f"{place}: {walk.problem}; the log was stopped cleanly after it"
            )
        if (proof := _later_proof(file, info, manifest, walk)) is not None:
            raise type(walk.problem)(
                f"{place}: {walk.problem}; the record at byte {proof} says that it was durable"
            )
    elif walk.position < manifest.clean_bytes:
        raise BadFormat(
            f"{segment_name(info.id)} ends at byte {walk.position}, before the "
            f"{manifest.clean_bytes} bytes of its clean stop"
        )
    torn = 0 if _is_unused(file, walk.position) else file.size - walk.position
    yield SegmentEnd(walk.position, vouched, walk.next_lsn, torn)


def _is_unused(file: File, position: int) -> bool:
    """From here on there are only zeros: space that was allocated and never written."""
    while position < file.size:
        chunk = file.read_at(position, GROUP_BYTES_MAX)
        if chunk.count(0) != len(chunk):
            return False
        position += len(chunk)
    return True


def _vouched(ends: list[tuple[int, int]], durable_lsn: int, vouched: int) -> int:
    """Byte up to which a record has said that all is durable; forgets the groups below it."""
    done = 0
    for end_lsn, end in ends:
        if end_lsn > durable_lsn:
            break
        vouched = end
        done += 1
    del ends[:done]
    return vouched


def _later_proof(
    file: File, info: SegmentInfo, manifest: Manifest, walk: SegmentWalk
) -> int | None:
    """Position of an intact note that calls the bad record durable, if there is one.

    So does one of a later owner than the manifest's: that one had a newer manifest, and this one
    was put back. Where a record is expected, and without a key anywhere, any record will do.
    """
    at = walk.position
    while at < file.size:
        chunk = file.read_at(at, GROUP_BYTES_MAX)
        found = chunk.find(_MAGIC_BYTES)
        while found >= 0:
            if found + RECORD_HEADER_BYTES > len(chunk):
                break
            try:
                header = decode_header(chunk, found)
            except Damaged:
                header = None
            is_here = at + found == walk.position
            marks = (manifest.log_mark, walk.key) if is_here or not walk.key else (walk.key,)
            if (
                header is not None
                and header.log_mark in marks
                and header.segment == info.id
                and (header.durable_lsn > walk.next_lsn or header.epoch > manifest.epoch)
            ):
                return at + found
            found = chunk.find(_MAGIC_BYTES, found + 1)
        if at + len(chunk) >= file.size:
            return None
        at += len(chunk) - RECORD_HEADER_BYTES + 1
    return None
