"""Bytes of a journal's records: heads under a CRC, and echoes of heads.

    write k      head · name · block │ head · name │ …
    write k + 1  ECHO: all heads of write k │ head · name · block │ …

All heads of a file but its first begin with its *key*, a random number that no client ever sees.
Law: so what a block holds is never taken for a record, wherever one is looked for. Files of older
versions have no key.

Whatever says that a record was durable was written after it, and with it the record's head once
more. Law: so of a durable record that is damaged it is known what it was, and where the next one
begins, unless its echo is damaged as well. An add's head names its block: with the head, or its
echo, all is known but the block's bytes. Heads in an echo are without their marks, so that nothing
in it is taken for a record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch, Damaged
from penstock.limits import BLOCK_BYTES_MAX, MIB
from penstock.log.group_format import Buffer
from penstock.log.replication.manifest import SegmentKey

#: After the mark: crc, bytes of the record, bytes of the log's name, kind, part, number of the
#: file, bytes of it that were synced, segment, value (an epoch, a length, one more than a block).
_HEAD = struct.Struct("<IIHBBQQQQ")
_FIELDS = struct.Struct("<IHBBQQQQ")
KEY_BYTES = 8
HEAD_BYTES = KEY_BYTES + _HEAD.size
assert HEAD_BYTES == 52
#: The mark of a start, which has the file's key as its segment; the key is the mark of all others.
START_MARK = b"PNJ2\0\0\0\0"
assert len(START_MARK) == KEY_BYTES
_SIZE = struct.Struct("<I")
_SIZE_AT = KEY_BYTES + 4
_LOG_BYTES_MAX = 64
RECORD_BYTES_MAX = HEAD_BYTES + _LOG_BYTES_MAX + BLOCK_BYTES_MAX

START, ADD, FENCE, TRIM, LENGTH, NOTE, END, ECHO = range(1, 9)

#: Heads in one echo.
_ECHO_HEADS_MAX = 8192
assert _ECHO_HEADS_MAX * (HEAD_BYTES + _LOG_BYTES_MAX) <= MIB <= RECORD_BYTES_MAX
#: More than a write has; files of an older version have no echoes, which tell where one begins.
HEADS_MAX = 1 << 16


class Format(NamedTuple):
    """How the records of a file are told from all else."""

    #: The mark of its first record, and of all others.
    start: bytes
    mark: bytes
    #: No payload can hold the mark.
    has_key: bool = True


#: Version 1: everybody knows the mark.
_OLD_FORMAT = Format(b"PNJ1", b"PNJ1", has_key=False)


class RecordHead(NamedTuple):
    """What a record says of itself."""

    #: Bytes of head, name and body.
    size: int
    name_bytes: int
    kind: int
    part: int
    number: int
    synced: int
    segment: int
    value: int
    log: str
    head_bytes: int

    @property
    def key(self) -> SegmentKey:
        return SegmentKey(self.log, self.segment, self.part)

    @property
    def body_bytes(self) -> int:
        return self.size - self.head_bytes - self.name_bytes


@dataclass(slots=True)
class LastWrite:
    """The heads of the newest write, in order; to be repeated in the next one."""

    #: Number of its file, and where it begins there.
    number: int = 0
    at: int = 0
    heads: list[bytes] = field(default_factory=list)


def encode_head(
    mark: bytes,
    kind: int,
    number: int,
    synced: int,
    log: str,
    segment: int = 0,
    part: int = 0,
    *,
    value: int = 0,
    body_bytes: int = 0,
) -> bytes:
    """Head and name."""
    name = log.encode()
    size = HEAD_BYTES + len(name) + body_bytes
    rest = _FIELDS.pack(size, len(name), kind, part, number, synced, segment, value) + name
    return mark + crc32c(rest).to_bytes(4, "little") + rest


def encode_start(key: bytes, number: int, previous_bytes: int) -> bytes:
    """The first head of a file."""
    segment = int.from_bytes(key, "little")
    return encode_head(START_MARK, START, number, 0, "", segment, value=previous_bytes)


def encode_again(head: RecordHead) -> bytes:
    """The bytes that it was decoded from, but for the mark."""
    kind, part, number, synced, segment, value, log = head[2:9]
    size = head.body_bytes
    return encode_head(
        bytes(KEY_BYTES), kind, number, synced, log, segment, part, value=value, body_bytes=size
    )


def find_format(file: bytes, key: bytes | None = None) -> Format:
    """As its start says or, if that is damaged, the key that is known of it."""
    try:
        key = decode_head(file, 0, Format(START_MARK, b"")).segment.to_bytes(KEY_BYTES, "little")
    except Damaged:
        pass
    return _OLD_FORMAT if key is None else Format(START_MARK, key)


def decode_head(data: Buffer, at: int, format: Format) -> RecordHead:
    """Raises Damaged. The record's body need not be there."""
    mark = format.mark if at else format.start
    if bytes(data[at : at + len(mark)]) != mark:
        raise BadFormat("no record")
    return _decode_rest(data, at + len(mark), len(mark) + _HEAD.size)


def _decode_rest(data: Buffer, at: int, head_bytes: int) -> RecordHead:
    """All of a head but its mark."""
    if len(data) - at < _HEAD.size:
        raise BadFormat("a record is cut")
    crc, size, name_bytes, *rest = _HEAD.unpack_from(data, at)
    name = at + _HEAD.size
    if name_bytes > _LOG_BYTES_MAX or not head_bytes + name_bytes <= size <= RECORD_BYTES_MAX:
        raise BadFormat("a record of an impossible size")
    if len(data) < name + name_bytes:
        raise BadFormat("a record is cut")
    if crc32c(data[at + 4 : name + name_bytes]) != crc:
        raise ChecksumMismatch("a record's header is damaged")
    try:
        log = bytes(data[name : name + name_bytes]).decode()
    except UnicodeDecodeError as error:
        raise BadFormat("a record of a log whose name is no text") from error
    return RecordHead._make((size, name_bytes, *rest, log, head_bytes))


# ---- echoes


def encode_echo(
    key: bytes, number: int, synced: int, last: LastWrite
) -> Iterator[tuple[bytes, bytes]]:
    """Heads and bodies of the records that repeat the heads of the last write."""
    at = last.at
    for start in range(0, len(last.heads), _ECHO_HEADS_MAX):
        heads = last.heads[start : start + _ECHO_HEADS_MAX]
        body = b"".join([head[KEY_BYTES:] for head in heads])
        crc, size, is_before = crc32c(body), len(body), int(last.number != number)
        echo = encode_head(key, ECHO, number, synced, "", crc, is_before, value=at, body_bytes=size)
        yield echo, body
        at += sum(_SIZE.unpack_from(head, _SIZE_AT)[0] for head in heads)


def check_echo(head: RecordHead, body: Buffer) -> None:
    """Raises Damaged."""
    if crc32c(body) != head.segment or head.part > 1:
        raise ChecksumMismatch("an echo is damaged")


def echoed_heads(echo: RecordHead, body: memoryview) -> Iterator[tuple[int, int, RecordHead]]:
    """File, position and head of each record that a checked echo tells of."""
    number, at, inside = echo.number - echo.part, echo.value, 0
    while inside < len(body):
        head = _decode_rest(body, inside, HEAD_BYTES)
        yield number, at, head
        at += head.size
        inside += _HEAD.size + head.name_bytes
