"""Strings and binaries: case, length, cutting, joining, padding, trimming.

Law: a character is a Unicode code point, as in Spark's UTF8String; never a UTF-16 unit, never a
byte. Case mappings are ICU's full ones, so a string may change its length. Searching is in
searching.py, encodings in encodings.py, printing numbers in printf.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import AnyStr, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.alignment import on_arrays
from penstock.ops.functions.arrays import concat_arrays, reverse_arrays
from penstock.ops.functions.branches import evaluate_where
from penstock.ops.functions.failures import fail_where
from penstock.ops.functions.operands import Operands
from penstock.ops.functions.registry import Argument, Compiled, Datum, function, special_form
from penstock.ops.functions.rows import each, each_with_nulls
from penstock.ops.functions.slices import Layout, substring_rows
from penstock.plan.exprs import Call

#: Letters with case that Unicode got after 14.0, which Python 3.11 has: (first lower-case letter,
#: first upper-case letter, how many follow each other). ICU 78 in Spark 4.3 has Unicode 17.
_NEWER_CASES: Final = (
    (0x019B, 0xA7DC, 1),
    (0x0264, 0xA7CB, 1),
    (0x1C8A, 0x1C89, 1),
    (0xA7CD, 0xA7CC, 1),
    (0xA7CF, 0xA7CE, 1),
    (0xA7D3, 0xA7D2, 1),
    (0xA7D5, 0xA7D4, 1),
    (0xA7DB, 0xA7DA, 1),
    (0x10D70, 0x10D50, 22),
    (0x16EBB, 0x16EA0, 25),
)
_TO_UPPER: Final = {low + i: up + i for low, up, count in _NEWER_CASES for i in range(count)}
_TO_LOWER: Final = {up: low for low, up in _TO_UPPER.items()}
_SIGMA: Final = "\u03a3"
#: What is trimmed unless the call says otherwise; no other white space.
_SPACE: Final = pa.scalar(" ")
#: Longer than any string, from wherever one counts.
_TO_THE_END: Final = 2**33


# -- case


@function("Upper", sql="upper ucase", raises=False)
def upper(call: Call, value: Datum) -> Datum:
    return _change_case(value, pc.ascii_upper, to_upper)


@function("Lower", sql="lower lcase", raises=False)
def lower(call: Call, value: Datum) -> Datum:
    return _change_case(value, pc.ascii_lower, to_lower)


@function("InitCap", sql="initcap", raises=False)
def init_cap(call: Call, value: Datum) -> Datum:
    return each(call.type, to_title, value)


def _change_case(
    value: Datum, kernel: Callable[[Datum], Datum], change: Callable[[str], str]
) -> Datum:
    """Arrow's own Unicode kernels map one character to one, so they serve for ASCII only."""
    if isinstance(value, pa.Array) and Layout.of(value).is_ascii:
        return kernel(value)
    return each(value.type, change, value)


def to_upper(text: str) -> str:
    return text.upper().translate(_TO_UPPER)


def to_lower(text: str) -> str:
    return text.lower().translate(_TO_LOWER)


def to_title(text: str) -> str:
    """The first letter of every word in title case, all others in lower case; spaces part words."""
    cased = []
    is_first = True
    for index, letter in enumerate(text):
        if is_first:
            cased.append(letter.title().translate(_TO_UPPER))
        elif letter == _SIGMA:  # how it is lowered depends on its neighbours
            cased.append(text.lower()[len(text[:index].lower())])
        else:
            cased.append(to_lower(letter))
        is_first = letter == " "
    return "".join(cased)


# -- length


@function("Length", sql="length len char_length character_length", raises=False)
def length(call: Call, value: Datum) -> Datum:
    """Characters of a string, bytes of a binary."""
    return pc.utf8_length(value) if pa.types.is_string(value.type) else pc.binary_length(value)


@function("OctetLength", sql="octet_length", raises=False)
def octet_length(call: Call, value: Datum) -> Datum:
    return pc.binary_length(value)


@function("BitLength", sql="bit_length", raises=False)
def bit_length(call: Call, value: Datum) -> Datum:
    return pc.multiply(pc.binary_length(value), pa.scalar(8, pa.int32()))


# -- cutting


@function("Substring", sql="substring substr left right", raises=False, strict=True)
def substring(call: Call, value: Datum, position: Datum, length: Datum) -> Datum:
    """Ints count from 1, negative ones from the end; 0 is as 1."""
    bounds = _constant_bounds(position, length)
    if bounds is None:
        return _substring_rows(call, value, position, length)
    kernel = pc.utf8_slice_codeunits if pa.types.is_string(call.type) else pc.binary_slice
    return kernel(value, start=bounds[0], stop=bounds[1])


def _constant_bounds(position: Datum, length: Datum) -> tuple[int, int | None] | None:
    """Start and stop as Arrow's slices have them, if they are the same for all rows."""
    if not (isinstance(position, pa.Scalar) and isinstance(length, pa.Scalar)):
        return None
    first, count = position.as_py(), length.as_py()
    if first is None or count is None:
        return None
    start = first - 1 if first > 0 else first
    stop = start + max(count, 0)
    # Counted from the end, a stop at or beyond the end is no stop at all.
    return start, None if start < 0 <= stop else stop


@on_arrays
def _substring_rows(call: Call, value: pa.Array, position: pa.Array, length: pa.Array) -> pa.Array:
    operands = Operands(position, length)
    cut = substring_rows(value, *operands.vectors)
    return cut if operands.nulls is None else pc.if_else(pa.array(operands.nulls), None, cut)


@function("Overlay", sql="overlay", raises=False, strict=True)
def overlay(call: Call, value: Datum, new: Datum, position: Datum, length: Datum) -> Datum:
    """Replace so many characters from a position on."""
    # Four arguments, each with its own length: no kernel replaces at positions that vary.
    return each(call.type, _overlay, value, new, position, length)


def _overlay(text: AnyStr, new: AnyStr, position: int, length: int) -> AnyStr:
    count = length if length >= 0 else len(new)
    head = _substring(text, 1, position - 1)
    return head + new + _substring(text, position + count, _TO_THE_END)


def _substring(text: AnyStr, position: int, length: int) -> AnyStr:
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    return text[max(start, 0) : max(start + length, 0)]


# -- joining


@function("Concat", sql="concat ||", raises=False)
def concat(call: Call, *values: Datum) -> Datum:
    """Null if one of them is; for strings, binaries and arrays."""
    if pa.types.is_list(call.type):
        return on_arrays(concat_arrays)(call, *values)
    return pc.binary_join_element_wise(*values, pa.scalar("", call.type))


@function("ConcatWs", sql="concat_ws", raises=False)
def concat_with_separator(call: Call, separator: Datum, *values: Datum) -> Datum:
    """Nulls are left out; null only if the separator is."""
    if isinstance(separator, pa.Scalar) and not any(pa.types.is_list(v.type) for v in values):
        return _join(separator, values)
    # Arrays bring any number of parts per row, nulls among them, which Arrow's join does not skip.
    return each_with_nulls(call.type, _join_row, separator, *values)


def _join(separator: pa.Scalar, values: tuple[Datum, ...]) -> Datum:
    if not separator.is_valid or not values:
        rows = next((len(v) for v in values if isinstance(v, pa.Array)), None)
        nothing = separator if not separator.is_valid else pa.scalar("", separator.type)
        return nothing if rows is None else pa.repeat(nothing, rows)
    # Every part brings its separator along; the first one is cut off again.
    parts = [pc.binary_join_element_wise(separator, value, "") for value in values]
    joined = pc.binary_join_element_wise(*(pc.fill_null(part, "") for part in parts), "")
    return pc.utf8_slice_codeunits(joined, start=len(separator.as_py()))


def _join_row(separator: str | None, *values: str | list[str | None] | None) -> str | None:
    if separator is None:
        return None
    parts: list[str] = []
    for value in values:
        if isinstance(value, list):
            parts.extend(part for part in value if part is not None)
        elif value is not None:
            parts.append(value)
    return separator.join(parts)


@function("StringRepeat", sql="repeat", raises=False, strict=True)
def repeat(call: Call, value: Datum, times: Datum) -> Datum:
    return pc.binary_repeat(value, _not_negative(times))


@function("StringSpace", sql="space", raises=False)
def space(call: Call, times: Datum) -> Datum:
    return pc.binary_repeat(_SPACE, _not_negative(times))


def _not_negative(times: Datum) -> Datum:
    return pc.max_element_wise(times, pa.scalar(0, pa.int32()), skip_nulls=False)


@function("Reverse", sql="reverse", raises=False)
def reverse(call: Call, value: Datum) -> Datum:
    if pa.types.is_list(call.type):
        return on_arrays(reverse_arrays)(call, value)
    return pc.utf8_reverse(value)


@special_form("Elt", sql="elt", raises=lambda call: call.is_ansi)
def elt(call: Call, args: list[Argument]) -> Compiled:
    """The n-th of the other arguments; only that one is evaluated."""
    index, *choices = args

    @on_arrays
    def places(call: Call, value: pa.Array) -> pa.Array:
        outside = pc.or_(pc.less(value, 1), pc.greater(value, len(choices)))
        if call.is_ansi:
            fail_where(outside, "INVALID_ARRAY_INDEX")
        return value

    def chosen(batch: pa.RecordBatch) -> Datum:
        value = places(call, index(batch))
        wanted = pa.repeat(value, batch.num_rows) if isinstance(value, pa.Scalar) else value
        numbers = pc.fill_null(wanted, 0).to_numpy(zero_copy_only=False)
        result = pa.nulls(batch.num_rows, call.type)
        for number, choice in enumerate(choices, 1):
            rows = numbers == number
            result = pc.if_else(
                pa.array(rows), evaluate_where(choice, batch, rows, call.type), result
            )
        return result

    return chosen


# -- padding and trimming


@function("StringLPad", "ByteArray.lpad", sql="lpad", raises=False, strict=True)
def pad_left(call: Call, value: Datum, width: Datum, fill: Datum) -> Datum:
    padded = _pad_characters(pc.utf8_lpad, value, width, fill)
    return padded if padded is not None else each(call.type, _pad_left, value, width, fill)


@function("StringRPad", "ByteArray.rpad", sql="rpad", raises=False, strict=True)
def pad_right(call: Call, value: Datum, width: Datum, fill: Datum) -> Datum:
    padded = _pad_characters(pc.utf8_rpad, value, width, fill)
    return padded if padded is not None else each(call.type, _pad_right, value, width, fill)


def _pad_characters(
    kernel: Callable[..., Datum], value: Datum, width: Datum, fill: Datum
) -> Datum | None:
    """With one character, to a constant width: what Arrow can do. Too long a string is cut."""
    if not (isinstance(width, pa.Scalar) and isinstance(fill, pa.Scalar) and width.is_valid):
        return None
    if not pa.types.is_string(fill.type) or not fill.is_valid or len(fill.as_py()) != 1:
        return None
    count = max(width.as_py(), 0)
    padded = kernel(value, width=count, padding=fill.as_py())
    return pc.utf8_slice_codeunits(padded, start=0, stop=count)


def _pad_left(text: AnyStr, width: int, fill: AnyStr) -> AnyStr:
    return _filling(text, width, fill) + text[: max(width, 0)]


def _pad_right(text: AnyStr, width: int, fill: AnyStr) -> AnyStr:
    return text[: max(width, 0)] + _filling(text, width, fill)


def _filling(text: AnyStr, width: int, fill: AnyStr) -> AnyStr:
    missing = max(width - len(text), 0)
    return (fill * (missing // len(fill) + 1))[:missing] if fill else fill


@function("StringTrim", sql="trim btrim", raises=False, strict=True)
def trim(call: Call, value: Datum, *characters: Datum) -> Datum:
    return _trim(call, pc.utf8_trim, str.strip, value, *characters)


@function("StringTrimLeft", sql="ltrim", raises=False, strict=True)
def trim_left(call: Call, value: Datum, *characters: Datum) -> Datum:
    return _trim(call, pc.utf8_ltrim, str.lstrip, value, *characters)


@function("StringTrimRight", sql="rtrim", raises=False, strict=True)
def trim_right(call: Call, value: Datum, *characters: Datum) -> Datum:
    return _trim(call, pc.utf8_rtrim, str.rstrip, value, *characters)


def _trim(
    call: Call,
    kernel: Callable[..., Datum],
    strip: Callable[[str, str], str],
    value: Datum,
    characters: Datum = _SPACE,
) -> Datum:
    if isinstance(characters, pa.Scalar) and characters.is_valid:
        return kernel(value, characters=characters.as_py())
    return each(call.type, strip, value, characters)


# -- characters


@function("Ascii", sql="ascii", raises=False)
def ascii_(call: Call, value: Datum) -> Datum:
    """The code point of the first character, 0 if there is none."""
    first = pc.utf8_slice_codeunits(value, start=0, stop=1)
    return each(call.type, lambda letter: ord(letter) if letter else 0, first)


#: chr() knows the first 256 characters, and at the end of them none.
_CHARACTERS: Final = pa.array([chr(code) for code in range(256)] + [""])


@function("Chr", sql="chr char", raises=False)
@on_arrays
def chr_(call: Call, value: pa.Array) -> pa.Array:
    operands = Operands(value)
    codes = operands.vectors[0]
    return _CHARACTERS.take(pa.array(np.where(codes < 0, 256, codes & 255), mask=operands.nulls))


@function("StringTranslate", sql="translate", raises=False, strict=True)
def translate(call: Call, value: Datum, old: Datum, new: Datum) -> Datum:
    # Arrow replaces one text at a time; all replacements at once need Python's tables.
    return each(call.type, lambda text, a, b: text.translate(_table(a, b)), value, old, new)


@lru_cache(maxsize=64)
def _table(old: str, new: str) -> dict[int, str]:
    """Characters beyond the end of `new` are deleted; of equal ones the first counts."""
    table: dict[int, str] = {}
    for index, letter in enumerate(old):
        table.setdefault(ord(letter), new[index : index + 1])
    return table
