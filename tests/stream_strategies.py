"""Random schemas of streams, and rows that fit them, for Hypothesis."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st

from penstock.stream.columns import DURATION_MICROS

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
