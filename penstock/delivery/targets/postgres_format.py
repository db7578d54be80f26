"""Columns as PostgreSQL's binary format has them: each an array, for `unnest`. Pure.

    dimensions 1 · has nulls 1 · type's number · count · first index 1 · fields      all big-endian

A *field* is the length of a value and the value, or the length -1 for null (PostgreSQL's sources:
array_recv, and the receive function of each type). Fields are made by kernels, without a loop over
rows.

Decimals and JSON travel as text, and are cast by the server. Law: the server reads exactly the
values that the columns hold; what it cannot hold is a Misfit.
"""

from __future__ import annotations

import struct
from datetime import date
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.delivery.targets.columns import Column
from penstock.delivery.targets.digests import fixed_binary
from penstock.state.keys import canonical_ints
from penstock.stream.columns import Misfit, first_true

NUL_PROBLEM: Final = "has a NUL character, which PostgreSQL's text cannot hold"
#: PostgreSQL counts days and microseconds from 2000-01-01.
_EPOCH_DAYS: Final = (date(2000, 1, 1) - date(1970, 1, 1)).days
_EPOCH_MICROS: Final = _EPOCH_DAYS * 86_400_000_000
_NULL_FIELD: Final = struct.pack(">i", -1)
#: An escaped NUL in JSON text: `\u0000` after an even number of backslashes.
_JSON_NUL: Final = r"(^|[^\\])(\\\\)*\\u0000"

#: The type in which values travel, and its number in PostgreSQL's catalogue (pg_type.dat).
_TRANSPORT: Final[dict[pa.DataType, tuple[str, int]]] = {
    pa.bool_(): ("boolean", 16),
    pa.int8(): ("smallint", 21),
    pa.int16(): ("smallint", 21),
    pa.int32(): ("integer", 23),
    pa.int64(): ("bigint", 20),
    pa.float32(): ("real", 700),
    pa.float64(): ("double precision", 701),
    pa.binary(): ("bytea", 17),
    pa.date32(): ("date", 1082),
    pa.timestamp("us", tz="UTC"): ("timestamp with time zone", 1184),
    pa.timestamp("us"): ("timestamp without time zone", 1114),
    pa.time64("ns"): ("time without time zone", 1083),
    pa.duration("us"): ("interval", 1186),
}
_TEXT: Final = ("text", 25)


def transport_type(column: Column) -> str:
    """The type of the parameter that carries its values."""
    return _TRANSPORT.get(column.type, _TEXT)[0]


def fields_of(values: pa.Array, column: Column) -> pa.Array:
    """The values as fields; raises Misfit."""
    if pt.is_primitive(column.type):
        fields = _fixed_fields(_numbers(values, column.type))
    else:
        payload = _payload(values, column)
        lengths = np.asarray(pc.binary_length(payload).fill_null(0)).astype(">i4")
        fields = pc.binary_join_element_wise(fixed_binary(lengths), payload.fill_null(b""), b"")
    return pc.if_else(values.is_valid(), fields, _NULL_FIELD) if values.null_count else fields


def array_bytes(fields: pa.Array, column: Column) -> bytes:
    """A column of fields as one array."""
    number = _TRANSPORT.get(column.type, _TEXT)[1]
    if not len(fields):
        return struct.pack(">iiI", 0, 0, number)
    may_have_nulls = 1
    return struct.pack(">iiIii", 1, may_have_nulls, number, len(fields), 1) + _data(fields)


def _data(values: pa.Array) -> bytes:
    """All values, one after the other."""
    _, offsets, data = values.buffers()
    if data is None:
        return b""
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return memoryview(data)[ends[0] : ends[-1]].tobytes()


def _payload(values: pa.Array, column: Column) -> pa.Array:
    """Of types without a fixed width: their bytes."""
    if pt.is_null(column.type):
        return pa.nulls(len(values), pa.binary())
    if pt.is_string(column.type):
        _check_text(values, column)
    return values if pt.is_binary(column.type) else values.cast(pa.string()).cast(pa.binary())


def _fixed_fields(numbers: np.ndarray) -> pa.Array:
    """Lengths and big-endian numbers, side by side."""
    width = numbers.itemsize * (numbers.shape[1] if numbers.ndim > 1 else 1)
    raw = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), width)
    length = np.frombuffer(struct.pack(">i", width), np.uint8)
    return fixed_binary(np.hstack([np.broadcast_to(length, (len(raw), 4)), raw]))


def _numbers(values: pa.Array, kind: pa.DataType) -> np.ndarray:
    """One for each value, or a pair; nulls are any number."""
    if pt.is_floating(kind):
        # Not the canonical form, in which -0.0 is 0.0.
        floats = values.fill_null(0.0) if values.null_count else values
        wide = kind.bit_width == 64
        return floats.to_numpy(zero_copy_only=False).astype(">f8" if wide else ">f4")
    ints = canonical_ints(values)
    return _temporal(ints, kind) if pt.is_temporal(kind) else _number(ints, kind)


def _number(ints: npt.NDArray[np.int64], kind: pa.DataType) -> np.ndarray:
    if pt.is_boolean(kind):
        return ints.astype(np.uint8)
    return ints.astype({8: ">i2", 16: ">i2", 32: ">i4", 64: ">i8"}[kind.bit_width])


def _temporal(ints: npt.NDArray[np.int64], kind: pa.DataType) -> np.ndarray:
    if pt.is_date(kind):
        return (ints - _EPOCH_DAYS).astype(">i4")
    if pt.is_timestamp(kind):
        return (ints - _EPOCH_MICROS).astype(">i8")
    if pt.is_time(kind):  # nanoseconds, whole microseconds of them
        return (ints // 1000).astype(">i8")
    # Microseconds, days and months: an interval of ours has no days that may be 23 hours long.
    return np.stack([ints, np.zeros_like(ints)], axis=1).astype(">i8")


def _check_text(values: pa.Array, column: Column) -> None:
    if column.is_json:
        found = pc.match_substring_regex(values, _JSON_NUL)
    else:
        found = pc.match_substring(values, "\0")
    if pc.any(found).as_py():
        raise Misfit(first_true(found), "", NUL_PROBLEM)
