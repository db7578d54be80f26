"""The bytes of groups and records: what round-trips, what is refused, and before which allocation.

Properties over random groups are in tests/property/test_log_formats.py; here are the edges.
"""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from damage import peak_bytes
from sample_groups import claim, group, header_of

from penstock.errors import BadFormat, BadRequest, ChecksumMismatch, Damaged, Refused, TooLarge
from penstock.limits import (
    ENTRY_TAGS_MAX,
    GROUP_BYTES_MAX,
    GROUP_ENTRIES_MAX,
    GROUP_TAGS_MAX,
    PAYLOAD_BYTES_MAX,
    PRODUCER_BYTES_MAX,
    SLICE_BYTES_MAX,
    TAG_BYTES_MAX,
)
from penstock.log.group_format import (
    BODY_HEADER_BYTES,
    CLAIM,
    RETIRE,
    check_new_body,
    decode_body,
    decode_sets,
    encode_body,
    meta_entry,
)
from penstock.log.record_format import (
    RECORD_HEADER_BYTES,
    decode_header,
    decode_record,
    encode_header,
    encode_note,
    slice_record,
)
from penstock.log.records import Kind, NewEntry, SetKey, check_tag

BODY = struct.Struct("<IIIBBHQQIIII")
FIELDS = (
    *("crc", "table_bytes", "body_bytes", "version", "flags", "producer_bytes"),
    *("instance", "first_seq", "count", "tags", "refs", "text_bytes"),
)


def encoded(*entries: NewEntry, producer: str = "p", flags: int = 0) -> bytes:
    return encode_body(
        producer=producer, instance=1, first_seq=0, entries=list(entries), flags=flags
    )


def forged(data: bytes, **changes: int) -> bytes:
    """The body with other header fields and a CRC that fits them."""
    fields = dict(zip(FIELDS, BODY.unpack_from(data), strict=True)) | changes
    header = BODY.pack(*fields.values())
    table_bytes = min(fields["table_bytes"], len(data))
    rest = data[BODY_HEADER_BYTES:table_bytes]
    crc = crc32c(rest, crc32c(header[4:]))
    return crc.to_bytes(4, "little") + header[4:] + data[BODY_HEADER_BYTES:]


def test_one_entry_in_two_substreams_is_stored_once() -> None:
    """Impeller 3.2: one record with tags A and B appears in both substreams, once in the log."""
    payload = b"only-once"

    data = encoded(NewEntry(payload, ("A", "B")))

    assert data.count(payload) == 1
    matching = [decode_body(data).matching(frozenset(tags)) for tags in ("A", "B", "AB", "C")]
    assert matching == [[0], [0], [0], []]


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [NewEntry(b"")] * (GROUP_ENTRIES_MAX + 1),
        [NewEntry(bytes(PAYLOAD_BYTES_MAX + 1))],
        [NewEntry(bytes(PAYLOAD_BYTES_MAX))] * 4,
        [NewEntry(b"", tuple(map(str, range(ENTRY_TAGS_MAX + 1))))],
        [NewEntry(b"", ("t" * (TAG_BYTES_MAX + 1),))],
        [NewEntry(b"", ("é" * (TAG_BYTES_MAX // 2 + 1),))],
        [NewEntry(b"", ("",))],
        [NewEntry(b"", tuple(f"{i}-{j}" for j in range(64))) for i in range(313)],
    ],
    ids=["none", "many", "payload", "group", "tags", "tag", "unicode", "empty", "different"],
)
def test_what_is_beyond_a_limit_is_too_large(entries: list[NewEntry]) -> None:
    with pytest.raises(TooLarge):
        encode_body(producer="p", instance=1, first_seq=0, entries=entries)


def test_groups_at_the_limits_round_trip() -> None:
    tags = tuple("é" * (TAG_BYTES_MAX // 2 - 1) + f"{i:02}" for i in range(ENTRY_TAGS_MAX))
    many = [NewEntry(b"", (str(i), str(-i - 1))) for i in range(GROUP_TAGS_MAX // 2)]
    room = GROUP_BYTES_MAX - BODY_HEADER_BYTES - PRODUCER_BYTES_MAX - 4 * 20
    full = [NewEntry(bytes(PAYLOAD_BYTES_MAX))] * 3 + [NewEntry(bytes(room - 3 * 2**20))]

    for entries in ([NewEntry(b"x", tags)], many, full):
        data = encode_body(
            producer="p" * PRODUCER_BYTES_MAX, instance=1, first_seq=0, entries=entries
        )
        body = decode_body(data)
        check_new_body(body)
        assert [NewEntry(e.payload, e.tags) for e in body.entries(0, 0)] == entries
    assert len(data) == GROUP_BYTES_MAX


@pytest.mark.parametrize("producer", ["", "p" * (PRODUCER_BYTES_MAX + 1), "é" * 101])
def test_a_producer_name_has_1_to_200_bytes(producer: str) -> None:
    with pytest.raises(TooLarge):
        encoded(NewEntry(b""), producer=producer)


@pytest.mark.parametrize("tag", ["a\nb", "a\x00", "\x7f", "\ud800", "\u202e"])
def test_a_tag_that_cannot_be_shown_is_refused(tag: str) -> None:
    with pytest.raises(BadRequest):
        check_tag(tag)


def test_an_entry_that_names_a_tag_twice_is_refused() -> None:
    with pytest.raises(BadRequest, match="twice"):
        encoded(NewEntry(b"", ("a", "b", "a")))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 0},
        {"version": 2},
        {"flags": 8},
        {"flags": 255},
        {"count": 0},
        {"count": 2},
        {"count": GROUP_ENTRIES_MAX + 1},
        {"count": 2**32 - 1},
        {"tags": 10**9},
        {"tags": 2},
        {"refs": 10**9},
        {"refs": 0},
        {"text_bytes": 2**31 - 1},
        {"text_bytes": 2},
        {"producer_bytes": 0},
        {"producer_bytes": 2},
        {"producer_bytes": PRODUCER_BYTES_MAX + 1},
        {"table_bytes": 0},
        {"table_bytes": BODY_HEADER_BYTES - 1},
        {"table_bytes": 2**31 - 1},
        {"table_bytes": 2**32 - 1},
        {"body_bytes": 0},
        {"body_bytes": GROUP_BYTES_MAX + 1},
        {"body_bytes": 2**32 - 1},
    ],
    ids=str,
)
def test_a_header_with_a_hostile_number_and_a_good_crc_allocates_nothing(
    changes: dict[str, int],
) -> None:
    """Law I19: a length is checked before anything is allocated for it."""
    data = forged(encoded(NewEntry(b"payload", ("a",))), **changes)

    def attempt() -> None:
        with pytest.raises(Damaged):
            decode_body(data)

    assert peak_bytes(attempt) < 64 * 1024


def test_names_that_are_not_utf8_are_noticed_behind_a_good_crc() -> None:
    data = bytearray(encoded(NewEntry(b"", ("tag",)), producer="name"))

    for name in (b"name", b"tag"):
        damaged = bytearray(data)
        damaged[damaged.index(name)] = 0xFF
        with pytest.raises(BadFormat, match="UTF-8"):
            decode_body(forged(bytes(damaged)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (struct.pack("<HH", 0, 1), struct.pack("<HH", 0, 2)),  # a reference to no tag
        (b"ab", b"aa"),  # the same tag twice in the table
        (struct.pack("<HH", 1, 1), struct.pack("<HH", 2, 1)),  # tag lengths beyond the texts
        (b"\x01\x00\x00\x00\x00", b"\x07\x00\x00\x00\x00"),  # an unknown kind
        (b"\x01\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00"),
    ],
    ids=["reference", "twice", "length", "kind 7", "kind 0"],
)
def test_a_table_that_makes_no_sense_is_noticed_behind_a_good_crc(old: bytes, new: bytes) -> None:
    data = encode_body(
        producer="name", instance=1, first_seq=0, entries=[NewEntry(b"", ("a", "b"))]
    )
    at = data.index(old, BODY_HEADER_BYTES)

    with pytest.raises(BadFormat):
        decode_body(forged(data[:at] + new + data[at + len(old) :]))


def test_a_server_takes_no_slice_no_forged_control_and_no_damaged_payload() -> None:
    header = header_of(group(entries=2), 0)
    piece = slice_record(header, group(entries=2), [1], [b"x"])[RECORD_HEADER_BYTES:]
    damaged = bytearray(encoded(NewEntry(b"payload")))
    damaged[-1] ^= 1

    with pytest.raises(Damaged, match="slice"):
        check_new_body(decode_body(piece))
    with pytest.raises(ChecksumMismatch):
        check_new_body(decode_body(damaged))
    for flags in (CLAIM, RETIRE):
        with pytest.raises(Refused, match="control"):
            check_new_body(decode_body(encoded(NewEntry(b""), flags=flags)))
        two = [NewEntry(b"", (), Kind.CONTROL)] * 2
        with pytest.raises(Refused, match="control"):
            check_new_body(decode_body(encoded(*two, flags=flags)))
    with pytest.raises(Refused, match="2\\^63"):
        check_new_body(group(seq=2**63))
    check_new_body(claim())


def test_a_server_refuses_a_tag_named_twice_by_one_entry() -> None:
    data = encoded(NewEntry(b"", ("a", "b")))
    at = data.index(struct.pack("<HH", 0, 1), BODY_HEADER_BYTES)
    twice = forged(data[:at] + struct.pack("<HH", 1, 1) + data[at + 4 :])

    with pytest.raises(BadRequest, match="twice"):
        check_new_body(decode_body(twice))


def test_a_record_binds_its_header_to_its_body() -> None:
    first, second = group(entries=[NewEntry(b"1")]), group(entries=[NewEntry(b"2")])
    header = encode_header(header_of(first, 5))

    assert decode_record(header + first.data)[0] == header_of(first, 5)
    with pytest.raises(BadFormat, match="another body"):
        decode_record(header + second.data)


@pytest.mark.parametrize("size", [0, RECORD_HEADER_BYTES - 1, 64 + SLICE_BYTES_MAX + 1, 2**32 - 1])
def test_a_record_length_beyond_the_limits_is_noticed(size: int) -> None:
    fields = struct.pack("<IIQQQQQQ", size, 0, 1, 1, 1, 1, 1, 1)
    data = struct.pack("<II", 0x31524750, crc32c(fields)) + fields

    with pytest.raises(BadFormat):
        decode_header(data)


def test_a_note_is_a_record_without_a_body() -> None:
    note = encode_note(lsn=9, epoch=1, segment=2, time_ms=3, log_mark=4)

    assert decode_header(note).is_note
    assert decode_header(note).durable_lsn == 9
    with pytest.raises(BadFormat):
        decode_record(note)


def test_a_slice_of_a_slice_keeps_the_places_of_the_group() -> None:
    body = group(entries=[NewEntry(bytes([i]), ("t",)) for i in range(5)])
    first = slice_record(header_of(body, 50), body, [1, 2, 4], [body.payload(i) for i in (1, 2, 4)])
    header, sliced = decode_record(first)

    again = slice_record(header, sliced, [2], [sliced.payload(2)])

    found, last = decode_record(again)
    assert [(e.lsn, e.payload) for e in last.entries(found.first_lsn, 0)] == [(54, b"\x04")]


def test_nearly_all_of_the_largest_group_can_be_sliced() -> None:
    """A slice adds four bytes per entry: it may be larger than any group."""
    count = GROUP_ENTRIES_MAX
    size = (GROUP_BYTES_MAX - BODY_HEADER_BYTES - 32 - 22 * count) // count
    body = group(entries=[NewEntry(bytes(size), ("a",))] * (count - 1) + [NewEntry(b"", ("b",))])
    keep = body.matching(frozenset("a"))

    data = slice_record(header_of(body, 0), body, keep, [body.payload(i) for i in keep])

    assert len(data) > RECORD_HEADER_BYTES + GROUP_BYTES_MAX
    assert decode_record(data)[1].count == count - 1


def test_a_slice_whose_places_are_not_in_order_is_noticed_behind_a_good_crc() -> None:
    body = group(entries=3)
    data = slice_record(header_of(body, 0), body, [0, 2], [b"x", b"x"])[RECORD_HEADER_BYTES:]
    at = data.rindex(struct.pack("<II", 0, 2))

    with pytest.raises(BadFormat, match="order"):
        decode_body(forged(data[:at] + struct.pack("<II", 2, 2) + data[at + 8 :]))


def test_a_metadata_entry_gives_back_its_changes() -> None:
    sets = [SetKey("k", b"v"), SetKey("gone", None), SetKey("é", b"")]

    entry = meta_entry(sets)

    assert decode_sets(entry.payload) == sets
    assert (entry.kind, entry.tags) == (Kind.META, ("m/k", "m/gone", "m/é"))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01",
        b"\x01\x00",
        b"\x00\x00extra",
        b"\xff\xff" + b"\x00" * 14,
        struct.pack("<HHBI", 1, 1, 1, 2**32 - 1) + b"k",
        struct.pack("<HHBI", 1, 65535, 1, 0) + b"k",
        struct.pack("<HHBI", 1, 1, 2, 0) + b"k",
        struct.pack("<HHBI", 1, 1, 0, 1) + b"kv",
        struct.pack("<HHBI", 1, 1, 1, 0) + b"\xff",
    ],
    ids=["empty", "half", "cut", "trailing", "count", "value", "key", "flag", "removed", "utf8"],
)
def test_a_metadata_entry_that_makes_no_sense_is_noticed(payload: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_sets(payload)
