"""Print timestamps by a pattern: a matrix of bytes if all rows have one width, else joined text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions import civil
from penstock.ops.functions.alignment import Ints, Mask
from penstock.ops.functions.time_patterns import (
    DAYS,
    HALVES,
    MONTHS,
    QUARTERS,
    Field,
    Optional,
    Text,
    Token,
    fields,
    tokens,
)

Bytes: TypeAlias = npt.NDArray[np.uint8]
#: What a piece prints: bytes, a row of them per timestamp or one for all; or text of any width.
Printed: TypeAlias = "Bytes | pa.Array"


class Moments:
    """Local times, and what is to be known of them, computed when first asked for."""

    def __init__(self, days: Ints, rest: Ints, offsets: Ints) -> None:
        self.days = days
        self.micros = rest
        self.offsets = offsets

    @functools.cached_property
    def months(self) -> Ints:
        """Since January 1970."""
        return civil.months_of(self.days)

    @functools.cached_property
    def seconds(self) -> Ints:
        """Of the day."""
        return self.micros // civil.MICROS_PER_SECOND

    @functools.cached_property
    def hours(self) -> Ints:
        """Of the day."""
        return self.seconds // 3600


#: Letters that do not depend on the time of the day.
_OF_DAYS: Final = "yMLdDEQq"
_NUMBERS: Final[dict[str, Callable[[Moments], Ints]]] = {
    "M": lambda moments: moments.months % 12 + 1,
    "L": lambda moments: moments.months % 12 + 1,
    "d": lambda moments: moments.days - civil.first_days(moments.months) + 1,
    "D": lambda moments: civil.days_of_year(moments.days),
    "H": lambda moments: moments.hours,
    "h": lambda moments: (moments.hours + 11) % 12 + 1,
    "k": lambda moments: (moments.hours + 23) % 24 + 1,
    "K": lambda moments: moments.hours % 12,
    "m": lambda moments: moments.seconds // 60 % 60,
    "s": lambda moments: moments.seconds % 60,
    "Q": lambda moments: moments.months % 12 // 3 + 1,
    "q": lambda moments: moments.months % 12 // 3 + 1,
}
_NAMES: Final[dict[str, tuple[tuple[str, ...], Callable[[Moments], Ints]]]] = {
    "M": (MONTHS, lambda moments: moments.months % 12),
    "L": (MONTHS, lambda moments: moments.months % 12),
    "E": (DAYS, lambda moments: civil.weekdays(moments.days)),
    "Q": (QUARTERS, lambda moments: moments.months % 12 // 3),
    "q": (QUARTERS, lambda moments: moments.months % 12 // 3),
}


def _digits(width: int) -> Bytes:
    """A row of digits for every number of that width."""
    numbers = np.arange(10**width)
    columns = [numbers // 10**place % 10 for place in reversed(range(width))]
    return (np.stack(columns, axis=1) + ord("0")).astype(np.uint8)


_DIGITS: Final = {width: _digits(width) for width in (2, 3, 4)}
#: Numbers up to the largest day of a year, as text without leading zeros.
_SHORT: Final = pa.array([str(number) for number in range(400)])


@functools.lru_cache(maxsize=256)
def printer(pattern: str) -> Callable[[Moments, Mask | None], pa.Array]:
    """What prints by this pattern. Raises UnknownPattern."""
    parts = tokens(pattern, is_parsing=False)
    pieces = _pieces(parts)
    is_daily = all(field.letter in _OF_DAYS for field in fields(parts))

    def print_all(moments: Moments, nulls: Mask | None) -> pa.Array:
        if is_daily:
            return _by_day(pieces, moments.days, nulls)
        return _print(pieces, moments, nulls)

    return print_all


def _by_day(pieces: list[Callable[[Moments], Printed]], days: Ints, nulls: Mask | None) -> pa.Array:
    """A stream's rows are of few days: print each of those once."""
    seen = days if nulls is None else days[~nulls]
    first = int(seen.min(initial=2**62))
    count = int(seen.max(initial=-(2**62))) - first + 1
    none = np.zeros(1, np.int64)
    if not 0 < count < len(days):
        return _print(pieces, Moments(days, none, none), nulls)
    printed = _print(pieces, Moments(np.arange(first, first + count), none, none), None)
    return printed.take(pa.array(days - first, mask=nulls))


def _print(
    pieces: list[Callable[[Moments], Printed]], moments: Moments, nulls: Mask | None
) -> pa.Array:
    count = len(moments.days)
    printed = [piece(moments) for piece in pieces]
    if all(isinstance(part, np.ndarray) for part in printed):
        return _from_bytes(printed, count, nulls)
    texts = [
        _from_bytes([part], count, None) if isinstance(part, np.ndarray) else part
        for part in printed
    ]
    joined = pc.binary_join_element_wise(*texts, "")
    return joined if nulls is None else pc.if_else(pa.array(nulls), None, joined)


def _from_bytes(parts: list[Bytes], count: int, nulls: Mask | None) -> pa.Array:
    width = sum(part.shape[1] for part in parts)
    matrix = np.empty((count, width), np.uint8)
    place = 0
    for part in parts:
        matrix[:, place : place + part.shape[1]] = part
        place += part.shape[1]
    offsets = np.arange(count + 1, dtype=np.int32) * width
    bits = None if nulls is None else pa.array(~nulls).buffers()[1]
    buffers = [pa.py_buffer(offsets), pa.py_buffer(matrix)]
    return pa.StringArray.from_buffers(count, *buffers, bits)


def _pieces(parts: tuple[Token, ...]) -> list[Callable[[Moments], Printed]]:
    pieces: list[Callable[[Moments], Printed]] = []
    for part in parts:
        match part:
            case Text(text):
                pieces.append(_literal(text))
            case Optional(inner):
                pieces.extend(_pieces(inner))
            case Field():
                pieces.append(_piece(part))
    return pieces


def _literal(text: str) -> Callable[[Moments], Printed]:
    row = np.frombuffer(text.encode(), np.uint8).reshape(1, -1)
    return lambda moments: row


def _piece(field: Field) -> Callable[[Moments], Printed]:
    letter, count = field.letter, field.count
    match letter:
        case "y":
            return lambda moments: _year(moments, count)
        case "S":
            return lambda moments: _fraction(moments.micros % civil.MICROS_PER_SECOND, count)
        case "a":
            return _table(HALVES, lambda moments: moments.hours // 12)
        case "X" | "x" | "Z":
            return lambda moments: _offset(moments.offsets, letter, count, len(moments.days))
        case "E":
            return _named(letter, count)
    if count <= 2 or letter == "D":
        return _number(_NUMBERS[letter], count)
    return _named(letter, count)


def _named(letter: str, count: int) -> Callable[[Moments], Printed]:
    names, index = _NAMES[letter]
    if count == 4:
        return _table(names, index)
    if letter in "Qq":
        return _table(("Q1", "Q2", "Q3", "Q4"), index)
    return _table(tuple(name[:3] for name in names), index)


def _table(
    names: tuple[str, ...], index: Callable[[Moments], Ints]
) -> Callable[[Moments], Printed]:
    """One of some names: as bytes if all are of one width."""
    if len({len(name) for name in names}) == 1:
        rows = np.array([list(name.encode()) for name in names], np.uint8)
        return lambda moments: rows[index(moments)]
    texts = pa.array(names)
    return lambda moments: texts.take(pa.array(index(moments)))


def _number(value: Callable[[Moments], Ints], count: int) -> Callable[[Moments], Printed]:
    if count in (2, 3):
        return lambda moments: _padded(value(moments), count)
    return lambda moments: _SHORT.take(pa.array(value(moments)))


def _padded(numbers: Ints, count: int) -> Printed:
    """At least so many digits; a day of the year may have more."""
    if numbers.max(initial=0) < 10**count:
        return _DIGITS[count][numbers]
    return pc.utf8_lpad(_SHORT.take(pa.array(numbers)), count, "0")


def _year(moments: Moments, count: int) -> Printed:
    years = moments.months // 12 + 1970
    if count == 2:
        return _DIGITS[2][np.abs(years) % 100]
    if count == 4 and years.min(initial=0) >= 0 and years.max(initial=0) <= 9999:
        return _DIGITS[4][years]
    size = pc.utf8_lpad(pc.cast(pa.array(np.abs(years)), pa.string()), count, "0")
    plus = "+" if count >= 4 else ""
    signs = np.where(years < 0, "-", np.where(years >= 10**count, plus, ""))
    return pc.binary_join_element_wise(pa.array(signs.tolist(), pa.string()), size, "")


def _fraction(micros: Ints, count: int) -> Bytes:
    """The first digits of the fraction; those beyond microseconds are zeros."""
    digits = np.full((len(micros), 9), ord("0"), np.uint8)
    digits[:, 0:3] = _DIGITS[3][micros // 1000]
    digits[:, 3:6] = _DIGITS[3][micros % 1000]
    return digits[:, :count]


def _offset(offsets: Ints, letter: str, count: int, rows: int) -> Printed:
    """Like +01:00; X prints Z for none."""
    distinct, places = np.unique(np.broadcast_to(offsets, rows), return_inverse=True)
    texts = pa.array([offset_text(int(o), letter, count) for o in distinct], pa.string())
    return texts.take(pa.array(places))


def offset_text(offset: int, letter: str, count: int) -> str:
    """An offset as Java prints it: hours, and minutes where there are any or must be some."""
    hours, minutes = divmod(abs(offset) // 60, 60)
    if hours == minutes == 0:  # Java cuts seconds, and what is left then has no sign
        offset = 0
    if offset == 0 and letter == "X":
        return "Z"
    colon = ":" if count == 3 and letter != "Z" else ""
    rest = f"{colon}{minutes:02}" if count > 1 or letter == "Z" or minutes else ""
    return f"{'-' if offset < 0 else '+'}{hours:02}{rest}"
