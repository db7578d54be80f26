"""sequence(): numbers, dates and timestamps at equal distances."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.functions.alignment import on_arrays, valid_mask
from penstock.ops.functions.civil import MICROS_PER_DAY
from penstock.ops.functions.failures import fail_where
from penstock.ops.functions.lists import Lists, check_length, offsets_of
from penstock.ops.functions.registry import function
from penstock.plan.exprs import Call
from penstock.state.keys import canonical_ints


def _refuse_calendars(call: Call) -> str | None:
    """Months are not of equal length, and in most zones days are not either."""
    kind, has_step = call.args[0].type, len(call.args) > 2
    if pt.is_integer(kind):
        return None
    if has_step and not pt.is_duration(call.args[2].type):
        return "sequence with a step of months"
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
    scale = MICROS_PER_DAY if pt.is_date(start.type) else 1
    if step is not None:
        steps = canonical_ints(step)
    else:
        unit = 1 if pt.is_integer(start.type) else MICROS_PER_DAY
        steps = np.where(low <= high, unit, -unit)
    if scale > 1:
        fail_where(pa.array(valid & (steps % scale != 0)), "_LEGACY_ERROR_TEMP_3242")
        steps = steps // scale
    legal = np.where(low == high, True, np.where(low < high, steps > 0, steps < 0))
    # Spark has no condition for this; it throws this Java exception.
    fail_where(pa.array(valid & ~legal), "IllegalArgumentException", "illegal sequence boundaries")
    # Of unsigned words the distance of any two longs is exact.
    distance = np.where(low <= high, high - low, low - high).view(np.uint64)
    sizes = np.where(steps == 0, 1, np.abs(steps)).view(np.uint64)
    counts = distance // sizes + np.uint64(1)
    counts = np.where(valid, counts, np.uint64(0))
    check_length(counts)
    offsets = offsets_of(counts.astype(np.int64))
    rows = np.repeat(np.arange(len(valid)), np.diff(offsets))
    places = np.arange(offsets[-1]) - offsets[rows]
    integers = pa.array(low[rows] + places * steps[rows])
    kind = call.type.value_type
    if pt.is_date32(kind):
        integers = integers.cast(pa.int32())
    return Lists(offsets, integers.cast(kind), valid).array(call.type)
