"""Laws of penstock/stream over random schemas and rows: what goes there comes back."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from penstock.errors import BadRequest, Damaged, TooLarge
from penstock.stream.batches import decode_batch, encode_batch, split_batch
from penstock.stream.columns import DURATION_MICROS
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

PRECISE = Context(prec=60)
UTF8_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.one_of(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True), UTF8_TEXT.filter(bool)
)
DECIMALS = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: pa.decimal128(precision, scale))
)
LEAVES = st.one_of(
    st.sampled_from(
        [
            *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32()),
            *(pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.time64("ns"), pa.null()),
            *(pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.duration("us")),
        ]
    ),
    DECIMALS,
)


def fields(types: st.SearchStrategy[pa.DataType], *, size_min: int) -> st.SearchStrategy[Any]:
    def field(name: str, arrow_type: pa.DataType, nullable: bool, comment: str | None) -> pa.Field:
        metadata = None if comment is None else {b"comment": comment.encode()}
        # A void column that is NOT NULL has no value at all.
        nullable = nullable or bool(pt.is_null(arrow_type))
        return pa.field(name, arrow_type, nullable=nullable, metadata=metadata)

    one = st.builds(field, NAMES, types, st.booleans(), st.none() | UTF8_TEXT)
    return st.lists(one, min_size=size_min, max_size=4, unique_by=lambda f: f.name.lower())


def has_values(arrow_type: pa.DataType) -> bool:
    return not pt.is_null(arrow_type)


def nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    def array(element: pa.DataType, nullable: bool) -> pa.DataType:
        nullable = nullable or bool(pt.is_null(element))
        return pa.list_(pa.field("element", element, nullable=nullable))

    def map_(key: pa.DataType, value: pa.DataType, nullable: bool) -> pa.DataType:
        nullable = nullable or bool(pt.is_null(value))
        return pa.map_(
            pa.field("key", key, nullable=False), pa.field("value", value, nullable=nullable)
        )

    return st.one_of(
        st.builds(array, types, st.booleans()),
        st.builds(map_, st.just(pa.string()) | types.filter(has_values), types, st.booleans()),
        fields(types, size_min=0).map(pa.struct),
    )


TYPES = st.recursive(LEAVES, nested, max_leaves=5)
SCHEMAS = fields(TYPES, size_min=1).map(pa.schema)


def leaf_values(arrow_type: pa.DataType) -> st.SearchStrategy[Any]:
    if pt.is_integer(arrow_type):
        half = 1 << (arrow_type.bit_width - 1)
        return st.integers(-half, half - 1) | st.sampled_from([-half, half - 1])
    if pt.is_decimal(arrow_type):
        largest = 10**arrow_type.precision - 1
        unscaled = st.integers(-largest, largest) | st.sampled_from([-largest, 0, largest])
        return unscaled.map(lambda number: Decimal(f"{number}E-{arrow_type.scale}"))
    if pt.is_timestamp(arrow_type):
        zones = st.none() if arrow_type.tz is None else st.just(UTC)
        extremes = st.sampled_from([datetime.min, datetime.max])
        extremes = st.builds(lambda when, zone: when.replace(tzinfo=zone), extremes, zones)
        return st.datetimes(timezones=zones).map(lambda when: when.replace(fold=0)) | extremes
    if pt.is_duration(arrow_type):
        low, high = DURATION_MICROS
        micros = st.integers(low, high) | st.sampled_from([low, high])
        return micros.map(lambda number: timedelta(microseconds=number))
    by_type = {
        pa.null(): st.none(),
        pa.bool_(): st.booleans(),
        pa.float32(): st.floats(width=32),
        pa.float64(): st.floats(),
        pa.string(): UTF8_TEXT,
        pa.binary(): st.binary(max_size=8),
        pa.date32(): st.dates() | st.sampled_from([date.min, date.max]),
        pa.time64("ns"): st.times().map(lambda when: when.replace(fold=0)),
    }
    return by_type[arrow_type]


def values(arrow_type: pa.DataType, nullable: bool) -> st.SearchStrategy[Any]:
    if pt.is_list(arrow_type):
        element = values(arrow_type.value_type, arrow_type.value_field.nullable)
        whole: st.SearchStrategy[Any] = st.lists(element, max_size=3)
    elif pt.is_map(arrow_type):
        item = values(arrow_type.item_type, arrow_type.item_field.nullable)
        pair = st.tuples(values(arrow_type.key_type, False), item)
        whole = st.lists(pair, max_size=3, unique_by=lambda p: canonical(p[0]))
    elif pt.is_struct(arrow_type):
        children = {f.name: values(f.type, f.nullable) for f in arrow_type}
        whole = st.fixed_dictionaries(children)
    else:
        whole = leaf_values(arrow_type)
    return st.none() | whole if nullable else whole


@st.composite
def streams(draw: st.DrawFn) -> tuple[pa.Schema, list[dict[str, Any]]]:
    schema = draw(SCHEMAS)
    row = st.fixed_dictionaries(
        {field.name: values(field.type, field.nullable) for field in schema}
    )
    return schema, draw(st.lists(row, min_size=1, max_size=6))


def canonical(value: Any) -> str:
    """Equal for equal values: NaN equals NaN, 0.0 is not -0.0, decimals and zones are normal."""
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(f"{name!r}:{canonical(item)}" for name, item in sorted(value.items()))
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, Decimal):
        return f"decimal {format(value.normalize(PRECISE), 'f') if value else 0}"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"utc {value.astimezone(UTC).replace(tzinfo=None)!r}"
    return repr(value)


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
