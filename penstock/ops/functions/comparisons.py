"""Comparison, membership, nulls and NaN.

Spark's order is total: NaN equals itself and is larger than all other numbers, 0.0 equals -0.0,
strings compare by their bytes. Nulls make a comparison null, except inside arrays and structs,
where a null is equal to a null and smaller than the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.alignment import arrays, as_array, null_where, nulls
from penstock.ops.functions.branches import choose, evaluate_where
from penstock.ops.functions.lists import join
from penstock.ops.functions.ordering import order_keys
from penstock.ops.functions.registry import (
    TRUE,
    Argument,
    Compiled,
    Datum,
    function,
    kernels,
    special_form,
)
from penstock.plan.exprs import Call, Literal
from penstock.state.keys import WORDS

_Compare: TypeAlias = Callable[[Datum, Datum], Datum]
#: Types that Arrow compares as Spark does, known at one look.
_PLAIN: Final = WORDS | {pa.int32().id, pa.date32().id, pa.string().id, pa.bool_().id}


def _is_valid(value: Datum) -> Datum:
    if isinstance(value, pa.Array) and not value.null_count:
        return TRUE
    return pc.is_valid(value)


kernels(
    {
        "IsNull": ("isnull", pc.is_null),
        "IsNotNull": ("isnotnull", _is_valid),
        "Not": ("not", pc.invert),
        # Of null it is false, not null.
        "IsNaN": ("isnan", lambda value: pc.fill_null(pc.is_nan(value), False)),
        # -0.0 becomes 0.0; all NaNs are one to us already.
        "NormalizeNaNAndZero": ("", lambda value: pc.add(value, pa.scalar(0.0, value.type))),
    }
)


@special_form("NaNvl", sql="nanvl")
def nan_or(call: Call, args: list[Argument]) -> Compiled:
    """The second argument is evaluated only where the first is NaN."""
    value, other = args

    def choose_number(batch: pa.RecordBatch) -> Datum:
        first = as_array(value(batch), batch.num_rows)
        is_nan = pc.is_nan(first)
        rows = pc.fill_null(is_nan, False).to_numpy(zero_copy_only=False)
        if not rows.any():
            return first
        second = evaluate_where(other, batch, rows, call.type) if other.can_fail else other(batch)
        return pc.if_else(is_nan, second, first)

    return choose_number


@function("AtLeastNNonNulls", raises=False)
def at_least_non_nulls(call: Call, *values: Datum) -> Datum:
    """How dropna() counts: a NaN is no value."""
    count = call.option("n")
    assert isinstance(count, int)
    flags = [_is_value(value) for value in values]
    if not flags:
        return pa.scalar(count <= 0)
    total = reduce(pc.add, [pc.cast(each, pa.int32()) for each in flags])
    return pc.greater_equal(total, count)


def _is_value(value: Datum) -> Datum:
    return pc.invert(pc.is_null(value, nan_is_null=pa.types.is_floating(value.type)))


# -- comparison


@function("EqualNullSafe", sql="<=> equal_null", raises=False)
def equal_null_safe(call: Call, left: Datum, right: Datum) -> Datum:
    """Null equals null, and nothing else does."""
    same = pc.fill_null(compare(left, right, pc.equal), False)
    return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))


def compare(left: Datum, right: Datum, kernel: _Compare) -> Datum:
    """One of Arrow's six comparisons in Spark's order, for every type that Spark can order."""
    type = left.type
    if type.id in _PLAIN:
        return kernel(left, right)
    if pa.types.is_floating(type):
        return _compare_floats(left, right, kernel)
    if pa.types.is_nested(type):
        return _compare_nested(left, right, kernel)
    if pa.types.is_null(type):
        return _all_null(left, right)
    return kernel(left, right)


def _compare_floats(left: Datum, right: Datum, kernel: _Compare) -> Datum:
    """Arrow says no to every comparison with NaN."""
    if isinstance(right, pa.Scalar) and right.is_valid and right.as_py() == right.as_py():
        # The usual condition on a column: only NaN > literal and NaN >= literal need a turn.
        if kernel is pc.greater:
            return pc.invert(pc.less_equal(left, right))
        if kernel is pc.greater_equal:
            return pc.invert(pc.less(left, right))
        return kernel(left, right)
    plain = kernel(left, right)
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if kernel in (pc.equal, pc.less_equal, pc.greater_equal):
        plain = pc.or_(plain, pc.and_(left_nan, right_nan))
    if kernel in (pc.less, pc.less_equal):
        plain = pc.or_(plain, pc.and_(pc.invert(left_nan), right_nan))
    if kernel in (pc.greater, pc.greater_equal):
        plain = pc.or_(plain, pc.and_(left_nan, pc.invert(right_nan)))
    return plain


def _all_null(left: Datum, right: Datum) -> Datum:
    if isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar):
        return pa.scalar(None, pa.bool_())
    return pa.nulls(len(arrays(left, right)[0]), pa.bool_())


def _compare_nested(left: Datum, right: Datum, kernel: _Compare) -> Datum:
    lefts, rights = arrays(left, right)
    keys = order_keys(join([lefts, rights]))
    compared = kernel(pa.array(keys[: len(lefts)]), pa.array(keys[len(lefts) :]))
    result = null_where(compared, nulls(lefts, rights))
    both_scalar = isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar)
    return result[0] if both_scalar else result


kernels(
    {
        "EqualTo": ("= ==", partial(compare, kernel=pc.equal)),
        "LessThan": ("<", partial(compare, kernel=pc.less)),
        "LessThanOrEqual": ("<=", partial(compare, kernel=pc.less_equal)),
        "GreaterThan": (">", partial(compare, kernel=pc.greater)),
        "GreaterThanOrEqual": (">=", partial(compare, kernel=pc.greater_equal)),
    },
    strict=True,
)


# -- membership


@special_form("In", sql="in")
def in_list(call: Call, args: list[Argument]) -> Compiled:
    """`value IN (a, b, ...)`: null if nothing is equal but something is null."""
    value, *others = args
    constants = [arg.value for arg in call.args[1:] if isinstance(arg, Literal)]
    if constants and len(constants) == len(others):
        return _in_constants(value, constants)

    def any_equal(batch: pa.RecordBatch) -> Datum:
        wanted = value(batch)
        is_member: Datum = pa.scalar(False)
        for other in others:
            if other.can_fail:
                rows = _undecided(wanted, is_member, batch.num_rows)
                members: Datum = evaluate_where(other, batch, rows, wanted.type)
            else:
                members = other(batch)
            is_member = pc.or_kleene(is_member, compare(wanted, members, pc.equal))
        if not others:
            is_member = pc.if_else(pc.is_valid(wanted), False, pa.scalar(None, pa.bool_()))
        return is_member

    return any_equal


def _undecided(wanted: Datum, is_member: Datum, count: int) -> np.ndarray:
    """Rows for which Spark looks at the next element of the list."""
    is_open = pc.and_(pc.is_valid(wanted), pc.invert(pc.fill_null(is_member, False)))
    if isinstance(is_open, pa.Scalar):
        return np.full(count, is_open.as_py())
    return is_open.to_numpy(zero_copy_only=False)


@special_form("InSet")
def in_set(call: Call, args: list[Argument]) -> Compiled:
    """`IN` with so many constants that Spark made a set of them."""
    values = call.option("hset")
    assert isinstance(values, tuple)
    return _in_constants(args[0], list(values))


def _in_constants(value: Compiled, constants: list[pa.Scalar]) -> Compiled:
    type = constants[0].type
    members = [constant for constant in constants if constant.is_valid]
    has_null = len(members) < len(constants)
    if pa.types.is_nested(type):
        return _in_nested(value, members, has_null)
    value_set = pa.array([member.as_py() for member in members], type)
    is_float = pa.types.is_floating(type)
    if is_float:
        value_set = pc.add(value_set, pa.scalar(0.0, type))

    def contains(batch: pa.RecordBatch) -> Datum:
        wanted = value(batch)
        if is_float:
            wanted = pc.add(wanted, pa.scalar(0.0, type))
        return _decide(pc.is_in(wanted, value_set=value_set), wanted, has_null)

    return contains


def _in_nested(value: Compiled, members: list[pa.Scalar], has_null: bool) -> Compiled:
    def contains(batch: pa.RecordBatch) -> Datum:
        wanted = value(batch)
        is_member: Datum = pa.scalar(False)
        for member in members:
            is_member = pc.or_kleene(is_member, compare(wanted, member, pc.equal))
        return _decide(is_member, wanted, has_null)

    return contains


def _decide(is_member: Datum, wanted: Datum, has_null: bool) -> Datum:
    is_decided = pc.and_(pc.is_valid(wanted), is_member) if has_null else pc.is_valid(wanted)
    return pc.if_else(is_decided, is_member, pa.scalar(None, pa.bool_()))


# -- the largest and the smallest


@function("Greatest", sql="greatest", raises=False)
def greatest(call: Call, *values: Datum) -> Datum:
    """Nulls are skipped; NaN is the largest."""
    return _pick(values, pc.greater, pc.max_element_wise)


@function("Least", sql="least", raises=False)
def least(call: Call, *values: Datum) -> Datum:
    """Nulls are skipped; NaN is the largest."""
    return _pick(values, pc.less, pc.min_element_wise)


def _pick(values: tuple[Datum, ...], better: _Compare, kernel: Callable[..., Datum]) -> Datum:
    type = values[0].type
    if pa.types.is_integer(type) or pa.types.is_decimal(type) or pa.types.is_string(type):
        return kernel(*values)
    if type.id in WORDS:  # times, which Arrow's kernel does not take
        return _seen_as(kernel(*(_seen_as(value, pa.int64()) for value in values)), type)
    return reduce(lambda best, value: _better(best, value, better), values)


def _seen_as(value: Datum, type: pa.DataType) -> Datum:
    """The same bits as another type."""
    return value.cast(type) if isinstance(value, pa.Scalar) else value.view(type)


def _better(best: Datum, value: Datum, better: _Compare) -> Datum:
    """`value` where it is better than the best so far, or the first that is not null."""
    bests, values = arrays(best, value)
    wins = pc.fill_null(compare(values, bests, better), False)
    wins = pc.or_(wins, pc.is_null(bests))
    result = choose(wins.to_numpy(zero_copy_only=False), values, bests)
    both_scalar = isinstance(best, pa.Scalar) and isinstance(value, pa.Scalar)
    return result[0] if both_scalar else result
