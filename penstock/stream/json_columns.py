"""Rows as JSON to record batches, column by column: lines of JSON, or one array of objects.

Owns the fast way in. Text becomes Python values in C, values become Arrow columns by kernels, and
texts of dates, times and decimals are checked and converted as whole columns. Whatever is not plain
goes the exact way, row by row (json_lines.py): a rarer spelling, a value that does not fit.

Law: both ways take the same rows, make equal batches of them, cut at the same rows, and so does a
replay; what is refused is refused by the exact way, in its words.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.errors import TooLarge
from penstock.stream.batches import find_batch_misfit
from penstock.stream.json_lines import BLANK, row_from_json, rows_from_json_array
from penstock.stream.rows import BATCH_ROWS_MAX, to_batches

#: A line with its number, which names it in errors.
NumberedLine = tuple[int, bytes]

_NONE: Final = type(None)
#: Arrow reads dates and times as we do, and a few forms more, which are shorter (2026-11-15T08) or
#: longer (nanoseconds) than any of ours. A pattern would say the same, and cost five times as much.
_DATE_CHARS: Final = (10, 10)
_TIME_CHARS: Final = (len("08:00"), len("08:00:00.000000"))
_NAIVE_CHARS: Final = (len("2026-11-15T08:00"), len("2026-11-15T08:00:00.000000"))
_UTC_CHARS: Final = (_NAIVE_CHARS[0] + 1, _NAIVE_CHARS[1] + 1)
#: With an offset, length does not tell them apart.
_ZONED_PATTERN: Final = (
    r"^.{10}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
    r"(Z|[+-]([01][0-9]|2[0-3]):?[0-5][0-9])$"
)
#: As rows_to_json_lines writes it; twelve digits of seconds stay far below an overflow.
_DURATION_PATTERN: Final = r"^(?P<sign>-?)PT(?P<seconds>[0-9]{1,12})\.(?P<micros>[0-9]{6})S$"
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
#: Integers up to here are floats without loss.
_FLOAT32_INT_MAX: Final = 2**24


class _NotPlain(Exception):
    """The exact way must look at it."""


#: Whatever JSON, Python and Arrow raise for text and values that are not plain.
_NOT_PLAIN: Final = (
    _NotPlain,
    pa.ArrowException,
    ValueError,
    TypeError,
    ArithmeticError,
    RecursionError,
)


def lines_to_batches(lines: Sequence[NumberedLine], schema: pa.Schema) -> list[pa.RecordBatch]:
    """The rows of lines that are not blank; BadRow names line and column."""
    try:
        return _to_batches(_parse_lines(lines, schema), schema)
    except _NOT_PLAIN:
        rows = [row_from_json(line, schema, line=number) for number, line in lines]
    return to_batches(rows, schema)


def array_to_batches(
    text: bytes, schema: pa.Schema, *, rows_max: int | None = None
) -> list[pa.RecordBatch]:
    """The rows of an array of objects, or of one object; BadRow names row (from 0) and column.

    TooLarge for more than `rows_max`: a row may be two bytes, and has a cell in each column.
    """
    try:
        parsed = _decoder(schema).decode(text.decode())
        if rows_max is not None and type(parsed) is list and len(parsed) > rows_max:
            raise TooLarge(f"over {rows_max} rows at once")
        return _to_batches([parsed] if type(parsed) is dict else parsed, schema)
    except _NOT_PLAIN:
        rows = rows_from_json_array(text, schema, rows_max=rows_max)
    return to_batches(rows, schema)


def number_lines(text: bytes) -> list[NumberedLine]:
    """The lines of a text that are not blank, numbered from 1."""
    return [(number, line) for number, line in enumerate(text.split(b"\n"), 1) if line.strip()]


def _decoder(schema: pa.Schema) -> json.JSONDecoder:
    # Numbers with a point stay exact only if there is a column that tells the difference.
    parse_float = Decimal if any(map(_has_decimal, schema.types)) else None
    return json.JSONDecoder(
        object_pairs_hook=_unique, parse_float=parse_float, parse_constant=_refuse_constant
    )


def _has_decimal(arrow_type: pa.DataType) -> bool:
    nested = range(arrow_type.num_fields)
    return bool(pt.is_decimal(arrow_type)) or any(
        _has_decimal(arrow_type.field(place).type) for place in nested
    )


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _NotPlain
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise _NotPlain(name)


def _parse_lines(lines: Sequence[NumberedLine], schema: pa.Schema) -> list[Any]:
    texts = [line.decode().strip(BLANK) for _, line in lines]
    scan = _decoder(schema).raw_decode
    # A call for each line, which C does by itself: joined, two broken lines could make a whole one.
    scanned = [scan(text) for text in texts]
    if [end for _, end in scanned] != list(map(len, texts)):
        raise _NotPlain
    return [row for row, _ in scanned]


def _to_batches(rows: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    if type(rows) is not list or set(map(type, rows)) - {dict}:
        raise _NotPlain
    if set(itertools.chain.from_iterable(rows)) - set(schema.names):
        raise _NotPlain
    batches: list[pa.RecordBatch] = []
    for start in range(0, len(rows), BATCH_ROWS_MAX):
        chunk = rows[start : start + BATCH_ROWS_MAX]
        arrays = [
            _to_column([row.get(name) for row in chunk], arrow_type)
            for name, arrow_type in zip(schema.names, schema.types, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if find_batch_misfit(batch, schema) is not None:
            raise _NotPlain
        batches.append(batch)
    return batches


def _to_column(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """A column of values as JSON has them. Raises _NotPlain, or what Arrow raises."""
    kinds = set(map(type, values)) - {_NONE}
    if not kinds:
        return pa.nulls(len(values), arrow_type)
    for is_kind, taken, make in _MAKERS:
        if is_kind(arrow_type):
            if not kinds <= taken:
                break
            array = make(values, arrow_type)
            if not isinstance(array, pa.Array):  # beyond 2 GiB
                break
            return array
    raise _NotPlain


def _make_plain(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    return pa.array(values, arrow_type)


def _make_double(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    # Arrow has no way from Python's decimals to floats; where there are none, nothing is done.
    if Decimal in set(map(type, values)):
        values = [float(value) if type(value) is Decimal else value for value in values]
    array = pa.array(values, arrow_type)
    if np.isinf(array.to_numpy(zero_copy_only=False)).any():
        raise _NotPlain  # a number beyond the range: infinity itself is text
    return array


def _make_float(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    array = _make_double(values, pa.float64())
    sizes = np.abs(array.to_numpy(zero_copy_only=False))
    is_int = np.array([type(value) is int for value in values])
    if (sizes > _FLOAT32_MAX).any() or (sizes[is_int] > _FLOAT32_INT_MAX).any():
        raise _NotPlain
    return array.cast(arrow_type, safe=False)


def _make_decimal(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    kinds = set(map(type, values)) - {_NONE}
    if str not in kinds:
        return pa.array(values, arrow_type)
    if kinds != {str}:
        raise _NotPlain
    fraction = rf"(\.[0-9]{{1,{arrow_type.scale}}})?" if arrow_type.scale else ""
    return _matched(values, f"^-?[0-9]{{1,38}}{fraction}$").cast(arrow_type)


def _make_binary(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    # One by one: Arrow has no kernel for base64.
    decode = base64.b64decode
    decoded = [None if text is None else decode(text, validate=True) for text in values]
    return pa.array(decoded, arrow_type)


def _matched(values: list[Any], pattern: str) -> pa.Array:
    texts = pa.array(values, pa.string())
    if not pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py():
        raise _NotPlain
    return texts


def _of_length(values: list[Any], chars: tuple[int, int]) -> bool:
    lengths = set(map(len, (text for text in values if text is not None)))
    return chars[0] <= min(lengths) and max(lengths) <= chars[1]


def _make_date(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    return _cast_texts(values, arrow_type, _DATE_CHARS)


def _make_time(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    if not _of_length(values, _TIME_CHARS):
        raise _NotPlain
    # Arrow reads no times by themselves.
    whole = [None if text is None else f"1970-01-01T{text}" for text in values]
    return pa.array(whole, pa.string()).cast(pa.timestamp("ns")).view(arrow_type)


def _cast_texts(values: list[Any], arrow_type: pa.DataType, chars: tuple[int, int]) -> pa.Array:
    if not _of_length(values, chars):
        raise _NotPlain
    return pa.array(values, pa.string()).cast(arrow_type)


def _make_timestamp(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    if arrow_type.tz is None:
        return _cast_texts(values, arrow_type, _NAIVE_CHARS)
    last = {text[-1:] for text in values if text is not None}
    if last == {"Z"}:
        return _cast_texts(values, arrow_type, _UTC_CHARS)
    try:
        return _matched(values, _ZONED_PATTERN).cast(arrow_type)
    except _NotPlain:
        # Without a zone it is UTC.
        return _cast_texts(values, pa.timestamp("us"), _NAIVE_CHARS).view(arrow_type)


def _make_duration(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    texts = _matched(values, _DURATION_PATTERN)
    filled = pc.fill_null(texts, "PT0.000000S")
    parts = pc.extract_regex(filled, pattern=_DURATION_PATTERN)
    seconds = parts.field("seconds").cast(pa.int64())
    micros = pc.add(pc.multiply(seconds, 1_000_000), parts.field("micros").cast(pa.int64()))
    signed = pc.if_else(pc.equal(parts.field("sign"), "-"), pc.negate(micros), micros)
    return pc.if_else(texts.is_valid(), signed, None).cast(arrow_type)


def _offsets(values: list[Any]) -> tuple[pa.Array, pa.Array | None]:
    """Where each list begins and the last one ends; which of them are null."""
    lengths = [0, *(0 if value is None else len(value) for value in values)]
    nulls = pa.array([value is None for value in values]) if None in values else None
    return pa.array(np.cumsum(lengths), pa.int32()), nulls


def _make_list(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    elements = list(itertools.chain.from_iterable(filter(None, values)))
    offsets, nulls = _offsets(values)
    children = _to_column(elements, arrow_type.value_type)
    return pa.ListArray.from_arrays(offsets, children, type=arrow_type, mask=nulls)


def _make_map(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    if not pt.is_string(arrow_type.key_type):
        raise _NotPlain
    keys = list(itertools.chain.from_iterable(filter(None, values)))
    items = list(itertools.chain.from_iterable(map(dict.values, filter(None, values))))
    offsets, nulls = _offsets(values)
    return pa.MapArray.from_arrays(
        offsets,
        _to_column(keys, arrow_type.key_type),
        _to_column(items, arrow_type.item_type),
        type=arrow_type,
        mask=nulls,
    )


def _make_struct(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    fields = list(arrow_type)
    given: Iterator[str] = itertools.chain.from_iterable(filter(None, values))
    if not fields or set(given) - {field.name for field in fields}:
        raise _NotPlain
    filled = [value or {} for value in values]
    children = [
        _to_column([value.get(name) for value in filled], child)
        for name, child in ((field.name, field.type) for field in fields)
    ]
    nulls = pa.array([value is None for value in values]) if None in values else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)


_Maker = Callable[[list[Any], pa.DataType], pa.Array]
#: For each kind of type, the Python types that its values may have, and what makes a column.
_MAKERS: Final[tuple[tuple[Callable[[pa.DataType], bool], frozenset[type], _Maker], ...]] = (
    (pt.is_integer, frozenset({int}), _make_plain),
    (pt.is_string, frozenset({str}), _make_plain),
    (pt.is_boolean, frozenset({bool}), _make_plain),
    (pt.is_float64, frozenset({float, int, Decimal}), _make_double),
    (pt.is_float32, frozenset({float, int, Decimal}), _make_float),
    (pt.is_timestamp, frozenset({str}), _make_timestamp),
    (pt.is_date, frozenset({str}), _make_date),
    (pt.is_time, frozenset({str}), _make_time),
    (pt.is_decimal, frozenset({str, int, Decimal}), _make_decimal),
    (pt.is_binary, frozenset({str}), _make_binary),
    (pt.is_duration, frozenset({str}), _make_duration),
    (pt.is_list, frozenset({list}), _make_list),
    (pt.is_struct, frozenset({dict}), _make_struct),
    (pt.is_map, frozenset({dict}), _make_map),
)
