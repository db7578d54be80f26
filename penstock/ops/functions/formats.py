"""Functions with a date and time pattern: date_format, to_timestamp, unix_timestamp and kin.

Patterns are literals, compiled once per text; a pattern that is not understood is refused. The
legacy time parser (spark.sql.legacy.timeParserPolicy) is not known here: the plan does not tell.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.ops.functions import civil
from penstock.ops.functions.alignment import Ints
from penstock.ops.functions.civil import MICROS_PER_SECOND
from penstock.ops.functions.operands import Operands, divide_toward_zero
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.time_parsing import parser
from penstock.ops.functions.time_patterns import UnknownPattern
from penstock.ops.functions.time_printing import Moments, printer
from penstock.ops.functions.times import fail_overflow
from penstock.ops.functions.zones import UTC_ZONE, Zone, knows_zone, zone_of
from penstock.plan.exprs import Call, Literal


def _pattern_problem(call: Call, compile: Callable[[str], object]) -> str | None:
    pattern = call.args[1]
    if not isinstance(pattern, Literal):
        return f"{call.function} with a pattern that is not a literal"
    text = pattern.value.as_py()
    try:
        if text is not None:
            compile(text)
    except UnknownPattern as error:
        return f"{call.function} with the pattern '{text}': {error}"
    return knows_zone(call)


def _prints(call: Call) -> str | None:
    if pa.types.is_time(call.args[0].type):
        return "date_format of a time"
    return _pattern_problem(call, printer)


def _parses(call: Call) -> str | None:
    if not pa.types.is_string(call.args[0].type):
        return knows_zone(call)
    return _pattern_problem(call, parser)


@function(
    "DateFormatClass",
    sql="date_format to_char to_varchar",
    raises=False,
    accepts=_prints,
    strict=True,
)
def date_format(call: Call, times: Datum, pattern: Datum) -> Datum:
    rows = Operands(times, pattern)
    return _print(call, rows, rows.vectors[0], pattern)


@function("FromUnixTime", sql="from_unixtime", raises=False, accepts=_prints, strict=True)
def from_unixtime(call: Call, seconds: Datum, pattern: Datum) -> Datum:
    """The product with a million wraps around, as Spark's does."""
    rows = Operands(seconds, pattern)
    return _print(call, rows, rows.vectors[0] * MICROS_PER_SECOND, pattern)


def _print(call: Call, rows: Operands, micros: Ints, pattern: Datum) -> Datum:
    if pattern.as_py() is None:
        return rows.answer(pa.nulls(len(micros), call.type))
    zone = zone_of(call)
    offsets = zone.offsets_at(micros // MICROS_PER_SECOND)
    return rows.answer(
        printer(pattern.as_py())(Moments(*zone.to_local(micros), offsets), rows.nulls)
    )


@function(
    "UnixTimestamp",
    "ToUnixTimestamp",
    sql="unix_timestamp to_unix_timestamp",
    raises=True,
    accepts=_parses,
)
def unix_timestamp(call: Call, value: Datum, pattern: Datum) -> Datum:
    """Seconds, cut toward zero."""
    return _to_micros(call, value, pattern, MICROS_PER_SECOND, is_local=False)


@function(
    "GetTimestamp",
    sql="to_timestamp to_timestamp_ltz to_timestamp_ntz try_to_timestamp to_date try_to_date",
    raises=True,
    accepts=_parses,
)
def get_timestamp(call: Call, value: Datum, pattern: Datum) -> Datum:
    return _to_micros(call, value, pattern, 1, is_local=call.type.tz is None)


def _to_micros(call: Call, value: Datum, pattern: Datum, unit: int, *, is_local: bool) -> Datum:
    """A timestamp, a date or a text as microseconds, in units of so many."""
    zone = UTC_ZONE if is_local else zone_of(call)
    if pa.types.is_string(value.type):
        return _parse(call, value, pattern, unit, zone, is_local=is_local)
    rows = Operands(value)
    micros = rows.vectors[0]
    if pa.types.is_date(value.type):
        micros, wrong = zone_of(call).day_starts(micros)
        fail_overflow(rows, wrong)
    return rows.result(divide_toward_zero(micros, unit), call.type)


def _parse(
    call: Call, value: Datum, pattern: Datum, unit: int, zone: Zone, *, is_local: bool
) -> Datum:
    rows = Operands(value, pattern)
    texts = pa.repeat(value, 1) if isinstance(value, pa.Scalar) else value
    if pattern.as_py() is None:
        return rows.result(np.zeros(1, np.int64), call.type)
    parsed = parser(pattern.as_py())(texts)
    if call.is_ansi:
        rows.fail_where(
            parsed.wrong,
            "CANNOT_PARSE_TIMESTAMP",
            lambda row: f"{texts[row].as_py()!r} is none of {pattern.as_py()!r}",
        )
    micros, beyond = zone.from_local(parsed.days, parsed.micros)
    if parsed.offsets is not None and not is_local:
        stated, over = civil.join_micros(
            parsed.days, parsed.micros - parsed.offsets * MICROS_PER_SECOND
        )
        micros = np.where(parsed.has_offset, stated, micros)
        beyond = np.where(parsed.has_offset, over, beyond)
    fail_overflow(rows, beyond & ~parsed.wrong)
    return rows.result(divide_toward_zero(micros, unit), call.type, parsed.wrong)
