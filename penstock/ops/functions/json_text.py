"""Values as JSON text, as Spark's own writer (Jackson) prints them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from penstock.ops.functions.java_floats import print_double
from penstock.ops.functions.json_tokens import JsonError, Token, Tokens

_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_BEYOND: Final = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")
_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_WORDS: Final = {Token.TRUE: "true", Token.FALSE: "false", Token.NULL: "null"}


def quote(text: str) -> str:
    """A string with its quotes and escapes."""
    return f'"{escape(text)}"'


def escape(text: str) -> str:
    """What stands between the quotes."""
    if _ESCAPED.search(text) is None:
        return text
    return _ESCAPED.sub(lambda match: _SHORT.get(match[0]) or f"\\u{ord(match[0]):04X}", text)


def quote_in_bytes(text: str) -> str:
    """The same by Jackson's writer of bytes, which escapes whatever needs two UTF-16 units."""
    quoted = quote(text)
    if _BEYOND.search(quoted) is None:
        return quoted
    return _BEYOND.sub(_escape_units, quoted)


def _escape_units(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def print_number(value: float, printed: str) -> str:
    """A floating-point number as Java prints it; what is no number stands in quotes."""
    return printed if value - value == 0.0 else f'"{printed}"'


def print_scalar(tokens: Tokens, quoted: Callable[[str], str] = quote_in_bytes) -> str:
    """The scalar that the reader stands on, as Jackson writes it again."""
    token = tokens.token
    if token is Token.STRING:
        return quoted(tokens.string)
    if token is Token.INT:
        return str(int(tokens.number))
    if token is Token.FLOAT:
        value = float(tokens.number)
        return print_number(value, print_double(value))
    if token is None:
        raise JsonError("the text ends inside a value")
    return _WORDS[token]


def copy_value(tokens: Tokens, quoted: Callable[[str], str] = quote_in_bytes) -> str:
    """The value that the reader stands on, read to its end and printed without blanks."""
    parts: list[str] = []
    depth = 0
    needs_comma = False
    while True:
        token = tokens.token
        if token is Token.END_OBJECT or token is Token.END_ARRAY:
            if not depth:
                raise JsonError("there is nothing to close")
            parts.append(token.value)
            depth -= 1
            needs_comma = True
        else:
            if needs_comma:
                parts.append(",")
            if token is Token.NAME:
                parts.append(quoted(tokens.name) + ":")
                needs_comma = False
            elif token is Token.START_OBJECT or token is Token.START_ARRAY:
                parts.append(token.value)
                depth += 1
                needs_comma = False
            else:
                parts.append(print_scalar(tokens, quoted))
                needs_comma = True
        if not depth and token is not Token.NAME:
            return "".join(parts)
        tokens.next()
