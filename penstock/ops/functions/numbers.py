"""Arithmetic, comparison, rounding, mathematics."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.failures import arrow_errors
from penstock.ops.functions.registry import Datum, function
from penstock.plan.exprs import Call


@function("IsNull", sql="isnull", raises=False)
def is_null(call: Call, value: Datum) -> Datum:
    return pc.is_null(value)


@function("IsNotNull", sql="isnotnull", raises=False)
def is_not_null(call: Call, value: Datum) -> Datum:
    return pc.is_valid(value)


@function("Not", sql="not", raises=False)
def not_(call: Call, value: Datum) -> Datum:
    return pc.invert(value)


@function("EqualTo", sql="= ==", raises=False)
def equal(call: Call, left: Datum, right: Datum) -> Datum:
    return pc.equal(left, right)


@function("GreaterThan", sql=">", raises=False)
def greater(call: Call, left: Datum, right: Datum) -> Datum:
    return pc.greater(left, right)


@function("LessThan", sql="<", raises=False)
def less(call: Call, left: Datum, right: Datum) -> Datum:
    return pc.less(left, right)


@function("Add", sql="+")
def add(call: Call, left: Datum, right: Datum) -> Datum:
    if not call.is_ansi:
        return pc.add(left, right)
    with arrow_errors("ARITHMETIC_OVERFLOW"):
        return pc.add_checked(left, right)


@function("Subtract", sql="-")
def subtract(call: Call, left: Datum, right: Datum) -> Datum:
    if not call.is_ansi:
        return pc.subtract(left, right)
    with arrow_errors("ARITHMETIC_OVERFLOW"):
        return pc.subtract_checked(left, right)


@function("Remainder", sql="% mod")
def remainder(call: Call, left: Datum, right: Datum) -> Datum:
    import numpy as np

    values = np.fmod(left.to_numpy(zero_copy_only=False), right.as_py())
    return pa.array(values, call.type)


@function("PreciseTimestampConversion", raises=False)
def precise_timestamp(call: Call, value: Datum) -> Datum:
    """Between timestamps and microseconds: how window() computes."""
    return value.cast(call.type)
