"""What a stream's schema is: Spark's own Arrow types, its registered bytes, its differences.

Owns the mapping of every Arrow type to the one that Spark uses for it, and the refusal of those
that Spark has no type for. Knows nothing of values: columns.py converts them the same way.

Law: normalise is idempotent, and a normalised schema is what pyspark's to_arrow_schema(timezone
"UTC") gives for the same Spark schema, so a batch that has it is accepted by Spark without a cast.
decode_schema(encode_schema(s)) equals s, metadata included.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import BadFormat, BadRequest, TooLarge
from penstock.limits import VALUE_BYTES_MAX
from penstock.stream.ddl import (
    COMMENT_KEY,
    DECIMAL_PRECISION_MAX,
    TYPE_DEPTH_MAX,
    check_names,
    parse_ddl,
    type_to_ddl,
)

#: Where pyspark's to_arrow_schema keeps a field's metadata, its comment among it.
_SPARK_METADATA_KEY: Final = b"SPARK::metadata::json"
#: Head of an encapsulated IPC message: the continuation mark, then the length of what follows.
_IPC_HEAD: Final = struct.Struct("<II")
_IPC_CONTINUATION: Final = 0xFFFFFFFF

#: Leaf types that map to one other type. Unsigned integers go to the next type that holds them all.
_LEAF_TYPES: Final[dict[pa.DataType, pa.DataType]] = {
    same: same
    for same in (
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
    )
} | {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def normalise(schema: pa.Schema | str) -> pa.Schema:
    """The schema with Spark's own types, from DDL text or from any Arrow schema.

    Keeps names, order, nullability (nested too) and comments; drops all other metadata. Raises
    BadRequest naming the column and type that cannot be carried, or for a schema without columns.
    """
    if isinstance(schema, str):
        return parse_ddl(schema)
    if not isinstance(schema, pa.Schema):
        raise BadRequest(f"a schema is DDL text or a pyarrow.Schema, got {type(schema).__name__}")
    if len(schema) == 0:
        raise BadRequest("a schema needs at least one column")
    check_names(schema.names, owner="bad schema")
    return pa.schema([_normalise_field(field, path=field.name, depth=0) for field in schema])


def encode_schema(schema: pa.Schema) -> bytes:
    """The schema as an Arrow IPC schema message; it must be normalised and fit a metadata value."""
    encoded: bytes = schema.serialize().to_pybytes()
    if len(encoded) > VALUE_BYTES_MAX:
        raise TooLarge(
            f"a schema of {len(schema)} columns takes {len(encoded)} bytes, limit {VALUE_BYTES_MAX}"
        )
    return encoded


def decode_schema(encoded: bytes | memoryview) -> pa.Schema:
    """What encode_schema was given; BadFormat for bytes that it cannot have written."""
    if len(encoded) < _IPC_HEAD.size:
        raise BadFormat(f"a schema message of {len(encoded)} bytes is too short")
    mark, length = _IPC_HEAD.unpack_from(encoded)
    if mark != _IPC_CONTINUATION or length != len(encoded) - _IPC_HEAD.size:
        raise BadFormat(f"a schema message of {len(encoded)} bytes has a bad head")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(encoded))
        expected = normalise(schema)
    except (pa.ArrowException, OSError, EOFError, ValueError, BadRequest) as error:
        raise BadFormat(f"not a schema message: {error}") from error
    if not schema.equals(expected, check_metadata=True):
        raise BadFormat("a schema message with types or metadata that no stream has")
    return schema


def describe_difference(expected: pa.Schema, given: pa.Schema) -> str:
    """What would have to change in `given`, column by column; empty when rows of both are the same.

    Comments are not compared: they do not change what a row may hold.
    """
    return "; ".join(_struct_differences(list(expected), list(given), prefix=""))


def _normalise_field(field: pa.Field, *, path: str, depth: int) -> pa.Field:
    arrow_type = _normalise_type(field.type, path=path, depth=depth)
    comment = _comment(field)
    metadata = None if comment is None else {COMMENT_KEY: comment}
    return _make_field(
        field.name, arrow_type, nullable=field.nullable, path=path, metadata=metadata
    )


def _make_field(
    name: str,
    arrow_type: pa.DataType,
    *,
    nullable: bool,
    path: str,
    metadata: dict[bytes, bytes] | None = None,
) -> pa.Field:
    if pt.is_null(arrow_type) and not nullable:  # A dictionary of nulls may be called non-null.
        raise BadRequest(f"column {path}: void has no value but null, so it cannot be NOT NULL")
    return pa.field(name, arrow_type, nullable=nullable, metadata=metadata)


def _comment(field: pa.Field) -> bytes | None:
    metadata: dict[bytes, bytes] = field.metadata or {}
    try:
        if COMMENT_KEY in metadata:
            metadata[COMMENT_KEY].decode()
            return metadata[COMMENT_KEY]
        spark = json.loads(metadata.get(_SPARK_METADATA_KEY, b"{}"))
    except ValueError:
        return None
    comment = spark.get("comment") if isinstance(spark, dict) else None
    return comment.encode(errors="replace") if isinstance(comment, str) else None


def _normalise_type(arrow_type: pa.DataType, *, path: str, depth: int) -> pa.DataType:
    if depth > TYPE_DEPTH_MAX:
        raise BadRequest(f"column {path}: at most {TYPE_DEPTH_MAX} levels of nesting")
    leaf = _LEAF_TYPES.get(arrow_type)
    if leaf is not None:
        return leaf
    if pt.is_dictionary(arrow_type) or pt.is_run_end_encoded(arrow_type):
        return _normalise_type(arrow_type.value_type, path=path, depth=depth)
    if pt.is_decimal(arrow_type):
        return _normalise_decimal(arrow_type, path=path)
    if pt.is_timestamp(arrow_type):
        return pa.timestamp("us", tz=None if arrow_type.tz is None else "UTC")
    if pt.is_time(arrow_type):
        return pa.time64("ns")
    if pt.is_duration(arrow_type):
        return pa.duration("us")
    if pt.is_fixed_size_binary(arrow_type):
        return pa.binary()
    if pt.is_struct(arrow_type):
        check_names([field.name for field in arrow_type], owner=f"column {path}")
        return pa.struct(
            [
                _normalise_field(field, path=f"{path}.{field.name}", depth=depth + 1)
                for field in arrow_type
            ]
        )
    if pt.is_map(arrow_type):
        return pa.map_(
            _normalise_child(arrow_type.key_field, "key", path=f"{path}.key", depth=depth + 1),
            _normalise_child(arrow_type.item_field, "value", path=f"{path}.value", depth=depth + 1),
        )
    if is_list_like(arrow_type):
        element = arrow_type.value_field
        return pa.list_(_normalise_child(element, "element", path=f"{path}[]", depth=depth + 1))
    raise BadRequest(f"column {path}: Spark has no type for arrow type {arrow_type}")


def _normalise_child(field: pa.Field, name: str, *, path: str, depth: int) -> pa.Field:
    """The child of a list or map, under the name that Spark gives it."""
    arrow_type = _normalise_type(field.type, path=path, depth=depth)
    return _make_field(name, arrow_type, nullable=field.nullable, path=path)


def is_list_like(arrow_type: pa.DataType) -> bool:
    """Whether it is one of Arrow's five layouts of a list; a map is none."""
    return bool(
        pt.is_list(arrow_type)
        or pt.is_large_list(arrow_type)
        or pt.is_fixed_size_list(arrow_type)
        or pt.is_list_view(arrow_type)
        or pt.is_large_list_view(arrow_type)
    )


def _normalise_decimal(arrow_type: pa.DataType, *, path: str) -> pa.DataType:
    # Spark wants 0 <= scale <= precision; a few more digits make room for either excess.
    scale = max(arrow_type.scale, 0)
    precision = max(arrow_type.precision + scale - arrow_type.scale, scale)
    if precision > DECIMAL_PRECISION_MAX:
        raise BadRequest(
            f"column {path}: Spark has no type for arrow type {arrow_type}, "
            f"its decimals have at most {DECIMAL_PRECISION_MAX} digits"
        )
    return pa.decimal128(precision, scale)


def _struct_differences(
    expected: list[pa.Field], given: list[pa.Field], *, prefix: str
) -> Iterator[str]:
    given_by_name = {field.name: field for field in given}
    expected_names = [field.name for field in expected]
    for field in expected:
        path = prefix + field.name
        if field.name in given_by_name:
            yield from _field_differences(field, given_by_name[field.name], path=path)
        else:
            yield f"column {path}: missing, expected {type_to_ddl(field.type)}"
    for field in given:
        if field.name not in expected_names:
            yield f"column {prefix}{field.name}: extra, got {_type_name(field.type)}"
    given_names = [field.name for field in given]
    if given_names != expected_names and sorted(given_names) == sorted(expected_names):
        what = f"columns of {prefix[:-1]}" if prefix else "columns"
        wanted, got = ", ".join(expected_names), ", ".join(given_names)
        yield f"{what}: expected order {wanted}, got {got}"


def _field_differences(expected: pa.Field, given: pa.Field, *, path: str) -> Iterator[str]:
    if expected.nullable != given.nullable:
        words = {True: "nullable", False: "NOT NULL"}
        yield f"column {path}: expected {words[expected.nullable]}, got {words[given.nullable]}"
    ours, theirs = expected.type, given.type
    if pt.is_struct(ours) and pt.is_struct(theirs):
        yield from _struct_differences(list(ours), list(theirs), prefix=f"{path}.")
    elif pt.is_list(ours) and pt.is_list(theirs):
        yield from _field_differences(ours.value_field, theirs.value_field, path=f"{path}[]")
    elif pt.is_map(ours) and pt.is_map(theirs):
        yield from _field_differences(ours.key_field, theirs.key_field, path=f"{path}.key")
        yield from _field_differences(ours.item_field, theirs.item_field, path=f"{path}.value")
    elif ours != theirs:
        yield f"column {path}: expected {type_to_ddl(ours)}, got {_type_name(theirs)}"


def _type_name(arrow_type: pa.DataType) -> str:
    """DDL where there is one; the other side of a comparison may hold any Arrow type."""
    try:
        return type_to_ddl(arrow_type)
    except BadRequest:
        return str(arrow_type)
