"""Text as values: what CAST(text AS ...) accepts, and what it makes of it.

Every function answers with the values and the rows whose text is none. The strict forms that most
data has go through Arrow's parsers; all else is read by Python, each distinct text once.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.alignment import Mask, to_numpy
from penstock.ops.functions.civil import MICROS_PER_SECOND, date_of
from penstock.ops.functions.failures import fail
from penstock.ops.functions.rows import each
from penstock.ops.functions.zones import UTC_ZONE, Zone, find_zone

Parsed = tuple[pa.Array, Mask]
#: What Spark trims: control characters and the space; Java's own trim leaves DEL.
_BLANK: Final = "".join(map(chr, [*range(0x21), 0x7F]))
_JAVA_BLANK: Final = "".join(map(chr, range(0x21)))
_TRUE: Final = frozenset({"t", "true", "y", "yes", "1"})
_FALSE: Final = frozenset({"f", "false", "n", "no", "0"})
_PLAIN_INTEGER: Final = "^-?[0-9]{1,18}$"
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_TRUNCATED: Final = re.compile(r"([+-]?[0-9]*)(?:\.[0-9]*)?")
_PLAIN_NUMBER: Final = r"^-?[0-9]{1,15}(\.[0-9]{1,15})?([eE]-?[0-9]{1,2})?$"
_JAVA_NUMBER: Final = re.compile(
    r"([+-]?)(?:(NaN)|(Infinity)|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
_SPECIAL: Final = {
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
    "nan": math.nan,
}
#: More than a long has.
_DIGITS_MAX: Final = 20
_DECIMAL: Final = re.compile(r"([+-]?)(?:(\d+)\.?(\d*)|\.(\d+))(?:[eE]([+-]?\d+))?")
_DATE: Final = re.compile(r"(?s)([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.A)
_CLOCK: Final = r"(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?([^\d.].*|\..*)?)?)?"
_MOMENT: Final = re.compile(
    rf"(?s)([+-]?)(\d{{4,6}})(?:-(\d{{1,2}})(?:-(\d{{1,2}})(?:[ T]{_CLOCK})?)?)?", re.A
)
_JUST_TIME: Final = re.compile(rf"(?s)(?:T(?=\d)|(?=\d+:)){_CLOCK}", re.A)
_PLAIN_MOMENT: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py() is not False


def _are_digits(texts: pa.Array) -> bool:
    """Whether all are digits, few enough for a long: much cheaper to ask than a pattern."""
    if pc.all(pc.ascii_is_decimal(texts), min_count=0).as_py() is False:
        return False
    longest = pc.max(pc.binary_length(texts)).as_py()
    return longest is None or longest <= 18


def _unread(texts: pa.Array, read: pa.Array) -> Mask:
    """Rows that have a text but no value."""
    if read.null_count == texts.null_count:
        return np.zeros(len(texts), bool)
    return np.asarray(pc.and_(texts.is_valid(), read.is_null()).to_numpy(zero_copy_only=False))


def _read(texts: pa.Array, read: Any, type: pa.DataType) -> Parsed:
    values = each(type, read, texts)
    return values, _unread(texts, values)


def read_booleans(texts: pa.Array) -> Parsed:
    """Words for true and false, in any case."""

    def read(text: str) -> bool | None:
        word = text.strip(_BLANK).lower()
        return True if word in _TRUE else False if word in _FALSE else None

    return _read(texts, read, pa.bool_())


def read_integers(texts: pa.Array, type: pa.DataType, *, truncates: bool) -> Parsed:
    """Whole numbers; `truncates` allows digits behind a point, which are dropped."""
    if _are_digits(texts) or _all_match(texts, _PLAIN_INTEGER):
        longs = texts.cast(pa.int64())
        if pa.types.is_int64(type):
            return longs, np.zeros(len(texts), bool)
        limits = np.iinfo(type.to_pandas_dtype())
        values = to_numpy(longs)
        wrong = (values < limits.min) | (values > limits.max)
        return longs.cast(type, safe=False), np.asarray(wrong)
    most = 2 ** (type.bit_width - 1)

    def read(text: str) -> int | None:
        text = text.strip(_BLANK)
        match = (_TRUNCATED if truncates else _INTEGER).fullmatch(text)
        if match is None or text in ("", "+", "-"):
            return None
        digits = match[1] if truncates else match[0]
        value = 0 if digits in ("", "+", "-") else _int_of(digits)
        return value if value is not None and -most <= value < most else None

    return _read(texts, read, type)


def _int_of(digits: str) -> int | None:
    """None for more than any integer here has: Python does not read thousands of digits."""
    found = digits.lstrip("+-").lstrip("0") or "0"
    if len(found) > _DIGITS_MAX:
        return None
    return -int(found) if digits.startswith("-") else int(found)


def read_floats(texts: pa.Array, type: pa.DataType) -> Parsed:
    """Java's grammar of numbers, and infinity and NaN in any case."""
    if pa.types.is_float64(type) and _all_match(texts, _PLAIN_NUMBER):
        return texts.cast(type), np.zeros(len(texts), bool)
    read = read_double if pa.types.is_float64(type) else _read_single
    return _read(texts, read, type)


def read_double(text: str) -> float | None:
    """Java's parseDouble, or else Spark's own words for infinity and NaN; None for neither."""
    value = read_java_double(text)
    return _SPECIAL.get(text.strip(_JAVA_BLANK).lower()) if value is None else value


def read_java_double(text: str) -> float | None:
    """Java's parseDouble; None where that fails."""
    match = _JAVA_NUMBER.fullmatch(text.strip(_JAVA_BLANK))
    if match is None:
        return None
    sign = -1.0 if match[1] == "-" else 1.0
    if match[2]:
        return math.nan
    if match[3]:
        return sign * math.inf
    if match[4]:
        return sign * float(match[4])
    try:
        return sign * float.fromhex(match[5])
    except OverflowError:
        return sign * math.inf


def _read_single(text: str) -> float | None:
    value = read_java_single(text)
    return _SPECIAL.get(text.strip(_JAVA_BLANK).lower()) if value is None else value


def read_java_single(text: str) -> float | None:
    """Java's parseFloat; None where that fails."""
    value = read_java_double(text)
    match = _JAVA_NUMBER.fullmatch(text.strip(_JAVA_BLANK))
    if value is None or match is None or match[4] is None or not math.isfinite(value):
        return value
    return to_single(value, match[1] + match[4])


def to_single(value: float, exact: Fraction | int | str) -> float:
    """The float32 nearest to `exact`, of which `value` is the nearest double.

    Rounding twice goes wrong only where the double is halfway between two singles. Only there is a
    text read exactly: of one like 1e-999999999 that would take hours.
    """
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if not np.isfinite(single) or float(single) == value:
        return float(single)
    other = np.nextafter(single, np.float32(math.copysign(math.inf, value - float(single))))
    if float(single) + (float(other) - float(single)) / 2 != value:
        return float(single)
    low, high = sorted((float(single), float(other)))
    behind = Fraction(exact) - Fraction(value)
    return float(single) if not behind else high if behind > 0 else low


def read_decimals(texts: pa.Array) -> tuple[list[Decimal | None], Mask, Mask]:
    """Exact values; rows that are no number; rows with more than 38 digits before the point."""
    encoded = texts.dictionary_encode()
    decimals = [_read_decimal(text) for text in encoded.dictionary.to_pylist()]
    places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).tolist()
    rows = [decimals[place] if place >= 0 else (None, False, False) for place in places]
    values = [row[0] for row in rows]
    return values, np.array([r[1] for r in rows], bool), np.array([r[2] for r in rows], bool)


def _read_decimal(text: str) -> tuple[Decimal | None, bool, bool]:
    match = _DECIMAL.fullmatch(text.strip(_JAVA_BLANK))
    exponent = None if match is None else _int_of(match[5] or "0")
    if match is None or exponent is None or abs(exponent) >= 2**31:
        return None, True, False
    fraction = match[3] or match[4] or ""
    digits = ((match[2] or "") + fraction).lstrip("0")
    if not digits:
        return Decimal(0), False, False
    scale = len(fraction) - exponent
    if len(digits) - scale > 38:
        return None, False, True
    return Decimal(f"{match[1]}{digits}E{-scale}"), False, False


def read_days(texts: pa.Array) -> Parsed:
    """Dates: a year, perhaps a month, perhaps a day, and whatever follows a space or T."""
    try:
        return texts.cast(pa.date32()), np.zeros(len(texts), bool)
    except pa.ArrowInvalid:
        pass
    encoded = texts.dictionary_encode()
    parts = np.zeros((len(encoded.dictionary), 3), np.int64)
    for row, text in enumerate(encoded.dictionary.to_pylist()):
        match = _DATE.fullmatch(text.strip(_BLANK))
        if match is not None:
            parts[row] = int(match[1] + match[2]), int(match[3] or 1), int(match[4] or 1)
    days, wrong = date_of(parts[:, 0], parts[:, 1], parts[:, 2])
    made = pa.array(np.where(wrong, 0, days).astype(np.int32), pa.int32(), mask=wrong)
    values = made.cast(pa.date32()).take(encoded.indices)
    return values, _unread(texts, values)


def read_timestamps(texts: pa.Array, zone: Zone | None) -> Parsed:
    """Microseconds since 1970 in UTC. Without a zone a text's own zone is ignored."""
    if _all_match(texts, _PLAIN_MOMENT):
        try:
            local = texts.cast(pa.timestamp("us")).cast(pa.int64())
        except pa.ArrowInvalid:
            pass  # a 31st of April; the long way finds which
        else:
            if zone is None or zone.is_utc:
                return local, np.zeros(len(texts), bool)
    encoded = texts.dictionary_encode()
    made = pa.array([_read_moment(t, zone) for t in encoded.dictionary.to_pylist()], pa.int64())
    values = made.take(encoded.indices)
    return values, _unread(texts, values)


def names_zone(text: str) -> bool:
    """Whether a timestamp's text says in which zone it is."""
    match = _MOMENT.fullmatch(text.strip(_BLANK))
    return match is not None and bool(match[9])


def _read_moment(text: str, zone: Zone | None) -> int | None:
    trimmed = text.strip(_BLANK)
    match = _MOMENT.fullmatch(trimmed)
    if match is None:
        if zone is not None and _JUST_TIME.fullmatch(trimmed) is not None:
            fail("UNREPEATABLE_CAST", f"'{text}' means a time of the day on which it is read")
        return None
    sign, year, month, day, hour, minute, second, fraction, named = match.groups()
    clock = int(hour or 0), int(minute or 0), int(second or 0)
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        return None
    own = find_zone(named.strip(_JAVA_BLANK)) if named else zone
    if named and own is None:
        return None
    date = [np.array([int(part or 1)]) for part in (sign + year, month, day)]
    days, wrong = date_of(*date)
    if wrong[0]:
        return None
    seconds = clock[0] * 3600 + clock[1] * 60 + clock[2]
    rest = np.array([seconds * MICROS_PER_SECOND + int((fraction or "")[:6].ljust(6, "0"))])
    used = own if zone is not None and own is not None else UTC_ZONE
    micros, beyond = used.from_local(days, rest)
    return None if beyond[0] else int(micros[0])
