"""Values as text: what CAST(x AS STRING) makes of every type.

Law: numbers print as Java prints them, timestamps in the call's zone without trailing zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.functions.alignment import by_value, nulls, to_numpy
from penstock.ops.functions.civil import (
    MICROS_PER_DAY,
    days_of_month,
    join_micros,
    months_of,
    years_of,
)
from penstock.ops.functions.java_floats import print_double, print_float
from penstock.ops.functions.zones import UTC_ZONE, Zone

#: Days from 0000-01-01 to 9999-12-31: what Arrow prints as Spark does.
_FIRST_DAY: Final = -719_528
_LAST_DAY: Final = 2_932_896


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
        return by_value(array, print_double if pt.is_float64(type) else print_float, pa.string())
    if pt.is_decimal(type):
        return _print_decimals(array, style)
    if pt.is_date32(type):
        return _print_days(array)
    if pt.is_timestamp(type):
        return _print_timestamps(array, UTC_ZONE if type.tz is None else style.zone)
    if pt.is_duration(type):
        return by_value(array.cast(pa.int64()), print_day_time, pa.string())
    if pt.is_null(type):
        return pa.nulls(len(array), pa.string())
    if pt.is_nested(type):
        return _print_nested(array, style)
    return array.cast(pa.string())


def _print_decimals(array: pa.Array, style: Style) -> pa.Array:
    """Arrow and Java agree on when to use an exponent, which is only with many decimal places."""
    if style.has_plain_decimals and array.type.scale > 6:
        return by_value(array, lambda value: format(value, "f"), pa.string())
    return array.cast(pa.string())


def _print_days(array: pa.Array) -> pa.Array:
    days = to_numpy(array.cast(pa.int32())).astype(np.int64)
    if not _has_strange_years(days):
        return array.cast(pa.string())
    return pa.array(_texts_of_days(days), pa.string(), mask=nulls(array))


def _print_timestamps(array: pa.Array, zone: Zone) -> pa.Array:
    days, rest = zone.to_local(to_numpy(array.cast(pa.int64())))
    if _has_strange_years(days):
        times = pa.array(rest).cast(pa.time64("us")).cast(pa.string())
        texts = [f"{day} {time}" for day, time in zip(_texts_of_days(days), times, strict=True)]
        printed = pa.array(texts, pa.string())
    else:
        printed = pa.array(join_micros(days, rest)[0]).cast(pa.timestamp("us")).cast(pa.string())
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(printed, "0"), ".")
    return pc.if_else(array.is_valid(), trimmed, pa.scalar(None, pa.string()))


def _has_strange_years(days: np.ndarray) -> bool:
    return bool(len(days)) and bool(days.min() < _FIRST_DAY or days.max() > _LAST_DAY)


def _texts_of_days(days: np.ndarray) -> list[str]:
    """Years beyond 9999 have a sign; Arrow would print them otherwise, so this is a loop."""
    years, months, parts = years_of(days), months_of(days) % 12 + 1, days_of_month(days)
    return [
        f"{'+' if year > 9999 else '-' if year < 0 else ''}{abs(year):04d}-{month:02d}-{day:02d}"
        for year, month, day in zip(years.tolist(), months.tolist(), parts.tolist(), strict=True)
    ]


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
        pair = pa.struct([("key", type.key_type), ("value", type.item_type)])
        entries = array.cast(pa.list_(pair))
        keys, items = (_texts(part, style) for part in entries.flatten().flatten())
        pairs = [f"{key} -> {item}" for key, item in zip(keys, items, strict=True)]
        texts = ["{" + ", ".join(pairs[a:b]) + "}" for a, b in _bounds(entries)]
    else:
        elements = _texts(array.flatten(), style)
        texts = ["[" + ", ".join(elements[a:b]) + "]" for a, b in _bounds(array)]
    return pa.array(texts, pa.string(), mask=nulls(array))


def _texts(array: pa.Array, style: Style) -> list[str]:
    return pc.fill_null(print_values(array, style), "null").to_pylist()


def _bounds(lists: pa.Array) -> list[tuple[int, int]]:
    """Where each list starts and ends among the flattened elements."""
    ends = np.cumsum(to_numpy(pc.list_value_length(lists)))
    return list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)) if len(ends) else []
