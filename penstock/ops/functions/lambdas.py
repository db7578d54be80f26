"""Higher-order functions over arrays and maps: `filter(xs, x -> x > 1)`.

A lambda is evaluated once over all elements of all rows: the elements become the column of its
variable, and those of the row's own columns that it reads are repeated beside them. Where Spark
stops early (exists, forall) the elements behind that point are left out if one of them fails;
aggregate goes through all rows' first elements, then all second ones, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.errors import EvaluationFailed
from penstock.ops.functions.alignment import Ints, Mask, as_array, masked, valid_mask
from penstock.ops.functions.array_sets import sort
from penstock.ops.functions.arrays import interleave, pad
from penstock.ops.functions.branches import choose, evaluate_where
from penstock.ops.functions.comparators import sort_by
from penstock.ops.functions.failures import fail
from penstock.ops.functions.lists import Lists, lists_of, offsets_of, retype
from penstock.ops.functions.maps import entries_of, map_of
from penstock.ops.functions.ordering import ranks
from penstock.ops.functions.registry import Argument, Compiled, Datum, Raises, special_form
from penstock.plan.exprs import Call, Column, Expr, Lambda, Literal, columns

CompileExpr: TypeAlias = Callable[[Expr, pa.Schema], Compiled]
#: A compiled lambda: (batch, the row of each evaluation, the values of its variables).
Body: TypeAlias = Callable[[pa.RecordBatch, Ints, list[pa.Array]], pa.Array]
#: A form with its arguments' values at hand: (call, batch, arrays, lambdas).
Evaluate: TypeAlias = Callable[[Call, pa.RecordBatch, list[pa.Array], list[Body]], pa.Array]

_FORMS: dict[str, Evaluate] = {}


def compile_lambda_call(call: Call, schema: pa.Schema, compile_expr: CompileExpr) -> Compiled:
    """The compiled form of a call with a lambda among its arguments."""
    evaluate = _FORMS[call.function]
    values = [
        (compile_expr(arg, schema), arg.type) for arg in call.args if not isinstance(arg, Lambda)
    ]
    bodies = [
        _compile_body(arg, schema, compile_expr) for arg in call.args if isinstance(arg, Lambda)
    ]

    def over_batch(batch: pa.RecordBatch) -> Datum:
        arrays: list[pa.Array] = []
        for value, kind in values:
            # Where an argument is null, Spark does not look at those behind it.
            rows = valid_mask(*arrays) if arrays else np.ones(batch.num_rows, bool)
            arrays.append(evaluate_where(value, batch, rows, kind))
        return evaluate(call, batch, arrays, bodies)

    return over_batch


def _compile_body(function: Lambda, schema: pa.Schema, compile_expr: CompileExpr) -> Body:
    read = columns(function.body) - {param.name for param in function.params}
    outer = [index for index, name in enumerate(schema.names) if name in read]
    fields = [schema.field(index) for index in outer]
    fields += [pa.field(param.name, param.type) for param in function.params]
    inner = pa.schema(fields)
    body = compile_expr(function.body, inner)

    def evaluate(batch: pa.RecordBatch, rows: Ints, values: list[pa.Array]) -> pa.Array:
        taken = pa.array(rows)
        arrays = [batch.column(index).take(taken) for index in outer]
        given = values[: len(function.params)]
        arrays += [retype(v, p.type) for v, p in zip(given, function.params, strict=True)]
        return as_array(body(pa.RecordBatch.from_arrays(arrays, schema=inner)), len(rows))

    return evaluate


def _form(kind: str, sql: str, *, raises: bool | Raises = False) -> Callable[[Evaluate], Evaluate]:
    """Register a function that takes lambdas."""

    def register(evaluate: Evaluate) -> Evaluate:
        _FORMS[kind] = evaluate
        special_form(kind, sql=sql, raises=raises)(_unused)
        return evaluate

    return register


def _unused(call: Call, args: list[Argument]) -> Compiled:
    raise AssertionError("a call with a lambda is compiled by compile_lambda_call")


# -- the order of array_sort


def _is_natural_order(call: Call) -> bool:
    """Whether it is what Catalyst writes for array_sort without a comparator: nulls last."""
    comparator = call.args[1]
    assert isinstance(comparator, Lambda)
    left, right = comparator.params
    both = Call("And", (_test("IsNull", left), _test("IsNull", right)), pa.bool_())
    expected: Expr = _int(0)
    expected = _if(_test("GreaterThan", left, right), 1, expected)
    expected = _if(_test("LessThan", left, right), -1, expected)
    expected = _if(_test("IsNull", right), -1, expected)
    expected = _if(_test("IsNull", left), 1, expected)
    return _same(comparator.body, _if(both, 0, expected))


def _test(function: str, *args: Column) -> Call:
    return Call(function, args, pa.bool_())


def _if(test: Call, then: int, otherwise: Expr) -> Call:
    return Call("If", (test, _int(then), otherwise), pa.int32())


def _int(value: int) -> Literal:
    return Literal(pa.scalar(value, pa.int32()))


def _same(left: Expr, right: Expr) -> bool:
    """Whether two expressions are alike, options apart."""
    match left, right:
        case Call(), Call():
            return (
                left.function == right.function
                and len(left.args) == len(right.args)
                and all(map(_same, left.args, right.args))
            )
        case _:
            return left == right


# -- arrays


@_form("transform", "transform")
def transform(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    lists = lists_of(arrays[0])
    values = bodies[0](batch, lists.rows, [lists.elements, _index(lists)])
    return Lists(lists.offsets, values, lists.valid).array(call.type)


@_form("filter", "filter array_compact")
def filter_(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    lists = lists_of(arrays[0])
    answers = bodies[0](batch, lists.rows, [lists.elements, _index(lists)])
    return lists.keep(_is(answers, True)).array(call.type)


@_form("exists", "exists any")
def exists(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    """True if one is; else null if one is null, unless Spark is told to forget about that."""
    lists = lists_of(arrays[0])
    decided, unknown = _until(True, lists, batch, bodies[0])
    if not call.option("followThreeValuedLogic", True):
        unknown = np.zeros(len(lists), bool)
    return masked(decided, lists.valid & (decided | ~unknown), pa.bool_())


@_form("forall", "forall")
def forall(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    """False if one is; else null if one is null."""
    lists = lists_of(arrays[0])
    decided, unknown = _until(False, lists, batch, bodies[0])
    return masked(~decided, lists.valid & (decided | ~unknown), pa.bool_())


@_form("zip_with", "zip_with")
def zip_with(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    """The shorter array is filled up with null."""
    values, offsets, valid = pad([lists_of(array) for array in arrays])
    rows = np.repeat(np.arange(len(valid)), np.diff(offsets))
    return Lists(offsets, bodies[0](batch, rows, values), valid).array(call.type)


@_form("aggregate", "aggregate reduce")
def aggregate(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    """merge(... merge(merge(zero, first), second) ...), then finish; null stays null."""
    lists = lists_of(arrays[0])
    merge, finish = bodies
    value = arrays[1]
    lengths = lists.lengths
    for place in range(int(lengths.max(initial=0))):
        has_more = lengths > place
        rows = np.flatnonzero(has_more)
        elements = lists.elements.take(pa.array(lists.offsets[rows] + place))
        merged = merge(batch, rows, [value.take(pa.array(rows)), elements])
        value = choose(has_more, _spread(merged, has_more), value)
    rows = np.flatnonzero(lists.valid)
    result = finish(batch, rows, [value.take(pa.array(rows))])
    return retype(_spread(result, lists.valid), call.type)


@_form("array_sort", "array_sort", raises=lambda call: not _is_natural_order(call))
def array_sort(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    """The natural order, nulls last, or that of the comparator."""
    if _is_natural_order(call):
        return sort(arrays[0]).array(call.type)
    lists = lists_of(arrays[0])

    def compare(rows: Ints, left: Ints, right: Ints) -> Ints:
        pair = [lists.elements.take(pa.array(places)) for places in (left, right)]
        signs = bodies[0](batch, rows, pair)
        if signs.null_count:
            if not call.option("allowNullComparisonResult"):
                fail("COMPARATOR_RETURNS_NULL", "array_sort")
            signs = signs.fill_null(0)
        return signs.to_numpy(zero_copy_only=False)

    return sort_by(lists, compare).array(call.type)


def _spread(part: pa.Array, rows: Mask) -> pa.Array:
    """The values of some rows as a column over all; the others are null."""
    return part.take(pa.array(np.maximum(np.cumsum(rows) - 1, 0), mask=~rows))


def _index(lists: Lists) -> pa.Array:
    return pa.array(lists.places, pa.int32())


def _is(answers: pa.Array, wanted: bool) -> Mask:
    filled = answers.fill_null(not wanted).to_numpy(zero_copy_only=False)
    mask: Mask = filled if wanted else ~filled
    return mask


def _until(wanted: bool, lists: Lists, batch: pa.RecordBatch, body: Body) -> tuple[Mask, Mask]:
    """Which rows have an element that is `wanted`, and which one that is null."""
    try:
        answers = body(batch, lists.rows, [lists.elements])
        return lists.any(_is(answers, wanted)), lists.any(~valid_mask(answers))
    except EvaluationFailed:
        return _until_one_by_one(wanted, lists, batch, body)


def _until_one_by_one(
    wanted: bool, lists: Lists, batch: pa.RecordBatch, body: Body
) -> tuple[Mask, Mask]:
    """The same, but no element is looked at behind the first that decides."""
    decided, unknown = np.zeros(len(lists), bool), np.zeros(len(lists), bool)
    lengths = lists.lengths
    for place in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero((lengths > place) & ~decided)
        elements = lists.elements.take(pa.array(lists.offsets[rows] + place))
        answers = body(batch, rows, [elements])
        decided[rows] = _is(answers, wanted)
        unknown[rows] |= ~valid_mask(answers)
    return decided, unknown


# -- maps


@_form("transform_keys", "transform_keys", raises=True)
def transform_keys(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    lists = lists_of(arrays[0])
    keys, items = lists.elements.flatten()
    new_keys = bodies[0](batch, lists.rows, [keys, items])
    return map_of(lists.offsets, new_keys, items, lists.valid, call.type)


@_form("transform_values", "transform_values")
def transform_values(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    lists = lists_of(arrays[0])
    keys, items = lists.elements.flatten()
    entries = entries_of(keys, bodies[0](batch, lists.rows, [keys, items]), call.type)
    return Lists(lists.offsets, entries, lists.valid).array(call.type)


@_form("map_filter", "map_filter")
def map_filter(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    lists = lists_of(arrays[0])
    answers = bodies[0](batch, lists.rows, lists.elements.flatten())
    return lists.keep(_is(answers, True)).array(call.type)


@_form("map_zip_with", "map_zip_with")
def map_zip_with(
    call: Call, batch: pa.RecordBatch, arrays: list[pa.Array], bodies: list[Body]
) -> pa.Array:
    """All keys of both, the left one's first; the value of a missing key is null."""
    left, right = (lists_of(array) for array in arrays)
    keys = [Lists(m.offsets, m.elements.flatten()[0], m.valid) for m in (left, right)]
    both = interleave(keys)
    codes = ranks(both.elements)
    codes = both.rows * (int(codes.max(initial=0)) + 1) + codes
    kinds, first, kind_of = np.unique(codes, return_index=True, return_inverse=True)
    is_left = both.places < left.where(both.valid).lengths[both.rows]
    chosen = np.sort(first)
    values = []
    for lists, side in ((left, is_left), (right, ~is_left)):
        items = lists.where(both.valid).elements.flatten()[1]
        place = np.full(len(kinds), -1, np.int64)
        place[kind_of[side]] = np.arange(len(items))
        places = place[kind_of[chosen]]
        values.append(items.take(pa.array(np.maximum(places, 0), mask=places < 0)))
    names, rows = both.elements.take(pa.array(chosen)), both.rows[chosen]
    entries = entries_of(names, bodies[0](batch, rows, [names, *values]), call.type)
    offsets = offsets_of(np.bincount(rows, minlength=len(both)))
    return Lists(offsets, entries, both.valid).array(call.type)
