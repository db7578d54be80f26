"""IR expressions to functions from a record batch to a column, with Spark's semantics.

Compiling happens once per query: columns become positions, calls become closures. What is
evaluated, and over which rows, is decided here and in the special forms: an expression that can
fail is only evaluated over rows for which Spark would evaluate it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops import functions
from penstock.ops.api import batch_of, renaming
from penstock.ops.functions.alignment import as_array
from penstock.ops.functions.registry import FUNCTIONS, TRUE, Argument, Compiled, Datum, Evaluate
from penstock.plan.exprs import Call, Column, Expr, Lambda, Literal, conjuncts

#: What occurs more than once, compiled; each remembers its value over the last batch.
_Memo = dict[Call | Column, Compiled]
_Shared = frozenset[Call | Column]


def compile_expr(expr: Expr, schema: pa.Schema) -> Compiled:
    """The expression over batches of this schema; its value may be a scalar."""
    functions.load()
    return _compile(expr, schema, frozenset(), {})


def _compile(expr: Expr, schema: pa.Schema, shared: _Shared, memo: _Memo) -> Compiled:
    match expr:
        case Call() | Column() if expr in shared:
            if expr not in memo:
                memo[expr] = _remember(_compile(expr, schema, shared - {expr}, memo))
            return memo[expr]
        case Column():
            index = schema.get_field_index(expr.name)
            assert index >= 0, f"no column {expr.name} in {schema.names}"
            return lambda batch: batch.column(index)
        case Literal():
            value = expr.value
            return lambda batch: value
        case Call():
            return _compile_call(expr, schema, shared, memo)
        case Lambda():
            raise AssertionError("a lambda is compiled by the function that takes it")


def _evaluate_in_order(call: Call, evaluate: Evaluate, args: list[Compiled]) -> Compiled:
    """Spark looks at the next argument only where those before it are not null."""
    order = FUNCTIONS[call.function].order or range(len(args))
    fails = [can_raise(arg) for arg in call.args]
    types = [arg.type for arg in call.args]

    def over_batch(batch: pa.RecordBatch) -> Datum:
        values: list[Datum] = [None] * len(args)
        rows: np.ndarray | None = None  # all of them
        for index in order:
            if fails[index] and rows is not None:
                value = functions.evaluate_where(args[index], batch, rows, types[index])
            else:
                value = args[index](batch)
            values[index] = value
            if isinstance(value, pa.Scalar):
                if not value.is_valid:
                    rows = np.zeros(batch.num_rows, bool)
            elif value.null_count:
                valid = value.is_valid().to_numpy(zero_copy_only=False)
                rows = valid if rows is None else rows & valid
        return evaluate(call, *values)

    return over_batch


def _repeated(exprs: Sequence[Expr]) -> _Shared:
    """Calls and columns that are written more than once; lambda bodies are not looked into."""
    seen: Counter[Call | Column] = Counter()

    def visit(expr: Expr) -> None:
        if isinstance(expr, Call | Column):
            seen[expr] += 1
        if isinstance(expr, Call) and seen[expr] == 1:
            for arg in expr.args:
                visit(arg)

    for expr in exprs:
        visit(expr)
    return frozenset(part for part, count in seen.items() if count > 1)


def _remember(compiled: Compiled) -> Compiled:
    """The same function, computed once per batch; the last batch stays alive for that."""
    last: list[tuple[pa.RecordBatch, Datum]] = []

    def value(batch: pa.RecordBatch) -> Datum:
        if not last or last[0][0] is not batch:
            last[:] = [(batch, compiled(batch))]
        return last[0][1]

    return value


def _compile_call(call: Call, schema: pa.Schema, shared: _Shared, memo: _Memo) -> Compiled:
    function = FUNCTIONS[call.function]
    if function.form is not None:
        if any(isinstance(arg, Lambda) for arg in call.args):
            return functions.compile_lambda_call(call, schema, compile_expr)
        return function.form(
            call, [Argument(_compile(a, schema, shared, memo), can_raise(a)) for a in call.args]
        )
    evaluate = function.evaluate
    assert evaluate is not None
    args = [_compile(arg, schema, shared, memo) for arg in call.args]
    if function.strict and any(can_raise(arg) for arg in call.args):
        return _evaluate_in_order(call, evaluate, args)
    kernel = function.kernel
    match args:
        case [arg] if kernel is not None:
            return lambda batch: kernel(arg(batch))
        case [left, right] if kernel is not None:
            return lambda batch: kernel(left(batch), right(batch))
        case [arg]:
            return lambda batch: evaluate(call, arg(batch))
        case [left, right]:
            return lambda batch: evaluate(call, left(batch), right(batch))
        case _:
            return lambda batch: evaluate(call, *[arg(batch) for arg in args])


def can_raise(expr: Expr) -> bool:
    """Whether some row can make the expression fail."""
    match expr:
        case Call():
            function = FUNCTIONS[expr.function]
            return function.raises(expr) or any(can_raise(arg) for arg in expr.args)
        case Lambda():
            return can_raise(expr.body)
        case _:
            return False


def compile_projection(exprs: tuple[Expr, ...], inputs: pa.Schema, output: pa.Schema) -> Compiled:
    """All expressions at once: from a batch of `inputs` to a batch of `output`."""
    functions.load()
    chosen = [inputs.get_field_index(expr.name) for expr in exprs if isinstance(expr, Column)]
    if len(chosen) == len(exprs):
        names = renaming(pa.schema([inputs.field(place) for place in chosen]), output)
        if names is not None:
            return lambda batch: batch.select(chosen).rename_columns(names)
    shared = _repeated(exprs)
    memo: _Memo = {}
    compiled = [_compile(expr, inputs, shared, memo) for expr in exprs]

    def project(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.num_rows
        return batch_of([as_array(evaluate(batch), rows) for evaluate in compiled], output, rows)

    return project


def compile_conditions(expr: Expr, schema: pa.Schema) -> list[Argument]:
    """The parts of a condition that all must be true, in the order in which Spark looks at them."""
    functions.load()
    parts = conjuncts(expr)
    shared, memo = _repeated(parts), _Memo()
    return [Argument(_compile(part, schema, shared, memo), can_raise(part)) for part in parts]


def also_true(passed: pa.Array | None, condition: Argument, batch: pa.RecordBatch) -> Datum:
    """What `passed` says of the rows, None if it says nothing, and the condition as well."""
    if passed is None:
        return condition.evaluate(batch)
    if condition.can_fail:
        return functions.and_where(passed, condition, batch)
    value = condition.evaluate(batch)
    return passed if value is TRUE else pc.and_kleene(passed, value)


def compile_predicate(expr: Expr, schema: pa.Schema) -> Compiled:
    """A mask without nulls: only rows for which the condition is true stay."""
    conditions = compile_conditions(expr, schema)

    def mask(batch: pa.RecordBatch) -> Datum:
        value: Datum = TRUE
        for condition in conditions:
            value = also_true(None if value is TRUE else value, condition, batch)
        return value

    return mask


def true_mask(value: Datum, rows: int) -> np.ndarray:
    """A condition's value as NumPy booleans: null is false."""
    if isinstance(value, pa.Scalar):
        return np.full(rows, value.as_py() is True)
    if value.null_count:
        value = pc.fill_null(value, False)
    return value.to_numpy(zero_copy_only=False)
