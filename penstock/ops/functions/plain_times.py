"""Dates and timestamps in the forms that programs write, recognised by NumPy and read by Arrow.

`2024-01-02`, and `2024-01-02T03:04:05` with up to six more digits and a Z. Whatever else Spark
takes for a date or a time is not plain, and is left to who asked.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.functions.alignment import Ints, Mask, null_where, nulls
from penstock.ops.functions.bytes_at import Bytes, Form, Windows, are_digits, text_bytes, windows_of

_YEAR_MONTH: Final = Form(b"0000-00-")
_DAY_HOUR: Final = Form(b"00?00:00")
_CLOCK: Final = Form(b"00:00:00")
_MONTH_DAY: Final = Form(b"00-00-00")
_DATE_LENGTH: Final = 10
_MOMENT_LENGTH: Final = 19
#: Whether a text of this length, without its Z, can be plain; nulls have none.
_TOO_LONG: Final = 27
_MOMENT_LENGTHS: Final = np.isin(np.arange(_TOO_LONG + 1), [0, _MOMENT_LENGTH, *range(21, 27)])
_ZULU: Final = ord("Z")
_SEPARATORS: Final = (ord("T"), ord(" "))
#: By how many digits follow the point: ones where they stand in a window.
_FRACTIONS: Final = np.array([(1 << (8 * count)) - 1 for count in range(7)], np.uint64)


def read_plain_times(texts: pa.Array, type: pa.DataType) -> tuple[pa.Array, Mask]:
    """Dates or timestamps in UTC, and which texts are not plain: these are null."""
    data, offsets = text_bytes(texts)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if pt.is_date32(type):
        return _read_dates(texts, data, starts, lengths, type)
    has_zone = np.zeros(len(texts), bool)
    if len(data):
        has_zone = (data[offsets[1:] - 1] == _ZULU) & (lengths > 0)
    # Of these lengths Arrow takes nothing else than what is plain: so it need not be looked at.
    if (_MOMENT_LENGTHS[np.minimum(lengths - has_zone, _TOO_LONG)]).all():
        try:
            return _moments(texts, has_zone, type), np.zeros(len(texts), bool)
        except pa.ArrowInvalid:
            pass
    windows = windows_of(data, 3 * 8)
    odd = ~_plain_moments(windows, starts, lengths, has_zone) & ~nulls(texts)
    try:
        return _moments(null_where(texts, odd), has_zone, type), odd
    except pa.ArrowInvalid:
        odd |= _impossible(null_where(texts, odd))
        return _moments(null_where(texts, odd), has_zone, type), odd


def _read_dates(
    texts: pa.Array, data: Bytes, starts: Ints, lengths: Ints, type: pa.DataType
) -> tuple[pa.Array, Mask]:
    odd = ~_plain_dates(windows_of(data, 3 * 8), starts, lengths) & ~nulls(texts)
    try:
        return null_where(texts, odd).cast(type), odd
    except pa.ArrowInvalid:
        odd |= _impossible(null_where(texts, odd))
        return null_where(texts, odd).cast(type), odd


def _plain_dates(windows: Windows, starts: Ints, lengths: Ints) -> Mask:
    plain = lengths == _DATE_LENGTH
    plain &= _YEAR_MONTH.fits(windows[starts])
    plain &= _MONTH_DAY.fits(windows[starts + 2])
    return plain


def _plain_moments(windows: Windows, starts: Ints, lengths: Ints, has_zone: Mask) -> Mask:
    day = windows[starts + 8]
    plain = _YEAR_MONTH.fits(windows[starts]) & _DAY_HOUR.fits(day)
    plain &= _CLOCK.fits(windows[starts + 11])
    separator = (day >> np.uint64(16)) & np.uint64(0xFF)
    plain &= (separator == _SEPARATORS[0]) | (separator == _SEPARATORS[1])
    rest = lengths - has_zone - _MOMENT_LENGTH
    tail = windows[starts + np.minimum(lengths, _MOMENT_LENGTH)]
    has_point = (tail & np.uint64(0xFF)) == ord(".")
    digits = _FRACTIONS[np.clip(rest - 1, 0, 6)]
    is_fraction = has_point & (rest > 1) & (rest < 8) & are_digits(tail >> np.uint64(8), digits)
    return np.asarray(plain & ((rest == 0) | is_fraction))


def _moments(texts: pa.Array, has_zone: Mask, type: pa.DataType) -> pa.Array:
    if has_zone.all():
        return texts.cast(pa.timestamp("us", tz="UTC")).cast(type)
    if has_zone.any():
        texts = pc.utf8_rtrim(texts, "Z")
    return texts.cast(pa.timestamp("us")).cast(type)


def _impossible(texts: pa.Array) -> Mask:
    """A day that no calendar has, or the like. Row by row: Arrow does not say which text it was."""

    def is_impossible(text: str | None) -> bool:
        try:
            return text is not None and datetime.fromisoformat(text) is None
        except ValueError:
            return True

    return np.array([is_impossible(text) for text in texts.to_pylist()], bool)
