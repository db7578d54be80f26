"""Cutting frames out of bytes: any pieces, any length, nothing allocated for a lie."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from damage import flips, peak_bytes

from penstock.errors import BadFormat, Damaged, PenstockError, Refused, TooLarge
from penstock.limits import (
    FRAME_BODY_BYTES_MAX,
    FRAME_HEAD_BYTES_MAX,
    KIB,
    MIB,
    PREAUTH_FRAME_BYTES_MAX,
)
from penstock.wire.frames import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FRAME_VERSION,
    Frame,
    FrameReader,
    encode_frame,
)


def frame_bytes(kind: int, request: int, head: bytes, body: bytes = b"") -> bytes:
    return encode_frame(kind, request, head, len(body)) + body


def header_bytes(
    *, magic: int = FRAME_MAGIC, version: int = FRAME_VERSION, head: int = 0, body: int = 0
) -> bytes:
    """A header with a good CRC for whatever it says."""
    fields = struct.pack("<HBBIII", magic, version, 3, 1, head, body)
    return fields + crc32c(fields).to_bytes(4, "little")


def feed(reader: FrameReader, data: bytes, piece: int) -> list[Frame]:
    """Hand the data over as a transport would, at most `piece` bytes at a time."""
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        buffer = reader.get_buffer()
        assert len(buffer) > 0
        size = min(piece, len(buffer), len(data) - at)
        buffer[:size] = data[at : at + size]
        frames += reader.buffer_updated(size)
        at += size
    return frames


def plain(frames: list[Frame]) -> list[tuple[int, int, bytes, bytes]]:
    return [(f.kind, f.request, f.head, bytes(f.body)) for f in frames]


SAMPLE = [
    (1, 7, b"head", b""),
    (2, 0, b"", b""),
    (255, 2**32 - 1, b"h" * 300, b"body" * 100),
    (9, 0, b"x", b"y"),
]
STREAM = b"".join(frame_bytes(*fields) for fields in SAMPLE)


def test_a_stream_cut_at_every_byte_gives_the_same_frames() -> None:
    for at in range(len(STREAM) + 1):
        reader = FrameReader(authenticated=True)
        frames = feed(reader, STREAM[:at], 2**20) + feed(reader, STREAM[at:], 2**20)
        assert plain(frames) == SAMPLE


@pytest.mark.parametrize("piece", [1, 2, 19, 20, 21, 1000, 10**6])
def test_a_stream_in_pieces_of_any_size_gives_the_same_frames(piece: int) -> None:
    assert plain(feed(FrameReader(authenticated=True), STREAM * 3, piece)) == SAMPLE * 3


@pytest.mark.parametrize("size", [64 * KIB - 21, 64 * KIB - 20, 64 * KIB, 64 * KIB + 1, 512 * KIB])
@pytest.mark.parametrize("piece", [4097, 64 * KIB, 2**20])
def test_large_frames_between_small_ones_come_whole(size: int, piece: int) -> None:
    """R45: a frame larger than any socket buffer arrives in pieces."""
    large = (3, 5, b"head", bytes(range(256)) * (size // 256) + bytes(size % 256))
    fields = [*SAMPLE, large, *SAMPLE, large, large]
    data = b"".join(frame_bytes(*each) for each in fields)

    assert plain(feed(FrameReader(authenticated=True), data, piece)) == fields


def test_a_frame_of_the_largest_size_is_taken() -> None:
    body = bytes(FRAME_BODY_BYTES_MAX)
    head = bytes(FRAME_HEAD_BYTES_MAX)

    frames = feed(FrameReader(authenticated=True), frame_bytes(3, 1, head, body), MIB)

    assert [(len(frame.head), len(frame.body)) for frame in frames] == [(len(head), len(body))]


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (FRAME_HEAD_BYTES_MAX + 1, 0),
        (0, FRAME_BODY_BYTES_MAX + 1),
        (2**31 - 1, 0),
        (2**32 - 1, 0),
        (0, 2**31 - 1),
        (0, 2**32 - 1),
        (2**32 - 1, 2**32 - 1),
    ],
)
@pytest.mark.parametrize("authenticated", [True, False])
def test_a_hostile_length_is_refused_before_anything_is_allocated(
    head: int, body: int, authenticated: bool
) -> None:
    """Law I19; KAFKA-4090 took TLS bytes for a length of 352 MB."""
    reader = FrameReader(authenticated=authenticated)
    data = header_bytes(head=head, body=body)

    def attempt() -> None:
        with pytest.raises(TooLarge):
            feed(reader, data, 2**20)

    assert peak_bytes(attempt) < 128 * KIB
    assert reader.pending_bytes <= len(data)


def test_before_the_token_frames_stay_below_16_kib() -> None:
    largest = PREAUTH_FRAME_BYTES_MAX - FRAME_HEADER_BYTES
    allowed = frame_bytes(1, 1, bytes(largest))

    assert len(feed(FrameReader(authenticated=False), allowed * 3, 777)) == 3
    with pytest.raises(TooLarge):
        feed(FrameReader(authenticated=False), frame_bytes(1, 1, bytes(largest + 1)), 777)
    with pytest.raises(TooLarge):
        feed(FrameReader(authenticated=False), frame_bytes(1, 1, b"", bytes(largest + 1)), 777)


def test_after_the_token_the_same_reader_takes_large_frames() -> None:
    reader = FrameReader(authenticated=False)
    hello, large = (1, 1, b"token", b""), (3, 2, b"", bytes(MIB))
    assert plain(feed(reader, frame_bytes(*hello) + STREAM[:10], 2**20)) == [hello]

    reader.allow_large()

    rest = STREAM[10:] + frame_bytes(*large)
    assert plain(feed(reader, rest, 1000)) == [*SAMPLE, large]


@pytest.mark.parametrize(
    "data",
    [
        header_bytes(magic=0),
        header_bytes(version=0),
        header_bytes(version=2),
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20),
        bytes(20),
    ],
    ids=["magic", "version 0", "version 2", "http", "tls", "zeros"],
)
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(BadFormat):
        feed(FrameReader(authenticated=True), data, 2**20)


def test_every_flipped_bit_of_header_and_head_is_noticed() -> None:
    for damaged in flips(frame_bytes(3, 9, b"the head")):
        reader = FrameReader(authenticated=True)
        try:
            frames = feed(reader, damaged + b"the body", 2**20)
        except (Damaged, Refused):
            continue
        # A length that grew waits for bytes that do not come; it has handed out nothing.
        assert frames == [], damaged


def test_the_length_of_a_frame_that_is_not_there_yet_counts_as_pending() -> None:
    reader = FrameReader(authenticated=True)
    feed(reader, header_bytes(body=MIB) + b"start", 2**20)

    assert reader.pending_bytes == MIB


def test_peeked_bytes_can_be_skipped() -> None:
    """What a GET of the metrics needs."""
    reader = FrameReader(authenticated=False)
    buffer = reader.get_buffer()
    buffer[:5] = b"GET /"

    assert reader.peek(5) == b"GET /"
    reader.skip()
    assert plain(feed(reader, STREAM, 2**20)) == SAMPLE


def test_errors_of_a_reader_are_penstock_errors() -> None:
    for data in (b"x" * 20, header_bytes(head=2**32 - 1)):
        with pytest.raises(PenstockError):
            feed(FrameReader(authenticated=True), data, 2**20)
