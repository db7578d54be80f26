"""Rows as bytes, and back."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import BadFormat
from penstock.state.stores.row_bytes import decode_rows, encode_rows

SCHEMA = pa.schema(
    [
        ("long", pa.int64()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("time", pa.timestamp("us")),
        ("day", pa.date32()),
        ("real", pa.float64()),
        ("amount", pa.decimal128(20, 3)),
        ("raw", pa.binary()),
        ("list", pa.list_(pa.int32())),
        ("pair", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("none", pa.null()),
        ("small", pa.int8()),
    ]
)


def make(count: int) -> pa.RecordBatch:
    def some(values: list[Any]) -> list[Any]:
        return [values[n % len(values)] for n in range(count)]

    columns = [
        some([1, None, -(2**63)]),
        some(["", "ä", None, "longer than others"]),
        some([True, None, False]),
        some([datetime.datetime(2024, 1, 2, 3), None]),
        some([None, datetime.date(1969, 12, 31)]),
        some([0.0, -0.0, float("inf"), None]),
        some([decimal.Decimal("1.500"), None, decimal.Decimal("-99999999999999999.999")]),
        some([b"", None, b"\0\1"]),
        some([[], None, [1, None], list(range(50))]),
        some([{"a": 1, "b": None}, None, {"a": None, "b": "x"}]),
        some([[("k", 1)], [], None]),
        some([None]),
        some([1, -1, None]),
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@pytest.mark.parametrize("count", [0, 1, 2, 25])
def test_rows_come_back_as_they_were(count: int) -> None:
    rows = make(count)

    encoded = encode_rows(rows)

    assert len(encoded) == count
    assert decode_rows(encoded, SCHEMA).equals(rows)
    decode_rows(encoded, SCHEMA).validate(full=True)


def test_slices_and_single_columns_come_back() -> None:
    whole = make(40)
    for start in (0, 1, 9):
        rows = whole.slice(start, 17)
        assert decode_rows(encode_rows(rows), SCHEMA).equals(rows)
        for place in range(rows.num_columns):
            one = rows.select([place])
            assert decode_rows(encode_rows(one), one.schema).equals(one)


def test_rows_in_another_order_come_back_in_that() -> None:
    rows = make(10)
    encoded = encode_rows(rows)

    found = decode_rows([encoded[9], encoded[0], encoded[4]], SCHEMA)

    assert found.equals(rows.take(pa.array([9, 0, 4])))


def test_rows_without_columns_are_counted() -> None:
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))

    assert decode_rows(encode_rows(rows), rows.schema).num_rows == 3


def test_bytes_of_another_length_are_refused() -> None:
    for schema in (SCHEMA, pa.schema([("long", pa.int64())])):
        encoded = encode_rows(make(2).select(schema.names))[1]
        for wrong in (encoded[:-1], encoded + b"\0", b""):
            with pytest.raises(BadFormat):
                decode_rows([wrong], schema)
