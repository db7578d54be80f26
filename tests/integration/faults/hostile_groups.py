"""Groups as no client of ours makes them: right CRCs around wrong contents.

Each is a function that returns the bytes of a group of `PRODUCER`, whose next seq is 1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from crc32c import crc32c

from penstock.limits import GROUP_BYTES_MAX
from penstock.log.group_format import (
    BODY_HEADER_BYTES,
    CLAIM,
    RETIRE,
    ROW_BYTES,
    SLICE,
    encode_body,
    meta_entry,
)
from penstock.log.records import Kind, NewEntry, SetKey

PRODUCER = "hostile"
#: Offsets in the header of a group's body (docs/formats.md, "Body").
TABLE_BYTES, BODY_BYTES, VERSION, FLAGS, PRODUCER_BYTES = 4, 8, 12, 13, 14
INSTANCE, FIRST_SEQ, COUNT, TAG_COUNT, REF_COUNT, TEXT_BYTES = 16, 24, 32, 36, 40, 44
ROWS = BODY_HEADER_BYTES + len(PRODUCER)


def group(*entries: NewEntry, flags: int = 0, instance: int = 1, first_seq: int = 1) -> bytearray:
    made = entries or (NewEntry(b"one", ("a", "b")), NewEntry(b"two", ("b",)))
    return bytearray(
        encode_body(
            producer=PRODUCER, instance=instance, first_seq=first_seq, entries=made, flags=flags
        )
    )


def patched(at: int, form: str, value: int, body: bytearray | None = None) -> bytes:
    """A group with one field replaced, and its table's CRC made right again."""
    data = group() if body is None else body
    struct.pack_into("<" + form, data, at, value)
    return sealed(data)


def sealed(data: bytearray) -> bytes:
    (table_bytes,) = struct.unpack_from("<I", data, TABLE_BYTES)
    struct.pack_into("<I", data, 0, crc32c(bytes(data[4:table_bytes])))
    return bytes(data)


def renamed(old: bytes, new: bytes) -> bytes:
    data = group()
    at = data.index(old)
    data[at : at + len(old)] = new
    return sealed(data)


def control(flags: int, *entries: NewEntry) -> bytes:
    return bytes(group(*entries, flags=flags, instance=2, first_seq=0))


def metadata(payload: bytes, tags: tuple[str, ...] = ("m/key",)) -> bytes:
    return bytes(group(NewEntry(payload, tags, Kind.META)))


ROW = ROWS  # of the first entry: kind, 3 unused, rows, payload end, payload crc, ref end
_CLAIM_ENTRY = NewEntry(b"87654321", (), Kind.CONTROL)

GROUPS: dict[str, Callable[[], bytes]] = {
    "nothing at all": lambda: b"",
    "less than a header": lambda: bytes(group()[: BODY_HEADER_BYTES - 1]),
    "cut in its table": lambda: bytes(group()[: BODY_HEADER_BYTES + 10]),
    "cut in its payloads": lambda: bytes(group()[:-1]),
    "trailing bytes": lambda: bytes(group()) + b"\0",
    "zeros": lambda: bytes(200),
    "a CRC that does not match": lambda: bytes(group()[:-20]) + bytes(20),
    "an unknown version": lambda: patched(VERSION, "B", 2),
    "unknown flags": lambda: patched(FLAGS, "B", 8),
    "no entries": lambda: patched(COUNT, "I", 0),
    "entries by the billion": lambda: patched(COUNT, "I", 10**9),
    "2^32 - 1 entries": lambda: patched(COUNT, "I", 2**32 - 1),
    "one entry too many": lambda: patched(COUNT, "I", 3),
    "2^32 - 1 tags": lambda: patched(TAG_COUNT, "I", 2**32 - 1),
    "2^32 - 1 references": lambda: patched(REF_COUNT, "I", 2**32 - 1),
    "2^32 - 1 bytes of tags": lambda: patched(TEXT_BYTES, "I", 2**32 - 1),
    "a body longer than it is": lambda: patched(BODY_BYTES, "I", GROUP_BYTES_MAX),
    "a body beyond the limit": lambda: patched(BODY_BYTES, "I", 2**32 - 1),
    "no producer": lambda: patched(PRODUCER_BYTES, "H", 0),
    "a producer of 65,535 bytes": lambda: patched(PRODUCER_BYTES, "H", 65535),
    "a producer that is no UTF-8": lambda: renamed(b"hostile", b"host\xff\xfe\xfd"),
    "a producer that is not open": lambda: renamed(b"hostile", b"unknown"),
    "an instance beyond 2^63": lambda: patched(INSTANCE, "Q", 2**64 - 1),
    "a seq beyond 2^63": lambda: patched(FIRST_SEQ, "Q", 2**64 - 1),
    "a seq with a gap": lambda: bytes(group(first_seq=5)),
    "a seq of a group of another shape": lambda: bytes(group(first_seq=0)),
    "a kind that is none": lambda: patched(ROW, "B", 99),
    "kind 0": lambda: patched(ROW, "B", 0),
    "a payload that ends before it starts": lambda: patched(ROW + ROW_BYTES + 8, "I", 1),
    "a payload beyond the group": lambda: patched(ROW + 8, "I", 2**32 - 1),
    "references that go back": lambda: patched(ROW + ROW_BYTES + 16, "I", 1),
    "references beyond the table": lambda: patched(ROW + 16, "I", 2**32 - 1),
    "a tag that is not there": lambda: patched(ROW + 2 * ROW_BYTES, "H", 65535),
    "a payload CRC that does not match": lambda: patched(ROW + 12, "I", 1),
    "a tag twice on one entry": lambda: patched(ROW + 2 * ROW_BYTES + 2, "H", 0),
    "a tag that is no UTF-8": lambda: renamed(b"ab", b"a\xff"),
    "a tag that cannot be printed": lambda: renamed(b"ab", b"a\n"),
    "a tag with a NUL": lambda: renamed(b"ab", b"a\0"),
    "the same tag twice in the table": lambda: renamed(b"ab", b"aa"),
    "a slice": lambda: patched(FLAGS, "B", SLICE),
    "a slice with places": lambda: sliced((0, 1)),
    "a slice with places that go back": lambda: sliced((1, 0)),
    "a slice with places beyond 2^31": lambda: sliced((2**31, 2**32 - 1)),
    "a claim of two entries": lambda: control(CLAIM, _CLAIM_ENTRY, _CLAIM_ENTRY),
    "a claim with data": lambda: control(CLAIM, NewEntry(b"87654321")),
    "a claim of an old instance": lambda: bytes(
        group(_CLAIM_ENTRY, flags=CLAIM, instance=0, first_seq=0)
    ),
    "a rival's claim of this instance": lambda: bytes(
        group(_CLAIM_ENTRY, flags=CLAIM, instance=1, first_seq=0)
    ),
    "a retirement with data": lambda: bytes(group(NewEntry(b"x"), flags=RETIRE)),
    "a retirement by another instance": lambda: bytes(
        group(_CLAIM_ENTRY, flags=RETIRE, instance=9)
    ),
    "metadata that is cut": lambda: metadata(meta_entry([SetKey("key", b"value")]).payload[:-1]),
    "metadata of nothing": lambda: metadata(b""),
    "metadata with trailing bytes": lambda: metadata(
        meta_entry([SetKey("key", b"value")]).payload + b"\0"
    ),
    "metadata with 65,535 keys": lambda: metadata(b"\xff\xff" + bytes(100)),
    "metadata under another tag": lambda: metadata(
        meta_entry([SetKey("key", b"value")]).payload, ("m/other",)
    ),
    "metadata under no tag": lambda: metadata(meta_entry([SetKey("key", b"value")]).payload, ()),
    "a key set twice": lambda: bytes(
        group(meta_entry([SetKey("key", b"1")]), meta_entry([SetKey("key", b"2")]))
    ),
    "an empty key": lambda: metadata(struct.pack("<HHBI", 1, 0, 1, 0), ("m/",)),
}


def sliced(places: tuple[int, int]) -> bytes:
    """The two entries as if they were cut out of a larger group."""
    data = group()
    at = ROWS + 2 * ROW_BYTES
    data[at:at] = struct.pack("<2I", *places)
    data[FLAGS] = SLICE
    for field in (TABLE_BYTES, BODY_BYTES):
        (size,) = struct.unpack_from("<I", data, field)
        struct.pack_into("<I", data, field, size + 8)
    return sealed(data)
