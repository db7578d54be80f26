"""A variant as a text of its own: JSON in which a number's spelling tells its type.

Spark's variant knows whole numbers, decimals and doubles apart. Here a decimal has a point and no
exponent, a double has an exponent, a whole number has neither. Names are sorted as Spark sorts
them, so that equal variants are equal texts. This never leaves a query: nobody else reads it.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

from penstock.ops.functions.java_floats import print_double
from penstock.ops.functions.json_text import print_number, quote
from penstock.ops.functions.json_tokens import (
    NUMBER_LENGTH_MAX,
    STRICT_DIALECT,
    JsonError,
    Token,
    Tokens,
    has_half,
)

_DIGITS_MAX: Final = 38
_STEP: Final = re.compile(r"\.([^.\[]+)|\['([^']*)'\]|\[\"([^\"]*)\"\]|\[([0-9]+)\]")
#: One step of a path: a name, or a place.
Step = str | int


def parse(text: str) -> Any:
    """The value of a JSON text; whatever follows it is not looked at. Raises JsonError."""
    tokens = Tokens(text, STRICT_DIALECT)
    tokens.next()
    return _build(tokens)


def _build(tokens: Tokens) -> Any:
    token = tokens.token
    if token is Token.START_OBJECT:
        fields: dict[str, Any] = {}
        while tokens.next() is not Token.END_OBJECT:
            name = _whole(tokens.name)
            tokens.next()
            if name in fields:
                raise JsonError(f"the name {name!r} stands twice in an object")
            fields[name] = _build(tokens)
        return fields
    if token is Token.START_ARRAY:
        elements = []
        while tokens.next() is not Token.END_ARRAY:
            elements.append(_build(tokens))
        return elements
    if token is Token.STRING:
        return _whole(tokens.string)
    if token is Token.INT or token is Token.FLOAT:
        return _number(tokens.number, is_whole=token is Token.INT)
    if token is None or token in (Token.END_OBJECT, Token.END_ARRAY):
        raise JsonError("there is no value")
    return {Token.TRUE: True, Token.FALSE: False, Token.NULL: None}[token]


def _whole(text: str) -> str:
    if has_half(text):
        raise JsonError("half a pair of surrogates")
    return text


def _number(text: str, *, is_whole: bool) -> int | Decimal | float:
    if len(text) > NUMBER_LENGTH_MAX:
        raise JsonError("a number is too long")
    if is_whole and -(2**63) <= int(text) < 2**63:
        return int(text)
    if "e" not in text and "E" not in text:
        value = Decimal(text) or Decimal(0)  # a decimal has no negative zero
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        if -exponent <= _DIGITS_MAX and len(digits) <= _DIGITS_MAX:
            return value
    return float(text)


def dump(value: Any) -> str:
    """The text of a value."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return _dump_double(value)
    if isinstance(value, Decimal):
        digits = format(value, "f")
        return digits if "." in digits else f"{digits}.0"
    if isinstance(value, list):
        return f"[{','.join(map(dump, value))}]"
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{dump(name)}:{dump(value[name])}" for name in names) + "}"
    return str(value)


def _dump_double(value: float) -> str:
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    printed = repr(value)
    return printed if "e" in printed else f"{printed}e0"


def load(text: str) -> Any:
    """The value of a text that `dump` made."""
    return json.loads(text, parse_float=_load_number)


def _load_number(text: str) -> Decimal | float:
    return float(text) if "e" in text else Decimal(text.rstrip("0").rstrip(".") or "0")


def print_variant(value: Any) -> str:
    """JSON as Spark prints a variant."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, float):
        return print_number(value, print_double(value))
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, list):
        return f"[{','.join(map(print_variant, value))}]"
    if isinstance(value, dict):
        fields = (f"{quote(name)}:{print_variant(inner)}" for name, inner in value.items())
        return "{" + ",".join(fields) + "}"
    return dump(value)


def steps_of(path: str) -> tuple[Step, ...] | None:
    """The steps of a path such as `$.a['b'][0]`; None if it is none."""
    if not path.startswith("$"):
        return None
    steps: list[Step] = []
    at = 1
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            return None
        if step[4] is not None:
            if int(step[4]) >= 2**31:
                return None
            steps.append(int(step[4]))
        else:
            steps.append(next(name for name in step.groups() if name is not None))
        at = step.end()
    return tuple(steps)


class Missing:
    """Where a path leads nowhere."""


def follow(value: Any, steps: tuple[Step, ...]) -> Any:
    """What the steps lead to, or Missing."""
    for step in steps:
        named = isinstance(step, str) and isinstance(value, dict) and step in value
        placed = isinstance(step, int) and isinstance(value, list) and step < len(value)
        if not (named or placed):
            return Missing
        value = value[step]
    return value
