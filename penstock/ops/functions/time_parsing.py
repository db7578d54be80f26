"""Parse texts by a pattern, as Java's strict DateTimeFormatter does.

Java's parser never goes back: a number takes all digits that it may, unless numbers of fixed width
follow at once, for which it leaves room. The regular expression of a pattern says the same with
atomic groups. Texts in which every field has exactly its width, the usual case, are read without
it: as a matrix of bytes.

Law: both ways agree on every text that the matrix accepts; the rest goes to the expression.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.ops.functions import civil
from penstock.ops.functions.alignment import Ints, Mask
from penstock.ops.functions.time_patterns import (
    HALVES,
    MONTHS,
    Field,
    Optional,
    Text,
    Token,
    fields,
    tokens,
)

#: What a field is when its text is not there.
_DEFAULTS: Final = {"y": 1970, "M": 1, "d": 1, "D": 1, "k": 24, "h": 12}
#: The smallest and the largest legal value; days are checked with their month or year.
_RANGES: Final = {
    "H": (0, 23),
    "k": (1, 24),
    "h": (1, 12),
    "K": (0, 11),
    "m": (0, 59),
    "s": (0, 59),
}
#: Java reads numbers of at most so many digits.
_LONGEST: Final = 19


@dataclass(frozen=True, slots=True)
class Parsed:
    """Local times, the offsets that the texts state, and where a text is none of the pattern."""

    days: Ints
    micros: Ints
    #: None if the pattern has no offset.
    offsets: Ints | None
    #: Whether the text states an offset.
    has_offset: Mask
    wrong: Mask


@functools.lru_cache(maxsize=256)
def parser(pattern: str) -> Callable[[pa.Array], Parsed]:
    """What parses by this pattern. Raises UnknownPattern."""
    parts = tokens(pattern, is_parsing=True)
    counts = {_name(field): field.count for field in fields(parts)}
    expression = re.compile(_sequence(parts), re.IGNORECASE)
    layout = _layout(parts)

    def parse(texts: pa.Array) -> Parsed:
        values = {name: np.full(len(texts), _DEFAULTS.get(name, 0), np.int64) for name in counts}
        is_read = np.zeros(len(texts), bool)
        has_offset = np.zeros(len(texts), bool)
        if layout is not None:
            is_read = layout.read(texts, values)
        rest = np.flatnonzero(~is_read)
        if len(rest):
            _read_slowly(expression, counts, texts, rest, values, is_read, has_offset)
        return _resolve(values, has_offset, ~is_read)

    return parse


def _name(field: Field) -> str:
    """The field that letters of one meaning share."""
    return {"L": "M", "x": "X", "Z": "X"}.get(field.letter, field.letter)


# -- the expression


def _sequence(parts: tuple[Token, ...]) -> str:
    """The expression of parts in a row; room is left for numbers of fixed width that follow."""
    text = ""
    for place, part in enumerate(parts):
        match part:
            case Text(literal):
                text += re.escape(literal)
            case Optional(inner):
                text += f"(?>(?:{_sequence(inner)})?)"
            case Field():
                room = _room(parts, place)
                text += f"(?P<{_name(part)}>(?>{_field(part, room)}))"
    return text


def _room(parts: tuple[Token, ...], place: int) -> int:
    """How many digits a number must leave to those that follow it at once.

    Only the first of numbers in a row leaves room, and only if all others have a fixed width.
    """
    if place > 0 and isinstance(parts[place - 1], Field) and _is_fixed(parts[place]):
        before = parts[place - 1]
        if isinstance(before, Field) and _is_number(before):
            return 0
    room = 0
    for part in parts[place + 1 :]:
        if not isinstance(part, Field) or not _is_number(part):
            return room
        if not _is_fixed(part):
            return 0
        room += part.count
    return room


def _is_number(field: Field) -> bool:
    """Whether Java counts it among numbers in a row; a longer fraction it does not."""
    if field.letter in "aXxZ" or (field.letter in "ML" and field.count > 2):
        return False
    return field.letter != "S" or field.count == 1


def _is_fixed(part: Token) -> bool:
    if not isinstance(part, Field) or not _is_number(part):
        return False
    if part.letter == "D":
        return part.count == 3
    return part.letter == "S" or part.count == 2


def _field(field: Field, room: int) -> str:
    letter, count = field.letter, field.count
    match letter:
        case "S":
            return f"[0-9]{{1,{count}}}"
        case "a":
            return "|".join(HALVES)
        case "X" | "x" | "Z":
            return _offset(letter, count)
        case "M" | "L" if count > 2:
            names = MONTHS if count == 4 else [name[:3] for name in MONTHS]
            return "|".join(sorted(names, key=len, reverse=True))
        case "y" if count >= 4:
            plain = f"(?![0-9]{{{count + room + 1}}})[0-9]{{{count}}}"
            return f"-{_digits(count, room)}|\\+{_digits(count + 1, room)}|{plain}"
        case "D" if count == 2:
            return _digits(2, room, 3)
        case _ if _is_fixed(field):
            return f"[0-9]{{{count}}}"
        case _:
            return f"-?{_digits(count, room)}"


def _digits(least: int, room: int, most: int = _LONGEST) -> str:
    """As many digits as there are, without the last ones that need room."""
    if room == 0:
        return f"[0-9]{{{least},{most}}}"
    long = f"(?=[0-9]{{{least + room}}})[0-9]{{{least},{most}}}(?=[0-9]{{{room}}}(?![0-9]))"
    return f"(?:{long}|(?![0-9]{{{least + room}}})[0-9]{{{least}}})"


def _offset(letter: str, count: int) -> str:
    none = "Z|" if letter == "X" else ""
    if letter == "Z" or count == 2:
        return f"{none}[+-][0-9]{{2}}[0-5][0-9]"
    if count == 3:
        return f"{none}[+-][0-9]{{2}}:[0-5][0-9]"
    return f"{none}[+-][0-9]{{2}}(?:[0-5][0-9])?"


def _read_slowly(
    expression: re.Pattern[str],
    counts: dict[str, int],
    texts: pa.Array,
    rows: Ints,
    values: dict[str, Ints],
    is_read: Mask,
    has_offset: Mask,
) -> None:
    """Match each distinct text of these rows; there is no column kernel with atomic groups."""
    codes = texts.take(pa.array(rows)).dictionary_encode()
    places = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    for place, text in enumerate(codes.dictionary.to_pylist()):
        match = expression.fullmatch(text)
        if match is None:
            continue
        where = rows[places == place]
        groups = {name: group for name, group in match.groupdict().items() if group is not None}
        try:
            read = {name: _value(name, group, counts[name]) for name, group in groups.items()}
        except OverflowError:
            continue
        for name, value in read.items():
            values[name][where] = value
        is_read[where] = True
        has_offset[where] = "X" in groups


def _value(name: str, text: str, count: int) -> int:
    """The number that a field's text means. Raises OverflowError for what no field can be."""
    match name:
        case "a":
            return HALVES.index(text.upper())
        case "M" if count > 2:
            return 1 + [month[:3].upper() for month in MONTHS].index(text.upper()[:3])
        case "S":
            return int(text.ljust(6, "0")[:6])
        case "X":
            return _offset_seconds(text)
    value = int(text)
    if abs(value) > 999_999_999 or (value == 0 and text[0] == "-"):
        raise OverflowError
    return value + 2000 if name == "y" and count == 2 else value


def _offset_seconds(text: str) -> int:
    if text in "Zz":
        return 0
    digits = text[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:] or 0) * 60
    if seconds > 18 * 3600:
        raise OverflowError
    return -seconds if text[0] == "-" else seconds


# -- the matrix


@dataclass(frozen=True, slots=True)
class _Layout:
    """Texts of one width: which bytes are digits of which field, which are given."""

    width: int
    #: (field, first byte, number of bytes, what the number is multiplied with, what is added)
    numbers: tuple[tuple[str, int, int, int, int], ...]
    given: tuple[tuple[int, int], ...]

    def read(self, texts: pa.Array, values: dict[str, Ints]) -> Mask:
        """Fill the values of rows whose texts fit; where that is."""
        offsets = np.frombuffer(texts.buffers()[1], np.int32) if len(texts) else np.zeros(1, int)
        offsets = offsets[texts.offset : texts.offset + len(texts) + 1]
        fits = np.diff(offsets) == self.width
        if texts.null_count:
            fits &= texts.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(fits)
        if len(rows) == 0:
            return fits
        data = np.frombuffer(texts.buffers()[2], np.uint8)
        matrix = data[offsets[rows][:, None] + np.arange(self.width)]
        good = np.ones(len(rows), bool)
        for place, byte in self.given:
            good &= matrix[:, place] == byte
        read = {}
        for name, first, count, factor, base in self.numbers:
            digits = matrix[:, first : first + count] - ord("0")  # what is no digit is beyond 9
            good &= (digits <= 9).all(axis=1)
            powers = 10 ** np.arange(count - 1, -1, -1)
            read[name] = (digits @ powers) * factor + base
        fits[rows] = good
        for name, numbers in read.items():
            values[name][rows[good]] = numbers[good]
        return fits


def _layout(parts: tuple[Token, ...]) -> _Layout | None:
    """The layout, if every field can have a fixed width; room never matters within it."""
    numbers: list[tuple[str, int, int, int, int]] = []
    given: list[tuple[int, int]] = []
    place = 0
    for index, part in enumerate(parts):
        if isinstance(part, Text):
            encoded = part.text.encode()
            given.extend((place + i, byte) for i, byte in enumerate(encoded))
            place += len(encoded)
            continue
        if isinstance(part, Optional) or not _has_width(part):
            return None
        if part.letter == "S":
            if index and isinstance(parts[index - 1], Field):
                return None  # the year before may take its digits
            factor, base = 10 ** (6 - part.count), 0
        else:
            factor, base = 1, 2000 if (part.letter, part.count) == ("y", 2) else 0
        numbers.append((_name(part), place, part.count, factor, base))
        place += part.count
    return _Layout(place, tuple(numbers), tuple(given)) if numbers else None


def _has_width(field: Field) -> bool:
    if field.letter == "S":
        return field.count <= 6
    return _is_fixed(field) or (field.letter == "y" and field.count >= 4)


# -- what the fields mean together


def _resolve(values: dict[str, Ints], has_offset: Mask, wrong: Mask) -> Parsed:
    count = len(wrong)
    for name, (low, high) in _RANGES.items():
        if name in values:
            wrong = wrong | (values[name] < low) | (values[name] > high)

    def get(name: str) -> Ints:
        vector = values.get(name)
        return np.full(count, _DEFAULTS.get(name, 0), np.int64) if vector is None else vector

    years = np.where(wrong, 1970, get("y"))
    if "D" in values:
        days = civil.new_years(years) + values["D"] - 1
        bad = (values["D"] < 1) | (civil.years_of(days) != years)
    else:
        days, bad = civil.date_of(years, get("M"), get("d"))
    hours = get("H") + get("k") % 24 + get("K") + get("h") % 12 + get("a") * 12
    micros = ((hours * 60 + get("m")) * 60 + get("s")) * civil.MICROS_PER_SECOND + get("S")
    return Parsed(days, micros, values.get("X"), has_offset, wrong | bad)
