"""One Python value fitted to one column: the slow, exact way, which says what is wrong and where.

Owns what each type takes from Python, value by value. rows.py uses it only where Arrow alone cannot
be trusted or has failed; json_lines.py for each row it reads. Refuses to guess, like rows.py.

Law: what fit_value returns, pa.array takes for that type without loss; it raises Misfit (index 0)
with the path below the column (`[3].qty`) for everything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.stream.columns import (
    DURATION_MICROS,
    DURATION_PROBLEM,
    FINER_PROBLEM,
    NULL_PROBLEM,
    RANGE_PROBLEM,
    REPEATED_KEY_PROBLEM,
    Misfit,
    shown,
)
from penstock.stream.ddl import DECIMAL_PRECISION_MAX, type_to_ddl

_MICROSECOND: Final = timedelta(microseconds=1)
_DIGITS: Final = Context(prec=DECIMAL_PRECISION_MAX)


def fit_value(value: object, field: pa.Field, *, path: str) -> object:
    """The value in the form that pa.array takes exactly for field.type."""
    value = _plain(value, field.type, path)
    if value is None:
        if not field.nullable:
            raise Misfit(0, path, NULL_PROBLEM)
        return None
    for is_kind, fit in _FITTERS:
        if is_kind(field.type):
            return fit(value, field.type, path)
    _refuse(value, field.type, path)


def as_mapping(row: object) -> Mapping[Any, object] | None:
    """The row as a mapping, if it is a dict, another mapping, or a pyspark Row; else None."""
    if isinstance(row, Mapping):
        return row
    as_dict = getattr(row, "asDict", None)
    if isinstance(row, tuple) and callable(as_dict):
        fields = as_dict()
        return fields if isinstance(fields, dict) else None
    return None


def is_missing(value: object) -> bool:
    """Whether pandas would call it missing: None, NaN, NaT or NA."""
    if value is None or _is_pandas_null(value):
        return True
    return isinstance(value, float) and math.isnan(value)


def _is_pandas_null(value: object) -> bool:
    kind = type(value)
    return kind.__name__ in ("NaTType", "NAType") and kind.__module__.startswith("pandas")


def _plain(value: object, arrow_type: pa.DataType, path: str) -> object:
    """The value as an object of Python itself, where it is one of NumPy or pandas."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.isnat(value):
            return None
        if np.datetime_data(value.dtype)[0] == "D" and isinstance(value, np.datetime64):
            return value.item()
        kind = "datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]"
        micros = value.astype(kind)
        if micros.astype(value.dtype) != value or micros != value:
            _refuse(value, arrow_type, path, FINER_PROBLEM)
        plain = micros.item()
        # Out of Python's range NumPy gives an int, which no column for times takes.
        return value if isinstance(plain, int) else plain
    if isinstance(value, np.generic):
        return value.item()
    if _is_pandas_null(value):
        return None
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        _refuse(value, arrow_type, path, FINER_PROBLEM)
    convert = getattr(value, "to_pydatetime", None) or getattr(value, "to_pytimedelta", None)
    return convert() if callable(convert) else value


def _refuse(value: object, arrow_type: pa.DataType, path: str, why: str = "") -> NoReturn:
    suffix = f": {why}" if why else ""
    raise Misfit(0, path, f"expected {type_to_ddl(arrow_type)}, got {shown(value)}{suffix}")


def _fit_boolean(value: object, arrow_type: pa.DataType, path: str) -> object:
    return value if isinstance(value, bool) else _refuse(value, arrow_type, path)


def _fit_integer(value: object, arrow_type: pa.DataType, path: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(value, arrow_type, path)
    half = 1 << (arrow_type.bit_width - 1)
    if not -half <= value < half:
        _refuse(value, arrow_type, path, f"outside {-half} to {half - 1}")
    return int(value)


def _fit_float(value: object, arrow_type: pa.DataType, path: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(value, arrow_type, path)
    is_single = arrow_type.bit_width == 32
    try:
        with np.errstate(over="ignore"):
            number = float(np.float32(value)) if is_single else float(value)
    except OverflowError:
        _refuse(value, arrow_type, path, "beyond its range")
    if isinstance(value, int) and (abs(number) == np.inf or int(number) != value):
        _refuse(value, arrow_type, path, "it has no room for all digits")
    if abs(number) == np.inf and abs(value) != np.inf:
        _refuse(value, arrow_type, path, "beyond its range")
    return number


def _fit_decimal(value: object, arrow_type: pa.DataType, path: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        _refuse(value, arrow_type, path)
    number = Decimal(value)
    if not number.is_finite():
        _refuse(value, arrow_type, path, "decimals are finite")
    if not number:
        return Decimal(0).scaleb(-arrow_type.scale)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # It is text only for infinity and NaN.
    trailing_zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    if -(exponent + trailing_zeros) > arrow_type.scale:
        _refuse(value, arrow_type, path, f"over {arrow_type.scale} digits after the point")
    whole_digits_max = arrow_type.precision - arrow_type.scale
    if number.adjusted() >= whole_digits_max:
        _refuse(value, arrow_type, path, f"over {whole_digits_max} digits before the point")
    # One form for equal numbers, that of the column: the keys of a map are compared by repr.
    return number.quantize(Decimal(1).scaleb(-arrow_type.scale), context=_DIGITS)


def _fit_string(value: object, arrow_type: pa.DataType, path: str) -> object:
    if not isinstance(value, str):
        _refuse(value, arrow_type, path)
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(value, arrow_type, path, "half a surrogate pair is not Unicode")
    return str(value)


def _fit_binary(value: object, arrow_type: pa.DataType, path: str) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    _refuse(value, arrow_type, path)


def _fit_date(value: object, arrow_type: pa.DataType, path: str) -> object:
    # A datetime is a date to Python, but taking it here would drop its time.
    if isinstance(value, datetime) or not isinstance(value, date):
        _refuse(value, arrow_type, path)
    return value


def _fit_timestamp(value: object, arrow_type: pa.DataType, path: str) -> object:
    if not isinstance(value, datetime):
        _refuse(value, arrow_type, path)
    zoneless = value.utcoffset() is None
    if arrow_type.tz is None:
        if not zoneless:
            _refuse(value, arrow_type, path, "it has a time zone")
        return value.replace(tzinfo=None, fold=0)
    if zoneless:
        return value.replace(tzinfo=UTC, fold=0)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        _refuse(value, arrow_type, path, RANGE_PROBLEM)


def _fit_time(value: object, arrow_type: pa.DataType, path: str) -> object:
    if not isinstance(value, time):
        _refuse(value, arrow_type, path)
    if value.tzinfo is not None:
        _refuse(value, arrow_type, path, "it has a time zone")
    return value.replace(fold=0)


def _fit_duration(value: object, arrow_type: pa.DataType, path: str) -> object:
    if not isinstance(value, timedelta):
        _refuse(value, arrow_type, path)
    low, high = DURATION_MICROS
    if not low <= value // _MICROSECOND <= high:
        _refuse(value, arrow_type, path, DURATION_PROBLEM)
    return value


def _fit_list(value: object, arrow_type: pa.DataType, path: str) -> object:
    if not isinstance(value, list | tuple | np.ndarray):
        _refuse(value, arrow_type, path)
    field = arrow_type.value_field
    return [fit_value(item, field, path=f"{path}[{index}]") for index, item in enumerate(value)]


def _fit_struct(value: object, arrow_type: pa.DataType, path: str) -> object:
    mapping = as_mapping(value)
    if mapping is None:
        _refuse(value, arrow_type, path)
    names = [field.name for field in arrow_type]
    for name in mapping:
        if name not in names:
            raise Misfit(0, f"{path}.{name}", f"unknown field, known: {', '.join(names)}")
    return {
        field.name: fit_value(mapping.get(field.name), field, path=f"{path}.{field.name}")
        for field in arrow_type
    }


def _fit_map(value: object, arrow_type: pa.DataType, path: str) -> object:
    """Pairs, from a mapping or from a list of pairs (the only form for keys that do not hash)."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list | tuple | np.ndarray):
        pairs = list(value)
    else:
        _refuse(value, arrow_type, path)
    fitted: list[tuple[object, object]] = []
    seen: set[str] = set()
    for index, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise Misfit(
                0, f"{path}[{index}]", f"expected a pair of key and value, got {shown(pair)}"
            )
        key = fit_value(pair[0], arrow_type.key_field, path=f"{path}[{index}].key")
        if repr(key) in seen:
            raise Misfit(0, f"{path}[{index}].key", REPEATED_KEY_PROBLEM)
        seen.add(repr(key))
        item = fit_value(pair[1], arrow_type.item_field, path=f"{path}[{index}].value")
        fitted.append((key, item))
    return fitted


_Fitter = Callable[[object, pa.DataType, str], object]
_FITTERS: Final[tuple[tuple[Callable[[pa.DataType], bool], _Fitter], ...]] = (
    (pt.is_boolean, _fit_boolean),
    (pt.is_integer, _fit_integer),
    (pt.is_floating, _fit_float),
    (pt.is_decimal, _fit_decimal),
    (pt.is_string, _fit_string),
    (pt.is_binary, _fit_binary),
    (pt.is_date, _fit_date),
    (pt.is_timestamp, _fit_timestamp),
    (pt.is_time, _fit_time),
    (pt.is_duration, _fit_duration),
    (pt.is_list, _fit_list),
    (pt.is_map, _fit_map),
    (pt.is_struct, _fit_struct),
)
