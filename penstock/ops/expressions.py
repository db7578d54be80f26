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
from penstock.ops.functions.registry import FUNCTIONS, Compiled, Datum, Evaluate
from penstock.plan.exprs import Call, Column, Expr, Lambda, Literal

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

    def value(batch: pa.RecordBatch) -> Datum:
        values: list[Datum] = [None] * len(args)
        rows = np.ones(batch.num_rows, bool)
        for at in order:
            if fails[at] and not rows.all():
                values[at] = functions.evaluate_where(args[at], batch, rows, types[at])
            else:
                values[at] = args[at](batch)
            if isinstance(values[at], pa.Scalar):
                rows = rows if values[at].is_valid else np.zeros_like(rows)
            elif values[at].null_count:
                rows = rows & values[at].is_valid().to_numpy(zero_copy_only=False)
        return evaluate(call, *values)

    return value


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
    known = FUNCTIONS[call.function]
    if known.form is not None:
        if any(isinstance(arg, Lambda) for arg in call.args):
            return functions.compile_lambda_call(call, schema, compile_expr)
        args = [_mark(arg, _compile(arg, schema, shared, memo)) for arg in call.args]
        return known.form(call, args)
    evaluate = known.evaluate
    assert evaluate is not None
    args = [_compile(arg, schema, shared, memo) for arg in call.args]
    if known.strict and any(can_raise(arg) for arg in call.args):
        return _evaluate_in_order(call, evaluate, args)
    match args:
        case [one]:
            return lambda batch: evaluate(call, one(batch))
        case [one, two]:
            return lambda batch: evaluate(call, one(batch), two(batch))
        case _:
            return lambda batch: evaluate(call, *[arg(batch) for arg in args])


def guard(expr: Expr, schema: pa.Schema) -> Compiled:
    """The compiled expression, marked with whether it can fail on some row.

    Special forms read the mark (`can_fail`): what cannot fail they evaluate over all rows at once.
    """
    return _mark(expr, compile_expr(expr, schema))


def _mark(expr: Expr, compiled: Compiled) -> Compiled:
    if not can_raise(expr):
        return compiled

    def may_fail(batch: pa.RecordBatch) -> Datum:
        return compiled(batch)

    may_fail.can_fail = True  # type: ignore[attr-defined]
    return may_fail


def can_raise(expr: Expr) -> bool:
    """Whether some row can make the expression fail."""
    match expr:
        case Call():
            known = FUNCTIONS[expr.function]
            return known.raises(expr) or any(can_raise(arg) for arg in expr.args)
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
    conjuncts = [guard(part, schema) for part in _conjuncts(expr)]

    def mask(batch: pa.RecordBatch) -> Datum:
        value: Datum = _TRUE
        for conjunct in conjuncts:
            if getattr(conjunct, "can_fail", False) and value is not _TRUE:
                value = _and_where(value, conjunct, batch)
            else:
                found = conjunct(batch)
                value = found if value is _TRUE else pc.and_kleene(value, found)
        return value

    return mask


def _conjuncts(expr: Expr) -> list[Expr]:
    if isinstance(expr, Call) and expr.function == "And":
        return [part for arg in expr.args for part in _conjuncts(arg)]
    return [expr]


def _and_where(value: Datum, conjunct: Compiled, batch: pa.RecordBatch) -> Datum:
    """value AND conjunct, the latter evaluated only where the former is not false."""
    return functions.and_where(value, conjunct, batch)


def true_mask(value: Datum, rows: int) -> np.ndarray:
    """A condition's value as NumPy booleans: null is false."""
    if isinstance(value, pa.Scalar):
        return np.full(rows, value.as_py() is True)
    return pc.fill_null(value, False).to_numpy(zero_copy_only=False)
