"""Values printed by a format: format_string, format_number, mask.

format_string has Java's Formatter: the conversions of strings, whole numbers, booleans and %f.
format_number has Java's DecimalFormat, of which patterns of digits, commas and one point are taken.
Both only with constant formats; everything else is refused.
"""

from __future__ import annotations

import decimal
import math
import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.functions.decimals import EXACT
from penstock.ops.functions.java_floats import print_double, print_float
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.rows import each, each_with_nulls
from penstock.plan.exprs import Call, Expr, Literal

_SPEC: Final = re.compile(r"%(?:(\d+)\$)?([-#+ 0,(<]*)(\d+)?(?:\.(\d+))?([a-zA-Z%])")
#: Conversions by the flags that they may have.
_FLAGS: Final = {"s": "-", "d": "-+ 0,", "f": "-+ 0,", "x": "-0", "X": "-0", "o": "-0", "b": "-"}
_PATTERN: Final = re.compile(r"(?P<whole>#*(?:,[#0]+)*|[#0,]*)(?:\.(?P<least>0*)(?P<most>#*))?")


# -- format_string


@dataclass(frozen=True, slots=True)
class _Spec:
    """A conversion: %[argument$][flags][width][.precision]conversion."""

    argument: int
    flags: str
    width: int
    precision: int | None
    conversion: str


@lru_cache(maxsize=256)
def _read_format(text: str) -> tuple[str | _Spec, ...] | str:
    """Texts and conversions, or what is wrong."""
    parts: list[str | _Spec] = []
    place = argument = 0
    for match in _SPEC.finditer(text):
        parts.append(text[place : match.start()])
        if "%" in text[place : match.start()]:
            return f"the format {text!r}"
        place = match.end()
        if match[0] in ("%%", "%n"):
            parts.append("%" if match[0] == "%%" else "\n")
            continue
        number, flags, width, precision, conversion = match.groups()
        if not _is_legal(flags, width, precision, conversion):
            return f"the conversion {match[0]}"
        argument += number is None
        chosen = argument if number is None else int(number)
        digits = None if precision is None else int(precision)
        parts.append(_Spec(chosen, flags, int(width or 0), digits, conversion))
    if "%" in text[place:]:
        return f"the format {text!r}"
    return (*parts, text[place:])


def _is_legal(flags: str, width: str | None, precision: str | None, conversion: str) -> bool:
    """Whether Java takes it, and we do."""
    distinct = set(flags)
    if (
        conversion not in _FLAGS
        or distinct - set(_FLAGS[conversion])
        or len(distinct) != len(flags)
    ):
        return False
    if (
        {"-", "0"} <= distinct
        or {"+", " "} <= distinct
        or (distinct & {"-", "0"} and width is None)
    ):
        return False
    return precision is None or conversion in "sfb"


def _judge_format(call: Call) -> str | None:
    literal, *args = call.args
    if not isinstance(literal, Literal) or not literal.value.is_valid:
        return "format_string with a format that is not constant"
    parts = _read_format(literal.value.as_py())
    if isinstance(parts, str):
        return f"format_string with {parts}"
    for part in parts:
        if isinstance(part, _Spec):
            if not 1 <= part.argument <= len(args):
                return f"format_string without argument {part.argument}"
            if not _fits(part.conversion, args[part.argument - 1]):
                return f"format_string with %{part.conversion} of {args[part.argument - 1].type}"
    return None


def _fits(conversion: str, arg: Expr) -> bool:
    type = arg.type
    if conversion in "dxXo":
        return bool(pt.is_integer(type))
    if conversion == "f":
        return bool(pt.is_floating(type))
    if conversion == "b":
        return True
    return any(is_(type) for is_ in (pt.is_string, pt.is_integer, pt.is_boolean, pt.is_floating))


@function("FormatString", sql="format_string printf", raises=False, accepts=_judge_format)
def format_string(call: Call, format: pa.Scalar, *values: Datum) -> Datum:
    parts = _read_format(format.as_py())
    assert not isinstance(parts, str)
    types = [arg.type for arg in call.args[1:]]

    def print_row(*row: object) -> str:
        return "".join(
            part
            if isinstance(part, str)
            else _convert(part, row[part.argument - 1], types[part.argument - 1])
            for part in parts
        )

    # Every row is put together from its own pieces: no kernel prints numbers to a width.
    return each_with_nulls(call.type, print_row, *values) if values else pa.scalar(print_row())


def _convert(spec: _Spec, value: object, type: pa.DataType) -> str:
    if spec.conversion == "b":
        text = "false" if value is None or value is False else "true"
        return _justify(spec, _truncate(text, spec.precision))
    if value is None:
        text = "NULL" if spec.conversion == "X" else "null"
        return _justify(spec, _truncate(text, spec.precision))
    if spec.conversion == "s":
        return _justify(spec, _truncate(_to_string(value, type), spec.precision))
    if isinstance(value, float):
        return _print_float(spec, value)
    assert isinstance(value, int)
    if spec.conversion == "d":
        return _print_number(spec, value < 0, str(abs(value)))
    digits = format(value % 2**type.bit_width, spec.conversion)
    return _justify(spec, digits.rjust(spec.width, "0") if "0" in spec.flags else digits)


def _to_string(value: object, type: pa.DataType) -> str:
    """Java's toString."""
    if isinstance(value, float):
        return print_float(value) if pt.is_float32(type) else print_double(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _print_float(spec: _Spec, value: float) -> str:
    sign = "-" if value < 0 else "+" if "+" in spec.flags else " " if " " in spec.flags else ""
    if math.isnan(value):
        return _justify(spec, "NaN")
    if math.isinf(value):
        return _justify(spec, f"{sign}Infinity")
    places = 6 if spec.precision is None else spec.precision
    # Java rounds the digits that it would print, not the exact binary value.
    printed = Decimal(print_double(abs(value)))
    rounded = printed.quantize(Decimal(1).scaleb(-places), decimal.ROUND_HALF_UP, EXACT)
    return _print_number(spec, math.copysign(1, value) < 0, f"{rounded:f}")


def _print_number(spec: _Spec, is_negative: bool, digits: str) -> str:
    whole, point, fraction = digits.partition(".")
    if "," in spec.flags:
        whole = f"{int(whole):,}"
    sign = "-" if is_negative else "+" if "+" in spec.flags else " " if " " in spec.flags else ""
    text = whole + point + fraction
    if "0" in spec.flags:
        text = text.rjust(spec.width - len(sign), "0")
    return _justify(spec, sign + text)


def _justify(spec: _Spec, text: str) -> str:
    missing = spec.width - _units(text)
    return text + " " * missing if "-" in spec.flags else " " * missing + text


def _units(text: str) -> int:
    """Java's length: characters beyond U+FFFF count twice."""
    return len(text) + sum(letter > "\uffff" for letter in text)


def _truncate(text: str, precision: int | None) -> str:
    """The first so many of Java's characters; half of one prints as a question mark."""
    if precision is None or _units(text) <= precision:
        return text
    units = text.encode("utf-16-le")[: 2 * precision]
    whole = units.decode("utf-16-le", "ignore")
    return whole if _units(whole) == precision else whole + "?"


# -- format_number


@dataclass(frozen=True, slots=True)
class _Shape:
    """A DecimalFormat: digits in a group (0: none), least digits before and after the point."""

    group: int
    whole_least: int
    fraction_least: int
    fraction_most: int


@lru_cache(maxsize=64)
def _read_pattern(pattern: str) -> _Shape | None:
    """None for what is not made of #, 0, commas and a point."""
    if not pattern:
        return _Shape(3, 1, 0, 0)
    match = _PATTERN.fullmatch(pattern)
    if match is None or not re.fullmatch(r"[#,]*[0,]*", match["whole"]):
        return None
    whole = match["whole"]
    if whole.endswith(",") or whole.startswith(","):
        return None
    fraction_least, fraction_most = len(match["least"] or ""), len(match["most"] or "")
    group = len(whole) - whole.rindex(",") - 1 if "," in whole else 0
    zeros = whole.count("0")
    if zeros == 0 and (fraction_least == 0 or not whole):
        return None  # Java makes up digits for such patterns
    return _Shape(group, zeros, fraction_least, fraction_least + fraction_most)


def _judge_number(call: Call) -> str | None:
    pattern = call.args[1]
    if not pt.is_string(pattern.type):
        return None
    if not isinstance(pattern, Literal) or not pattern.value.is_valid:
        return "format_number with a pattern that is not constant"
    if _read_pattern(pattern.value.as_py()) is None:
        return f"format_number with the pattern {pattern.value.as_py()!r}"
    return None


@function("FormatNumber", sql="format_number", raises=False, accepts=_judge_number, strict=True)
def format_number(call: Call, value: Datum, places: Datum) -> Datum:
    """With so many places, or by a pattern; null for a negative number of places."""

    def print_number(number: float | Decimal, format: int | str) -> str | None:
        if isinstance(format, str):
            shape = _read_pattern(format)
            assert shape is not None
            return _print_shaped(number, shape)
        return None if format < 0 else _print_shaped(number, _Shape(3, 1, format, format))

    return each(call.type, print_number, value, places)


def _print_shaped(number: float | Decimal, shape: _Shape) -> str:
    if isinstance(number, float) and not math.isfinite(number):
        return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"
    is_negative = math.copysign(1, number) < 0 if isinstance(number, float) else number < 0
    size = -number if is_negative else number
    whole, _, fraction = f"{_round(size, shape.fraction_most):f}".partition(".")
    kept = fraction.rstrip("0")
    fraction = fraction[: max(len(kept), shape.fraction_least)]
    whole = whole.lstrip("0").rjust(shape.whole_least, "0")
    if shape.group:
        head = len(whole) % shape.group
        groups = [
            whole[start : start + shape.group] for start in range(head, len(whole), shape.group)
        ]
        whole = ",".join([whole[:head], *groups] if head else groups)
    return ("-" if is_negative else "") + whole + (f".{fraction}" if fraction else "")


def _round(number: float | Decimal, places: int) -> Decimal:
    """To the even neighbour if exactly between two: the binary value, not what it prints as."""
    step = Decimal(1).scaleb(-places)
    if not isinstance(number, float):
        return Decimal(number).quantize(step, decimal.ROUND_HALF_EVEN, EXACT)
    printed, exact = Decimal(print_double(number)), Decimal(number)
    down = printed.quantize(step, decimal.ROUND_DOWN, EXACT)
    is_tie = EXACT.multiply(EXACT.subtract(printed, down), Decimal(2)) == step
    if is_tie and exact != printed:
        return EXACT.add(down, step) if exact > printed else down
    return printed.quantize(step, decimal.ROUND_HALF_EVEN, EXACT)


# -- mask


#: Letters and digits that Java 17, with Unicode 13, does not know: (first, last).
_NEWER: Final = (
    (0x2C2F, 0x2C2F),
    (0x2C5F, 0x2C5F),
    (0xA7C0, 0xA7C1),
    (0xA7D0, 0xA7D1),
    (0xA7D3, 0xA7D3),
    (0xA7D5, 0xA7D9),
    (0x10570, 0x105BC),
    (0x16AC0, 0x16AC9),
    (0x1DF00, 0x1DF1E),
)


@function("Mask", sql="mask", raises=False)
def mask(call: Call, value: Datum, upper: Datum, lower: Datum, digit: Datum, other: Datum) -> Datum:
    """Every letter, digit and other character by one that stands for its kind, unless null."""

    def masked(text: str | None, *masks: str | None) -> str | None:
        return None if text is None else "".join(_mask(letter, masks) for letter in text)

    return each_with_nulls(call.type, masked, value, upper, lower, digit, other)


def _mask(letter: str, masks: tuple[str | None, ...]) -> str:
    code = ord(letter)
    is_newer = any(first <= code <= last for first, last in _NEWER)
    kind = "" if is_newer else unicodedata.category(letter)
    mask = masks[{"Lu": 0, "Ll": 1, "Nd": 2}.get(kind, 3)]
    return letter if mask is None else mask[0]
