"""Objects of one shape, read by NumPy: the fastest path of from_json.

Whoever writes a stream of JSON mostly writes the same names in the same order, with the same
blanks. The shape of such texts is taken from one of them: fixed pieces, and between two pieces a
value. Quotes tell where the pieces are; if all of them are where they must be, and every value is
of a plain form, nothing is left to parse.

Law: a row that is answered here has the answer of the exact path (json_values.py). What is not
plain (an escape, an exponent, an object inside) is not answered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.functions.alignment import Ints, Mask, null_where
from penstock.ops.functions.bytes_at import (
    Bytes,
    Windows,
    mask_of,
    number_of,
    stands_at,
    text_bytes,
    windows_of,
)
from penstock.ops.functions.plain_times import read_plain_times

_QUOTE: Final = ord('"')
_ZERO, _MINUS, _POINT = ord("0"), ord("-"), ord(".")
_FIELD: Final = re.compile(rb' *[{,] *"([^"\\]*)" *: *(?:("[^"\\]*")|([^ ",:{}\[\]]+))')
_END: Final = re.compile(rb" *\} *")
#: Which bytes a number may have.
_IN_NUMBERS: Final = {
    has_point: np.isin(np.arange(256), list(b"-0123456789" + b"." * has_point))
    for has_point in (True, False)
}
#: Digits that fit a long; and of a double, so many that it cannot be infinite.
_DIGITS_MAX: Final = {True: 18, False: 40}


@dataclass(frozen=True, slots=True)
class _Value:
    """What stands between two pieces."""

    name: str
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """The fixed pieces of a text, one more than values."""

    pieces: tuple[bytes, ...]
    values: tuple[_Value, ...]

    @property
    def quotes(self) -> int:
        """How many of them a text has."""
        return sum(piece.count(b'"') for piece in self.pieces)


def shape_of(text: str) -> Shape | None:
    """The shape of a flat object; None for anything else."""
    data = text.encode()
    pieces: list[bytes] = []
    values: list[_Value] = []
    at = begun = 0
    while (field := _FIELD.match(data, at)) is not None:
        if (b"{" in data[at : field.start(1)]) != (at == 0):
            return None
        is_quoted = field[2] is not None
        start, end = field.span(2 if is_quoted else 3)
        pieces.append(data[begun : start + is_quoted])
        begun = end - is_quoted
        values.append(_Value(field[1].decode(), is_quoted))
        at = end
    names = {value.name for value in values}
    if not values or len(names) < len(values) or _END.fullmatch(data, at) is None:
        return None
    return Shape((*pieces, data[begun:]), tuple(values))


class Texts:
    """The texts of a batch, with all their quotes."""

    def __init__(self, texts: pa.Array) -> None:
        self.data, self.offsets = text_bytes(texts)
        self.quotes = np.flatnonzero(self.data == _QUOTE)
        self.first_quote = _first_quotes(self.quotes, self.offsets)
        self.counts = np.diff(self.first_quote)
        lengths = np.diff(self.offsets)
        self.windows = windows_of(self.data, int(lengths.max(initial=0)))
        self.buffer = pa.py_buffer(self.data)


def _first_quotes(quotes: Ints, offsets: Ints) -> Ints:
    """Which quote is the first of each text; cheaply, if all texts have as many."""
    rows = len(offsets) - 1
    if rows and len(quotes) and len(quotes) % rows == 0:
        each = len(quotes) // rows
        by_rows = quotes.reshape(rows, each)
        if (by_rows[:, 0] >= offsets[:-1]).all() and (by_rows[:, -1] < offsets[1:]).all():
            return np.arange(0, len(quotes) + 1, each)
    return np.searchsorted(quotes, offsets)


class ShapeReader:
    """Reads texts of one shape into one struct type; None where they cannot be."""

    def __init__(self, shape: Shape, type: pa.DataType) -> None:
        self._shape = shape
        self._fields = list(type)
        self._wanted = {field.name: field.type for field in self._fields}

    def read(self, texts: Texts, rows: Ints) -> tuple[Ints, pa.Array] | None:
        """Those of the rows that have the shape and plain values, and their structs."""
        rows = rows[texts.counts[rows] == self._shape.quotes]
        rows, bounds = self._find(texts, rows)
        if not len(rows):
            return None
        columns: dict[str, pa.Array] = {}
        plain = np.ones(len(rows), bool)
        for value, (starts, ends) in zip(self._shape.values, bounds, strict=True):
            type = self._wanted.get(value.name)
            if value.is_quoted and type is None:
                continue
            read = _quoted if value.is_quoted else _bare
            column, odd = read(texts, starts, ends, type)
            plain &= ~odd
            if type is not None:
                columns[value.name] = column
        if not plain.any():
            return None
        inner = [
            columns[field.name] if field.name in columns else pa.nulls(len(rows), field.type)
            for field in self._fields
        ]
        structs = pa.StructArray.from_arrays(inner, fields=self._fields)
        return (rows, structs) if plain.all() else (rows[plain], structs.filter(pa.array(plain)))

    def _find(self, texts: Texts, rows: Ints) -> tuple[Ints, list[tuple[Ints, Ints]]]:
        """Rows in which every piece is in its place, and where the values begin and end."""
        pieces = self._shape.pieces
        begins, ends = texts.offsets[rows], texts.offsets[rows + 1]
        first = texts.first_quote[rows]
        found = np.ones(len(rows), bool)
        before = begins
        seen = 0
        places = []
        for number, piece in enumerate(pieces):
            quote = piece.find(b'"')
            if quote < 0:  # only the last piece can be without
                starts = ends - len(piece)
            else:
                starts = texts.quotes[first + seen] - quote
                seen += piece.count(b'"')
            if number == 0:
                found &= starts == begins
            else:
                least = 0 if self._shape.values[number - 1].is_quoted else 1
                found &= starts - before >= least
                places.append((before, starts))
            found &= stands_at(texts.windows, starts, piece)
            before = starts + len(piece)
        found &= before == ends
        if found.all():
            return rows, places
        return rows[found], [(start[found], end[found]) for start, end in places]


def _strings(texts: Texts, starts: Ints, ends: Ints) -> pa.Array:
    """What stands between: every other one of the texts that begin and end there."""
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    both = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), texts.buffer)
    return both.take(pa.array(np.arange(0, len(offsets), 2)))


def _quoted(
    texts: Texts, starts: Ints, ends: Ints, type: pa.DataType
) -> tuple[pa.Array | None, Mask]:
    if pt.is_string(type):
        return _strings(texts, starts, ends), np.zeros(len(starts), bool)
    if pt.is_temporal(type):
        return read_plain_times(_strings(texts, starts, ends), type)
    return None, np.ones(len(starts), bool)


def _bare(
    texts: Texts, starts: Ints, ends: Ints, type: pa.DataType | None
) -> tuple[pa.Array | None, Mask]:
    """Numbers and words; of no type if only their grammar counts."""
    lengths = ends - starts
    words = texts.windows[starts]
    is_null = _is_word(words, lengths, b"null")
    if type is None or pt.is_boolean(type):
        is_true = _is_word(words, lengths, b"true")
        plain = is_null | is_true | _is_word(words, lengths, b"false")
        if type is not None:
            return pa.array(is_true, mask=is_null), ~plain
        return None, ~(plain | _plain_numbers(_strings(texts, starts, ends), has_point=True))
    if not (pt.is_integer(type) or pt.is_floating(type)):
        return pa.nulls(len(starts), type), ~is_null
    return _read_numbers(_strings(texts, starts, ends), type, is_null)


def _is_word(words: Windows, lengths: Ints, word: bytes) -> Mask:
    is_word = (words & mask_of(len(word))) == number_of(word)
    return np.asarray(is_word & (lengths == len(word)))


def _read_numbers(texts: pa.Array, type: pa.DataType, is_null: Mask) -> tuple[pa.Array, Mask]:
    """The numbers, and which texts are not of a plain form, or not to be read here."""
    if not is_null.any() and _look_plain(texts, has_point=bool(pt.is_floating(type))):
        try:
            return _numbers(texts, type)
        except pa.ArrowInvalid:
            pass  # one of them is no number at all
    odd = ~_plain_numbers(texts, has_point=bool(pt.is_floating(type)))
    values, wrong = _numbers(null_where(texts, odd), type)
    return values, (odd | wrong) & ~is_null


def _look_plain(texts: pa.Array, *, has_point: bool) -> bool:
    """Whether all are plain numbers or, what Arrow will say, no numbers."""
    data, offsets = text_bytes(texts)
    if not _IN_NUMBERS[has_point][data].all():
        return False
    first = offsets[:-1] + (data[offsets[:-1]] == _MINUS)
    lengths = offsets[1:] - first
    if lengths.min() < 1 or lengths.max() > _DIGITS_MAX[not has_point]:
        return False
    begin = data[first]
    leads = (begin == _ZERO) & (lengths > 1)
    if leads.any() and (data[first[leads] + 1] != _POINT).any():
        return False
    return not has_point or bool(((begin != _POINT) & (data[offsets[1:] - 1] != _POINT)).all())


def _plain_numbers(texts: pa.Array, *, has_point: bool) -> Mask:
    """Digits as JSON has them, behind a minus or not, with some behind a point or not."""
    data, offsets = text_bytes(texts)
    starts, ends = offsets[:-1], offsets[1:]
    first = starts + (data[starts] == _MINUS)
    lengths = ends - first
    plain = (lengths > 0) & (lengths <= _DIGITS_MAX[not has_point])
    odd = np.flatnonzero(data - np.uint8(_ZERO) > 9)
    plain &= _fits_others(data, odd, starts, ends, first, has_point=has_point)
    last = len(data) - 1
    leads = (data[np.minimum(first, last)] == _ZERO) & (lengths > 1)
    plain &= ~(leads & (data[np.minimum(first + 1, last)] != _POINT))
    return np.asarray(plain)


def _fits_others(
    data: Bytes, odd: Ints, starts: Ints, ends: Ints, first: Ints, *, has_point: bool
) -> Mask:
    """Whether what is no digit is a minus in front, or one point between digits."""
    rows = np.searchsorted(starts, odd, side="right") - 1
    in_front = (odd == starts[rows]) & (data[odd] == _MINUS)
    point = (data[odd] == _POINT) & (odd > first[rows]) & (odd + 1 < ends[rows])
    points = np.bincount(rows[point], minlength=len(starts))
    fits = np.ones(len(starts), bool)
    fits[rows[~(in_front | point)]] = False
    return fits & (points <= (1 if has_point else 0))


def _numbers(texts: pa.Array, type: pa.DataType) -> tuple[pa.Array, Mask]:
    """The values, and those that are not the exact path's: too large, or a negative zero."""
    if pt.is_floating(type):
        doubles = texts.cast(type)
        values = doubles.fill_null(1.0).to_numpy(zero_copy_only=False)
        return doubles, np.asarray((values == 0.0) & np.signbit(values))
    longs = texts.cast(pa.int64())
    if pt.is_int64(type):
        return longs, np.zeros(len(texts), bool)
    limits = np.iinfo(type.to_pandas_dtype())
    values = longs.fill_null(0).to_numpy(zero_copy_only=False)
    return longs.cast(type, safe=False), np.asarray((values < limits.min) | (values > limits.max))
