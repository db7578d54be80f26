"""Values as text: what CAST(x AS STRING) makes of every type.

Law: numbers print as Java prints them, timestamps in the call's zone without trailing zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.functions.alignment import nulls
from penstock.ops.functions.civil import (
    MICROS_PER_DAY,
)
from penstock.ops.functions.java_floats import print_double, print_float
from penstock.ops.functions.lists import Lists, lists_of
from penstock.ops.functions.rows import each
from penstock.ops.functions.time_printing import Moments, printer
from penstock.ops.functions.zones import UTC_ZONE, Zone
from penstock.state.keys import canonical_ints


@dataclass(frozen=True, slots=True)
class Style:
    """How a cast prints: decimals never with an exponent, if plain; timestamps in the zone."""

    has_plain_decimals: bool
    zone: Zone


def print_values(array: pa.Array, style: Style) -> pa.Array:
    """One text per value, null for null."""
    type = array.type
    if pt.is_string(type):
        return array
    if pt.is_binary(type):
        return array.cast(pa.string(), safe=False)  # Spark does not look into the bytes either
    if pt.is_floating(type):
        return each(pa.string(), print_double if pt.is_float64(type) else print_float, array)
    if pt.is_decimal(type):
        return _print_decimals(array, style)
    if pt.is_date32(type):
        return _print_days(array)
    if pt.is_timestamp(type):
        return _print_timestamps(array, UTC_ZONE if type.tz is None else style.zone)
    if pt.is_duration(type):
        return each(pa.string(), print_day_time, array.cast(pa.int64()))
    if pt.is_null(type):
        return pa.nulls(len(array), pa.string())
    if pt.is_nested(type):
        return _print_nested(array, style)
    return array.cast(pa.string())


def _print_decimals(array: pa.Array, style: Style) -> pa.Array:
    """Arrow and Java agree on when to use an exponent, which is only with many decimal places."""
    if style.has_plain_decimals and array.type.scale > 6:
        return each(pa.string(), lambda value: format(value, "f"), array)
    return array.cast(pa.string())


def _print_days(array: pa.Array) -> pa.Array:
    none = np.zeros(1, np.int64)
    return printer("yyyy-MM-dd")(Moments(canonical_ints(array), none, none), nulls(array))


def _print_timestamps(array: pa.Array, zone: Zone) -> pa.Array:
    days, rest = zone.to_local(canonical_ints(array))
    moments = Moments(days, rest, np.zeros(1, np.int64))
    printed = printer("yyyy-MM-dd HH:mm:ss.SSSSSS")(moments, nulls(array))
    return pc.utf8_rtrim(pc.utf8_rtrim(printed, "0"), ".")


def print_day_time(micros: int) -> str:
    """An interval from days to seconds as Spark's literal of it."""
    sign = "-" if micros < 0 else ""
    days, rest = divmod(abs(micros), MICROS_PER_DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    digits = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"INTERVAL '{sign}{days} {hour:02d}:{minute:02d}:{second:02d}{digits}' DAY TO SECOND"


def _print_nested(array: pa.Array, style: Style) -> pa.Array:
    """Row by row: no kernel joins a different number of texts in each row."""
    type = array.type
    if pt.is_struct(type):
        fields = [_texts(field, style) for field in array.flatten()]
        rows = zip(*fields, strict=True) if fields else [()] * len(array)
        texts = ["{" + ", ".join(row) + "}" for row in rows]
    elif pt.is_map(type):
        maps = lists_of(array)
        keys, items = (_texts(part, style) for part in maps.elements.flatten())
        pairs = [f"{key} -> {item}" for key, item in zip(keys, items, strict=True)]
        texts = ["{" + row + "}" for row in _joined(pairs, maps)]
    else:
        lists = lists_of(array)
        texts = ["[" + row + "]" for row in _joined(_texts(lists.elements, style), lists)]
    return pa.array(texts, pa.string(), mask=nulls(array))


def _texts(array: pa.Array, style: Style) -> list[str]:
    return pc.fill_null(print_values(array, style), "null").to_pylist()


def _joined(texts: list[str], lists: Lists) -> list[str]:
    return [", ".join(texts[start:end]) for start, end in pairwise(lists.offsets.tolist())]
