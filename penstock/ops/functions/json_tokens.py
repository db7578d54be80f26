"""JSON text as tokens, one call a token, with the habits of Spark's own reader (Jackson).

What a damaged text still gives depends on when its reader notices the damage: a string is read when
somebody asks for it or steps over it, a number as soon as its field's name is; after an error the
reader may be asked to go on, and does, from where it stood. All of this is kept, because it decides
which fields of a damaged record are null.

Row by row and in Python: this is the exact path, for texts that no column kernel can take.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.ops.functions.json_base64 import Base64Error, decode


class Token(Enum):
    """What the reader stands on."""

    START_OBJECT = "{"
    END_OBJECT = "}"
    START_ARRAY = "["
    END_ARRAY = "]"
    NAME = "name"
    STRING = "string"
    INT = "int"
    FLOAT = "float"
    TRUE = "true"
    FALSE = "false"
    NULL = "null"


OPENERS: Final = frozenset({Token.START_OBJECT, Token.START_ARRAY})
_CLOSERS: Final = frozenset({Token.END_OBJECT, Token.END_ARRAY})
_WORDS: Final = {"t": ("true", Token.TRUE), "f": ("false", Token.FALSE), "n": ("null", Token.NULL)}
_ESCAPES: Final = {
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "f": "\f",
    "r": "\r",
    '"': '"',
    "/": "/",
    "\\": "\\",
}
_NUMBER: Final = re.compile(r"-?([0-9]+)(\.[0-9]*)?([eE][+-]?[0-9]*)?")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_PLAIN_SINGLE: Final = re.compile(r"[^'\\\x00-\x1f]*")
_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_HALF: Final = re.compile("[\ud800-\udfff]")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_DIGITS: Final = frozenset("0123456789")
#: Besides letters and digits, by category, in a name without quotes.
_NAME_CATEGORIES: Final = frozenset({"Sc", "Pc", "Mn", "Mc", "Nl", "Cf", "Cc", "Nd"})
#: What Jackson allows, and Spark leaves as it is.
DEPTH_MAX: Final = 1000
NUMBER_LENGTH_MAX: Final = 1000
NAME_LENGTH_MAX: Final = 50_000


class JsonError(ValueError):
    """The text is not JSON, here."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What is allowed beyond the standard."""

    comments: bool = False
    unquoted_names: bool = False
    single_quotes: bool = True
    leading_zeros: bool = False
    non_numbers: bool = True
    any_escape: bool = False
    control_characters: bool = False


#: Of get_json_object, json_tuple and their kin.
PATH_DIALECT: Final = Dialect(non_numbers=False, control_characters=True)
#: Of parse_json.
STRICT_DIALECT: Final = Dialect(single_quotes=False, non_numbers=False)


class Tokens:
    """The tokens of one text. `token` is where it stands: None before the first, and at the end."""

    __slots__ = (
        "_at",
        "_counts",
        "_dialect",
        "_end",
        "_is_lazy",
        "_names",
        "_pending",
        "_scopes",
        "_string",
        "_text",
        "number",
        "token",
    )

    def __init__(self, text: str, dialect: Dialect) -> None:
        self._text = text
        self._end = len(text)
        self._at = 0
        self._dialect = dialect
        self.token: Token | None = None
        #: The token behind a name that was read together with it.
        self._pending: Token | None = None
        #: Open brackets from the outermost, how many elements each has had, and their last names.
        self._scopes: list[str] = []
        self._counts: list[int] = []
        self._names: list[str] = []
        #: Whether the string it stands on has yet to be read.
        self._is_lazy = False
        self._string = ""
        #: The digits of the number it stands on; inf or nan with their sign.
        self.number = ""

    # -- what a caller asks

    @property
    def name(self) -> str:
        """The name of the field it is in."""
        scopes = self._scopes
        if self.token in OPENERS:
            return self._names[-2] if len(self._names) > 1 else ""
        return self._names[-1] if scopes else ""

    @property
    def string(self) -> str:
        """The string that it stands on."""
        if self._is_lazy:
            self._is_lazy = False
            self._string = self._read_string('"', _PLAIN)
        return self._string

    def read_base64(self) -> bytes:
        """The string that it stands on, decoded; after an error it goes on from that character."""
        if not self._is_lazy:  # in single quotes, and read: nothing of it is an escape any more
            if '"' in self._string or "\\" in self._string:
                raise JsonError("not base 64")
            read = Tokens(f'"{self._string}"', self._dialect)
            read.next()
            return read.read_base64()
        try:
            decoded = decode(self._take, self._read_escape, self._put_back)
        except Base64Error:
            raise JsonError("not base 64") from None
        self._is_lazy = False
        return decoded

    def skip_children(self) -> None:
        """To the end of the object or array that begins here, if one does."""
        if self.token not in OPENERS:
            return
        depth = 1
        while depth:
            token = self.next()
            if token is None:
                if self._scopes:
                    raise JsonError("the text ends too early")
                return
            if token in OPENERS:
                depth += 1
            elif token in _CLOSERS:
                depth -= 1

    def next(self) -> Token | None:
        """The next token; None at the end of the text."""
        if self.token is Token.NAME:
            self.token, self._pending = self._pending, None
            if self.token in OPENERS:
                self._open(self.token)
            return self.token
        if self._is_lazy:
            self._is_lazy = False
            self._read_string('"', _PLAIN)
        char = self._skip_blanks()
        if char == "":
            if self._scopes:
                raise JsonError("the text ends too early")
            self.token = None
            return None
        if char in "]}":
            return self._close(char)
        if self._scopes:
            self._counts[-1] += 1
            if self._counts[-1] > 1:
                if char != ",":
                    raise JsonError("expected a comma")
                char = self._skip_blanks_inside()
            if self._scopes[-1] == "{":
                return self._read_field(char)
        self.token = self._read_value(char)
        if self.token in OPENERS:
            self._open(self.token)
        return self.token

    # -- structure

    def _open(self, token: Token) -> None:
        self._scopes.append(token.value)
        self._counts.append(0)
        self._names.append("")
        if len(self._scopes) > DEPTH_MAX:
            raise JsonError("too deep")

    def _close(self, char: str) -> Token:
        opener = "[" if char == "]" else "{"
        if not self._scopes or self._scopes[-1] != opener:
            raise JsonError("a bracket that was not opened")
        self._scopes.pop()
        self._counts.pop()
        self._names.pop()
        self.token = Token.END_ARRAY if char == "]" else Token.END_OBJECT
        return self.token

    def _read_field(self, char: str) -> Token:
        self._names[-1] = self._read_name(char)
        self.token = Token.NAME
        if self._skip_blanks_inside() != ":":
            raise JsonError("expected a colon")
        char = self._skip_blanks_inside()
        self._pending = self._read_value(char)
        return Token.NAME

    def _read_value(self, char: str) -> Token:
        if char == '"':
            self._is_lazy = True
            return Token.STRING
        if char == "[":
            return Token.START_ARRAY
        if char == "{":
            return Token.START_OBJECT
        if char in _DIGITS or char == "-":
            return self._read_number(char)
        word = _WORDS.get(char)
        if word is not None:
            self._match(word[0], 1)
            return word[1]
        return self._read_odd_value(char)

    # -- blanks and comments

    def _skip_blanks(self) -> str:
        """The next character that is none, consumed; empty at the end."""
        while True:
            match = _BLANKS.match(self._text, self._at)
            assert match is not None
            at = self._at = match.end()
            if at >= self._end:
                return ""
            char = self._text[at]
            self._at = at + 1
            if char == "/" and self._dialect.comments:
                self._skip_comment()
                continue
            if char < " " or char == "/":
                raise JsonError("not a blank")
            return char

    def _skip_blanks_inside(self) -> str:
        char = self._skip_blanks()
        if char == "":
            raise JsonError("the text ends too early")
        return char

    def _skip_comment(self) -> None:
        kind = self._text[self._at : self._at + 1]
        self._at += 1
        if kind == "*":
            end = self._text.find("*/", self._at)
            if end < 0:
                self._at = self._end
                raise JsonError("a comment does not end")
            self._at = end + 2
        elif kind == "/":
            ends = [self._text.find(mark, self._at) for mark in "\r\n"]
            found = [end for end in ends if end >= 0]
            self._at = min(found) + 1 if found else self._end
        else:
            raise JsonError("not a comment")

    # -- names and strings

    def _read_name(self, char: str) -> str:
        if char == '"':
            name = self._read_string('"', _PLAIN)
        elif char == "'" and self._dialect.single_quotes:
            name = self._read_string("'", _PLAIN_SINGLE)
        elif self._dialect.unquoted_names and _is_name_part(char):
            start = self._at - 1
            while self._at < self._end and _is_name_part(self._text[self._at]):
                self._at += 1
            name = self._text[start : self._at]
        else:
            raise JsonError("expected a name in quotes")
        if len(name) > NAME_LENGTH_MAX:
            raise JsonError("a name is too long")
        return name

    def _read_string(self, quote: str, plain: re.Pattern[str]) -> str:
        """What stands before the closing quote; a lone half of a pair stays what it is."""
        parts: list[str] = []
        while True:
            match = plain.match(self._text, self._at)
            assert match is not None
            parts.append(match[0])
            at = match.end()
            if at >= self._end:
                self._at = self._end
                raise JsonError("a string does not end")
            char = self._text[at]
            self._at = at + 1
            if char == quote:
                break
            if char == "\\":
                parts.append(self._read_escape())
            elif self._dialect.control_characters:
                parts.append(char)
            else:
                raise JsonError("a control character in a string")
        return parts[0] if len(parts) == 1 else _join_halves("".join(parts))

    def _read_escape(self) -> str:
        if self._at >= self._end:
            raise JsonError("a string does not end")
        char = self._text[self._at]
        self._at += 1
        known = _ESCAPES.get(char)
        if known is not None:
            return known
        if char != "u":
            if self._dialect.any_escape or (char == "'" and self._dialect.single_quotes):
                return char
            raise JsonError("an escape that is none")
        value = 0
        for _ in range(4):
            if self._at >= self._end:
                raise JsonError("a string does not end")
            digit = self._text[self._at]
            self._at += 1
            if digit not in _HEX:
                raise JsonError("not a hexadecimal digit")
            value = value * 16 + int(digit, 16)
        return chr(value)

    def _take(self) -> str:
        if self._at >= self._end:
            raise JsonError("a string does not end")
        self._at += 1
        return self._text[self._at - 1]

    def _put_back(self) -> None:
        self._at -= 1

    # -- numbers and words

    def _read_number(self, char: str) -> Token:
        start = self._at - 1
        match = _NUMBER.match(self._text, start)
        if match is None:  # a minus without digits
            return self._read_signed_word(-1.0)
        whole, fraction, exponent = match.groups()
        if len(whole) > 1 and whole[0] == "0" and not self._dialect.leading_zeros:
            self._at = match.start(1) + 1
            raise JsonError("a number begins with zero")
        lacks = fraction == "." or (exponent is not None and exponent[-1] not in _DIGITS)
        if lacks and whole[0] != "0" and match.end() < self._end:
            # Jackson's fast way through a number leaves the place behind the point or the E.
            self._at = match.end(1) + 1
            raise JsonError("no digit behind the point, or in the exponent")
        if lacks:
            self._at = (match.end(2) if fraction == "." else match.end()) + 1
            raise JsonError("no digit behind the point, or in the exponent")
        self._at = match.end()
        sign = "-" if char == "-" else ""
        self.number = sign + (whole.lstrip("0") or "0") + (fraction or "") + (exponent or "")
        self._check_root_end()
        return Token.INT if fraction is None and exponent is None else Token.FLOAT

    def _check_root_end(self) -> None:
        """Behind a number that stands alone there must be a blank."""
        if not self._scopes and self._at < self._end and self._text[self._at] not in " \t\r\n":
            self._at += 1
            raise JsonError("expected a blank")

    def _read_signed_word(self, sign: float) -> Token:
        """-INF, +Infinity and so on, behind the sign."""
        text = self._text
        word = "INF" if text.startswith("IN", self._at) else "Infinity"
        if not text.startswith(("IN", "In"), self._at):
            self._at += 1
            raise JsonError("a sign without a number")
        self._at += 2
        self._match(word, 2)
        return self._non_number("inf" if sign > 0 else "-inf")

    def _read_odd_value(self, char: str) -> Token:
        if char == "'" and self._dialect.single_quotes:
            self._string = self._read_string("'", _PLAIN_SINGLE)
            return Token.STRING
        if char == "N":
            self._match("NaN", 1)
            return self._non_number("nan")
        if char == "I":
            self._match("Infinity", 1)
            return self._non_number("inf")
        if char == "+":
            return self._read_signed_word(1.0)
        if _is_name_start(char):
            self._skip_word()
        raise JsonError("expected a value")

    def _non_number(self, value: str) -> Token:
        if not self._dialect.non_numbers:
            raise JsonError("not a number")
        self.number = value
        return Token.FLOAT

    def _match(self, word: str, matched: int) -> None:
        """The rest of the word, of which so much is read, must follow, and then no letter."""
        for expected in word[matched:]:
            if self._at >= self._end or self._text[self._at] != expected:
                self._skip_word()
                raise JsonError("a word that is none")
            self._at += 1
        following = self._text[self._at : self._at + 1]
        if following >= "0" and following not in "]}" and _is_name_part(following, java=True):
            self._skip_word()
            raise JsonError("a word that is none")

    def _skip_word(self) -> None:
        """Past what is told in the error's message."""
        while self._at < self._end and _is_name_part(self._text[self._at], java=True):
            self._at += 1


def _is_name_part(char: str, *, java: bool = False) -> bool:
    """Java's isJavaIdentifierPart, or Jackson's a little wider form."""
    if char.isalnum() or char == "_" or char == "$":
        return True
    if not java and char in "@#*-+":
        return True
    return char > " " and unicodedata.category(char) in _NAME_CATEGORIES


def _is_name_start(char: str) -> bool:
    return char.isalpha() or unicodedata.category(char) in ("Sc", "Pc", "Nl")


def _join_halves(text: str) -> str:
    """Surrogates that make a pair as one character; a lone half stays."""
    if _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def has_half(text: str) -> bool:
    """Whether it has half a pair, which no UTF-8 text can have."""
    return _HALF.search(text) is not None


def without_halves(text: str) -> str:
    """As Java encodes it: a question mark for half a pair."""
    return _HALF.sub("?", text)
