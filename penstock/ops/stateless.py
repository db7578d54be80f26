"""Operators without state: project, filter, expand, union.

Weights pass through: a row that is taken back takes back what was made of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.ops.api import Delta, Operator, batch_of
from penstock.ops.expressions import (
    also_true,
    compile_conditions,
    compile_projection,
    true_mask,
)
from penstock.ops.functions.alignment import as_array
from penstock.ops.functions.registry import TRUE
from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, conjuncts


class Stateless(Operator):
    """Any function from a batch and weights to batches; time means nothing to it."""

    def __init__(self, apply: Callable[[Delta], list[Delta]]) -> None:
        self._apply = apply

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        return self._apply(delta)


def build_project(node: n.Project) -> Stateless:
    project = compile_projection(node.exprs, node.child.schema, node.schema)
    return Stateless(lambda delta: [Delta(project(delta.batch), delta.weights)])


def build_filter(node: n.Filter) -> Stateless:
    return Stateless(compile_filter(node.condition, node.child.schema))


def compile_filter(condition: Expr, schema: pa.Schema) -> Callable[[Delta], list[Delta]]:
    """The rows of a delta for which a condition is true."""
    conditions = compile_conditions(condition, schema)
    # Spark looks at the next condition also where one is null: that shows if the next can fail.
    minds_nulls = [
        any(later.can_fail for later in conditions[i + 1 :]) for i, _ in enumerate(conditions)
    ]
    # Of what is left, nothing is null as a rule: to ask for it then costs less than to remember.
    parts = conjuncts(condition)
    guards = [_guarded(parts[place:], schema) for place in range(len(parts) + 1)]

    def keep(delta: Delta) -> list[Delta]:
        """Conditions one after the other; rows are left out as soon as that is worth its while."""
        passed: pa.Array | None = None
        for place, condition in enumerate(conditions):
            asked, rest = guards[place : place + 2]
            if asked is not None and not any(delta.batch.column(at).null_count for at in asked):
                break
            value = also_true(passed, condition, delta.batch)
            if value is TRUE:
                continue
            passed = as_array(value, len(delta))
            is_worth = rest is not None or 2 * passed.true_count < len(delta)
            if is_worth and not (minds_nulls[place] and passed.null_count):
                delta, passed = _where(delta, passed), None
                if not len(delta):
                    return []
        return [delta if passed is None else _where(delta, passed)]

    return keep


def _guarded(conditions: list[Expr], schema: pa.Schema) -> list[int] | None:
    """The columns that must not be null, if these conditions ask for nothing else."""
    asked = []
    for condition in conditions:
        match condition:
            case Call("IsNotNull", (Column() as column,)):
                asked.append(schema.get_field_index(column.name))
            case _:
                return None
    return asked


def _where(delta: Delta, mask: pa.Array) -> Delta:
    """The rows for which the mask is true, and not null."""
    if mask.true_count == len(mask):
        return delta
    weights = None if delta.weights is None else delta.weights[true_mask(mask, len(mask))]
    return Delta(delta.batch.filter(mask), weights)


def build_expand(node: n.Expand) -> Stateless:
    width, times = len(node.schema), len(node.projections)
    wide = pa.schema([(str(index), f.type) for index, f in enumerate([*node.schema] * times)])
    # All at once: what they have in common, such as where a row's windows begin, is computed once.
    project = compile_projection(
        tuple(expr for exprs in node.projections for expr in exprs), node.child.schema, wide
    )

    def expand(delta: Delta) -> list[Delta]:
        """All projections of the first row, then of the next: in any chunking the same order."""
        count = len(delta)
        if not count:
            return []
        made = project(delta.batch).columns
        order = pa.array(np.arange(count * times).reshape(times, count).T.ravel())
        columns = [pa.concat_arrays(made[index::width]).take(order) for index in range(width)]
        weights = None if delta.weights is None else np.repeat(delta.weights, times)
        return [Delta(batch_of(columns, node.schema, count * times), weights)]

    return Stateless(expand)


def build_union(node: n.Union) -> Stateless:
    schema = node.schema

    def rename(delta: Delta) -> list[Delta]:
        arrays = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(delta.batch.columns, schema, strict=True)
        ]
        if not arrays:
            return [delta]
        return [Delta(pa.RecordBatch.from_arrays(arrays, schema=schema), delta.weights)]

    return Stateless(rename)
