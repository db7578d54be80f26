r"""Java's regular expressions, read and written again so that Python and RE2 take them alike.

The pattern is parsed by Java's grammar and written with nothing but constructs that mean the same
in all three: classes as ranges, case-insensitive letters as classes, groups named g1, g2 ...,
the dot, `^` and `$` with Java's line ends. What cannot be written so is refused: for one, loops
over what may be empty, in which engines differ about the last round.

A word, for `\b`, has letters and digits of all scripts up to Java 18, and ASCII alone from Java 19
on; marks on letters belong to it in both. Whoever asks says which Java it is. Up to four marks in
a row are seen, and that is all of any language.

Law: whatever parse() accepts matches the same texts, at the same places, with the same groups, as
java.util.regex does. `is_plain` patterns may be given to RE2, all of them to Python's re; and to
RE2 `ascii_text`, if there is one, for texts of ASCII alone.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.unicode_classes import (
    CASED,
    LAST,
    Ranges,
    categories,
    complement,
    intersection,
    letters,
    property_ranges,
    spelled,
    unicode_posix,
    unicode_word,
    union,
    whole_characters,
)

_LINE_ENDS: Final = "\n\r\u0085\u2028\u2029"
#: At the end, or before the line end that ends the text; never between \r and \n.
_END: Final = "(?=(?:\r\n|(?<!\r)\n|[\r\u0085\u2028\u2029])?\\Z)"
#: With (?m): at the beginning of a line, but not of one that is empty and the last.
_LINE_BEGIN: Final = "(?:\\A|(?<=[\n\r\u0085\u2028\u2029])(?!(?<=\r)\n))(?!\\Z)"
_LINE_END: Final = "(?=\\Z|(?<!\r)\n|[\r\u0085\u2028\u2029])"
_LINE_BREAK: Final = "(?:\r\n|[\n\v\f\r\u0085\u2028\u2029])"
#: So many marks on a letter are seen by \\b.
_MARKS_MAX: Final = 4
_SPECIAL: Final = frozenset("\\.^$*+?{}[]|()-&~#/")
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{(\d+)(?:(,)(\d*))?\})([?+]?)")
_FLAGS: Final = re.compile(r"\(\?([ismU]*)(?:-([ismU]*))?([:)])")
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
    "h": spelled("9 20 a0 1680 180e 2000-200a 202f 205f 3000"),
    "v": spelled("a-d 85 2028-2029"),
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
    #: What RE2 takes if all texts are ASCII.
    ascii_text: str | None = None

    def only(self, group: int, text: str) -> str:
        """The text, one of ours, with this one group captured and no other; 0 is the match."""
        for other in range(1, self.groups + 1):
            if other != group:
                text = text.replace(f"(?P<g{other}>", "(?:")
        return f"(?P<g0>{text})" if group == 0 else text


@lru_cache(maxsize=256)
def parse(pattern: str, ascii_words: bool = False) -> JavaPattern:
    """Read a pattern. Raises Refused."""
    parser = _Parser(pattern, ascii_words)
    part = parser.read()
    text, for_ascii = part.text, part.text
    for mark, written in parser.boundaries.items():
        text = text.replace(mark, written)
        for_ascii = for_ascii.replace(mark, _ASCII_BOUNDARIES[mark])
    try:
        re.compile(text)
    except re.error as error:
        raise PatternRefused(str(error)) from error
    can_re2 = not parser.needs_python and _is_re2(for_ascii)
    names = tuple(parser.names.items())
    return JavaPattern(
        text,
        parser.groups,
        names,
        part.is_nullable,
        part.is_anchored,
        can_re2 and not parser.boundaries,
        part.literal,
        for_ascii if can_re2 else None,
    )


@lru_cache(maxsize=256)
def compiled(pattern: str, ascii_words: bool = False) -> re.Pattern[str]:
    """The pattern for Python's re. Raises Refused."""
    return re.compile(parse(pattern, ascii_words).text)


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

    def __init__(self, pattern: str, ascii_words: bool) -> None:
        self._pattern = pattern
        self._ascii_words = ascii_words
        self._at = 0
        #: The flags that are set: i, s, m, U.
        self._flags: frozenset[str] = frozenset()
        #: What stands for \\b and \\B until all is read: each of them is long.
        self.boundaries: dict[str, str] = {}
        self._open: list[int] = []
        self.groups = 0
        self.names: dict[str, int] = {}
        self.needs_python = False

    def read(self) -> _Part:
        if any(mark in self._pattern for mark in _ASCII_BOUNDARIES):
            raise PatternRefused("what is no character")
        part = self._alternation()
        if self._at < len(self._pattern):
            raise PatternRefused("unmatched )")
        return part

    def _set_flags(self, flags: re.Match[str]) -> None:
        self._flags = (self._flags | set(flags[1])) - set(flags[2] or "")
        if {"i", "U"} <= self._flags:
            raise PatternRefused("(?i) together with (?U)")

    @property
    def _ignore_case(self) -> bool:
        return "i" in self._flags

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
            part = self._quantified(self._atom())
            if part.text:  # flags leave nothing behind
                parts.append(part)
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
                return _Part(_write_class(() if "s" in self._flags else _ranges(_LINE_ENDS), True))
            case "^" if "m" in self._flags:
                self.needs_python = True
                return _Part(_LINE_BEGIN, True, can_repeat=False)
            case "^":
                return _Part("\\A", True, True, can_repeat=False)
            case "$":
                return self._end(_LINE_END if "m" in self._flags else _END)
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

    def _end(self, text: str) -> _Part:
        self.needs_python = True
        return _Part(text, True, can_repeat=False)

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
        flags = self._flags
        body = self._alternation()
        if self._next() != ")":
            raise PatternRefused("unmatched (")
        self._flags = flags
        return body

    def _scoped(self, flags: re.Match[str]) -> _Part:
        if flags[3] == ")":  # for all that follows in this group
            self._set_flags(flags)
            return _Part("", True, literal="", can_repeat=False)
        before = self._flags
        self._set_flags(flags)
        body = self._body()
        self._flags = before
        return _Part(f"(?:{body.text})", body.is_nullable, body.is_anchored, body.captures)

    def _assertion(self) -> _Part:
        opening = next(
            (o for o in ("=", "!", "<=", "<!", ">") if self._pattern.startswith(o, self._at)), None
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
                return self._end(_END)
            case "z":
                return self._end("\\Z")
            case "b" | "B" if not self._pattern.startswith("{", self._at):
                return self._boundary(letter)
            case "R":
                return _Part(_LINE_BREAK)
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

    def _boundary(self, letter: str) -> _Part:
        mark = _BOUNDARY_MARKS[letter]
        written = _boundary("U" in self._flags, self._ascii_words, letter == "B")
        if self.boundaries.setdefault(mark, written) != written:
            raise PatternRefused("boundaries of words with (?U) and without")
        return _Part(mark, True, can_repeat=False)

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
            return self._sided(letter, self._posix(letter.lower(), _CLASSES))
        if letter not in ("p", "P"):
            return None
        self._at += 1
        name = self._next()
        if name == "{":
            end = self._pattern.find("}", self._at)
            name = self._pattern[self._at : end]
            self._at = end + 1
        if self._ignore_case and name.removeprefix("Is").rpartition("=")[2].upper() in CASED:
            raise PatternRefused(f"\\p{{{name}}} ignoring case")
        ranges = self._posix(name, _POSIX) if name in _POSIX else property_ranges(name)
        if not ranges:
            raise PatternRefused(
                f"the Unicode property {name}: write the characters as ranges, [\\u0370-\\u03FF]"
            )
        return self._sided("d" if letter == "p" else "D", ranges)

    def _posix(self, name: str, known: dict[str, Ranges]) -> Ranges:
        ranges = unicode_posix(name) if "U" in self._flags else None
        return known[name] if ranges is None else ranges

    def _sided(self, letter: str, ranges: Ranges) -> Ranges:
        return whole_characters(ranges if letter.islower() else complement(ranges))

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
        if letter == "c":
            return chr(ord(self._next()) ^ 64)
        if letter.isascii() and letter.isalnum():
            raise PatternRefused(f"\\{letter}")
        return letter

    def _class(self) -> str:
        """After an opening bracket."""
        return _write_class(self._nested(), False)

    def _nested(self) -> Ranges:
        """After an opening bracket, up to the one that closes it."""
        is_negated = self._peek() == "^"
        self._at += is_negated
        ranges = self._members()
        self._at += 1
        return whole_characters(complement(ranges) if is_negated else ranges)

    def _members(self) -> Ranges:
        """Up to a closing bracket: items and classes, and after && what they must be as well."""
        ranges: Ranges | None = None
        while ranges is None or self._peek() != "]":
            if self._pattern.startswith("&&", self._at):
                self._at += 2
                also = self._also()
                ranges = also if ranges is None else intersection(ranges, also)
                continue
            if self._peek() == "]":
                raise PatternRefused("] at the beginning of a class")
            ranges = union(ranges or (), self._member())
        return ranges

    def _also(self) -> Ranges:
        """After &&: all that follows, or classes up to the next &&."""
        also: Ranges | None = None
        while self._peek() not in ("]", "&"):
            is_class = self._peek() == "["
            if also is not None and not is_class:
                raise PatternRefused("characters behind a class behind &&")
            also = union(also or (), self._member() if is_class else self._members())
        if also is None:
            raise PatternRefused("&& without a right side")
        return also

    def _member(self) -> Ranges:
        if self._peek() == "[":
            self._at += 1
            return self._nested()
        return self._class_item()

    def _class_item(self) -> Ranges:
        if self._peek() == "\\":
            self._at += 1
            if self._peek() in ("R", "b", "B", "Q"):
                raise PatternRefused(f"\\{self._peek()} in a class")
            ranges = self._escaped_ranges()
            if ranges is not None:
                if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
                    raise PatternRefused("a range that begins with a class")
                return ranges
            first = self._escaped_character()
        else:
            first = self._next()
        if self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] == "]":
            return self._both_cases(_ranges(first))
        self._at += 1
        last = self._next()
        if last == "[":
            raise PatternRefused("a class in a class")
        if last == "\\":
            last = self._escaped_character()
        if last < first:
            raise PatternRefused("a range that ends before it begins")
        return self._both_cases(((ord(first), ord(last)),))

    def _both_cases(self, ranges: Ranges) -> Ranges:
        return ranges + _other_case(ranges) if self._ignore_case else ranges


#: Of code points that are no characters and never will be.
_BOUNDARY_MARKS: Final = {"b": "\ufdd0", "B": "\ufdd1"}
_ASCII_BOUNDARIES: Final = {"\ufdd0": "\\b", "\ufdd1": "\\B"}


@cache
def _boundary(is_unicode: bool, is_ascii: bool, is_none: bool) -> str:
    r"""\b, or \B if none: with (?U), in a Java whose words are ASCII, or in an older one.

    A mark counts as part of a word if before it, and other marks, there is a letter or digit.
    """
    base = union(letters(), categories("Nd"))
    word = union(base, _ranges("_"))
    if is_unicode:
        word = unicode_word()
    elif is_ascii:
        word = _CLASSES["w"]
    a_base, a_word, a_mark = (
        _write_class(whole_characters(ranges), False) for ranges in (base, word, categories("Mn"))
    )
    has_base = [f"(?<={a_base}{a_mark}{{{marks}}})" for marks in range(_MARKS_MAX + 1)]
    left = f"(?:(?<={a_word})|{'|'.join(has_base[1:])})"
    right = f"(?:(?={a_word})|(?={a_mark})(?:{'|'.join(has_base)}))"
    if is_none:
        return f"(?:{left}{right}|(?!{left})(?!{right}))"
    return f"(?:{left}(?!{right})|(?!{left}){right})"


def _refuse_captures(part: _Part) -> None:
    """Where Java does not go back, it leaves groups of attempts that failed as they were."""
    if part.captures:
        raise PatternRefused("a group in an assertion, an atomic group or a possessive repetition")


def _character(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF or code > LAST:
        raise PatternRefused("half of a character")
    return chr(code)


def _other_case(ranges: Ranges) -> Ranges:
    """Java ignores case in ASCII only."""
    others = []
    for first, last in ranges:
        for (low, high), shift in ((_UPPER[0], 32), (_LOWER[0], -32)):
            if max(first, low) <= min(last, high):
                others.append((max(first, low) + shift, min(last, high) + shift))
    return tuple(others)


def _write_class(ranges: Ranges, is_negated: bool) -> str:
    if not ranges:  # everything, or nothing
        return f"[{'' if is_negated else '^'}{chr(0)}-{chr(LAST)}]"
    written = [
        quote(chr(first)) if first == last else f"{quote(chr(first))}-{quote(chr(last))}"
        for first, last in sorted(set(ranges))
    ]
    return f"[{'^' if is_negated else ''}{''.join(written)}]"
