"""to_number, try_to_number, and to_char of a number: decimals written as a format says.

A format is read into tokens once; Spark has refused those that make no sense. Texts are read and
written letter by letter as Spark's ToNumberParser does it, once for each distinct value.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final

import pyarrow as pa

from penstock.ops.functions.failures import fail
from penstock.ops.functions.operands import LONG_DIGITS
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.rows import each
from penstock.plan.exprs import Call

#: What Java calls whitespace, apart from separators; and the separators that it does not.
_CONTROLS: Final = frozenset("\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f")
_NO_BREAK: Final = frozenset("\u00a0\u2007\u202f")
_SIGNS: Final = frozenset("+-<")
_POINT, _DOLLAR, _SIGN, _MINUS, _OPEN, _CLOSE = ".", "$", "S", "MI", "<", ">"


@dataclass(frozen=True, slots=True)
class _Digits:
    """Digits of a format that stand together: as many exactly, or at most as many."""

    count: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of digits, from left to right, with a comma between each two."""

    groups: tuple[_Digits, ...]


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A format: groups of digits, and signs by their names."""

    tokens: tuple[str | _Groups, ...]
    before: int
    after: int

    def parse(self, text: str) -> Decimal | None:
        """The number that the text is, or None if it does not fit."""
        return _Reading(text).read(self)

    def number(self, unscaled: int) -> Decimal:
        """The decimal of these digits. A format without digits before its point takes texts that
        have some, and then Spark fails, try_ or not."""
        precision = self.before + self.after
        if precision <= LONG_DIGITS:  # by way of a long, which may wrap around
            unscaled = (unscaled + 2**63) % 2**64 - 2**63
        if abs(unscaled) >= 10**precision:
            fail("NUMERIC_VALUE_OUT_OF_RANGE", f"{unscaled} has more than {precision} digits")
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -self.after))

    def write(self, value: Decimal) -> str:
        """The number as the format says; # for digits if there are too many."""
        return _Writing(value, self).write()


@lru_cache(maxsize=256)
def number_format(text: str) -> NumberFormat:
    """Read a format that Spark takes."""
    text = text.upper()
    tokens: list[str | _Groups] = []
    digits: list[_Digits] = []
    counts = {False: 0, True: 0}
    has_point = is_wrapped = False
    place = 0

    def end_digits() -> None:
        if digits:
            tokens.append(_Groups(tuple(digits)))
            digits.clear()

    while place < len(text):
        letter = text[place]
        if letter in "09":
            end = place
            while end < len(text) and text[end] in "09":
                end += 1
            digits.append(_Digits(end - place, letter == "0" and not has_point))
            counts[has_point] += end - place
            place = end
            continue
        if letter in ",G":
            place += 1
            continue
        end_digits()
        if text.startswith("PR", place):
            is_wrapped = True
            place += 2
        elif text.startswith(_MINUS, place):
            tokens.append(_MINUS)
            place += 2
        else:
            has_point = has_point or letter in ".D"
            tokens.append(_POINT if letter == "D" else letter)
            place += 1
    end_digits()
    if is_wrapped:
        tokens = [_OPEN, *tokens, _CLOSE]
    return NumberFormat(tuple(tokens), counts[False], counts[True])


def _is_space(letter: str) -> bool:
    if letter in _CONTROLS:
        return True
    return unicodedata.category(letter) in ("Zs", "Zl", "Zp") and letter not in _NO_BREAK


def _is_digit(letter: str) -> bool:
    return letter.isdecimal() and ord(letter) < 0x10000


class _Reading:
    """One text, read by the tokens of a format."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._before: list[str] = []
        self._after: list[str] = []
        self._past_point = False
        self._is_negative = False
        self._brackets = 0

    def read(self, form: NumberFormat) -> Decimal | None:
        for token in form.tokens:
            fits = self._digits(token) if isinstance(token, _Groups) else self._sign(token)
            if not fits:
                return None
        digits = [*self._before, *self._after]
        if self._at < len(self._text) or self._brackets == 1 or not digits:
            return None
        digits += "0" * (form.after - len(self._after))
        return form.number(int("".join(digits)) * (-1 if self._is_negative else 1))

    def _sign(self, token: str) -> bool:
        letter = self._text[self._at : self._at + 1]
        if not letter:
            return True
        is_taken = letter == token or (token == _SIGN and letter in "+-")
        is_taken = is_taken or (token == _MINUS and letter == "-")
        if token == _CLOSE and is_taken and not self._brackets:
            return False
        if is_taken:
            self._at += 1
            self._past_point = self._past_point or token == _POINT
            self._brackets += token in (_OPEN, _CLOSE)
            self._is_negative ^= letter in ("-", _CLOSE)
        return is_taken or token != _DOLLAR

    def _digits(self, token: _Groups) -> bool:
        found = self._after if self._past_point else self._before
        sizes = [0]
        while self._at < len(self._text):
            letter = self._text[self._at]
            if _is_digit(letter):
                found.append(letter)
                sizes[-1] += 1
            elif letter == ",":
                sizes.append(0)
            elif not _is_space(letter):
                break
            self._at += 1
        if len(sizes) > len(token.groups):
            return False
        sizes = [0] * (len(token.groups) - len(sizes)) + sizes
        return all(
            size == group.count if group.is_exact else size <= group.count
            for size, group in zip(sizes, token.groups, strict=True)
        )


class _Writing:
    """One number, written by the tokens of a format."""

    def __init__(self, value: Decimal, form: NumberFormat) -> None:
        self._tokens = form.tokens
        self._is_negative = value < 0
        before, _, after = format(value, "f").lstrip("-").partition(".")
        before, after = before.lstrip("0"), after.rstrip("0")
        if len(before) > form.before or len(after) > form.after:
            before, after = "#" * form.before, "#" * form.after
        self._before = iter(before.rjust(form.before))
        self._after = iter(after.ljust(form.after, "0"))
        self._past_point = False
        self._written: list[str] = []

    def write(self) -> str:
        for token in self._tokens:
            if isinstance(token, _Groups):
                self._digits(token)
            else:
                self._sign(token)
        self._blank_lone_point()
        text = "".join(self._written)
        return "0" if text in ("", "+", "-") else text

    def _sign(self, token: str) -> None:
        written = self._written
        match token:
            case ".":
                if written and written[-1] == " ":
                    written[-1] = "0"
                written.append(_POINT)
                self._past_point = True
            case "S":
                self._blank_lone_point()
                self._move_before_spaces("-" if self._is_negative else "+")
            case "MI" if self._is_negative:
                self._blank_lone_point()
                self._move_before_spaces("-")
            case "MI":
                written.append(" ")
            case "<":
                written += [_OPEN] * self._is_negative
            case ">":
                self._blank_lone_point()
                if self._is_negative:
                    self._move_before_spaces(_CLOSE)
                else:
                    written += [" ", " "]
            case _:
                written.append(token)

    def _digits(self, token: _Groups) -> None:
        for place, group in enumerate(token.groups):
            if place:
                is_after_digit = bool(self._written) and self._written[-1].isdecimal()
                self._written.append(",") if is_after_digit else self._space()
            for _ in range(group.count):
                digit = next(self._after if self._past_point else self._before)
                if digit != " ":
                    self._written.append(digit)
                elif group.is_exact:
                    self._written.append("0")
                else:
                    self._space()

    def _move_before_spaces(self, letter: str) -> None:
        place = len(self._written)
        while place and self._written[place - 1] == " ":
            place -= 1
        self._written.insert(place, letter)

    def _space(self) -> None:
        """A space, before signs that were written last."""
        place = len(self._written)
        while place and self._written[place - 1] in _SIGNS:
            place -= 1
        self._written.insert(place, " ")

    def _blank_lone_point(self) -> None:
        """A point behind which there is no digit is a space."""
        if _POINT in self._written:
            place = self._written.index(_POINT)
            if self._written[place + 1 : place + 2] in ([], [" "]):
                self._written[place] = " "


def _reader(is_try: bool) -> Callable[[str, str], Decimal | None]:
    def read(text: str, form: str) -> Decimal | None:
        number = number_format(form).parse(text)
        if number is None and not is_try:
            fail("INVALID_FORMAT", f"{text!r} does not match the format {form!r}")
        return number

    return read


@function("ToNumber", sql="to_number", raises=True, strict=True)
def to_number(call: Call, text: Datum, form: Datum) -> Datum:
    return each(call.type, _reader(False), text, form)


@function("TryToNumber", sql="try_to_number", raises=True, strict=True)
def try_to_number(call: Call, text: Datum, form: Datum) -> Datum:
    return each(call.type, _reader(True), text, form)


@function("ToCharacter", sql="to_char to_varchar", raises=False, strict=True)
def to_character(call: Call, number: Datum, form: Datum) -> Datum:
    return each(pa.string(), lambda value, text: number_format(text).write(value), number, form)
