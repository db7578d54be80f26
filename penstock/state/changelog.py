"""Changes of state as the payloads of change entries; the layout is in docs/formats.md.

A payload describes itself: names, kinds, schemas and rows of the changes of one commit, so that who
restores a task needs nothing but its entries. Schemas are not remembered between payloads: to write
one again takes a microsecond, and any entry can be read alone.

Law: applying decode_changes of all payloads, in order, does what applying the changes does. Rows of
one change never depend on each other (puts and deletions have different keys, additions are
summed), so a change may be cut between any two of them; changes of one part keep their order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from penstock.errors import BadFormat, TooLarge
from penstock.limits import PAYLOAD_BYTES_MAX
from penstock.state.api import Change
from penstock.stream.batches import decode_own, encode_trusted, split_batch

VERSION: Final = 1
#: Kinds of changes; a kind's number is its place, so new ones go to the end.
KINDS: Final = ("set", "put", "delete", "add", "evict")
_NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}
#: crc of all that follows, version, zero, changes.
_HEAD: Final = struct.Struct("<IBBH")
#: kind, zero, name_bytes, schema_bytes, rows_bytes; then name, zeros up to a multiple of 8, schema
#: and rows, which Arrow pads to 8 itself.
_ITEM: Final = struct.Struct("<BBHII4x")
_COUNT_MAX: Final = 2**16 - 1
#: Arrow reads numbers in place.
_ALIGNMENT: Final = 8

assert _HEAD.size % _ALIGNMENT == 0 and _ITEM.size % _ALIGNMENT == 0


def encode_changes(changes: Sequence[Change], bytes_max: int = PAYLOAD_BYTES_MAX) -> list[bytes]:
    """The payloads of a commit, to be applied in order: one, or as many as bytes_max asks for.

    Raises TooLarge for a row that does not fit into a payload by itself.
    """
    items: list[list[bytes]] = [[]]
    room = bytes_max - _HEAD.size
    for change in changes:
        head = _head_of(change)
        for rows in _cut(change, head, bytes_max):
            item = head.join(encode_trusted(rows))
            if len(item) > room or len(items[-1]) == _COUNT_MAX:
                items.append([])
                room = bytes_max - _HEAD.size
            items[-1].append(item)
            room -= len(item)
    return [_seal(payload) for payload in items if payload]


@dataclass(frozen=True, slots=True)
class _ItemHead:
    """What all pieces of a change have in common."""

    kind: int
    name: bytes
    schema: bytes

    @property
    def size(self) -> int:
        return _ITEM.size + len(_padded(self.name)) + len(self.schema)

    def join(self, rows: bytes) -> bytes:
        head = _ITEM.pack(self.kind, 0, len(self.name), len(self.schema), len(rows))
        return b"".join((head, _padded(self.name), self.schema, rows))


def _head_of(change: Change) -> _ItemHead:
    schema: bytes = change.rows.schema.serialize().to_pybytes()
    return _ItemHead(_NUMBERS[change.kind], change.name.encode(), schema)


def _padded(name: bytes) -> bytes:
    return name + bytes(-len(name) % _ALIGNMENT)


def _cut(change: Change, head: _ItemHead, bytes_max: int) -> list[pa.RecordBatch]:
    """The rows in pieces that fit into payloads of their own."""
    room = bytes_max - _HEAD.size - head.size
    if pa.ipc.get_record_batch_size(change.rows) <= room:
        return [change.rows]
    try:
        return split_batch(change.rows, room)
    except TooLarge as error:
        raise TooLarge(f"a change of {change.name}: {error}") from error


def _seal(items: list[bytes]) -> bytes:
    count = len(items).to_bytes(2, "little")
    body = b"".join((bytes((VERSION, 0)), count, *items))
    return crc32c(body).to_bytes(4, "little") + body


def decode_changes(payload: bytes | memoryview) -> list[Change]:
    """The changes of a payload, in order; their rows keep its memory alive.

    Raises BadFormat for anything that encode_changes cannot have written.
    """
    try:
        return _decode(memoryview(payload))
    except (pa.ArrowException, OSError, EOFError, ValueError, IndexError, struct.error) as error:
        raise BadFormat(f"not a payload of changes: {error}") from error


def _decode(payload: memoryview) -> list[Change]:
    crc, version, _, count = _HEAD.unpack_from(payload)
    # The log has checked its own CRC: this one tells bytes that never were changes.
    if crc32c(payload[4:]) != crc:
        raise BadFormat("not a payload of changes: its checksum does not match")
    if version != VERSION:
        raise BadFormat(f"changes of version {version}, this is {VERSION}: upgrade penstock")
    changes, start = [], _HEAD.size
    for _ in range(count):
        change, start = _decode_item(payload, start)
        changes.append(change)
    if start != len(payload):
        raise BadFormat(f"{len(payload) - start} bytes after the last change")
    return changes


def _decode_item(payload: memoryview, start: int) -> tuple[Change, int]:
    """The change that starts at `start`, and where it ends."""
    kind, _, name_bytes, schema_bytes, rows_bytes = _ITEM.unpack_from(payload, start)
    start += _ITEM.size
    name = bytes(payload[start : start + name_bytes]).decode()
    start += name_bytes + -name_bytes % _ALIGNMENT
    end = start + schema_bytes + rows_bytes
    if end > len(payload):
        raise BadFormat(f"a change ends at byte {end} of {len(payload)}")
    schema = pa.ipc.read_schema(pa.py_buffer(payload[start : start + schema_bytes]))
    rows = decode_own(payload[start + schema_bytes : end], schema)
    # Arrow does not look at names before somebody asks for them, and then fails.
    assert len(schema.names) == rows.num_columns
    return Change(name, KINDS[kind], rows), end
