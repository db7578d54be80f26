"""Laws of penstock/stream over random schemas and rows: what goes there comes back."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from stream_strategies import SCHEMAS, canonical, streams

from penstock.errors import BadRequest, Damaged, TooLarge
from penstock.stream.batches import decode_batch, encode_batch, split_batch
from penstock.stream.ddl import parse_ddl, to_ddl
from penstock.stream.json_lines import row_from_json, rows_to_json_lines
from penstock.stream.rows import to_batches
from penstock.stream.schema import decode_schema, describe_difference, encode_schema, normalise

quick = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@quick
@given(SCHEMAS)
def test_ddl_of_any_schema_parses_to_the_same_schema(schema: pa.Schema) -> None:
    assert parse_ddl(to_ddl(schema)).equals(schema, check_metadata=True)


@quick
@given(
    st.text(max_size=40) | st.from_regex(r"[a-c`',:<>() ]{0,6}(struct|array|map|int|dec).{0,20}")
)
def test_any_text_is_a_schema_or_a_bad_request(text: str) -> None:
    try:
        schema = parse_ddl(text)
    except BadRequest:
        return
    assert parse_ddl(to_ddl(schema)).equals(schema, check_metadata=True)


@quick
@given(SCHEMAS)
def test_registered_schemas_come_back_and_normalise_leaves_them_alone(schema: pa.Schema) -> None:
    assert decode_schema(encode_schema(schema)).equals(schema, check_metadata=True)
    assert normalise(schema).equals(schema, check_metadata=True)
    assert describe_difference(schema, schema) == ""


@quick
@given(SCHEMAS, SCHEMAS)
def test_a_difference_is_described_exactly_when_there_is_one(a: pa.Schema, b: pa.Schema) -> None:
    assert (describe_difference(a, b) == "") == a.equals(b, check_metadata=False)


@quick
@given(streams())
def test_rows_come_back_from_batches_payloads_and_json_lines(
    stream: tuple[pa.Schema, list[Any]],
) -> None:
    schema, rows = stream
    wanted = list(map(canonical, rows))

    (batch,) = to_batches(rows, schema)
    assert batch.schema.equals(schema, check_metadata=True)
    assert list(map(canonical, batch.to_pylist())) == wanted

    payload = encode_batch(batch)
    decoded = decode_batch(memoryview(payload), schema)
    assert list(map(canonical, decoded.to_pylist())) == wanted
    assert encode_batch(decoded) == payload
    (again,) = to_batches(decoded, schema)
    assert encode_batch(again) == payload

    lines = list(rows_to_json_lines(batch))
    assert all("\n" not in line and isinstance(json.loads(line), dict) for line in lines)
    read = [row_from_json(line, schema) for line in lines]
    assert list(map(canonical, read)) == wanted
    # Not compared as bytes: JSON has one NaN, floats have many.
    (again,) = to_batches(read, schema)
    assert list(map(canonical, again.to_pylist())) == wanted


@quick
@given(streams(), st.integers(100, 3000), st.integers(1, 30))
def test_pieces_of_a_split_are_small_enough_and_make_up_the_batch(
    stream: tuple[pa.Schema, list[Any]], payload_bytes_max: int, copies: int
) -> None:
    (batch,) = to_batches(stream[1] * copies, stream[0])

    try:
        pieces = split_batch(batch, payload_bytes_max)
    except TooLarge:
        sizes = [len(encode_batch(batch.slice(row, 1))) for row in range(batch.num_rows)]
        assert max(sizes) > payload_bytes_max
        return

    assert all(len(encode_batch(piece)) <= payload_bytes_max for piece in pieces)
    rows = [row for piece in pieces for row in piece.to_pylist()]
    assert list(map(canonical, rows)) == list(map(canonical, batch.to_pylist()))


@settings(quick, max_examples=150)
@given(streams(), st.data())
def test_damaged_payloads_are_refused_or_decode_to_a_valid_batch(
    stream: tuple[pa.Schema, list[Any]], data: st.DataObject
) -> None:
    (batch,) = to_batches(stream[1], stream[0])
    payload = bytearray(encode_batch(batch))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))

    try:
        decoded = decode_batch(bytes(payload), batch.schema)
    except Damaged:
        return

    decoded.validate(full=True)
    # Few bytes of a huge void column are legal; everything else can be looked at.
    assume(decoded.num_rows < 1000)
    assert len(list(rows_to_json_lines(decoded))) == decoded.num_rows


@quick
@given(st.binary(max_size=300))
def test_random_bytes_are_neither_a_schema_nor_a_batch(noise: bytes) -> None:
    with pytest.raises(Damaged):
        decode_schema(noise)
    with pytest.raises(Damaged):
        decode_batch(noise, pa.schema([("a", pa.int64())]))
