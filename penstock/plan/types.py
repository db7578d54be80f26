"""Spark's data types, as its plans spell them in JSON, to the Arrow types of our columns.

Arrow types are the types of the whole IR: a column of Spark type t is an Arrow array of
from_spark(t).
Two of Spark's types have no Arrow type of their own in Python: a year-month interval is carried as
int32 months inside an expression (Catalyst names the operation, so nothing is ambiguous there), and
is refused as a column. A variant is a long string, and stays inside the stateless part of a query.

Law: for every type that a stream can have, from_spark equals what stream/ddl.py makes of its DDL.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pyarrow as pa

#: Timestamps are microseconds since 1970 UTC; only those with a zone say so.
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
DAY_TIME: Final = pa.duration("us")
MONTHS: Final = pa.int32()
CALENDAR: Final = pa.month_day_nano_interval()
#: A variant, as a text of its own (ops/functions/variant_values.py): no other column is a long one.
VARIANT: Final = pa.large_string()

_PLAIN: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
    "interval": CALENDAR,
    "void": pa.null(),
    "variant": VARIANT,
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_TIME: Final = re.compile(r"time\(\d\)")
_TEXT: Final = re.compile(r"(var)?char\(\d+\)")


class NoArrowType(ValueError):
    """A Spark type that our columns cannot have; the text names it."""


def from_spark(text: str) -> pa.DataType:
    """The Arrow type of `DataType.json()`. Raises NoArrowType."""
    return _from_json(json.loads(text))


def is_months(text: str) -> bool:
    """Whether the Spark type is a year-month interval, which only expressions may have."""
    spelled = json.loads(text)
    return isinstance(spelled, str) and _is_months(spelled)


def holds_variant(type: pa.DataType) -> bool:
    """Whether the type is a variant, or has one inside."""
    if pa.types.is_nested(type):
        return any(holds_variant(type.field(place).type) for place in range(type.num_fields))
    return bool(type == VARIANT)


def _is_months(spelled: str) -> bool:
    words = spelled.split()
    return words[0] == "interval" and len(words) > 1 and words[1] in ("year", "month")


def _from_json(spelled: Any) -> pa.DataType:
    if isinstance(spelled, str):
        return _from_name(spelled)
    kind = spelled.get("type")
    if kind == "array":
        return pa.list_(_field("element", spelled["elementType"], spelled["containsNull"]))
    if kind == "map":
        if spelled["keyType"] == "void":  # of a map that is always empty, or null
            raise NoArrowType("map<void,...>")
        key = _field("key", spelled["keyType"], False)
        return pa.map_(key, _field("value", spelled["valueType"], spelled["valueContainsNull"]))
    if kind == "struct":
        return pa.struct(
            [_field(field["name"], field["type"], field["nullable"]) for field in spelled["fields"]]
        )
    raise NoArrowType(str(kind))


def _field(name: str, spelled: Any, is_nullable: bool) -> pa.Field:
    """Arrow's void is always nullable; Spark's is not where no value can be, as in `array()`."""
    type = _from_json(spelled)
    return pa.field(name, type, nullable=is_nullable or pa.types.is_null(type))


def _from_name(name: str) -> pa.DataType:
    plain = _PLAIN.get(name)
    if plain is not None:
        return plain
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if _TIME.fullmatch(name):
        return pa.time64("ns")
    if _TEXT.fullmatch(name):
        return pa.string()
    if name.startswith("interval "):
        return MONTHS if _is_months(name) else DAY_TIME
    raise NoArrowType(name)
