"""CAST and try_cast between all pairs of types that users meet.

Law: what cannot be converted fails in ANSI mode, and is null in TRY mode and, where numbers do not
wrap around, in LEGACY mode. Arrays, maps and structs are converted element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.functions import decimals, parsing
from penstock.ops.functions.alignment import Mask, Values, null_where, nulls, on_arrays, to_numpy
from penstock.ops.functions.civil import MICROS_PER_SECOND, join_micros
from penstock.ops.functions.failures import fail
from penstock.ops.functions.java_floats import print_double, to_integers, to_longs
from penstock.ops.functions.lists import Lists, entries_type, lists_of
from penstock.ops.functions.printing import Style, print_values
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.zones import UTC_ZONE, Zone, find_zone, knows_zone
from penstock.plan.exprs import Call, Column, Expr, walk
from penstock.plan.types import holds_variant

#: Functions whose results reach from days to seconds.
_FULL_INTERVALS: Final = frozenset({"MakeDTInterval", "SubtractTimestamps"})
_OVERFLOW: Final = "CAST_OVERFLOW"
_INVALID: Final = "CAST_INVALID_INPUT"
_INT64: Final = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class Mode:
    """How one cast behaves. TRY is ANSI, with null instead of failure."""

    is_ansi: bool
    is_try: bool
    zone: Zone

    @property
    def is_legacy(self) -> bool:
        return not (self.is_ansi or self.is_try)

    def reject(self, values: pa.Array, rows: Mask, condition: str) -> pa.Array:
        """The values, if there are no such rows; else fail, or make them null."""
        if self.is_ansi and rows.any():
            fail(condition, f"a value cannot be cast to {values.type}")
        return null_where(values, rows)


_Convert: TypeAlias = Callable[[pa.Array, pa.DataType, Mode], pa.Array]


def kind_of(type: pa.DataType) -> str:
    """The family of a type: casts are defined between families."""
    if pt.is_timestamp(type):
        return "ntz" if type.tz is None else "timestamp"
    for kind, belongs in _KINDS.items():
        if belongs(type):
            return kind
    return "other"


_KINDS: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "bool": pt.is_boolean,
    "int": pt.is_integer,
    "float": pt.is_floating,
    "decimal": pt.is_decimal,
    "string": pt.is_string,
    "binary": pt.is_binary,
    "date": pt.is_date32,
    "duration": pt.is_duration,
    "null": pt.is_null,
    "map": pt.is_map,
    "list": pt.is_list,
    "struct": pt.is_struct,
}


def _accepts(call: Call) -> str | None:
    source, target = call.args[0].type, call.type
    spelled = str(call.option("dataType", ""))
    if "CharType" in spelled or "VarcharType" in spelled:
        return "casts to char and varchar"
    if "DayTimeIntervalType" in spelled and ",3)" not in spelled:
        return "casts to day-time intervals that do not end with seconds"
    if pt.is_duration(source) and not _spans_seconds(call.args[0]):
        return "casts of day-time intervals that may not reach from days to seconds"
    if holds_variant(target) or holds_variant(source):
        return "a cast to a variant, or of something with one inside; use parse_json(to_json(...))"
    if not can_cast(source, target):
        return f"cast from {source} to {target}"
    return knows_zone(call) if call.option("timeZoneId") is not None else None


def _spans_seconds(expr: Expr) -> bool:
    """Whether an interval surely reaches from days to seconds: as columns do, and what has one."""
    return any(
        pt.is_duration(part.type)
        and (
            isinstance(part, Column)
            or (isinstance(part, Call) and part.function in _FULL_INTERVALS)
        )
        for part in walk(expr)
    )


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether there is a conversion between these types."""
    have, want = kind_of(source), kind_of(target)
    if source == target or have == "null" or (want == "string" and have != "other"):
        return True
    if have != want or have not in ("list", "map", "struct"):
        return (have, want) in _CONVERSIONS
    return source.num_fields == target.num_fields and all(
        can_cast(inner, wanted) for inner, wanted in _inner_types(source, target)
    )


def _inner_types(
    source: pa.DataType, target: pa.DataType
) -> Iterator[tuple[pa.DataType, pa.DataType]]:
    """What elements, or fields, are cast from and to."""
    for place in range(source.num_fields):
        yield source.field(place).type, target.field(place).type


def _can_fail(call: Call) -> bool:
    return fails(call.args[0].type, call.type, is_ansi=call.is_ansi)


def fails(source: pa.DataType, target: pa.DataType, *, is_ansi: bool) -> bool:
    """Not if every value has one of the other type, or null; else in ANSI mode."""
    pair = kind_of(source), kind_of(target)
    if pair in _ALWAYS_CHECKED:
        return True
    if source == target or (source, target) in _WIDENINGS or pair[1] == "string" or pair in _SAFE:
        return False
    if pair[0] in ("list", "map", "struct"):
        return any(
            fails(inner, wanted, is_ansi=is_ansi) for inner, wanted in _inner_types(source, target)
        )
    return is_ansi


@function("Cast", sql="cast try_cast", raises=_can_fail, accepts=_accepts)
def cast(call: Call, value: Datum) -> Datum:
    """The fast ways first: nothing to do, or a kernel that cannot fail."""
    source, target = value.type, call.type
    if source == target:
        return value
    if (source, target) in _WIDENINGS:
        return pc.cast(value, target, safe=False)
    return _cast_slowly(call, value)


#: Below, every whole number is a double.
_EXACT: Final = 2.0**53
_NUMBERS: Final = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]
_SAFE: Final = frozenset(
    {
        *((source, "bool") for source in ("int", "float", "decimal", "timestamp")),
        *(("bool", two) for two in ("int", "float", "timestamp")),
        *((source, "float") for source in ("int", "float", "decimal", "timestamp")),
        ("int", "timestamp"),
        ("timestamp", "date"),
        ("timestamp", "ntz"),
        ("ntz", "date"),
        ("ntz", "timestamp"),
        ("string", "binary"),
    }
)
#: In every mode: a time without a date is refused, and a date may be too far away.
_ALWAYS_CHECKED: Final = frozenset(
    {("string", "timestamp"), ("date", "timestamp"), ("date", "ntz")}
)
#: Pairs of numbers, never narrower; integers round to floating point as in Java.
_WIDENINGS: Final = frozenset(
    (narrow, wide) for place, narrow in enumerate(_NUMBERS) for wide in _NUMBERS[place:]
)


@on_arrays
def _cast_slowly(call: Call, array: pa.Array) -> pa.Array:
    id = call.option("timeZoneId")
    zone = find_zone(str(id)) if id is not None else None
    mode = Mode(call.is_ansi, call.is_try, zone if zone is not None else UTC_ZONE)
    return convert(array, call.type, mode)


def convert(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    """The array in another type."""
    source = array.type
    have, want = kind_of(source), kind_of(target)
    if source == target:
        return array
    if have == "null":
        return pa.nulls(len(array), target)
    if want == "string":
        return print_values(array, Style(not mode.is_legacy, mode.zone))
    return _CONVERSIONS[have, want](array, target, mode)


# -- numbers


def _int_to_int(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    if mode.is_legacy:
        return array.cast(target, safe=False)
    try:
        return array.cast(target)
    except pa.ArrowInvalid:
        limits = np.iinfo(target.to_pandas_dtype())
        values = to_numpy(array)
        wrong = (values < limits.min) | (values > limits.max)
        return mode.reject(array.cast(target, safe=False), wrong, _OVERFLOW)


def _float_to_int(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    """Towards zero. LEGACY cuts as Java does: to the nearest int or long, then to low bits."""
    values = to_numpy(array).astype(np.float64, copy=False)
    if pt.is_int64(target) and np.abs(values).max(initial=0.0) < _EXACT:  # so no NaN is among them
        return pa.array(values.astype(np.int64), mask=nulls(array) if array.null_count else None)
    limits = np.iinfo(target.to_pandas_dtype())
    cut = _INT64 if target.bit_width == 64 or not mode.is_legacy else np.iinfo(np.int32)
    longs = to_integers(values, cut.min, cut.max)
    result = pa.array(longs, mask=nulls(array)).cast(target, safe=False)
    if mode.is_legacy:
        return result
    with np.errstate(invalid="ignore"):
        fits = (np.floor(values) <= float(limits.max)) & (np.ceil(values) >= float(limits.min))
    return mode.reject(result, ~fits & ~nulls(array), _OVERFLOW)


def _number_to_bool(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return pc.not_equal(array, pa.scalar(0, array.type))


def _bool_to_number(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return array.cast(pa.int8()).cast(target)


def _double_to_float(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return array.cast(target, safe=False)


# -- decimals

_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}


def _int_to_decimal(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    if target.precision - target.scale >= _DIGITS[array.type.bit_width]:
        return array.cast(target)
    exact = array.cast(pa.int64()).cast(pa.decimal128(19, 0))
    return decimals.fit(exact, target, is_ansi=mode.is_ansi)


def _bool_to_decimal(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return _int_to_decimal(array.cast(pa.int8()), target, mode)


def _float_to_decimal(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    """Of the digits that Java prints; NaN and infinity are null in every mode."""
    values = [
        None if value is None or not np.isfinite(value) else Decimal(print_double(value))
        for value in array.to_pylist()
    ]
    return decimals.from_decimals(values, target, is_ansi=mode.is_ansi)


def _decimal_to_decimal(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    source = array.type
    widens = target.scale >= source.scale
    if widens and target.precision - target.scale >= source.precision - source.scale:
        return array.cast(target)
    return decimals.fit(array, target, is_ansi=mode.is_ansi)


def _decimal_to_int(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    if array.type.precision > 18 and target.bit_width < 64 and not mode.is_legacy:
        # Spark goes through a double here, which may round up to the next integer.
        return _float_to_int(decimals_to_floats(array, pa.float64()), target, mode)
    try:
        options = pc.CastOptions(target, allow_decimal_truncate=True)
        return array.cast(options=options)
    except pa.ArrowInvalid:
        pass
    unit, most = 10**array.type.scale, 2 ** (target.bit_width - 1)
    whole = [
        None if value is None else decimals.truncate(value, unit)
        for value in decimals.unscaled(array)
    ]
    wrong = np.array([value is not None and not -most <= value < most for value in whole], bool)
    low = [None if v is None else (v + most) % (2 * most) - most for v in whole]
    result = pa.array(low, target)
    return result if mode.is_legacy else mode.reject(result, wrong, _OVERFLOW)


def _decimal_to_float(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return decimals_to_floats(array, target)


def decimals_to_floats(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Rounded once, which Arrow's kernel does not promise."""
    unit = 10**array.type.scale
    values = [None if value is None else value / unit for value in decimals.unscaled(array)]
    if pt.is_float32(target):
        values = [
            None if value is None or exact is None else parsing.to_single(value, exact)
            for value, exact in zip(values, decimals.fractions(array), strict=True)
        ]
    return pa.array(values, target)


# -- text


def _string_to_bool(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return mode.reject(*parsing.read_booleans(array), _INVALID)


def _string_to_int(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    values, wrong = parsing.read_integers(array, target, truncates=mode.is_legacy)
    return mode.reject(values, wrong, _INVALID)


def _string_to_float(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return mode.reject(*parsing.read_floats(array, target), _INVALID)


def _string_to_decimal(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    values, wrong, beyond = parsing.read_decimals(array)
    if mode.is_ansi and wrong.any():
        fail(_INVALID, f"a text cannot be cast to {target}")
    if mode.is_ansi and beyond.any():
        fail("NUMERIC_OUT_OF_SUPPORTED_RANGE", "a text has more than 38 digits")
    return decimals.from_decimals(values, target, is_ansi=mode.is_ansi)


def _string_to_binary(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return array.cast(target)


def _int_to_binary(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    width = array.type.bit_width // 8
    big = to_numpy(array).astype(f">i{width}").tobytes()
    parts = [big[start : start + width] for start in range(0, len(big), width)]
    return pa.array(parts, target, mask=nulls(array))


def _string_to_date(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return mode.reject(*parsing.read_days(array), _INVALID)


def _string_to_timestamp(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    zone = None if target.tz is None else mode.zone
    values, wrong = parsing.read_timestamps(array, zone)
    return mode.reject(values, wrong, _INVALID).cast(target)


# -- dates and timestamps


def _micros(array: pa.Array) -> Values:
    return to_numpy(array.cast(pa.int64()))


def _from_micros(values: Values, array: pa.Array, target: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64(), mask=nulls(array)).cast(target)


def _int_to_timestamp(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    """Seconds; those that have no microseconds are the first or the last moment."""
    seconds = to_numpy(array.cast(pa.int64()))
    most = _INT64.max // MICROS_PER_SECOND
    inside = np.clip(seconds, -most, most) * MICROS_PER_SECOND
    micros = np.where(seconds > most, _INT64.max, np.where(seconds < -most, _INT64.min, inside))
    return _from_micros(micros, array, target)


def _bool_to_timestamp(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return array.cast(pa.int8()).cast(pa.int64()).cast(target)


def _float_to_timestamp(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    values = to_numpy(array).astype(np.float64)
    strange = ~np.isfinite(values) & ~nulls(array)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values * MICROS_PER_SECOND
        beyond = (np.abs(np.trunc(scaled)) > 2.0**63) & ~strange & ~nulls(array)
    result = _from_micros(to_longs(scaled), array, target)
    if not mode.is_legacy:
        result = mode.reject(result, beyond, _OVERFLOW)
    return mode.reject(result, strange, _INVALID)


def _decimal_to_timestamp(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    unit = 10**array.type.scale
    micros = [
        None if value is None else decimals.truncate(value * MICROS_PER_SECOND, unit)
        for value in decimals.unscaled(array)
    ]
    low = [None if v is None else (v + 2**63) % 2**64 - 2**63 for v in micros]
    return pa.array(low, pa.int64()).cast(target)


def _timestamp_to_int(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    """Seconds, rounded down. What does not fit is null in LEGACY mode; nothing wraps around."""
    seconds = _micros(array) // MICROS_PER_SECOND
    longs = pa.array(seconds, mask=nulls(array))
    if target.bit_width == 64:
        return longs
    limits = np.iinfo(target.to_pandas_dtype())
    wrong = ((seconds < limits.min) | (seconds > limits.max)) & ~nulls(array)
    return mode.reject(longs.cast(target, safe=False), wrong, _OVERFLOW)


def _timestamp_to_float(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    seconds = pa.array(_micros(array) / float(MICROS_PER_SECOND), mask=nulls(array))
    return seconds.cast(target, safe=False)


def _timestamp_to_decimal(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    micros: list[int | None] = array.cast(pa.int64()).to_pylist()
    return decimals.from_unscaled(micros, 6, target, is_ansi=mode.is_ansi)


def _timestamp_to_bool(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return pc.not_equal(array.cast(pa.int64()), 0)


def _date_to_timestamp(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    zone = UTC_ZONE if target.tz is None else mode.zone
    days = to_numpy(array.cast(pa.int32())).astype(np.int64)
    micros, beyond = zone.day_starts(days)
    if (beyond & ~nulls(array)).any():
        fail("ARITHMETIC_OVERFLOW", "a date has no timestamp")
    return _from_micros(micros, array, target)


def _timestamp_to_date(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    zone = UTC_ZONE if array.type.tz is None else mode.zone
    days, _ = zone.to_local(_micros(array))
    return pa.array(days.astype(np.int32), mask=nulls(array)).cast(target)


def _timestamp_to_ntz(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    micros, _ = join_micros(*mode.zone.to_local(_micros(array)))
    return _from_micros(micros, array, target)


def _ntz_to_timestamp(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    micros, _ = mode.zone.from_local(*UTC_ZONE.to_local(_micros(array)))
    return _from_micros(micros, array, target)


def _date_to_null(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    """Dates are no numbers; only LEGACY mode lets one ask."""
    return pa.nulls(len(array), target)


def _duration_to_duration(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    return array.cast(target)


# -- nested types


def _list_to_list(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    lists = lists_of(array)
    elements = convert(lists.elements, target.value_type, mode)
    return Lists(lists.offsets, elements, lists.valid).array(target)


def _map_to_map(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    lists = lists_of(array)
    entries = _struct_to_struct(lists.elements, entries_type(target).value_type, mode)
    return Lists(lists.offsets, entries, lists.valid).array(target)


def _struct_to_struct(array: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    parts = [
        convert(field, target[place].type, mode) for place, field in enumerate(array.flatten())
    ]
    fields = [target[place] for place in range(target.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())


_CONVERSIONS: Final[dict[tuple[str, str], _Convert]] = {
    ("int", "int"): _int_to_int,
    ("int", "float"): _double_to_float,
    ("int", "decimal"): _int_to_decimal,
    ("int", "bool"): _number_to_bool,
    ("int", "binary"): _int_to_binary,
    ("int", "timestamp"): _int_to_timestamp,
    ("float", "int"): _float_to_int,
    ("float", "float"): _double_to_float,
    ("float", "decimal"): _float_to_decimal,
    ("float", "bool"): _number_to_bool,
    ("float", "timestamp"): _float_to_timestamp,
    ("decimal", "int"): _decimal_to_int,
    ("decimal", "float"): _decimal_to_float,
    ("decimal", "decimal"): _decimal_to_decimal,
    ("decimal", "bool"): _number_to_bool,
    ("decimal", "timestamp"): _decimal_to_timestamp,
    ("bool", "int"): _bool_to_number,
    ("bool", "float"): _bool_to_number,
    ("bool", "decimal"): _bool_to_decimal,
    ("bool", "timestamp"): _bool_to_timestamp,
    ("string", "bool"): _string_to_bool,
    ("string", "int"): _string_to_int,
    ("string", "float"): _string_to_float,
    ("string", "decimal"): _string_to_decimal,
    ("string", "binary"): _string_to_binary,
    ("string", "date"): _string_to_date,
    ("string", "timestamp"): _string_to_timestamp,
    ("string", "ntz"): _string_to_timestamp,
    ("date", "timestamp"): _date_to_timestamp,
    ("date", "ntz"): _date_to_timestamp,
    ("date", "bool"): _date_to_null,
    ("date", "int"): _date_to_null,
    ("date", "float"): _date_to_null,
    ("date", "decimal"): _date_to_null,
    ("timestamp", "int"): _timestamp_to_int,
    ("timestamp", "float"): _timestamp_to_float,
    ("timestamp", "decimal"): _timestamp_to_decimal,
    ("timestamp", "bool"): _timestamp_to_bool,
    ("timestamp", "date"): _timestamp_to_date,
    ("timestamp", "ntz"): _timestamp_to_ntz,
    ("ntz", "date"): _timestamp_to_date,
    ("ntz", "timestamp"): _ntz_to_timestamp,
    ("duration", "duration"): _duration_to_duration,
    ("list", "list"): _list_to_list,
    ("map", "map"): _map_to_map,
    ("struct", "struct"): _struct_to_struct,
}
