"""Special forms: what is evaluated, and over which rows, depends on other values.

Law: an argument that can fail is evaluated only over the rows for which Spark evaluates it. One
that cannot fail is evaluated over all rows, because a kernel over all is cheaper than a selection.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import EvaluationFailed
from penstock.ops.functions.alignment import as_array
from penstock.ops.functions.lists import retype
from penstock.ops.functions.registry import Argument, Compiled, Datum, special_form
from penstock.plan.exprs import Call

#: How Spark's name of a raised error begins if its setting asks for the old way.
_LEGACY_ERROR: Final = "_LEGACY_ERROR_"


def evaluate_where(
    compiled: Compiled, batch: pa.RecordBatch, rows: np.ndarray, type: pa.DataType
) -> pa.Array:
    """The value over all rows, null where `rows` is false: there it was not evaluated."""
    count = batch.num_rows
    wanted = int(np.count_nonzero(rows))
    if wanted == count:
        return as_array(compiled(batch), count)
    if wanted == 0:
        return pa.nulls(count, type)
    part = as_array(compiled(batch.filter(pa.array(rows))), wanted)
    places = np.cumsum(rows) - 1
    return part.take(pa.array(places, mask=~rows))


def and_where(value: Datum, compiled: Compiled, batch: pa.RecordBatch) -> Datum:
    """`value AND argument`, the argument evaluated only where value is not false."""
    rows = _not(value, batch.num_rows, False)
    return pc.and_kleene(value, evaluate_where(compiled, batch, rows, pa.bool_()))


def _not(value: Datum, count: int, unwanted: bool) -> np.ndarray:
    """Where a boolean value is not `unwanted`; null is neither."""
    if isinstance(value, pa.Scalar):
        return np.full(count, value.as_py() is not unwanted)
    filled = pc.fill_null(value, not unwanted).to_numpy(zero_copy_only=False)
    return ~filled if unwanted else filled


def _true(value: Datum, count: int) -> np.ndarray:
    if isinstance(value, pa.Scalar):
        return np.full(count, value.as_py() is True)
    return pc.fill_null(value, False).to_numpy(zero_copy_only=False)


@special_form("And", sql="and")
def and_(call: Call, args: list[Argument]) -> Compiled:
    """The right side is not evaluated where the left is false."""
    left, right = args
    if right.can_fail:
        return lambda batch: and_where(left(batch), right, batch)
    return lambda batch: pc.and_kleene(left(batch), right(batch))


@special_form("Or", sql="or")
def or_(call: Call, args: list[Argument]) -> Compiled:
    """The right side is not evaluated where the left is true."""
    left, right = args

    def lazy(batch: pa.RecordBatch) -> Datum:
        value = left(batch)
        rows = _not(value, batch.num_rows, True)
        return pc.or_kleene(value, evaluate_where(right, batch, rows, pa.bool_()))

    return lazy if right.can_fail else lambda batch: pc.or_kleene(left(batch), right(batch))


@special_form("CaseWhen", sql="case when")
def case_when(call: Call, args: list[Argument]) -> Compiled:
    """The first branch whose condition is true; conditions and values are evaluated in order."""
    return _compile_branches(call.type, args)


@special_form("If", sql="if iff")
def if_(call: Call, args: list[Argument]) -> Compiled:
    """`if(condition, yes, no)`: a case with one branch."""
    return _compile_branches(call.type, args)


def _compile_branches(type: pa.DataType, args: list[Argument]) -> Compiled:
    pairs = list(zip(args[0::2], args[1::2], strict=False))
    otherwise = args[-1] if len(args) % 2 else None
    if not any(arg.can_fail for arg in args):
        return _eager_branches(type, pairs, otherwise)

    def lazy(batch: pa.RecordBatch) -> Datum:
        count = batch.num_rows
        open_rows = np.ones(count, bool)
        chosen: list[tuple[np.ndarray, pa.Array]] = []
        for condition, value in pairs:
            is_true = _true(evaluate_where(condition, batch, open_rows, pa.bool_()), count)
            rows = is_true & open_rows
            chosen.append((rows, evaluate_where(value, batch, rows, type)))
            open_rows &= ~rows
        result = (
            evaluate_where(otherwise, batch, open_rows, type)
            if otherwise is not None
            else pa.nulls(count, type)
        )
        for rows, values in reversed(chosen):
            result = choose(rows, values, result)
        return result

    return lazy


def _eager_branches(
    type: pa.DataType, pairs: list[tuple[Argument, Argument]], otherwise: Argument | None
) -> Compiled:
    def eager(batch: pa.RecordBatch) -> Datum:
        count = batch.num_rows
        result = (
            as_array(otherwise(batch), count) if otherwise is not None else pa.nulls(count, type)
        )
        for condition, branch in reversed(pairs):
            result = choose(_true(condition(batch), count), as_array(branch(batch), count), result)
        return result

    return eager


def choose(rows: np.ndarray, yes: pa.Array, no: pa.Array) -> pa.Array:
    """`yes` where rows is true, else `no`; for every type, nested ones too."""
    if pa.types.is_nested(yes.type) or pa.types.is_null(yes.type):
        count = len(rows)
        places = np.where(rows, np.arange(count), np.arange(count, 2 * count))
        return pa.concat_arrays([yes, retype(no, yes.type)]).take(pa.array(places))
    return pc.if_else(pa.array(rows), yes, no)


@special_form("Coalesce", sql="coalesce ifnull nvl nvl2 nullif")
def coalesce(call: Call, args: list[Argument]) -> Compiled:
    """The first value that is not null; later ones are evaluated only where all before are."""

    def first(batch: pa.RecordBatch) -> Datum:
        count = batch.num_rows
        result = as_array(args[0](batch), count)
        for arg in args[1:]:
            if result.null_count == 0:
                break
            missing = result.is_null().to_numpy(zero_copy_only=False)
            values = (
                evaluate_where(arg, batch, missing, call.type)
                if arg.can_fail
                else as_array(arg(batch), count)
            )
            result = choose(~missing, result, values)
        return result

    return first


@special_form("RaiseError", sql="raise_error assert_true", raises=True)
def raise_error(call: Call, args: list[Argument]) -> Compiled:
    """Fails with the first row that gets here, and says what the user wants to be said."""
    condition, parameters = args

    def fail_if_any(batch: pa.RecordBatch) -> Datum:
        if not batch.num_rows:
            return pa.nulls(0, call.type)
        first = batch.slice(0, 1)
        name, said = (as_array(value(first), 1).to_pylist()[0] for value in (condition, parameters))
        message = ", ".join(str(text) for _, text in said)
        raise EvaluationFailed(str(name).removeprefix(_LEGACY_ERROR), message)

    return fail_if_any


@special_form("TryEval")
def try_eval(call: Call, args: list[Argument]) -> Compiled:
    """Null for the rows that make the argument fail: after a failure, it is asked row by row."""
    (arg,) = args

    def or_null(batch: pa.RecordBatch) -> Datum:
        try:
            return arg(batch)
        except EvaluationFailed:
            if batch.num_rows == 1:
                return pa.nulls(1, call.type)
        rows = [as_array(or_null(batch.slice(row, 1)), 1) for row in range(batch.num_rows)]
        return pa.concat_arrays(rows)

    return or_null
