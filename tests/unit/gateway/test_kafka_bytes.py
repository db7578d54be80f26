"""Kafka's bytes: messages, batches of records, what they unfold to."""

from __future__ import annotations

import gzip
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat, TooLarge
from penstock.gateway.kafka import compression
from penstock.gateway.kafka.codec import ELEMENTS_MAX, Reader, read_fields, write_fields
from penstock.gateway.kafka.compression import unfold
from penstock.gateway.kafka.records import (
    HEADERS_MAX,
    decode_records,
    encode_records,
    is_compressed,
)
from penstock.gateway.kafka.schemas import APIS

LIMITS = {"bytes_max": 1 << 20, "count_max": 10_000}
optional_bytes = st.none() | st.binary(max_size=300)
records = st.lists(
    st.tuples(
        st.integers(0, 2**42), optional_bytes, optional_bytes,
        st.lists(st.tuples(st.binary(max_size=9), optional_bytes), max_size=3),
    ),
    min_size=1, max_size=20,
)  # fmt: skip


@given(records, st.integers(0, 2**50))
def test_records_are_read_as_they_were_written(
    given: list[tuple[int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]],
    offset: int,
) -> None:
    times, keys, values, headers = (list(each) for each in zip(*given, strict=True))
    data = encode_records(offset, times, keys, values, headers)
    found = decode_records(data, **LIMITS)
    assert (found.times_ms, found.keys, found.values) == (times, keys, values)
    assert found.headers == headers
    assert struct.unpack_from(">q", data) == (offset,)


@given(records, st.data())
def test_damaged_records_are_refused(
    given: list[tuple[int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]],
    data: st.DataObject,
) -> None:
    times, keys, values, headers = (list(each) for each in zip(*given, strict=True))
    whole = encode_records(0, times, keys, values, headers)
    at = data.draw(st.integers(8, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    if 12 <= at < 16:
        return  # the leader's epoch, which says nothing here and is under no CRC
    with pytest.raises(Exception, match=r".") as caught:
        decode_records(bytes(damaged), **LIMITS)
    assert type(caught.value).__name__ in ("BadFormat", "KafkaRefused", "TooLarge")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for api in APIS.values():
        for version in {api.first, api.last}:
            try:
                found = read_fields(Reader(data), api.request, version, api.is_flexible(version))
            except BadFormat:
                continue
            out = bytearray()
            write_fields(out, api.request, found, version, api.is_flexible(version))
            again = read_fields(Reader(out), api.request, version, api.is_flexible(version))
            assert repr(again) == repr(found)


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_what_unfolds_to_too_much_is_refused(kind: int) -> None:
    large = bytes(4 << 20)
    name = {2: "snappy", 4: "zstd"}.get(kind)
    if kind == compression.GZIP:
        folded = gzip.compress(large)
    elif kind == compression.LZ4:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "lz4") as stream:
            stream.write(large)
        folded = sink.getvalue().to_pybytes()
    else:
        folded = pa.compress(large, name, asbytes=True)
    assert unfold(folded, kind, 4 << 20) == large
    with pytest.raises(TooLarge):
        unfold(folded, kind, (4 << 20) - 1)
    with pytest.raises((BadFormat, TooLarge)):
        unfold(folded[: len(folded) // 2] + b"xx", kind, 4 << 20)


def test_a_batch_has_no_more_headers_than_can_be_held() -> None:
    # Each takes two bytes here, and hundreds as a row.
    many = [(b"", None)] * HEADERS_MAX
    limits = {"bytes_max": 8 << 20, "count_max": 2}
    batch = encode_records(0, [0], [None], [b""], [list(many)])
    assert len(decode_records(batch, **limits).headers[0]) == HEADERS_MAX
    assert not is_compressed(batch)
    with pytest.raises(TooLarge):
        decode_records(encode_records(0, [0] * 2, [None] * 2, [b""] * 2, [many, many]), **limits)


def test_a_request_has_no_more_parts_than_can_be_held() -> None:
    # Each takes three bytes here, and hundreds as a dict.
    asked = {"topics": [{"name": "", "partitions": []}] * (ELEMENTS_MAX + 1)}
    out = bytearray()
    write_fields(out, APIS[0].request, asked, 9, True)
    with pytest.raises(BadFormat):
        read_fields(Reader(out), APIS[0].request, 9, True)
