"""How long a join must remember its rows, read off its condition and its keys.

From `r.ts BETWEEN l.ts - 1 minute AND l.ts + 5 minutes` follows -1 min <= r.ts - l.ts <= 5 min: a
left row finds no new partner once the watermark passed l.ts + 5 min, a right row once it passed
r.ts + 1 min. Equal windows, or equal event times, bound both sides by themselves.

Asked during translation, because only Spark's attributes tell which columns carry event time.

Law: a bound is only ever too generous: a row is forgotten when no row can match it but a late one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from penstock.plan.exprs import Call, Column, Expr, Literal
from penstock.plan.nodes import EventTime, Join

#: Comparisons as seen from their left side.
_AT_MOST = {"LessThanOrEqual", "LessThan"}
_AT_LEAST = {"GreaterThanOrEqual", "GreaterThan"}
_DAY_US: Final = 86_400_000_000
#: Zones in which every day has 24 hours.
_EVEN_ZONES: Final = ("UTC", "Etc/UTC", "GMT", "Z")


@dataclass(frozen=True, slots=True)
class _Shifted:
    """An event time plus a constant."""

    column: str
    shift_us: int


def find_time_bounds(
    join: Join, conditions: list[Expr], left_times: set[str], right_times: set[str]
) -> Join:
    """The join with its event times filled in, where they bound its state."""
    for left, right in zip(join.left_keys, join.right_keys, strict=True):
        if left.name in left_times and right.name in right_times:
            return replace(
                join, left_time=EventTime(left.name, 0, 0), right_time=EventTime(right.name, 0, 0)
            )
    lower: int | None = None
    upper: int | None = None
    columns: tuple[str, str] | None = None
    for condition in conditions:
        bound = _difference_bound(condition, left_times, right_times)
        if bound is None or (columns is not None and bound.columns != columns):
            continue
        columns = bound.columns
        if bound.is_upper:
            upper = bound.micros if upper is None else min(upper, bound.micros)
        else:
            lower = bound.micros if lower is None else max(lower, bound.micros)
    if columns is None:
        return join
    return _with_bounds(join, columns, lower, upper)


def _with_bounds(
    join: Join, columns: tuple[str, str], lower: int | None, upper: int | None
) -> Join:
    """Bounds of right time minus left time, in microseconds, to how long either side is kept."""
    left_reach = None if upper is None else _up_to_ms(upper)
    right_reach = None if lower is None else _up_to_ms(-lower)
    if join.kind == "inner":
        left = left_reach
        right = right_reach
        return replace(
            join,
            left_time=None if left is None else EventTime(columns[0], left, left),
            right_time=None if right is None else EventTime(columns[1], right, right),
        )
    if left_reach is None or right_reach is None:
        return join
    # A row's fate is not decided before its own time has passed: until then it may still come.
    left_reach, right_reach = max(left_reach, 0), max(right_reach, 0)
    # A row must outlive every partner whose fate it decides, not only those yet to come.
    span = left_reach + right_reach
    return replace(
        join,
        left_time=EventTime(columns[0], left_reach, max(left_reach, span)),
        right_time=EventTime(columns[1], right_reach, max(right_reach, span)),
    )


def _up_to_ms(micros: int) -> int:
    return -(-micros // 1000)


@dataclass(frozen=True, slots=True)
class _Bound:
    columns: tuple[str, str]
    micros: int
    is_upper: bool


def _difference_bound(
    condition: Expr, left_times: set[str], right_times: set[str]
) -> _Bound | None:
    """What a comparison says about (right time - left time), or None."""
    if not isinstance(condition, Call) or condition.function not in _AT_MOST | _AT_LEAST:
        return None
    first, second = (_shifted(arg) for arg in condition.args)
    if first is None or second is None:
        return None
    at_most = condition.function in _AT_MOST
    if first.column in left_times and second.column in right_times:
        # l + a <= r + b  means  r - l >= a - b
        shift_us = first.shift_us - second.shift_us
        return _Bound((first.column, second.column), shift_us, not at_most)
    if first.column in right_times and second.column in left_times:
        # r + a <= l + b  means  r - l <= b - a
        shift_us = second.shift_us - first.shift_us
        return _Bound((second.column, first.column), shift_us, at_most)
    return None


def _shifted(expr: Expr) -> _Shifted | None:
    if isinstance(expr, Column):
        return _Shifted(expr.name, 0)
    if isinstance(expr, Call) and expr.function in ("TimestampAddInterval", "TimeAdd"):
        base, _ = expr.args
        inner, micros = _shifted(base), fixed_shift_us(expr)
        if inner is not None and micros is not None:
            return _Shifted(inner.column, inner.shift_us + micros)
    return None


def fixed_shift_us(sum: Call) -> int | None:
    """What a sum of a time and an interval adds, if that is the same for every time."""
    _, shift = sum.args
    micros = _micros(shift.value) if isinstance(shift, Literal) else None
    return micros if micros is not None and _is_fixed(micros, sum) else None


def _is_fixed(micros: int, sum: Call) -> bool:
    """Whether the sum is a plain one: days are as long as the session's time zone has them."""
    has_zone = pa.types.is_timestamp(sum.type) and sum.type.tz is not None
    return abs(micros) < _DAY_US or not has_zone or sum.option("timeZoneId") in _EVEN_ZONES


def _micros(value: pa.Scalar) -> int | None:
    """A fixed length of time; days and months of calendar intervals have none."""
    if not value.is_valid:
        return None
    if pa.types.is_duration(value.type):
        return int(value.value)
    if pa.types.is_interval(value.type):
        months, days, nanos = value.as_py()
        if months == 0 and days == 0:
            return int(nanos // 1000)
    return None
