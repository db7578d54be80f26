"""Batches of records, version 2 of Kafka's format. Pure.

    base offset i64 · length i32 · leader epoch i32 · magic i8 · CRC-32C u32 · attributes i16 ·
    last offset delta i32 · first, last time i64 · producer id i64 · epoch i16 · sequence i32 ·
    count i32 · records (compressed together)

Law: a batch whose CRC, length or count is not as it says raises BadFormat; nothing is allocated by
what it claims.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from penstock.errors import BadFormat, TooLarge
from penstock.gateway.kafka.compression import unfold
from penstock.gateway.kafka.errors import Code, KafkaRefused

_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_AFTER_CRC: Final = struct.Struct(">hiqqqhii")
_CRC_AT: Final = 17
_LENGTH_AT: Final = 12
_MAGIC: Final = 2
_COMPRESSION: Final = 0x07
#: The times are of the log, not of who made the records.
_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
NO_PRODUCER: Final = -1
#: Of a batch: one takes two bytes here, some of them hundreds as rows, and compressed almost none.
HEADERS_MAX: Final = 1 << 17

Headers = list[tuple[bytes, bytes | None]]


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a batch, by column."""

    times_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]
    producer_id: int = NO_PRODUCER
    epoch: int = -1
    sequence: int = -1
    is_transactional: bool = False

    @property
    def count(self) -> int:
        return len(self.values)


def is_compressed(data: bytes) -> bool:
    """Whether a batch may unfold to far more than it has."""
    return len(data) >= _HEAD.size and bool(data[22] & _COMPRESSION)


def decode_records(data: bytes, *, bytes_max: int, count_max: int) -> Records:
    """The one batch that a producer sends for a partition."""
    if len(data) > _CRC_AT and data[16] != _MAGIC:
        raise KafkaRefused(
            Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"records of format {data[16]}: use format 2"
        )
    if len(data) < _HEAD.size:
        raise BadFormat("a batch without a head")
    (_, length, _, _, crc, attributes, _, first_ms, max_ms, producer_id, epoch, sequence, count) = (
        _HEAD.unpack_from(data)
    )
    if length != len(data) - _LENGTH_AT:
        raise BadFormat(f"a batch of {length} bytes in {len(data) - _LENGTH_AT}: send one at once")
    if crc != crc32c(memoryview(data)[_CRC_AT + 4 :]):
        raise BadFormat("the CRC of a batch is wrong")
    if attributes & _CONTROL:
        raise KafkaRefused(Code.INVALID_RECORD, "a control batch: only the gateway makes those")
    if count > count_max:
        raise TooLarge(f"{count} records at once: {count_max} at most")
    body = unfold(memoryview(data)[_HEAD.size :], attributes & _COMPRESSION, bytes_max)
    if not 0 < count <= len(body):
        raise BadFormat(f"a batch claims {count} records in {len(body)} bytes")
    times, keys, values, headers = _decode_body(body, count)
    if attributes & _APPEND_TIME:
        times = [max_ms] * count
    else:
        times = [first_ms + each for each in times]
    is_transactional = bool(attributes & _TRANSACTIONAL)
    return Records(times, keys, values, headers, producer_id, epoch, sequence, is_transactional)


def _decode_body(
    body: bytes, count: int
) -> tuple[list[int], list[bytes | None], list[bytes | None], list[Headers]]:
    """Record by record: each says where the next begins, so no kernel could take them at once."""
    times: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[Headers] = []
    at = 0
    headers_left = HEADERS_MAX
    try:
        for _ in range(count):
            size, at = _varint(body, at)
            end = at + size
            if size < 0 or end > len(body):
                raise BadFormat("a record is longer than its batch")
            time, at = _varint(body, at + 1)
            _, at = _varint(body, at)
            key, at = _bytes(body, at)
            value, at = _bytes(body, at)
            number, at = _varint(body, at)
            headers_left -= number
            if headers_left < 0:
                raise TooLarge(f"a batch of more than {HEADERS_MAX} headers")
            found: Headers = []
            for _ in range(number):
                name, at = _bytes(body, at)
                content, at = _bytes(body, at)
                if name is None or at > end:
                    raise BadFormat("a header without a name")
                found.append((name, content))
            if at != end or number < 0:
                raise BadFormat("a record is not as long as it says")
            times.append(time)
            keys.append(key)
            values.append(value)
            headers.append(found)
    except IndexError:
        raise BadFormat("a record has no end") from None
    if at != len(body):
        raise BadFormat("bytes behind the last record")
    return times, keys, values, headers


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
        if shift > 63:
            raise BadFormat("a varint of more than ten bytes")


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    if size < 0:
        return None, at
    if at + size > len(data):
        raise BadFormat("a value is longer than its batch")
    return data[at : at + size], at + size


def encode_records(
    offset: int,
    times_ms: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None] | None = None,
    *,
    append_time: bool = False,
) -> bytes:
    """A batch of records at `offset`, `offset + 1`, …"""
    first_ms = times_ms[0]
    body = bytearray()
    # Record by record, as they are read.
    for at, (time, key, value) in enumerate(zip(times_ms, keys, values, strict=True)):
        record = bytearray(b"\x00")
        record += _zigzag(time - first_ms)
        record += _zigzag(at)
        _put(record, key)
        _put(record, value)
        own = (headers[at] if headers is not None else None) or ()
        record += _zigzag(len(own))
        for name, content in own:
            _put(record, name)
            _put(record, content)
        body += _zigzag(len(record))
        body += record
    checked = _AFTER_CRC.pack(
        _APPEND_TIME if append_time else 0, len(values) - 1, first_ms, max(times_ms),
        NO_PRODUCER, -1, -1, len(values),
    )  # fmt: skip
    crc = crc32c(body, crc32c(checked))
    length = 9 + len(checked) + len(body)
    return struct.pack(">qiibI", offset, length, 0, _MAGIC, crc) + checked + body


def _zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _put(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\x01"
    else:
        out += _zigzag(len(value))
        out += value
