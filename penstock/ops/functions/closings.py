"""When a key that is made of event time closes (plan/closing.py): its end, one step at a time.

A step is given the smallest value of a function's result that is beyond the key, and answers with
the smallest argument from which on no result is below that. Values are days, microseconds or whole
numbers. Where a clock is put back, local time is met twice: the second time counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions import civil
from penstock.ops.functions.alignment import Ints, Mask, as_array
from penstock.ops.functions.civil import (
    MICROS_PER_DAY,
    MICROS_PER_HOUR,
    MICROS_PER_MINUTE,
    MICROS_PER_SECOND,
)
from penstock.ops.functions.operands import Operands
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.zones import Zone, find_zone
from penstock.plan.exprs import Call

_TIME_UNITS: Final = {
    "MICROSECOND": 1,
    "MILLISECOND": 1000,
    "SECOND": MICROS_PER_SECOND,
    "MINUTE": MICROS_PER_MINUTE,
    "HOUR": MICROS_PER_HOUR,
    "DAY": MICROS_PER_DAY,
}
_LARGEST: Final = 2**63 - 1
_MONTHS: Final = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


@function("ClosesAt", raises=False)
def closes_at(call: Call, *keys: Datum) -> Datum:
    """The first moment at which no row of the key can come any more; null if it never comes."""
    steps = call.option("steps")
    assert isinstance(steps, tuple)
    never = np.zeros(1, bool)
    if steps[0][0] == "text":
        rows = Operands(*_fields_of_text(as_array(keys[0], 1), steps[0][1]))
        beyond = _local_time(rows)
        steps = (("fields", *steps[0][2:]), *steps[1:])
    elif steps[0][0] == "fields":
        rows = Operands(*keys)
        beyond = _local_time(rows)
    else:
        rows = Operands(*keys)
        beyond = rows.vectors[0] + 1
    for name, *settings in steps:
        beyond, wrong = _STEPS[name](beyond, *settings)
        never = never | wrong
    return rows.result(beyond, call.type, never)


def _exact(step: Callable[..., Ints]) -> Callable[..., tuple[Ints, Mask]]:
    def take(beyond: Ints, *settings: object) -> tuple[Ints, Mask]:
        return step(beyond, *settings), np.zeros(1, bool)

    return take


def _zone(id: object) -> Zone:
    zone = find_zone(str(id))
    assert zone is not None, "refused where the key is computed"
    return zone


def _day(beyond: Ints, zone: str) -> tuple[Ints, Mask]:
    """Of local dates."""
    return _zone(zone).last_from_local(beyond, np.zeros_like(beyond))


def _midnight(beyond: Ints, zone: str) -> tuple[Ints, Mask]:
    """Of the first moments of dates."""
    return _zone(zone).to_local(beyond - 1)[0] + 1, np.zeros(1, bool)


def _trunc_time(beyond: Ints, level: str, zone: str) -> tuple[Ints, Mask]:
    """Of timestamps, truncated in local time."""
    days, rest = _zone(zone).to_local(beyond - 1)
    return _next_in(days, rest, level, zone)


def _next_in(days: Ints, rest: Ints, level: str, zone: str) -> tuple[Ints, Mask]:
    """The last moment at which the unit of local time after this one begins."""
    unit = _TIME_UNITS.get(level)
    if unit is None:
        days, rest = _trunc_date(days + 1, level), np.zeros_like(rest)
    else:
        rest = rest - rest % unit + unit
        days, rest = days + rest // MICROS_PER_DAY, rest % MICROS_PER_DAY
    return _zone(zone).last_from_local(days, rest)


def _trunc_date(beyond: Ints, level: str) -> Ints:
    """Of dates."""
    days = beyond - 1
    if level == "WEEK":
        return days - civil.weekdays(days) + 7
    months = _MONTHS[level]
    return civil.first_days((civil.months_of(days) // months + 1) * months)


def _per(beyond: Ints, width: int) -> tuple[Ints, Mask]:
    """Of quotients, rounded down or cut."""
    return beyond * width, np.abs(beyond) > _LARGEST // width


def _floor(beyond: Ints, width: int) -> Ints:
    """Of multiples of a width."""
    return -(-beyond // width) * width


def _times(beyond: Ints, factor: int) -> Ints:
    """Of products."""
    return -(-beyond // factor)


def _plus(beyond: Ints, shift: int) -> Ints:
    """Of sums."""
    return beyond - shift


def _in_fields(beyond: Ints, level: str, zone: str) -> tuple[Ints, Mask]:
    """Of local time in fields, which were read as local microseconds: the first that give them."""
    days, rest = civil.split_micros(beyond)
    return _next_in(days, rest, level, zone)


def _fields_of_text(keys: pa.Array, pattern: str) -> list[pa.Array]:
    """Local time as text, in its fields; what does not fit the pattern is null."""
    parts = pc.extract_regex(keys, pattern)
    fields = [pc.struct_field(parts, at) for at in range(parts.type.num_fields)]
    return [field.cast(pa.int64()) for field in fields]


def _local_time(rows: Operands) -> Ints:
    """Fields of local time, year first, as the local microseconds that begin with them."""
    least = (0, 1, 1, 0, 0, 0)
    given = len(rows.vectors)
    numbers = [*rows.vectors, *(np.full(1, value) for value in least[given:])]
    years, months, days, hours, minutes, seconds = numbers
    date, _ = civil.date_of(years, np.maximum(months, 1), np.maximum(days, 1))
    rest = ((hours * 60 + minutes) * 60 + seconds) * MICROS_PER_SECOND
    return date * MICROS_PER_DAY + rest


_STEPS: Final[dict[str, Callable[..., tuple[Ints, Mask]]]] = {
    "day": _day,
    "midnight": _midnight,
    "trunc_time": _trunc_time,
    "trunc_date": _exact(_trunc_date),
    "fields": _in_fields,
    "per": _per,
    "floor": _exact(_floor),
    "times": _exact(_times),
    "plus": _exact(_plus),
}
