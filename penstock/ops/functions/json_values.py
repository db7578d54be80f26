"""JSON to values of a Spark type, token by token: the exact path of from_json.

A converter stands on the first token of a value and leaves the reader on its last. What it cannot
convert is `Unfit`; a struct, array or map of which a part could not be converted is `Partial`, and
carries the rest. Values are what pyarrow.array takes for the type: tuples for structs, integers for
times, pairs for the entries of maps.

Row by row: no column kernel knows what a damaged text still gives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.functions import parsing
from penstock.ops.functions.civil import MICROS_PER_SECOND
from penstock.ops.functions.json_text import copy_value
from penstock.ops.functions.json_tokens import (
    NUMBER_LENGTH_MAX,
    Dialect,
    JsonError,
    Token,
    Tokens,
    without_halves,
)
from penstock.ops.functions.time_parsing import parser
from penstock.ops.functions.zones import UTC_ZONE, Zone

Convert: TypeAlias = Callable[[Tokens], Any]
#: A text as a value; None if it is none.
Read: TypeAlias = Callable[[str], Any]

_INFINITE: Final = {
    "NaN": math.nan,
    "+INF": math.inf,
    "+Infinity": math.inf,
    "Infinity": math.inf,
    "-INF": -math.inf,
    "-Infinity": -math.inf,
}
#: The least and the most that Jackson takes for each width; a byte may be written unsigned.
_RANGES: Final = {
    8: (-128, 255),
    16: (-(2**15), 2**15 - 1),
    32: (-(2**31), 2**31 - 1),
    64: (-(2**63), 2**63 - 1),
}
_WIDE: Final = Context(prec=5000, rounding=ROUND_HALF_UP)
_BIG_DECIMAL: Final = re.compile(
    r"[+-]?(?:\d+\.?(?P<fraction>\d*)|\.(?P<only>\d+))(?:[eE](?P<exponent>[+-]?\d+))?"
)
#: Digits that Java can cut off, by dividing: it has no larger power of ten.
_CUT_MAX: Final = 8 * 2**26 + 7
_JAVA_INT: Final = re.compile(r"[+-]?[0-9]+")


class Unfit(ValueError):
    """A value that is not of the type."""


class Partial(ValueError):
    """A value of which a part is not of its type; `value` has the rest."""

    def __init__(self, value: Any) -> None:
        super().__init__("a part of the value is not of its type")
        self.value = value


@dataclass(frozen=True, slots=True)
class Formats:
    """How dates and timestamps are written; None is as in a cast."""

    date: str | None
    timestamp: str | None
    timestamp_ntz: str | None
    zone: Zone


class Conversions:
    """Makes the converters of one call."""

    def __init__(self, dialect: Dialect, formats: Formats) -> None:
        self._dialect = dialect
        self._formats = formats

    def of(self, type: pa.DataType) -> Convert:
        """The converter to this type."""
        if pt.is_struct(type):
            return _or_null(Token.START_OBJECT, self.struct(type))
        if pt.is_map(type):
            return _or_null(Token.START_OBJECT, self.map(type))
        if pt.is_list(type):
            return _or_null(Token.START_ARRAY, self.array(type))
        if pt.is_string(type):
            return _to_string
        if pt.is_boolean(type):
            return _to_boolean
        if pt.is_integer(type):
            return _to_integer(type)
        if pt.is_floating(type):
            return self._to_float(type)
        if pt.is_decimal(type):
            return _to_decimal(type)
        if pt.is_null(type):
            return _to_nothing
        if pt.is_binary(type):
            return _to_binary
        if pt.is_date32(type):
            return _of_string(self.reader(type))
        if pt.is_timestamp(type):
            return _of_string(self.reader(type), of_int=None if type.tz is None else _from_seconds)
        raise AssertionError(f"{type} is refused before")

    def reader(self, type: pa.DataType) -> Read:
        """What reads a date or timestamp out of a text."""
        formats = self._formats
        if pt.is_date32(type):
            return read_day if formats.date is None else by_pattern(formats.date, None, type)
        if type.tz is None:
            pattern, zone = formats.timestamp_ntz, None
        else:
            pattern, zone = formats.timestamp, formats.zone
        if pattern is None:
            return lambda text: read_moment(text, zone)
        return by_pattern(pattern, zone, type)

    def struct(self, type: pa.DataType) -> Convert:
        """An object; fields that the type does not name are passed over."""
        places = {type.field(place).name: place for place in range(type.num_fields)}
        converters = [self.of(type.field(place).type) for place in range(type.num_fields)]

        def convert(tokens: Tokens) -> tuple[Any, ...]:
            row: list[Any] = [None] * len(converters)
            is_whole = True
            while tokens.next() not in (None, Token.END_OBJECT):
                place = places.get(tokens.name)
                if place is None:
                    tokens.skip_children()
                    continue
                try:
                    row[place] = converters[place](tokens)
                except Partial as partial:
                    row[place] = partial.value
                    is_whole = False
                except (Unfit, JsonError):
                    is_whole = False
                    tokens.skip_children()
            if not is_whole:
                raise Partial(tuple(row))
            return tuple(row)

        return convert

    def map(self, type: pa.DataType) -> Convert:
        """An object, all fields; one that is not of the type makes the whole map unfit."""
        convert_item = self.of(type.item_type)

        def convert(tokens: Tokens) -> list[tuple[str, Any]]:
            entries: list[tuple[str, Any]] = []
            is_whole = is_fit = True
            while tokens.next() not in (None, Token.END_OBJECT):
                key = without_halves(tokens.name)
                try:
                    entries.append((key, convert_item(tokens)))
                except Partial as partial:
                    entries.append((key, partial.value))
                    is_whole = False
                except (Unfit, JsonError):
                    is_fit = False
                    tokens.skip_children()
            if not is_fit:
                raise Unfit
            if not is_whole:
                raise Partial(entries)
            return entries

        return convert

    def array(self, type: pa.DataType) -> Convert:
        """An array; an element that is not of the type makes all of it unfit."""
        convert_element = self.of(type.value_type)

        def convert(tokens: Tokens) -> list[Any]:
            elements: list[Any] = []
            is_whole = True
            while tokens.next() not in (None, Token.END_ARRAY):
                try:
                    elements.append(convert_element(tokens))
                except Partial as partial:
                    elements.append(partial.value)
                    is_whole = False
            if not is_whole:
                raise Partial(elements)
            return elements

        return convert

    def _to_float(self, type: pa.DataType) -> Convert:
        words = _INFINITE if self._dialect.non_numbers else {}
        is_single = pt.is_float32(type)

        def convert(tokens: Tokens) -> float | None:
            token = _value(tokens)
            if token is Token.NULL or token is None:
                return None
            if token is Token.INT or token is Token.FLOAT:
                return _float_of(tokens, is_single=is_single)
            if token is Token.STRING and tokens.string in words:
                return words[tokens.string]
            raise _unfit(tokens)

        return convert


def _value(tokens: Tokens) -> Token | None:
    """The token of the value, past its name."""
    return tokens.next() if tokens.token is Token.NAME else tokens.token


def _unfit(tokens: Tokens) -> Unfit:
    """The message would quote the text: so a string is read to its end."""
    if tokens.token is Token.STRING:
        _ = tokens.string
    return Unfit()


def _or_null(opener: Token, convert: Convert) -> Convert:
    def converted(tokens: Tokens) -> Any:
        token = _value(tokens)
        if token is opener:
            return convert(tokens)
        if token is Token.NULL or token is None:
            return None
        raise _unfit(tokens)

    return converted


def _to_string(tokens: Tokens) -> str | None:
    """What is no string is printed."""
    token = _value(tokens)
    if token is Token.STRING:
        return without_halves(tokens.string)
    return None if token is Token.NULL or token is None else copy_value(tokens)


def _to_boolean(tokens: Tokens) -> bool | None:
    token = _value(tokens)
    if token is Token.TRUE or token is Token.FALSE:
        return token is Token.TRUE
    if token is Token.NULL or token is None:
        return None
    raise _unfit(tokens)


def _to_nothing(tokens: Tokens) -> None:
    _value(tokens)


def _to_integer(type: pa.DataType) -> Convert:
    least, most = _RANGES[type.bit_width]
    wraps = 2 ** (type.bit_width - 1)

    def convert(tokens: Tokens) -> int | None:
        token = _value(tokens)
        if token is Token.NULL or token is None:
            return None
        if token is not Token.INT:
            raise _unfit(tokens)
        value = _int_of(tokens)
        if not least <= value <= most:
            raise Unfit
        return value if value < wraps else value - 2 * wraps

    return convert


def _int_of(tokens: Tokens) -> int:
    if len(tokens.number) > NUMBER_LENGTH_MAX:
        raise Unfit
    return int(tokens.number)


def _float_of(tokens: Tokens, *, is_single: bool) -> float:
    text = tokens.number
    if len(text) > NUMBER_LENGTH_MAX:
        raise Unfit
    if tokens.token is Token.INT:
        exact = int(text)
        value = float(exact) if abs(exact) < 2**1023 else math.copysign(math.inf, exact)
        return parsing.to_single(value, exact) if is_single else value
    value = float(text)
    if not is_single or not math.isfinite(value):
        return value
    return parsing.to_single(value, text)


def _to_decimal(type: pa.DataType) -> Convert:
    def convert(tokens: Tokens) -> Decimal | None:
        token = _value(tokens)
        if token is Token.NULL or token is None:
            return None
        if token is Token.INT or token is Token.FLOAT:
            text = tokens.number
        elif token is Token.STRING:
            text = tokens.string.replace(",", "")
        else:
            raise Unfit
        return fit_decimal(text, type)

    return convert


def fit_decimal(text: str, type: pa.DataType) -> Decimal:
    """A number as Java's BigDecimal reads it, rounded to the type's scale; Unfit if too large."""
    found = _BIG_DECIMAL.fullmatch(text)
    if found is None or len(text) > NUMBER_LENGTH_MAX:
        raise Unfit
    places = _places_of(found)
    if not -(2**31) <= places < 2**31:
        raise Unfit
    scale, most = Decimal(1).scaleb(-type.scale), Decimal(10) ** (type.precision - type.scale)
    value = Decimal(text)
    if value and places - type.scale > _CUT_MAX:
        raise Unfit
    if value and value.adjusted() > 40:
        raise Unfit
    if value and value.adjusted() < -4000:
        return Decimal(0)
    rounded = value.quantize(scale, context=_WIDE)
    if abs(rounded) >= most:
        raise Unfit
    return rounded


def _places_of(number: re.Match[str]) -> int:
    """Digits after the point, less the exponent: the scale of a BigDecimal, an int of Java's."""
    fraction = len(number["fraction"] or number["only"] or "")
    return fraction - int(number["exponent"] or 0)


def _to_binary(tokens: Tokens) -> bytes | None:
    token = _value(tokens)
    if token is Token.NULL or token is None:
        return None
    if token is not Token.STRING:
        raise Unfit
    return tokens.read_base64()


def _of_string(read: Read, *, of_int: Callable[[int], int] | None = None) -> Convert:
    def convert(tokens: Tokens) -> Any:
        token = _value(tokens)
        if token is Token.NULL or token is None:
            return None
        if token is Token.INT and of_int is not None:
            return of_int(_int_of(tokens))
        if token is not Token.STRING:
            raise Unfit
        text = without_halves(tokens.string)
        value = read(text) if text else None
        if value is None:
            raise Unfit
        return value

    return convert


def _from_seconds(seconds: int) -> int:
    """Java's product, which wraps around."""
    if not -(2**63) <= seconds < 2**63:
        raise Unfit
    return (seconds * MICROS_PER_SECOND + 2**63) % 2**64 - 2**63


def clean_legacy(text: str) -> str:
    """`2000-01-01T00:00GMT+01:00` without its GMT."""
    before, found, after = text.partition("GMT")
    return before + after if found else text


def read_day(text: str) -> int | None:
    """A date as in a cast, or the number of days since 1970."""
    for spelled in (text, clean_legacy(text)):
        value = parsing.read_days(pa.array([spelled], pa.string()))[0][0]
        if value.is_valid:
            return int(value.cast(pa.int32()).as_py())
    if _JAVA_INT.fullmatch(text) is None or not -(2**31) <= int(text) < 2**31:
        return None
    return int(text)


def read_moment(text: str, zone: Zone | None) -> int | None:
    """Microseconds of a timestamp as in a cast; where there is no zone, the text may name none."""
    if zone is None and parsing.names_zone(text):
        return None
    spellings = (text,) if zone is None else (text, clean_legacy(text))
    for spelled in spellings:
        value = parsing.read_timestamps(pa.array([spelled], pa.string()), zone)[0][0].as_py()
        if value is not None:
            return int(value)
    return None


def by_pattern(pattern: str, zone: Zone | None, type: pa.DataType) -> Read:
    """What reads days or microseconds of one pattern; without a zone the text may name none."""
    parse = parser(pattern)

    def read(text: str) -> int | None:
        parsed = parse(pa.array([text], pa.string()))
        if parsed.wrong[0]:
            return None
        if pt.is_date32(type):
            return int(parsed.days[0])
        if zone is None and parsed.offsets is not None and parsed.has_offset[0]:
            return None
        days, rest = parsed.days, parsed.micros
        used = zone if zone is not None else UTC_ZONE
        if zone is not None and parsed.offsets is not None and parsed.has_offset[0]:
            used, rest = UTC_ZONE, rest - parsed.offsets * MICROS_PER_SECOND
        micros, beyond = used.from_local(np.asarray(days), np.asarray(rest))
        return None if beyond[0] else int(micros[0])

    return read
