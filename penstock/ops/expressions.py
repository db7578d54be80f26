"""IR expressions to functions from a record batch to a column, with Spark's semantics.

Compiling happens once per query: columns become positions, calls become closures. What is
evaluated, and over which rows, is decided here and in the special forms: an expression that can
fail is only evaluated over rows for which Spark would evaluate it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops import functions
from penstock.ops.api import batch_of
from penstock.ops.functions.alignment import as_array
from penstock.ops.functions.registry import FUNCTIONS, Argument, Compiled, Datum, Evaluate
from penstock.plan.exprs import Call, Column, Expr, Lambda, Literal, conjuncts

_TRUE: Final = pa.scalar(True)
#: Calls that occur more than once, compiled; each remembers its value over the last batch.
_Memo = dict[Call, Compiled]


def compile_expr(expr: Expr, schema: pa.Schema) -> Compiled:
    """The expression over batches of this schema; its value may be a scalar."""
    functions.load()
    return _compile(expr, schema, frozenset(), {})


def _compile(expr: Expr, schema: pa.Schema, shared: frozenset[Call], memo: _Memo) -> Compiled:
    match expr:
        case Column():
            index = schema.get_field_index(expr.name)
            assert index >= 0, f"no column {expr.name} in {schema.names}"
            return lambda batch: batch.column(index)
        case Literal():
            value = expr.value
            return lambda batch: value
        case Call() if expr in shared:
            if expr not in memo:
                memo[expr] = _remember(_compile_call(expr, schema, shared, memo))
            return memo[expr]
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
        rows = np.ones(batch.num_rows, bool)
        for index in order:
            if fails[index] and not rows.all():
                value = functions.evaluate_where(args[index], batch, rows, types[index])
            else:
                value = args[index](batch)
            values[index] = value
            if isinstance(value, pa.Scalar):
                rows = rows if value.is_valid else np.zeros_like(rows)
            elif value.null_count:
                rows = rows & value.is_valid().to_numpy(zero_copy_only=False)
        return evaluate(call, *values)

    return over_batch


def _repeated_calls(exprs: tuple[Expr, ...]) -> frozenset[Call]:
    """Calls that are written more than once; lambda bodies are not looked into."""
    seen: Counter[Call] = Counter()

    def visit(expr: Expr) -> None:
        if isinstance(expr, Call):
            seen[expr] += 1
            if seen[expr] == 1:
                for arg in expr.args:
                    visit(arg)

    for expr in exprs:
        visit(expr)
    return frozenset(call for call, count in seen.items() if count > 1)


def _remember(compiled: Compiled) -> Compiled:
    """The same function, computed once per batch; the last batch stays alive for that."""
    last: list[tuple[pa.RecordBatch, Datum]] = []

    def value(batch: pa.RecordBatch) -> Datum:
        if not last or last[0][0] is not batch:
            last[:] = [(batch, compiled(batch))]
        return last[0][1]

    return value


def _compile_call(call: Call, schema: pa.Schema, shared: frozenset[Call], memo: _Memo) -> Compiled:
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
    match args:
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
    shared = _repeated_calls(exprs)
    memo: _Memo = {}
    compiled = [_compile(expr, inputs, shared, memo) for expr in exprs]

    def project(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.num_rows
        return batch_of([as_array(evaluate(batch), rows) for evaluate in compiled], output, rows)

    return project


def compile_predicate(expr: Expr, schema: pa.Schema) -> Compiled:
    """A mask without nulls: only rows for which the condition is true stay."""
    args = [Argument(compile_expr(part, schema), can_raise(part)) for part in conjuncts(expr)]

    def mask(batch: pa.RecordBatch) -> Datum:
        value: Datum = _TRUE
        for arg in args:
            if value is _TRUE:
                value = arg(batch)
            elif arg.can_fail:
                value = functions.and_where(value, arg, batch)
            else:
                value = pc.and_kleene(value, arg(batch))
        return value

    return mask


def true_mask(value: Datum, rows: int) -> np.ndarray:
    """A condition's value as NumPy booleans: null is false."""
    if isinstance(value, pa.Scalar):
        return np.full(rows, value.as_py() is True)
    return pc.fill_null(value, False).to_numpy(zero_copy_only=False)
