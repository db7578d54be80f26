"""Spark's date and time patterns as tokens: `yyyy-MM-dd'T'HH:mm[:ss]`.

Owns which letters, in which numbers, are understood; printing and parsing start from here. Spark
takes Java's DateTimeFormatter patterns (locale US, strict), forbids some, and reads y as the
proleptic year. Letters that are legal in Spark but missing here are refused, never guessed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, TypeAlias

MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
QUARTERS: Final = ("1st quarter", "2nd quarter", "3rd quarter", "4th quarter")
HALVES: Final = ("AM", "PM")
#: How often a letter may stand in a row.
_COUNTS: Final = {
    "y": 6,
    "M": 4,
    "L": 4,
    "d": 2,
    "D": 3,
    "H": 2,
    "h": 2,
    "k": 2,
    "K": 2,
    "m": 2,
    "s": 2,
    "S": 9,
    "a": 1,
    "X": 3,
    "x": 3,
    "Z": 3,
}
_PRINTED_ONLY: Final = {"E": 4, "Q": 4, "q": 4}
#: Letters that say the same thing; a parsed pattern may have only one of each set.
_SAME: Final = ("y", "ML", "d", "D", "HhkK", "m", "s", "S", "a", "XxZ")


class UnknownPattern(ValueError):
    """A pattern, or a part of one, that is not understood here; the text says which."""


@dataclass(frozen=True, slots=True)
class Text:
    """Characters that stand for themselves."""

    text: str


@dataclass(frozen=True, slots=True)
class Field:
    """A letter, so many times."""

    letter: str
    count: int


@dataclass(frozen=True, slots=True)
class Optional:
    """A part in brackets: always printed, parsed if it is there."""

    parts: tuple[Token, ...]


Token: TypeAlias = Text | Field | Optional


@functools.lru_cache(maxsize=256)
def tokens(pattern: str, *, is_parsing: bool) -> tuple[Token, ...]:
    """The tokens of a pattern. Raises UnknownPattern."""
    if is_parsing and "S" in pattern and "''" in pattern:
        raise UnknownPattern("a quoted quote beside fractions of seconds")
    open_parts: list[list[Token]] = [[]]
    place = 0
    while place < len(pattern):
        char = pattern[place]
        if char == "'":
            text, place = _quoted(pattern, place)
            open_parts[-1].append(Text(text))
        elif char.isascii() and char.isalpha():
            end = place
            while end < len(pattern) and pattern[end] == char:
                end += 1
            open_parts[-1].append(_field(char, end - place, is_parsing))
            place = end
        else:
            _bracket_or_text(char, open_parts)
            place += 1
    while len(open_parts) > 1:  # Java closes what is left open
        _bracket_or_text("]", open_parts)
    tokens = tuple(open_parts[0])
    if is_parsing:
        _check_parsed(tokens)
    return tokens


def _quoted(pattern: str, start: int) -> tuple[str, int]:
    """The text in quotes, and where the pattern goes on; two quotes are one."""
    text, place = "", start + 1
    while place < len(pattern):
        if pattern[place] == "'":
            if pattern[place + 1 : place + 2] != "'":
                return text or "'", place + 1
            place += 1
        text += pattern[place]
        place += 1
    raise UnknownPattern("an open quote")


def _field(letter: str, count: int, is_parsing: bool) -> Field:
    most = _COUNTS.get(letter)
    if most is None and not is_parsing:
        most = _PRINTED_ONLY.get(letter)
    if most is None or count > most:
        raise UnknownPattern(f"the letters {letter * count}")
    return Field(letter, count)


def _bracket_or_text(char: str, open_parts: list[list[Token]]) -> None:
    if char == "[":
        open_parts.append([])
    elif char == "]":
        if len(open_parts) == 1:
            raise UnknownPattern("a bracket that nothing opened")
        parts = tuple(open_parts.pop())
        if parts:
            open_parts[-1].append(Optional(parts))
    elif char in "{}#":
        raise UnknownPattern(f"the reserved character {char}")
    else:
        open_parts[-1].append(Text(char))


def fields(parts: tuple[Token, ...]) -> list[Field]:
    """All fields, in order, those in brackets too."""
    all_fields: list[Field] = []
    for part in parts:
        if isinstance(part, Optional):
            all_fields.extend(fields(part.parts))
        elif isinstance(part, Field):
            all_fields.append(part)
    return all_fields


def _check_parsed(parts: tuple[Token, ...]) -> None:
    """Java checks fields against each other where one says what another says; we refuse those."""
    letters = [field.letter for field in fields(parts)]
    for same in _SAME:
        if sum(letters.count(letter) for letter in same) > 1:
            raise UnknownPattern(f"more than one of the letters {same}")
    if "D" in letters and {"M", "L", "d"} & set(letters):
        raise UnknownPattern("day of the year beside month or day of the month")
    if "a" in letters and {"H", "k"} & set(letters):
        raise UnknownPattern("half of the day beside hour of the day")
