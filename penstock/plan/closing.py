"""Keys that are made of event time, and when they close: to_date, date_trunc, and more.

Such a key never falls while event time rises, but for clocks that are put back. So a key can get no
more rows once the watermark has passed the last event time that gives it. `closing_steps` reads off
an expression how to go back from a key to that time, one step per function, the outermost first;
ops/functions/closings.py takes the steps. Pure.

Law: every function here is monotone over the zone's local time, or over event time itself. A key is
never said to close before its last possible row; it may be said to close later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

import pyarrow as pa

from penstock.plan.exprs import Call, Column, Expr, Literal
from penstock.plan.time_bounds import fixed_shift_us

#: How keys that hold such a time are called; no column of Spark's is.
CLOSES: Final = "#closes"
#: What a step is called, and its settings: a zone, a level, a number.
Step: TypeAlias = tuple[str, *tuple[object, ...]]
IsTime: TypeAlias = Callable[[Column], bool]

_TIME_LEVELS: Final = {"MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY"}
_DATE_LEVELS: Final = {"WEEK", "MONTH", "QUARTER", "YEAR"}
_LEVEL_NAMES: Final = {"DD": "DAY", "MON": "MONTH", "MM": "MONTH", "YYYY": "YEAR", "YY": "YEAR"}
_SECOND_US: Final = 1_000_000
#: Numbers since 1970, and how many microseconds make one.
_EPOCHS: Final = {
    "UnixTimestamp": _SECOND_US,
    "ToUnixTimestamp": _SECOND_US,
    "UnixSeconds": _SECOND_US,
    "UnixMillis": 1000,
    "UnixMicros": 1,
    "PreciseTimestampConversion": 1,
}
#: Timestamps from such numbers.
_FROM_EPOCHS: Final = {"SecondsToTimestamp": _SECOND_US, "MillisToTimestamp": 1000}
#: Fields in falling order, each of a fixed width, and whatever stands between them.
_BETWEEN: Final = r"(?:[-/:. _,0-9]|'[^']*')*"
_FIELDS: Final = ("yyyy", "MM", "dd", "HH", "mm", "ss")
_UNITS: Final = ("YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND")
#: What gives each field of a time, in the order of _UNITS.
_CALLS: Final = ("Year", "Month", "DayOfMonth", "Hour", "Minute", "Second")
_DAY_SECONDS: Final = 86_400
#: Nanoseconds fit 64 bits for centuries. Nothing finer does.
_PER_SECOND_MAX: Final = 1_000_000_000


def closing_steps(key: Expr, is_time: IsTime) -> tuple[Step, ...] | None:
    """How to find the end of a key's event times; None if the key is not made so."""
    match key:
        case Column():
            return () if is_time(key) else None
        case Call():
            found = _step(key)
            if found is None:
                return None
            steps, inner = found
            rest = closing_steps(inner, is_time)
            return None if rest is None or not _fits(*steps, *rest) else (*steps, *rest)
    return None


def _fits(*steps: Step) -> bool:
    """Whether no step makes numbers of times that leave 64 bits, where they would begin again."""
    per_second = Fraction(_SECOND_US)
    for name, *settings in reversed(steps):
        if name in ("midnight", "trunc_time"):
            per_second = Fraction(_SECOND_US)
        elif name in ("times", "per") and isinstance(settings[0], int):
            factor = Fraction(settings[0])
            per_second = per_second * factor if name == "times" else per_second / factor
        elif name == "day":
            per_second = Fraction(1, _DAY_SECONDS)
        if per_second > _PER_SECOND_MAX:
            return False
    return True


def field_steps(
    keys: Sequence[Expr], is_time: IsTime
) -> tuple[tuple[int, ...], tuple[Step, ...]] | None:
    """The same for keys that are fields of one time: year(ts), month(ts), dayofmonth(ts).

    The places of the keys that count, the largest field first, and the steps over all of them.
    """
    found: dict[str, tuple[int, str, Expr]] = {}
    for place, key in enumerate(keys):
        match key:
            case Call("Year" | "Month" | "DayOfMonth", (Call("Cast", (inner,)) as day,)):
                zone = str(day.option("timeZoneId"))
            case Call("Hour" | "Minute" | "Second", (inner,)):
                zone = str(key.option("timeZoneId"))
            case _:
                continue
        if isinstance(inner.type, pa.TimestampType) and inner.type.tz is not None:
            found.setdefault(key.function, (place, zone, inner))
    prefix: list[tuple[int, str, Expr]] = []
    for name in _CALLS:
        if name not in found or (prefix and found[name][1:] != prefix[0][1:]):
            break
        prefix.append(found[name])
    if not prefix:
        return None
    _, zone, inner = prefix[0]
    rest = closing_steps(inner, is_time)
    if rest is None:
        return None
    steps: tuple[Step, ...] = (("fields", _UNITS[len(prefix) - 1], zone), *rest)
    return tuple(place for place, _, _ in prefix), steps


def _step(call: Call) -> tuple[tuple[Step, ...], Expr] | None:
    """The steps back through one function, and its argument that rises."""
    args = call.args
    zone = str(call.option("timeZoneId"))
    match call.function, args:
        case "Cast", (inner,):
            return _through_cast(call, inner, zone)
        case "TruncTimestamp", (Literal() as level, inner):
            name = _level(level)
            if name in _TIME_LEVELS | _DATE_LEVELS:
                return (("trunc_time", name, zone),), inner
        case "TruncDate", (inner, Literal() as level):
            name = _level(level)
            if name in _DATE_LEVELS:
                return (("trunc_date", name),), inner
        case ("DateFormatClass", (inner, Literal() as pattern)):
            return _through_format(pattern, zone, inner)
        case ("FromUnixTime", (inner, Literal() as pattern)):
            found = _through_format(pattern, zone, inner)
            return None if found is None else ((*found[0], ("times", _SECOND_US)), inner)
        case ("UnixTimestamp" | "ToUnixTimestamp", (inner, *_)) if not _is_timestamp(inner.type):
            return None
        case name, (inner, *_) if name in _EPOCHS:
            return (("per", _EPOCHS[name]),), inner
        case name, (inner,) if name in _FROM_EPOCHS and pa.types.is_int64(inner.type):
            return (("times", _FROM_EPOCHS[name]),), inner
        case "TimestampAddInterval" | "TimeAdd", (inner, _):
            shift_us = fixed_shift_us(call)
            return None if shift_us is None else ((("plus", shift_us),), inner)
        case ("Add" | "DateAdd", (inner, Literal() as shift)) | (
            "Add",
            (Literal() as shift, inner),
        ):
            return _shifted(inner, _whole(shift))
        case (("Subtract" | "DateSub"), (inner, Literal() as shift)):
            number = _whole(shift)
            return _shifted(inner, None if number is None else -number)
        case "Subtract", (inner, Call("Remainder" | "Pmod", (rest_of, Literal() as width))):
            return _through_floor(inner, rest_of, _whole(width))
        case "IntegralDivide", (inner, Literal() as width):
            if (_whole(width) or 0) > 0:
                return (("per", _whole(width)),), inner
        case "Multiply", (inner, Literal() as factor) | (Literal() as factor, inner):
            if (_whole(factor) or 0) > 0:
                return (("times", _whole(factor)),), inner
        case "Floor", (Call("Divide", (inner, Literal() as width)),):
            return _through_quotient(inner, width)
    return None


def _through_cast(call: Call, inner: Expr, zone: str) -> tuple[tuple[Step, ...], Expr] | None:
    """Casts that rise, and cannot wrap around."""
    of, to = inner.type, call.type
    if _is_timestamp(of) and pa.types.is_date32(to):
        return (("day", zone if of.tz is not None else "UTC"),), inner
    if pa.types.is_date32(of) and _is_timestamp(to):
        return (("midnight", zone if to.tz is not None else "UTC"),), inner
    if _is_timestamp(of) and pa.types.is_int64(to):
        return (("per", _SECOND_US),), inner
    if pa.types.is_int64(of) and _is_timestamp(to):
        return (("times", _SECOND_US),), inner
    match inner:
        case Call("Divide", (dividend, Literal() as width)) if pa.types.is_int64(to):
            return _through_quotient(dividend, width)
    return None


def _through_quotient(dividend: Expr, width: Literal) -> tuple[tuple[Step, ...], Expr] | None:
    """A quotient as Spark's `/` gives it, a double, cut or rounded down to a whole number."""
    match dividend:
        case Call("Cast", (inner,)) if pa.types.is_float64(dividend.type):
            value = width.value.as_py()
            is_whole = isinstance(value, float) and value.is_integer()
            if pa.types.is_int64(inner.type) and is_whole and value > 0:
                return (("per", int(value)),), inner
    return None


def _through_floor(
    inner: Expr, rest_of: Expr, width: int | None
) -> tuple[tuple[Step, ...], Expr] | None:
    """x - x % 60, and with a beginning of its own, as window() has it, x - (x - 5) % 60."""
    if width is None or width <= 0:
        return None
    if inner == rest_of:
        return (("floor", width),), inner
    match rest_of:
        case Call("Subtract", (again, Literal() as begin)) if again == inner:
            first = _whole(begin)
            if first is not None:
                return (("plus", first), ("floor", width), ("plus", -first)), inner
    return None


def _through_format(
    pattern: Literal, zone: str, inner: Expr
) -> tuple[tuple[Step, ...], Expr] | None:
    """Text that is in the order of time: years, months and so on, as far as the pattern goes."""
    text = pattern.value.as_py()
    if not isinstance(text, str) or "''" in text:  # which is one quote, not none
        return None
    for count in range(len(_FIELDS), 0, -1):
        between = [f"({_BETWEEN})"] * (count + 1)
        match = re.fullmatch("".join(_alternate(between, _FIELDS[:count])), text)
        if match is not None:
            texts = [part.replace("'", "") for part in match.groups()]
            digits = [r"[+]?(?P<f0>\d+)", *(rf"(?P<f{at}>\d\d)" for at in range(1, count))]
            read = "".join(_alternate([re.escape(part) for part in texts], tuple(digits)))
            return (("text", f"^{read}$", _UNITS[count - 1], zone),), inner
    return None


def _alternate(around: list[str], fields: tuple[str, ...]) -> list[str]:
    parts = [around[0]]
    for field, after in zip(fields, around[1:], strict=True):
        parts += [field, after]
    return parts


def _shifted(inner: Expr, shift: int | None) -> tuple[tuple[Step, ...], Expr] | None:
    return None if shift is None else ((("plus", shift),), inner)


def _is_timestamp(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind))


def _level(level: Literal) -> str:
    name = str(level.value.as_py()).upper()
    return _LEVEL_NAMES.get(name, name)


def _whole(value: Literal) -> int | None:
    number = value.value.as_py()
    return number if isinstance(number, int) and pa.types.is_integer(value.type) else None
