"""Rows as lines of JSON, one object each, exact in both directions for every type.

Owns the JSON form of each type; what a column takes is decided in values.py.

    boolean, integers       literal, number        binary           base64
    float, double           number, or "NaN",      date             "2026-11-15"
                            "Infinity",            timestamp        "2026-11-15T08:00:00.000000Z"
                            "-Infinity"            timestamp_ntz    the same without Z
    decimal                 "12.30"                time             "08:00:00.000000"
    string                  text                   interval         "PT93784.500000S", ISO-8601
    array, struct           list, object           map              object for string keys, else
    null, void              null                                    list of [key, value]

Law: row_from_json(line, schema) equals the row of batch.to_pylist() that the line was written from,
and to_batches accepts it. Absent columns are null; a key given twice, a bare NaN and any loss are
refused. A finer or looser spelling that says the same (offsets, fewer digits) is read too.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import BadRow, TooLarge
from penstock.stream.columns import Misfit, find_misfit, shown
from penstock.stream.ddl import type_to_ddl
from penstock.stream.rows import fit_row

#: What JSON takes between its tokens.
BLANK: Final = " \t\n\r"
_MICROSECOND: Final = timedelta(microseconds=1)
_NOT_FINITE: Final = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
_NOT_FINITE_NAMES: Final = {str(number): name for name, number in _NOT_FINITE.items()}
# Python's fromisoformat takes more (week dates) and drops digits after the sixth, hence patterns.
_TIME_PATTERN: Final = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(_TIME_PATTERN)
_TIMESTAMP: Final = re.compile(
    rf"{_DATE.pattern}[T ]{_TIME_PATTERN}(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})?"
)
_DURATION: Final = re.compile(
    r"(?P<sign>[+-]?)P(?=.)(?:(?P<days>[0-9]{1,19})D)?"
    r"(?:T(?=.)(?:(?P<hours>[0-9]{1,19})H)?(?:(?P<minutes>[0-9]{1,19})M)?"
    r"(?:(?P<seconds>[0-9]{1,19})(?:\.(?P<fraction>[0-9]{1,6}))?S)?)?"
)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def row_to_json(row: Mapping[str, object]) -> str:
    """One line, without its newline, of a row as to_pylist() or row_from_json gives it.

    Maps may be dicts too; one with a key that is no text becomes a list of pairs. Raises BadRow for
    a value of a type that no column has.
    """
    plain = {name: _to_json(value, name) for name, value in row.items()}
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def rows_to_json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    """One line per row, without newlines. Raises BadRow, before the first line, for a batch that
    decode_batch would not return.
    """
    columns: list[list[object]] = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        misfit = find_misfit(column, field)
        if misfit is not None:
            path = f"{field.name}{misfit.path}"
            raise BadRow(f"row {misfit.index}, column {path}: {misfit.problem}")
        values = column.to_pylist()
        if _has_text_map(field.type):
            values = [_maps_to_dicts(value, field.type) for value in values]
        columns.append(values)
    # Row by row, because one string per row is what is asked for; this is the way out to people.
    names = batch.schema.names
    for row in zip(*columns, strict=True):
        yield row_to_json(dict(zip(names, row, strict=True)))


def values_to_json(column: pa.Array, *, one_zero: bool = False) -> list[str | None]:
    """Each value of a column as JSON text; nulls stay. Only for nested types: it goes one by one.

    With `one_zero`, values that grouping takes for equal have one text: -0.0 is written as 0.0.
    """
    texts: list[str | None] = []
    for value in column.to_pylist():
        if value is None:
            texts.append(None)
            continue
        plain = _to_json(_maps_to_dicts(value, column.type), "")
        plain = _one_zero(plain) if one_zero else plain
        texts.append(json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    return texts


def row_from_json(text: str | bytes, schema: pa.Schema, *, line: int = 1) -> dict[str, object]:
    """The row of one line, with every column of the schema; `line` only names it in a BadRow."""
    where = f"line {line}"
    return _fit_parsed(_parse(text, where), schema, where)


def rows_from_json_array(
    text: bytes, schema: pa.Schema, *, rows_max: int | None = None
) -> list[dict[str, object]]:
    """The rows of an array of objects, or of one object; a BadRow names them by number, from 0."""
    try:
        body = text.decode().strip(BLANK)
    except UnicodeDecodeError as error:
        raise BadRow(f"not UTF-8: {error}") from None
    if not body.startswith("["):
        return [_fit_parsed(_parse(body, "row 0"), schema, "row 0")]
    rows: list[dict[str, object]] = []
    at = _after_blanks(body, 1)
    while body[at : at + 1] != "]" or rows:
        if len(rows) == rows_max:
            raise TooLarge(f"over {rows_max} rows at once")
        where = f"row {len(rows)}"
        parsed, at = _parse_at(body, at, where)
        rows.append(_fit_parsed(parsed, schema, where))
        at = _after_blanks(body, at)
        if body[at : at + 1] == "]":
            break
        if body[at : at + 1] != ",":
            raise BadRow(f"after {where}: not JSON: expected , or ] {_place(body, at)}")
        at = _after_blanks(body, at + 1)
    if at + 1 != len(body):
        raise BadRow(f"after the array: not JSON: extra data {_place(body, at + 1)}")
    return rows


def _fit_parsed(parsed: object, schema: pa.Schema, where: str) -> dict[str, object]:
    if not isinstance(parsed, dict):
        raise BadRow(f"{where}: expected a JSON object, got {shown(parsed)}")
    for field in schema:
        if field.name in parsed:
            try:
                parsed[field.name] = _from_json(parsed[field.name], field.type, "")
            except Misfit as misfit:
                path = f"{field.name}{misfit.path}"
                raise BadRow(f"{where}, column {path}: {misfit.problem}") from None
    return fit_row(parsed, schema, where=where)


def _to_json(value: object, path: str) -> object:
    match value:
        case None | bool() | str():
            return value
        case np.generic() if not isinstance(value, float | np.datetime64 | np.timedelta64):
            return _to_json(value.item(), path)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else _NOT_FINITE_NAMES[str(float(value))]
        case Decimal():
            return format(value, "f")
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case datetime():
            return _timestamp_to_json(value)
        case date():
            return value.isoformat()
        case time():
            return value.isoformat(timespec="microseconds")
        case timedelta():
            return _duration_to_json(value)
        case Mapping():
            return _mapping_to_json(value, path)
        case list() | tuple() | np.ndarray():
            return [_to_json(item, f"{path}[{index}]") for index, item in enumerate(value)]
    raise BadRow(f"column {path}: {shown(value)} is of no type that a stream carries")


def _one_zero(value: object) -> object:
    match value:
        case float():
            return value + 0.0
        case list():
            return list(map(_one_zero, value))
        case dict():
            return {name: _one_zero(item) for name, item in value.items()}
    return value


def _mapping_to_json(value: Mapping[Any, object], path: str) -> object:
    if all(isinstance(key, str) for key in value):
        return {key: _to_json(item, f"{path}.{key}") for key, item in value.items()}
    return [
        [_to_json(key, f"{path}[{index}].key"), _to_json(item, f"{path}[{index}].value")]
        for index, (key, item) in enumerate(value.items())
    ]


def _timestamp_to_json(value: datetime) -> str:
    if value.utcoffset() is None:
        return value.replace(tzinfo=None).isoformat(timespec="microseconds")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _duration_to_json(value: timedelta) -> str:
    micros = value // _MICROSECOND
    seconds, fraction = divmod(abs(micros), 1_000_000)
    return f"{'-' if micros < 0 else ''}PT{seconds}.{fraction:06d}S"


def _has_text_map(arrow_type: pa.DataType) -> bool:
    children = (arrow_type.field(position).type for position in range(arrow_type.num_fields))
    is_one = pt.is_map(arrow_type) and pt.is_string(arrow_type.key_type)
    return bool(is_one) or any(_has_text_map(child) for child in children)


def _maps_to_dicts(value: Any, arrow_type: pa.DataType) -> Any:
    """A value of to_pylist() with dicts for maps with text keys, instead of lists of pairs."""
    if value is None or not _has_text_map(arrow_type):
        return value
    if pt.is_list(arrow_type):
        return [_maps_to_dicts(item, arrow_type.value_type) for item in value]
    if pt.is_struct(arrow_type):
        return {field.name: _maps_to_dicts(value[field.name], field.type) for field in arrow_type}
    pairs = [
        (_maps_to_dicts(key, arrow_type.key_type), _maps_to_dicts(item, arrow_type.item_type))
        for key, item in value
    ]
    return dict(pairs) if pt.is_string(arrow_type.key_type) else pairs


def _parse(text: str | bytes, where: str) -> object:
    try:
        return json.loads(text, **_hooks(where))
    except json.JSONDecodeError as error:
        raise BadRow(f"{where}, character {error.colno}: not JSON: {error.msg}") from None
    except (ValueError, InvalidOperation, RecursionError) as error:
        raise BadRow(f"{where}: JSON that cannot be read: {error}") from None


def _parse_at(text: str, at: int, where: str) -> tuple[object, int]:
    """One value of a longer text, and where it ends."""
    try:
        return json.JSONDecoder(**_hooks(where)).raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise BadRow(f"{where}: not JSON: {error.msg} {_place(text, error.pos)}") from None
    except (ValueError, InvalidOperation, RecursionError) as error:
        raise BadRow(f"{where}: JSON that cannot be read: {error}") from None


def _after_blanks(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in BLANK:
        at += 1
    return at


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"at line {line}, character {at - text.rfind(chr(10), 0, at)}"


def _hooks(where: str) -> dict[str, Any]:
    def refuse_constant(name: str) -> NoReturn:
        raise BadRow(f'{where}: a bare {name} is no JSON; write "{name}" in quotes')

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = next(name for name, count in counts.items() if count > 1)
            raise BadRow(f"{where}: {twice!r} is there twice")
        return fields

    return {
        # Numbers with a point stay exact until the type of their column is known.
        "parse_float": Decimal,
        "parse_constant": refuse_constant,
        "object_pairs_hook": unique,
    }


def _from_json(value: Any, arrow_type: pa.DataType, path: str) -> object:
    if value is None:
        return None
    if pt.is_struct(arrow_type) and isinstance(value, dict):
        types = {field.name: field.type for field in arrow_type}
        # Unknown fields stay as they are, for fit_row to refuse them by name.
        return {
            name: _from_json(item, types[name], f"{path}.{name}") if name in types else item
            for name, item in value.items()
        }
    if pt.is_list(arrow_type) and isinstance(value, list):
        element_type = arrow_type.value_type
        return [
            _from_json(item, element_type, f"{path}[{index}]") for index, item in enumerate(value)
        ]
    if pt.is_map(arrow_type):
        return _map_from_json(value, arrow_type, path)
    try:
        result = next((read(value) for is_kind, read in _READERS if is_kind(arrow_type)), value)
    except (ValueError, OverflowError, InvalidOperation) as error:
        got = shown(value) if isinstance(value, str) else f"number {value}"
        why = f": {error}" if type(error) is ValueError else ""
        raise Misfit(0, path, f"expected {type_to_ddl(arrow_type)}, got {got}{why}") from None
    if isinstance(result, Decimal) and not pt.is_decimal(arrow_type):
        raise Misfit(0, path, f"expected {type_to_ddl(arrow_type)}, got number {value}")
    return result


def _map_from_json(value: Any, arrow_type: pa.MapType, path: str) -> object:
    """Pairs; an empty object is an empty map of any kind, as row_to_json writes an empty dict."""
    if isinstance(value, dict) and (pt.is_string(arrow_type.key_type) or not value):
        pairs: list[Any] = list(value.items())
    elif isinstance(value, list) and not pt.is_string(arrow_type.key_type):
        pairs = value
    else:
        form = "object" if pt.is_string(arrow_type.key_type) else "list of [key, value]"
        raise Misfit(0, path, f"expected {type_to_ddl(arrow_type)} as {form}, got {shown(value)}")
    for index, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise Misfit(0, f"{path}[{index}]", f"expected [key, value], got {shown(pair)}")
    return [
        (
            _from_json(key, arrow_type.key_type, f"{path}[{index}].key"),
            _from_json(item, arrow_type.item_type, f"{path}[{index}].value"),
        )
        for index, (key, item) in enumerate(pairs)
    ]


def _read_float(value: Any) -> object:
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise ValueError('text must be "NaN", "Infinity" or "-Infinity"')
        return _NOT_FINITE[value]
    if isinstance(value, Decimal):
        number = float(value)
        if abs(number) == float("inf"):
            raise ValueError("beyond its range")
        return number
    return value


def _read_decimal(value: Any) -> object:
    if not isinstance(value, str):
        return value
    if not _DECIMAL.fullmatch(value):
        raise ValueError("not a decimal number")
    return Decimal(value)


def _read_binary(value: Any) -> object:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value.encode("ascii", "replace"), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def _read_iso(
    pattern: re.Pattern[str], read: Callable[[str], object], form: str
) -> Callable[[Any], object]:
    def read_iso(value: Any) -> object:
        if not isinstance(value, str):
            return value
        if not pattern.fullmatch(value):
            raise ValueError(f"not of the form {form}")
        return read(value)

    return read_iso


def _read_duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    assert match is not None
    units = ("days", "hours", "minutes", "seconds")
    whole = {unit: int(match[unit] or 0) for unit in units}
    micros = int((match["fraction"] or "").ljust(6, "0"))
    length = timedelta(**whole, microseconds=micros)
    return -length if match["sign"] == "-" else length


_Reader = Callable[[Any], object]
_READERS: Final[tuple[tuple[Callable[[pa.DataType], bool], _Reader], ...]] = (
    (pt.is_floating, _read_float),
    (pt.is_decimal, _read_decimal),
    (pt.is_binary, _read_binary),
    (pt.is_date, _read_iso(_DATE, date.fromisoformat, "2026-11-15")),
    (pt.is_timestamp, _read_iso(_TIMESTAMP, datetime.fromisoformat, "2026-11-15T08:00:00.000000Z")),
    (pt.is_time, _read_iso(_TIME, time.fromisoformat, "08:00:00.000000")),
    (pt.is_duration, _read_iso(_DURATION, _read_duration, "PT93784.500000S")),
)
