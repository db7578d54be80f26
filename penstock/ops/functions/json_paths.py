"""Parts of a JSON text by path or name: get_json_object, json_tuple, and what an object has.

Each distinct text once, token by token: the answer depends on where the reader notices that a text
is damaged, and no column kernel knows that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import pyarrow as pa

from penstock.ops.functions.json_text import copy_value, print_scalar, quote, quote_in_bytes
from penstock.ops.functions.json_tokens import (
    OPENERS,
    PATH_DIALECT,
    JsonError,
    Token,
    Tokens,
    has_half,
    without_halves,
)
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.rows import each
from penstock.plan.exprs import Call

#: One step of a path: a field's name, a place in an array or all of them. Any field ("any") is read
#: as a step, but leads nowhere.
_Step = tuple[str, str | int | None]
_NAMED: Final = re.compile(r"\.([^.\[]+)|\['([^'?]+)'\]")
_PLACED: Final = re.compile(r"\[(\*|[0-9]+)\]")
_LONG_MAX: Final = 2**63 - 1


class BadPath(ValueError):
    """A path that is none: every answer is null."""


@lru_cache(maxsize=1024)
def steps_of(path: str) -> tuple[_Step, ...]:
    """The steps of a path. Raises BadPath."""
    if not path.startswith("$"):
        raise BadPath(path)
    steps: list[_Step] = []
    at = 1
    while at < len(path):
        if path.startswith(".*", at) or path.startswith("['*']", at):
            steps.append(("any", None))
            at += 2 if path[at] == "." else 5
            continue
        named, placed = _NAMED.match(path, at), _PLACED.match(path, at)
        if named is not None:
            steps.append(("key", named[1] or named[2]))
            at = named.end()
        elif placed is not None:
            place = None if placed[1] == "*" else int(placed[1])
            if place is not None and place > _LONG_MAX:
                raise BadPath(path)
            steps.append(("every", None) if place is None else ("at", place))
            at = placed.end()
        else:
            raise BadPath(path)
    return tuple(steps)


class _Writer:
    """What was found so far, as JSON; commas are set between the values of an array."""

    def __init__(self, quoted: Callable[[str], str] = quote_in_bytes) -> None:
        self.parts: list[str] = []
        self.quoted = quoted
        self._needs_comma = False

    def value(self, text: str) -> None:
        if self._needs_comma:
            self.parts.append(",")
        self.parts.append(text)
        self._needs_comma = True

    def open(self) -> None:
        self.value("[")
        self._needs_comma = False

    def close(self) -> None:
        self.parts.append("]")
        self._needs_comma = True

    @property
    def text(self) -> str:
        return "".join(self.parts)


def find(text: str, path: str) -> str | None:
    """What the path leads to; null for a damaged text or path."""
    try:
        steps = steps_of(path)
        tokens, writer = Tokens(text, PATH_DIALECT), _Writer()
        tokens.next()
        return writer.text if _follow(tokens, writer, "raw", steps) else None
    except (BadPath, JsonError):
        return None


def _follow(tokens: Tokens, writer: _Writer, style: str, steps: tuple[_Step, ...]) -> bool:
    """Write what the steps lead to from here; whether there was anything."""
    token = tokens.token
    if not steps:
        return _write(tokens, writer, style)
    kind, name = steps[0]
    if token is Token.START_OBJECT and kind == "key":
        return _follow_object(tokens, writer, style, steps)
    if token is Token.START_ARRAY and kind == "every":
        return _follow_all(tokens, writer, style, steps)
    if token is Token.START_ARRAY and kind == "at":
        assert isinstance(name, int)
        tokens.next()
        if len(steps) > 1 and steps[1][0] == "every":
            style = "quoted"
        return _follow_at(tokens, writer, style, steps[1:], name)
    tokens.skip_children()
    return False


def _write(tokens: Tokens, writer: _Writer, style: str) -> bool:
    if tokens.token is Token.STRING and style == "raw":
        writer.parts.append(_encodable(tokens.string))
        return True
    if tokens.token is Token.START_ARRAY and style == "flat":
        found = False
        while tokens.next() is not Token.END_ARRAY:
            found |= _follow(tokens, writer, style, ())
        return found
    if tokens.token is None:
        raise JsonError("there is no value")
    writer.value(copy_value(tokens, writer.quoted))
    return True


def _encodable(text: str) -> str:
    """A string to be written without quotes, where half a pair cannot be escaped."""
    if has_half(text):
        raise JsonError("half a pair of surrogates")
    return text


def _follow_object(tokens: Tokens, writer: _Writer, style: str, steps: tuple[_Step, ...]) -> bool:
    """Into the first field of that name which leads anywhere; a null leads nowhere."""
    name = steps[0][1]
    found = False
    while tokens.next() is not Token.END_OBJECT:
        if found:
            tokens.skip_children()
        elif tokens.token is Token.NAME and tokens.name == name:
            if tokens.next() is not Token.NULL:
                found = _follow(tokens, writer, style, steps[1:])
        else:
            tokens.skip_children()
    return found


def _follow_all(tokens: Tokens, writer: _Writer, style: str, steps: tuple[_Step, ...]) -> bool:
    """Hive's rules: two stars flatten, and what is alone needs no brackets."""
    if len(steps) > 1 and steps[1][0] == "every":
        return _follow_each(tokens, writer, "flat", steps[2:]) > 0
    if style == "quoted":
        return _follow_each(tokens, writer, "quoted", steps[1:]) > 0
    inner = _Writer(quote)  # Spark's own is one of characters, not of bytes
    found = _follow_each(tokens, inner, "quoted" if style == "raw" else "flat", steps[1:])
    if found:
        writer.value(_encodable(inner.text if found > 1 else inner.text[1:-1]))
    return found > 0


def _follow_each(tokens: Tokens, writer: _Writer, style: str, steps: tuple[_Step, ...]) -> int:
    found = 0
    writer.open()
    while tokens.next() is not Token.END_ARRAY:
        found += _follow(tokens, writer, style, steps)
    writer.close()
    return found


def _follow_at(
    tokens: Tokens, writer: _Writer, style: str, steps: tuple[_Step, ...], place: int
) -> bool:
    while place and tokens.token is not Token.END_ARRAY:
        tokens.skip_children()
        tokens.next()
        place -= 1
    if tokens.token is Token.END_ARRAY:
        return False
    found = _follow(tokens, writer, style, steps)
    while tokens.next() is not Token.END_ARRAY:
        tokens.skip_children()
    return found


@function("GetJsonObject", sql="get_json_object", raises=False)
def get_json_object(call: Call, texts: Datum, path: Datum) -> Datum:
    return each(pa.string(), find, texts, path)


def _array_length(text: str) -> int | None:
    """Of the outermost array; null if the text is none, or damaged."""
    try:
        tokens = Tokens(text, PATH_DIALECT)
        if tokens.next() is not Token.START_ARRAY:
            return None
        count = 0
        while tokens.next() is not Token.END_ARRAY:
            count += 1
            tokens.skip_children()
        return count
    except JsonError:
        return None


def _object_keys(text: str) -> list[str] | None:
    """Of the outermost object, repeated ones too."""
    try:
        tokens = Tokens(text, PATH_DIALECT)
        if tokens.next() is not Token.START_OBJECT:
            return None
        names = []
        while tokens.next() is not Token.END_OBJECT:
            names.append(without_halves(tokens.name))
            tokens.next()
            tokens.skip_children()
        return names
    except JsonError:
        return None


@function("JsonExpressionUtils.lengthOfJsonArray", sql="json_array_length", raises=False)
def json_array_length(call: Call, texts: Datum) -> Datum:
    return each(call.type, _array_length, texts)


@function("JsonExpressionUtils.jsonObjectKeys", sql="json_object_keys", raises=False)
def json_object_keys(call: Call, texts: Datum) -> Datum:
    return each(call.type, _object_keys, texts)


def tuple_of(text: str | None, names: list[str | None]) -> list[str | None]:
    """json_tuple: the fields of these names, printed; all null if the text is damaged."""
    row: list[str | None] = [None] * len(names)
    if text is None:
        return row
    try:
        tokens = Tokens(text, PATH_DIALECT)
        if tokens.next() is not Token.START_OBJECT:
            return row
        while tokens.next() is not Token.END_OBJECT:
            if tokens.token is Token.NAME and tokens.name in names:
                name = tokens.name
                if tokens.next() is not Token.NULL:
                    printed = _print(tokens)
                    row = [
                        printed if have == name else old
                        for have, old in zip(names, row, strict=True)
                    ]
            tokens.skip_children()
        return row
    except JsonError:
        return [None] * len(names)


def _print(tokens: Tokens) -> str:
    if tokens.token is Token.STRING:
        return _encodable(tokens.string)
    return copy_value(tokens) if tokens.token in OPENERS else print_scalar(tokens)
