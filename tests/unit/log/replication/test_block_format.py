"""Blocks: what comes back is what was stored, and nothing damaged passes."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from damage import flips
from hypothesis import given
from hypothesis import strategies as st
from node_blocks import make_block

from penstock.errors import BadFormat, ChecksumMismatch, Damaged
from penstock.limits import BLOCK_BYTES_MAX
from penstock.log.block_format import (
    BLOCK_HEADER_BYTES,
    BlockHeader,
    BlockKind,
    check_block,
    decode_block_header,
    encode_block_header,
)

BODY = b"three records"


def block(body: bytes = BODY, kind: BlockKind = BlockKind.DATA, base: int = 9) -> bytes:
    return make_block(base, body, kind=kind, segment=3, epoch=2, durable_block=base - 1)


U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    BlockHeader,
    st.integers(BLOCK_HEADER_BYTES, BLOCK_BYTES_MAX),
    U32,
    st.sampled_from(BlockKind),
    U32,
    U32,
    *[U64] * 10,
)


@given(HEADERS, st.binary(max_size=9))
def test_a_header_comes_back_equal_wherever_it_stands(header: BlockHeader, before: bytes) -> None:
    data = encode_block_header(header)

    assert len(data) == BLOCK_HEADER_BYTES
    found = decode_block_header(before + data, len(before))
    assert found == header
    assert isinstance(found.kind, BlockKind)


@pytest.mark.parametrize("kind", BlockKind)
def test_a_block_comes_back_equal_from_the_middle_of_others(kind: BlockKind) -> None:
    body = b"" if kind == BlockKind.CONTROL else BODY
    data = block() + block(body, kind, base=10) + block(base=11)

    header, found = check_block(memoryview(data), len(block()))

    assert (header.kind, header.block, bytes(found)) == (kind, 10, body)


def test_every_cut_is_noticed() -> None:
    data = block()

    for size in range(len(data)):
        with pytest.raises(BadFormat, match="cut"):
            check_block(data[:size])
        with pytest.raises(BadFormat, match="cut"):
            check_block(bytes(7) + data[:size], 7)


def test_a_header_is_checked_by_itself_before_anybody_believes_its_length() -> None:
    for damaged in flips(block()[:BLOCK_HEADER_BYTES]):
        with pytest.raises(Damaged):
            decode_block_header(damaged)


@pytest.mark.parametrize("size", [0, BLOCK_HEADER_BYTES - 1, BLOCK_BYTES_MAX + 1, 2**32 - 1])
def test_a_length_that_cannot_be_is_refused_behind_a_good_crc(size: int) -> None:
    with pytest.raises(BadFormat, match=f"block of {size} bytes"):
        decode_block_header(behind_a_good_crc(8, size))


@pytest.mark.parametrize("kind", [0, 5, 2**32 - 1])
def test_a_kind_of_another_version_is_refused_behind_a_good_crc(kind: int) -> None:
    with pytest.raises(BadFormat, match=f"block kind {kind} is not known"):
        decode_block_header(behind_a_good_crc(16, kind))


def behind_a_good_crc(at: int, value: int) -> bytes:
    data = bytearray(block())
    struct.pack_into("<I", data, at, value)
    struct.pack_into("<I", data, 4, crc32c(data[8:BLOCK_HEADER_BYTES]))
    return bytes(data)


def test_the_body_of_another_block_is_noticed() -> None:
    data = block()[:BLOCK_HEADER_BYTES] + BODY[::-1]

    with pytest.raises(ChecksumMismatch, match="block 9 of segment 3"):
        check_block(data)


@given(st.binary(max_size=300), st.integers(0, 9))
def test_no_bytes_at_all_bring_anything_but_damaged(data: bytes, at: int) -> None:
    with pytest.raises(Damaged):
        check_block(struct.pack("<I", 0x314B4250) + data, 0)
    with pytest.raises(Damaged):
        check_block(data, min(at, len(data)))
