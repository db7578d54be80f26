"""What Spark's JVM makes of a pickled Python value, where a column type is declared for it.

Values of pickled functions and of a processor's state cross over as plain Python objects, already
in Spark's internal form (days, microseconds, tuples for structs). EvaluatePython.makeFromJava turns
them into the declared type: a value of another type is null, a longer integer loses its upper bits.

Here the outcome is an object of which Arrow makes a column of stored_type: a struct is a dictionary
by name, a map a list of pairs, a date or time its number. Where the JVM would write out one of its
own objects as text, the exact text is out of reach, and the function fails instead.
"""

from __future__ import annotations

import array
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import EvaluationFailed, Unsupported
from penstock.ops.functions.java_floats import print_double

#: From a value to the stored one.
Convert = Callable[[object], object]
#: Room for every digit of a double or of a product of decimals; only the target's scale rounds.
_WIDE: Final = Context(prec=2000, rounding=ROUND_HALF_UP)
_INT_BITS: Final = 32
_LONG_BITS: Final = 64
#: Types that arrive in the JVM as values; anything else is an object of a Python class.
_PLAIN: Final = (bool, int, float, str, bytes, bytearray, Decimal, list, tuple, dict, set)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type of stored values: numbers in place of dates and times."""
    if pt.is_date32(kind):
        return pa.int32()
    if pt.is_timestamp(kind) or pt.is_duration(kind) or pt.is_time(kind):
        return pa.int64()
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(stored_type(kind.value_type)))
    if pt.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(stored_type(kind.key_type)),
            kind.item_field.with_type(stored_type(kind.item_type)),
        )
    if pt.is_struct(kind):
        return pa.struct([field.with_type(stored_type(field.type)) for field in kind.fields])
    return kind


def from_python(kind: pa.DataType) -> Convert:
    """The conversion to this type; null stays null."""
    convert = _conversion(kind)

    def convert_value(value: object) -> object:
        if value is None:
            return None
        if type(value) not in _PLAIN and not isinstance(value, array.array):
            raise EvaluationFailed(
                "PYTHON_EXCEPTION", f"a {type(value).__name__} where {kind} is declared"
            )
        return convert(value)

    return convert_value


def _conversion(kind: pa.DataType) -> Convert:
    if pt.is_boolean(kind):
        return lambda value: value if type(value) is bool else None
    if pt.is_integer(kind):
        return _to_integer(kind.bit_width)
    if pt.is_floating(kind):
        return lambda value: value if type(value) is float else None
    if pt.is_date32(kind):
        return lambda value: value if _is_int(value, _INT_BITS) else None
    if pt.is_temporal(kind):
        return lambda value: value if _is_int(value, _LONG_BITS) else None
    if pt.is_decimal(kind):
        return _to_decimal(kind)
    if pt.is_string(kind):
        return _to_text
    if pt.is_binary(kind):
        return _to_bytes
    if pt.is_list(kind):
        return _to_list(kind)
    if pt.is_map(kind):
        return _to_pairs(kind)
    if pt.is_struct(kind):
        return _to_fields(kind)
    return lambda value: None  # void


def _is_int(value: object, bits: int) -> bool:
    return type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1


def _to_integer(bits: int) -> Convert:
    def convert(value: object) -> object:
        if not _is_int(value, _LONG_BITS):
            return None
        half = 1 << bits - 1
        return (value + half) % (2 * half) - half  # type: ignore[operator]

    return convert


def _to_decimal(kind: pa.DataType) -> Convert:
    step = Decimal(1).scaleb(-kind.scale)

    def convert(value: object) -> object:
        if type(value) is not Decimal:
            return None
        if not value.is_finite():
            raise EvaluationFailed("PYTHON_EXCEPTION", f"{value} is no decimal in Spark")
        rounded = value.quantize(step, context=_WIDE)
        if rounded.adjusted() >= kind.precision - kind.scale and rounded:
            raise EvaluationFailed(
                "NUMERIC_VALUE_OUT_OF_RANGE",
                f"{value} is not a decimal{kind.precision, kind.scale}",
            )
        return rounded

    return convert


def _to_text(value: object) -> object:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return str(value)
        case float():
            return print_double(value)
        case _:
            raise EvaluationFailed(
                "PYTHON_EXCEPTION",
                f"a {type(value).__name__} where a string is declared: call str() on it",
            )


def _to_bytes(value: object) -> object:
    match value:
        case str():
            return value.encode()
        case bytes() | bytearray():
            return bytes(value)
        case _:
            return None


def _to_list(kind: pa.DataType) -> Convert:
    element = from_python(kind.value_type)

    def convert(value: object) -> object:
        if isinstance(value, list | tuple | array.array):
            return [element(item) for item in value]
        return None

    return convert


def _to_pairs(kind: pa.DataType) -> Convert:
    key, item = from_python(kind.key_type), from_python(kind.item_type)

    def convert(value: object) -> object:
        if not isinstance(value, dict):
            return None
        return [(key(name), item(entry)) for name, entry in value.items()]

    return convert


def _to_fields(kind: pa.DataType) -> Convert:
    names = [field.name for field in kind.fields]
    if len(set(names)) < len(names):
        raise Unsupported(f"a struct with two fields of one name: {kind}")
    converts = [from_python(field.type) for field in kind.fields]

    def convert(value: object) -> object:
        if not isinstance(value, tuple | list):
            return None
        if len(value) != len(names):
            raise EvaluationFailed(
                "STRUCT_ARRAY_LENGTH_MISMATCH",
                f"{len(names)} fields are required while {len(value)} values are provided",
            )
        values = (field(item) for field, item in zip(converts, value, strict=True))
        return dict(zip(names, values, strict=True))

    return convert
