"""sequence(): numbers, dates and timestamps at equal distances, and dates at months' distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.functions.alignment import on_arrays, valid_mask
from penstock.ops.functions.civil import MICROS_PER_DAY, add_months, months_of
from penstock.ops.functions.failures import fail_where
from penstock.ops.functions.lists import Lists, check_length, offsets_of
from penstock.ops.functions.registry import function
from penstock.plan.exprs import Call, Literal
from penstock.state.keys import canonical_ints

#: The value at a place of the sequence of a row.
_ValueAt: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _refuse_calendars(call: Call) -> str | None:
    """In most zones days are not of equal length. Months are neither, but can be counted."""
    kind, has_step = call.args[0].type, len(call.args) > 2
    if pt.is_integer(kind):
        return None
    if has_step and pt.is_interval(call.args[2].type):
        return "sequence with a step of months and days"
    if has_step and _is_by_months(call) and not _months(call):
        return "sequence with a step of months that is not constant"
    if pt.is_timestamp(kind) and call.option("timeZoneId") != "UTC":
        return "sequence of timestamps in a time zone other than UTC"
    return None


@function("Sequence", sql="sequence", raises=True, accepts=_refuse_calendars, strict=True)
@on_arrays
def sequence(call: Call, start: pa.Array, stop: pa.Array, step: pa.Array | None = None) -> pa.Array:
    """From start to stop, both included if the step meets it."""
    arrays = [start, stop] if step is None else [start, stop, step]
    valid = valid_mask(*arrays)
    low, high = canonical_ints(start), canonical_ints(stop)
    if _is_by_months(call):
        return _by_months(call, low, high, valid)
    scale = MICROS_PER_DAY if pt.is_date(start.type) else 1
    if step is not None:
        steps = canonical_ints(step)
    else:
        unit = 1 if pt.is_integer(start.type) else MICROS_PER_DAY
        steps = np.where(low <= high, unit, -unit)
    if scale > 1:
        fail_where(pa.array(valid & (steps % scale != 0)), "_LEGACY_ERROR_TEMP_3242")
        steps = steps // scale
    _check_direction(low, high, steps, valid)
    # Of unsigned words the distance of any two longs is exact.
    distance = np.where(low <= high, high - low, low - high).view(np.uint64)
    sizes = np.where(steps == 0, 1, np.abs(steps)).view(np.uint64)
    counts = distance // sizes + np.uint64(1)
    return _spread(call, counts, valid, lambda rows, places: low[rows] + places * steps[rows])


def _is_by_months(call: Call) -> bool:
    """A year-month interval is an int32 to us, and numbers are at the distance of numbers."""
    return (
        len(call.args) > 2
        and not pt.is_integer(call.args[0].type)
        and pt.is_integer(call.args[2].type)
    )


def _months(call: Call) -> int:
    """The constant step; 0 if it is none."""
    step = call.args[2]
    months = step.value.as_py() if isinstance(step, Literal) else None
    return months if isinstance(months, int) else 0


def _by_months(call: Call, low: np.ndarray, high: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Each is so many months after the first, not after the one before: 31, 29, 31 of a month."""
    step = _months(call)
    _check_direction(low, high, np.full(len(low), step), valid)
    scale = 1 if pt.is_date(call.args[0].type) else MICROS_PER_DAY
    days, rest = low // scale, low % scale

    def value_at(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        return add_months(days[rows], places * step) * scale + rest[rows]

    full = np.abs(months_of(high // scale) - months_of(days)) // abs(step)
    last = value_at(np.arange(len(low)), full)
    is_beyond = last > high if step > 0 else last < high
    return _spread(call, (full + 1 - is_beyond).astype(np.uint64), valid, value_at)


def _check_direction(
    low: np.ndarray, high: np.ndarray, steps: np.ndarray, valid: np.ndarray
) -> None:
    legal = np.where(low == high, True, np.where(low < high, steps > 0, steps < 0))
    # Spark has no condition for this; it throws this Java exception.
    fail_where(pa.array(valid & ~legal), "IllegalArgumentException", "illegal sequence boundaries")


def _spread(call: Call, counts: np.ndarray, valid: np.ndarray, value_at: _ValueAt) -> pa.Array:
    """So many values for each row, none where it is null."""
    counts = np.where(valid, counts, np.uint64(0))
    check_length(counts)
    offsets = offsets_of(counts.astype(np.int64))
    rows = np.repeat(np.arange(len(valid)), np.diff(offsets))
    places = np.arange(offsets[-1]) - offsets[rows]
    integers = pa.array(value_at(rows, places))
    kind = call.type.value_type
    if pt.is_date32(kind):
        integers = integers.cast(pa.int32())
    return Lists(offsets, integers.cast(kind), valid).array(call.type)
