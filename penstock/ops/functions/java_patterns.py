r"""Java's regular expressions, read and written again so that Python and RE2 take them alike.

The pattern is parsed by Java's grammar and written with nothing but constructs that mean the same
in all three: classes as ranges, case-insensitive letters as classes, groups named g1, g2 ...,
the dot and `$` with Java's line ends. What cannot be written so is refused: `\b` (Java 17 and 21
disagree beyond ASCII), `(?m)`, nested classes, Unicode properties, and loops over what may be
empty, in which engines differ about the last round.

Law: whatever parse() accepts matches the same texts, at the same places, with the same groups, as
java.util.regex does. `is_plain` patterns may be given to RE2, all of them to Python's re.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

#: Characters from a code point to another, both included.
Ranges: TypeAlias = tuple[tuple[int, int], ...]

_LAST: Final = 0x10FFFF
_LINE_ENDS: Final = "\n\r\u0085\u2028\u2029"
#: At the end, or before the line end that ends the text; never between \r and \n.
_END: Final = "(?=(?:\r\n|(?<!\r)\n|[\r\u0085\u2028\u2029])?\\Z)"
_SPECIAL: Final = frozenset("\\.^$*+?{}[]|()-&~#/")
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{(\d+)(?:(,)(\d*))?\})([?+]?)")
_FLAGS: Final = re.compile(r"\(\?([is]*)(?:-([is]*))?([:)])")
_NAME: Final = re.compile(r"<([a-zA-Z][a-zA-Z0-9]*)>")
_HEX: Final = re.compile(r"x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})")
_OCTAL: Final = re.compile(r"0([0-3][0-7]{2}|[0-7]{1,2})")


def _ranges(characters: str) -> Ranges:
    return tuple((ord(letter), ord(letter)) for letter in characters)


_DIGIT: Final = ((48, 57),)
_UPPER: Final = ((65, 90),)
_LOWER: Final = ((97, 122),)
_CLASSES: Final[dict[str, Ranges]] = {
    "d": _DIGIT,
    "w": _DIGIT + _UPPER + _LOWER + _ranges("_"),
    "s": _ranges(" \t\n\v\f\r"),
}
_POSIX: Final[dict[str, Ranges]] = {
    "Lower": _LOWER,
    "Upper": _UPPER,
    "ASCII": ((0, 127),),
    "Alpha": _UPPER + _LOWER,
    "Digit": _DIGIT,
    "Alnum": _DIGIT + _UPPER + _LOWER,
    "Punct": _ranges(string.punctuation),
    "Graph": ((33, 126),),
    "Print": ((32, 126),),
    "Blank": _ranges(" \t"),
    "Cntrl": ((0, 31), (127, 127)),
    "XDigit": (*_DIGIT, (65, 70), (97, 102)),
    "Space": _CLASSES["s"],
}


class PatternRefused(ValueError):
    """A pattern that Java takes and we do not, or that is none; the text says why."""


@dataclass(frozen=True, slots=True)
class JavaPattern:
    """A pattern as Python's re takes it."""

    text: str
    #: How many groups it captures; group n is named g<n>.
    groups: int
    names: tuple[tuple[str, int], ...]
    #: Whether it can match the empty text.
    is_nullable: bool
    #: Whether it matches only at the beginning.
    is_anchored: bool
    #: Whether RE2 takes it too.
    is_plain: bool
    #: The text that it matches, if it matches only that one.
    literal: str | None

    def only(self, group: int) -> str:
        """The text with this one group captured and no other; 0 is the whole match."""
        text = self.text
        for other in range(1, self.groups + 1):
            if other != group:
                text = text.replace(f"(?P<g{other}>", "(?:")
        return f"(?P<g0>{text})" if group == 0 else text


@lru_cache(maxsize=256)
def parse(pattern: str) -> JavaPattern:
    """Read a pattern. Raises Refused."""
    parser = _Parser(pattern)
    part = parser.read()
    try:
        re.compile(part.text)
    except re.error as error:
        raise PatternRefused(str(error)) from error
    is_plain = not parser.needs_python and _is_re2(part.text)
    names = tuple(parser.names.items())
    return JavaPattern(
        part.text, parser.groups, names, part.is_nullable, part.is_anchored, is_plain, part.literal
    )


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern for Python's re. Raises Refused."""
    return re.compile(parse(pattern).text)


def quote(letter: str) -> str:
    """A character that stands for itself, in Python's and RE2's patterns, in and out of classes."""
    return f"\\{letter}" if letter in _SPECIAL else letter


def _is_re2(text: str) -> bool:
    """RE2 has limits of its own, on counted repetition for one."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern=text)
    except pa.ArrowInvalid:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    is_nullable: bool = False
    is_anchored: bool = False
    captures: bool = False
    literal: str | None = None
    #: Whether a quantifier may follow: not after an assertion.
    can_repeat: bool = True


class _Parser:
    """One pattern, read from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._ignore_case = False
        self._dot_all = False
        self._open: list[int] = []
        self.groups = 0
        self.names: dict[str, int] = {}
        self.needs_python = False

    def read(self) -> _Part:
        flags = _FLAGS.match(self._pattern)
        if flags is not None and flags[3] == ")":
            self._at = flags.end()
            self._set_flags(flags)
        part = self._alternation()
        if self._at < len(self._pattern):
            raise PatternRefused("unmatched )")
        return part

    def _set_flags(self, flags: re.Match[str]) -> None:
        on, off = flags[1], flags[2] or ""
        self._ignore_case = (self._ignore_case or "i" in on) and "i" not in off
        self._dot_all = (self._dot_all or "s" in on) and "s" not in off

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        letter = self._peek()
        if not letter:
            raise PatternRefused("ends too early")
        self._at += 1
        return letter

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._pattern, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _alternation(self) -> _Part:
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        return _Part(
            "(?:" + "|".join(branch.text for branch in branches) + ")",
            any(branch.is_nullable for branch in branches),
            all(branch.is_anchored for branch in branches),
            any(branch.captures for branch in branches),
        )

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom()))
        literals = [part.literal for part in parts]
        return _Part(
            "".join(part.text for part in parts),
            all(part.is_nullable for part in parts),
            bool(parts) and parts[0].is_anchored,
            any(part.captures for part in parts),
            None if None in literals else "".join(text for text in literals if text is not None),
        )

    def _quantified(self, part: _Part) -> _Part:
        quantifier = self._take(_QUANTIFIER)
        if quantifier is None:
            if self._peek() == "{":
                raise PatternRefused("{ that begins no repetition")
            return part
        if self._peek() and self._peek() in "*+?{":
            raise PatternRefused("a repetition of a repetition")
        if not part.can_repeat:
            raise PatternRefused("a repetition of an assertion")
        is_once = quantifier[0][0] == "?" or (
            (quantifier[3] or quantifier[1]) in ("0", "1") and quantifier[3] != ""
        )
        if part.is_nullable and (part.captures or not is_once):
            raise PatternRefused("a repetition of what may be empty")
        if quantifier[4] == "+":
            _refuse_captures(part)
            self.needs_python = True
        least = 0 if quantifier[0][0] in "*?" else int(quantifier[1] or 1)
        return _Part(
            part.text + quantifier[0], least == 0, least > 0 and part.is_anchored, part.captures
        )

    def _atom(self) -> _Part:
        letter = self._next()
        match letter:
            case "(":
                return self._group()
            case "[":
                return _Part(self._class())
            case ".":
                return _Part(_write_class(() if self._dot_all else _ranges(_LINE_ENDS), True))
            case "^":
                return _Part("\\A", True, True, can_repeat=False)
            case "$":
                return self._end()
            case "\\":
                return self._escape()
            case "*" | "+" | "?" | "{":
                raise PatternRefused(f"{letter} after nothing")
            case _:
                return self._literal(letter)

    def _literal(self, letter: str) -> _Part:
        if self._ignore_case and letter.isascii() and letter.isalpha():
            return _Part(f"[{letter}{letter.swapcase()}]")
        return _Part(quote(letter), literal=letter)

    def _end(self) -> _Part:
        self.needs_python = True
        return _Part(_END, True, can_repeat=False)

    # -- groups

    def _group(self) -> _Part:
        if self._peek() != "?":
            return self._capture()
        self._at -= 1
        flags = self._take(_FLAGS)
        if flags is not None:
            return self._scoped(flags)
        self._at += 2
        if self._peek() == "<" and (name := self._take(_NAME)) is not None:
            self.names[name[1]] = self.groups + 1
            return self._capture()
        return self._assertion()

    def _capture(self) -> _Part:
        self.groups += 1
        number = self.groups
        self._open.append(number)
        body = self._body()
        self._open.remove(number)
        return _Part(f"(?P<g{number}>{body.text})", body.is_nullable, body.is_anchored, True)

    def _body(self) -> _Part:
        """What is inside, up to the closing parenthesis; flags set inside end there."""
        flags = self._ignore_case, self._dot_all
        body = self._alternation()
        if self._next() != ")":
            raise PatternRefused("unmatched (")
        self._ignore_case, self._dot_all = flags
        return body

    def _scoped(self, flags: re.Match[str]) -> _Part:
        if flags[3] == ")":
            raise PatternRefused("flags in the middle")
        before = self._ignore_case, self._dot_all
        self._set_flags(flags)
        body = self._body()
        self._ignore_case, self._dot_all = before
        return _Part(f"(?:{body.text})", body.is_nullable, body.is_anchored, body.captures)

    def _assertion(self) -> _Part:
        opening = next(
            (o for o in ("=", "!", "<=", ">") if self._pattern.startswith(o, self._at)), None
        )
        if opening is None:
            raise PatternRefused(f"(?{self._peek()}")
        self._at += len(opening)
        self.needs_python = True
        body = self._body()
        _refuse_captures(body)
        if opening == ">":
            return _Part(f"(?>{body.text})", body.is_nullable, body.is_anchored)
        return _Part(f"(?{opening}{body.text})", True, can_repeat=False)

    # -- escapes and classes

    def _escape(self) -> _Part:
        ranges = self._escaped_ranges()
        if ranges is not None:
            return _Part(_write_class(ranges, False))
        letter = self._next()
        match letter:
            case "A":
                return _Part("\\A", True, True, can_repeat=False)
            case "Z":
                return self._end()
            case "z":
                self.needs_python = True
                return _Part("\\Z", True, can_repeat=False)
            case "Q":
                return self._quoted()
            case "k":
                name = self._take(_NAME)
                return self._reference(self.names.get(name[1], 0) if name is not None else 0)
            case _ if letter in "123456789":
                if self._peek().isdigit():
                    raise PatternRefused("a reference to a group beyond 9")
                return self._reference(int(letter))
        self._at -= 1
        return self._literal(self._escaped_character())

    def _quoted(self) -> _Part:
        end = self._pattern.find("\\E", self._at)
        text = self._pattern[self._at : end if end >= 0 else None]
        self._at = end + 2 if end >= 0 else len(self._pattern)
        if len(text) != 1 and self._peek() and self._peek() in "*+?{":
            raise PatternRefused("a repetition of a quotation")
        parts = [self._literal(letter) for letter in text]
        literal = None if self._ignore_case else text
        return _Part("".join(part.text for part in parts), not text, literal=literal)

    def _reference(self, number: int) -> _Part:
        if self._ignore_case or number in self._open or not 1 <= number <= self.groups:
            raise PatternRefused("a reference to a group that is not complete, or ignoring case")
        self.needs_python = True
        return _Part(f"(?P=g{number})", True, can_repeat=False)

    def _escaped_ranges(self) -> Ranges | None:
        r"""After a backslash: the characters of \d, \W, \p{Alpha} and the like."""
        letter = self._peek()
        if letter.lower() in _CLASSES and letter:
            self._at += 1
            ranges = _CLASSES[letter.lower()]
            return ranges if letter.islower() else _complement(ranges)
        if letter not in ("p", "P"):
            return None
        name = self._pattern[self._at + 2 : self._pattern.find("}", self._at)]
        ranges = _POSIX.get(name, ())
        if not ranges or self._pattern[self._at + 1] != "{":
            raise PatternRefused("a Unicode property")
        if self._ignore_case and name in ("Lower", "Upper"):
            raise PatternRefused(f"\\p{{{name}}} ignoring case")
        self._at += len(name) + 3
        return ranges if letter == "p" else _complement(ranges)

    def _escaped_character(self) -> str:
        """After a backslash: one character."""
        number = self._take(_HEX)
        if number is not None:
            return _character(int(number[1] or number[2] or number[3], 16))
        octal = self._take(_OCTAL)
        if octal is not None:
            return _character(int(octal[1], 8))
        letter = self._next()
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter.isascii() and letter.isalnum():
            raise PatternRefused(f"\\{letter}")
        return letter

    def _class(self) -> str:
        """After an opening bracket."""
        is_negated = self._peek() == "^"
        self._at += is_negated
        if self._peek() == "]":
            raise PatternRefused("] at the beginning of a class")
        items: list[tuple[int, int]] = []
        while self._peek() != "]":
            items.extend(self._class_item())
        self._at += 1
        ranges = tuple(items)
        if self._ignore_case:
            ranges += _other_case(ranges)
        return _write_class(ranges, is_negated)

    def _class_item(self) -> Ranges:
        if self._pattern.startswith(("[", "&&"), self._at):
            raise PatternRefused("a class in a class")
        if self._peek() == "\\":
            self._at += 1
            ranges = self._escaped_ranges()
            if ranges is not None:
                if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
                    raise PatternRefused("a range that begins with a class")
                return ranges
            first = self._escaped_character()
        else:
            first = self._next()
        if self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] == "]":
            return _ranges(first)
        self._at += 1
        last = self._next()
        if last == "[":
            raise PatternRefused("a class in a class")
        if last == "\\":
            last = self._escaped_character()
        if last < first:
            raise PatternRefused("a range that ends before it begins")
        return ((ord(first), ord(last)),)


def _refuse_captures(part: _Part) -> None:
    """Where Java does not go back, it leaves groups of attempts that failed as they were."""
    if part.captures:
        raise PatternRefused("a group in an assertion, an atomic group or a possessive repetition")


def _character(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF or code > _LAST:
        raise PatternRefused("half of a character")
    return chr(code)


def _complement(ranges: Ranges) -> Ranges:
    gaps = []
    code = 0
    for first, last in sorted(ranges):
        if first > code:
            gaps.append((code, first - 1))
        code = max(code, last + 1)
    if code <= _LAST:
        gaps.append((code, _LAST))
    return tuple(gaps)


def _other_case(ranges: Ranges) -> Ranges:
    """Java ignores case in ASCII only."""
    others = []
    for first, last in ranges:
        for (low, high), shift in ((_UPPER[0], 32), (_LOWER[0], -32)):
            if max(first, low) <= min(last, high):
                others.append((max(first, low) + shift, min(last, high) + shift))
    return tuple(others)


def _write_class(ranges: Ranges, is_negated: bool) -> str:
    if is_negated and not ranges:
        return f"[{chr(0)}-{chr(_LAST)}]"
    written = [
        quote(chr(first)) if first == last else f"{quote(chr(first))}-{quote(chr(last))}"
        for first, last in sorted(set(ranges))
    ]
    return f"[{'^' if is_negated else ''}{''.join(written)}]"
