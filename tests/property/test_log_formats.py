"""Every format of the log and the wire: what goes in comes out; anything else is a typed error.

Damage is tried twice: as it would be found (a CRC notices), and with the CRC made to fit, so that
the checks behind it are tried too.
"""

from __future__ import annotations

import itertools
import struct
import sys
import typing
from collections.abc import Callable
from dataclasses import fields
from types import FrameType
from typing import Any

import pytest
from crc32c import crc32c
from group_strategies import GROUPS, PRODUCERS, SETS, TAGS, damaged
from hypothesis import given
from hypothesis import strategies as st
from sample_groups import LOG_MARK, claim, group, header_of, retire

from penstock.errors import Damaged, PenstockError, Refused
from penstock.ids import Epoch, Lsn, SegmentId
from penstock.log.core.state import LogState, decode_snapshot, encode_snapshot
from penstock.log.core.tag_index import OpenIndex, SealedIndex
from penstock.log.group_format import (
    BODY_HEADER_BYTES,
    TableView,
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
    slice_record,
)
from penstock.log.records import Entry, NewEntry, SetKey
from penstock.log.storage.manifest import (
    Manifest,
    SegmentInfo,
    decode_manifest,
    encode_manifest,
)
from penstock.wire import messages as m
from penstock.wire.frames import Frame, FrameReader, encode_frame

U64 = st.integers(0, 2**64 - 1)
LSNS = st.integers(0, 2**62)


def never_raises_anything_else(decode: Callable[[], object]) -> None:
    try:
        decode()
    except (Damaged, Refused):
        pass


# ---- groups


@given(GROUPS, PRODUCERS, U64, U64, LSNS, LSNS)
def test_a_body_comes_back_as_the_entries_it_was_made_of(
    entries: list[NewEntry], producer: str, instance: int, seq: int, lsn: int, time_ms: int
) -> None:
    body = decode_body(
        encode_body(producer=producer, instance=instance, first_seq=seq, entries=entries)
    )

    expected = [
        Entry(Lsn(lsn + i), e.kind, e.tags, producer, instance, seq + i, time_ms, e.rows, e.payload)
        for i, e in enumerate(entries)
    ]
    for skipped in (0, 1, len(entries)):
        assert list(body.entries(lsn, time_ms, start=lsn + skipped)) == expected[skipped:]
    assert [body.entry_tags(i) for i in range(body.count)] == [e.tags for e in entries]
    assert [bytes(body.payload(i)) for i in range(body.count)] == [e.payload for e in entries]


@given(GROUPS, st.frozensets(TAGS, max_size=3))
def test_matching_entries_are_those_that_share_a_tag(
    entries: list[NewEntry], wanted: frozenset[str]
) -> None:
    body = group(entries=entries)

    expected = [i for i, entry in enumerate(entries) if wanted & set(entry.tags)]

    assert body.matching(wanted) == expected


@given(GROUPS, LSNS, st.data())
def test_a_slice_is_the_group_without_the_other_entries(
    entries: list[NewEntry], lsn: int, data: st.DataObject
) -> None:
    body = group(seq=5, entries=entries)
    keep = sorted(
        data.draw(st.sets(st.integers(0, body.count - 1), min_size=1, max_size=body.count))
    )

    record = slice_record(header_of(body, lsn), body, keep, [body.payload(i) for i in keep])

    header, sliced = decode_record(record)
    whole = list(body.entries(lsn, 7))
    assert list(sliced.entries(header.first_lsn, 7)) == [whole[i] for i in keep]
    assert [sliced.place(i) for i in range(sliced.count)] == keep
    assert sorted(sliced.tags) == sorted({tag for i in keep for tag in entries[i].tags})


@given(GROUPS, st.data())
def test_a_table_read_row_by_row_says_what_the_whole_body_says(
    entries: list[NewEntry], data: st.DataObject
) -> None:
    body = group(seq=5, entries=entries)
    table = TableView(body.data[: body.payload_start])

    every = range(body.count)
    assert table.pick(every) == body.pick(every)
    assert [table.tag_bytes(ref).decode() for ref in range(len(body.tags))] == body.tags
    keep = sorted(data.draw(st.sets(st.integers(0, body.count - 1), min_size=1)))
    payloads = [body.payload(i) for i in keep]
    header = header_of(body, 9)
    assert slice_record(header, table, keep, payloads) == slice_record(header, body, keep, payloads)
    other = data.draw(damaged(bytes(body.data[: body.payload_start])))
    if other[: body.payload_start] != body.data[: body.payload_start]:
        with pytest.raises(Damaged):
            TableView(other)


def test_a_table_without_a_byte_is_not_one_whose_crc_fits() -> None:
    body = bytes(group(seq=5, entries=[NewEntry(b"payload", ("a",))]).data)
    with pytest.raises(Damaged):
        TableView(bytes(4) + (1).to_bytes(4, "little") + body[8:])


@given(GROUPS, st.data())
def test_a_damaged_record_never_gives_entries(entries: list[NewEntry], data: st.DataObject) -> None:
    body = group(entries=entries)
    record = encode_header(header_of(body, 9)) + bytes(body.data)
    other = data.draw(damaged(record))
    if other == record:
        return

    with pytest.raises(Damaged):
        entries_in(other)


def entries_in(record: bytes) -> list[Entry]:
    header, body = decode_record(record)
    return list(body.entries(header.first_lsn, header.time_ms))


def resealed_body(data: bytes) -> bytes:
    """The bytes with a table CRC that fits them, as far as they are a body at all."""
    if len(data) < BODY_HEADER_BYTES:
        return data
    table_bytes = int.from_bytes(data[4:8], "little")
    return crc32c(data[4:table_bytes]).to_bytes(4, "little") + data[4:]


@given(GROUPS, st.data())
def test_a_forged_body_is_refused_or_makes_sense(
    entries: list[NewEntry], data: st.DataObject
) -> None:
    forged = resealed_body(data.draw(damaged(bytes(group(entries=entries).data))))

    def attempt() -> None:
        body = decode_body(forged)
        check_new_body(body)
        list(body.entries(0, 0))
        assert body.count == len(body.rows) > 0
        assert sum(len(body.payload(i)) for i in range(body.count)) < len(forged)

    never_raises_anything_else(attempt)


@given(st.binary(max_size=200))
def test_random_bytes_are_no_group_no_record_and_no_metadata(data: bytes) -> None:
    for decode in (decode_body, decode_record, decode_header):
        with pytest.raises(Damaged):
            decode(data)
    never_raises_anything_else(lambda: decode_sets(data))


@given(SETS, st.data())
def test_a_metadata_entry_comes_back_and_damage_is_typed(
    sets: list[SetKey], data: st.DataObject
) -> None:
    payload = meta_entry(sets).payload

    assert decode_sets(payload) == sets
    never_raises_anything_else(lambda: decode_sets(data.draw(damaged(payload))))


# ---- snapshot, index, manifest


def resealed(data: bytes) -> bytes:
    """Magic, then a CRC over all that follows: what snapshot, index and manifest share."""
    return data[:4] + crc32c(data[8:]).to_bytes(4, "little") + data[8:]


@st.composite
def states(draw: st.DrawFn) -> LogState:
    """A state that some log has."""
    state = LogState()
    for at, name in enumerate(draw(st.lists(PRODUCERS, max_size=4, unique=True))):
        bodies = [claim(name, instance=draw(st.integers(1, 2**63)), nonce=draw(U64))]
        instance, seq = bodies[0].instance, 0
        for count in draw(st.lists(st.integers(1, 3), max_size=3)):
            bodies.append(group(name, seq, count, instance=instance, sets=draw(SETS.filter(bool))))
            seq += count + 1
        if draw(st.booleans()) and at:
            bodies.append(retire(name, instance, seq=seq))
        for body in bodies:
            state.apply(body, first_lsn=state.next_lsn, time_ms=state.time_ms + at)
    return state


@given(states(), st.data())
def test_a_snapshot_comes_back_and_damage_is_typed(state: LogState, data: st.DataObject) -> None:
    snapshot = encode_snapshot(state, log_mark=LOG_MARK)
    found = decode_snapshot(snapshot, log_mark=LOG_MARK)
    assert found == found.copy() == state
    other = data.draw(damaged(snapshot))

    if other != snapshot:
        with pytest.raises(Damaged):
            decode_snapshot(other, log_mark=LOG_MARK)
    never_raises_anything_else(lambda: decode_snapshot(resealed(other), log_mark=LOG_MARK))


@given(st.lists(GROUPS, max_size=6), st.frozensets(TAGS, max_size=3), st.data())
def test_an_index_file_answers_like_the_open_index_and_like_a_scan(
    groups: list[list[NewEntry]], wanted: frozenset[str], data: st.DataObject
) -> None:
    """Law I3: entries(tags, start, end) = filter of the whole log."""
    base = data.draw(st.integers(0, 1000))
    index, lsn, place, found = OpenIndex(base), base, 64, []
    for at, entries in enumerate(groups):
        body = group("p", at, entries)
        end = place + len(body.data)
        index.add(body, first_lsn=lsn, time_ms=10 * at, start=place, end=end)
        found += [lsn + i for i, entry in enumerate(entries) if wanted & set(entry.tags)]
        lsn, place = lsn + len(entries), end
    encoded = index.encode(log_mark=LOG_MARK, segment=3, end_lsn=lsn)
    sealed = SealedIndex(encoded, log_mark=LOG_MARK, segment=3)
    start, end = data.draw(st.integers(0, lsn + 2)), data.draw(st.integers(0, lsn + 2))
    limit = data.draw(st.integers(1, 10))

    expected = [each for each in found if start <= each < end][:limit]

    for each in (index, sealed):
        assert each.entries(sorted(wanted), start, end, limit).tolist() == expected
    for tag in wanted:
        assert sealed.last(tag, end) == index.last(tag, end)
    assert sealed.at_time(start) == index.at_time(start)
    for each in range(base, lsn):
        assert sealed.span(each) == index.span(each)
    other = data.draw(damaged(encoded))
    never_raises_anything_else(lambda: use_index(other))
    never_raises_anything_else(lambda: use_index(resealed(other)))


def use_index(data: bytes) -> None:
    index = SealedIndex(data, log_mark=LOG_MARK, segment=3)
    index.entries(["a", "b"], 0, 2**62, 100)
    index.last("c", 2**62)
    index.at_time(5)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    segments, lsn = [], draw(LSNS)
    count = draw(st.integers(0, 4))
    for id in range(count):
        end = lsn + draw(st.integers(0, 1000))
        sealed = id < count - 1
        segments.append(
            SegmentInfo(
                SegmentId(id),
                Epoch(draw(LSNS)),
                Lsn(lsn),
                Lsn(end),
                draw(LSNS),
                draw(LSNS),
                draw(LSNS),
                sealed,
                draw(st.booleans()),
                draw(st.booleans()),
            )
        )
        lsn = end
    return Manifest(
        draw(st.binary(min_size=16, max_size=16)),
        draw(LSNS),
        Epoch(draw(LSNS)),
        Lsn(draw(LSNS)),
        draw(LSNS),
        tuple(segments),
    )


@given(manifests(), st.data())
def test_a_manifest_comes_back_and_damage_is_typed(manifest: Manifest, data: st.DataObject) -> None:
    encoded = encode_manifest(manifest)
    assert decode_manifest(encoded) == manifest
    other = data.draw(damaged(encoded))

    if other != encoded:
        with pytest.raises(Damaged):
            decode_manifest(other)
    never_raises_anything_else(lambda: decode_manifest(resealed(other)))


# ---- wire


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, as messages.py reads types."""
    simple = {int: U64, bool: st.booleans(), str: st.text(max_size=9), bytes: st.binary(max_size=9)}
    if kind in simple:
        return simple[kind]
    args = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return st.lists(values_of(args[0]), max_size=4).map(tuple)
    if args:
        return st.none() | values_of(args[0])
    hints = typing.get_type_hints(kind)
    return st.builds(kind, *(values_of(hints[field.name]) for field in fields(kind)))


MESSAGES = st.one_of([values_of(cls) for cls in m.MESSAGES.values()])


@given(MESSAGES, st.data())
def test_a_message_comes_back_and_damage_is_typed(message: m.Message, data: st.DataObject) -> None:
    head = m.encode_message(message)
    assert m.decode_message(message.KIND, head) == message
    other = data.draw(damaged(head))

    never_raises_anything_else(lambda: m.decode_message(message.KIND, other))
    kind = data.draw(st.integers(0, 255))
    never_raises_anything_else(lambda: m.decode_message(kind, other))


FRAMES = st.lists(
    st.tuples(
        st.integers(0, 255),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=50),
        st.binary(max_size=50) | st.integers(60_000, 140_000).map(bytes),
    ),
    max_size=5,
)


def feed(reader: FrameReader, pieces: list[bytes]) -> list[Frame]:
    frames: list[Frame] = []
    for piece in pieces:
        at = 0
        while at < len(piece):
            buffer = reader.get_buffer()
            size = min(len(buffer), len(piece) - at)
            buffer[:size] = piece[at : at + size]
            frames += reader.buffer_updated(size)
            at += size
    return frames


@given(FRAMES, st.lists(st.integers(0, 300_000), max_size=12))
def test_frames_come_back_whatever_the_pieces(
    sent: list[tuple[int, int, bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode_frame(*each[:3], len(each[3])) + each[3] for each in sent)
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    pieces = [stream[left:right] for left, right in itertools.pairwise(edges)]

    frames = feed(FrameReader(authenticated=True), pieces)

    assert [(f.kind, f.request, f.head, bytes(f.body)) for f in frames] == sent


@given(FRAMES, st.booleans(), st.data())
def test_a_damaged_stream_is_refused_or_waits(
    sent: list[tuple[int, int, bytes, bytes]], authenticated: bool, data: st.DataObject
) -> None:
    small = [each for each in sent if len(each[3]) < 100]
    stream = b"".join(encode_frame(*each[:3], len(each[3])) + each[3] for each in small)
    other = data.draw(damaged(stream))

    never_raises_anything_else(lambda: feed(FrameReader(authenticated=authenticated), [other]))


# ---- time


def lines_run(action: Callable[[], object]) -> int:
    """Lines of Python that the action runs: a measure of its time that is always the same."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        action()
    except PenstockError:
        pass
    finally:
        sys.settrace(before)
    return count


def many_tags(count: int) -> bytes:
    return m.encode_message(m.Subscribe(1, tuple(map(str, range(count))), 0, 1, 1))


def many_keys(count: int) -> bytes:
    return meta_entry([SetKey(str(i), b"v") for i in range(count)]).payload


def many_entries(count: int) -> bytes:
    return bytes(group(entries=[NewEntry(b"x", (str(i),)) for i in range(count)]).data)


def many_producers(count: int) -> bytes:
    state = LogState()
    for i in range(count):
        state.apply(claim(str(i)), first_lsn=i, time_ms=0)
    return encode_snapshot(state, log_mark=LOG_MARK)


@pytest.mark.parametrize("cut", [0, 1], ids=["whole", "cut"])
@pytest.mark.parametrize(
    ("make", "decode"),
    [
        (many_tags, lambda data: m.decode_message(m.Subscribe.KIND, data)),
        (many_keys, decode_sets),
        (many_entries, lambda data: check_new_body(decode_body(data))),
        (many_producers, lambda data: decode_snapshot(resealed(data), log_mark=LOG_MARK)),
    ],
    ids=["message", "metadata", "body", "snapshot"],
)
def test_decoding_takes_time_linear_in_the_input(
    make: Callable[[int], bytes], decode: Callable[[bytes], object], cut: int
) -> None:
    small, large = make(300), make(1200)

    short = lines_run(lambda: decode(small[: len(small) - cut]))
    long = lines_run(lambda: decode(large[: len(large) - cut]))

    assert long < 4.2 * short + 100


def test_a_frame_that_comes_byte_by_byte_takes_time_linear_in_its_length() -> None:
    def cost(size: int) -> int:
        data = encode_frame(3, 1, b"", size) + bytes(size)
        pieces = [data[i : i + 1] for i in range(len(data))]
        return lines_run(lambda: feed(FrameReader(authenticated=True), pieces))

    assert cost(4000) < 4.2 * cost(1000)


def test_the_header_of_a_record_is_its_64_bytes() -> None:
    assert RECORD_HEADER_BYTES == struct.calcsize("<IIIIQQQQQQ") == 64
