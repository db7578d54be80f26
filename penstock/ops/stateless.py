"""Operators without state: project, filter, expand, union.

Weights pass through: a row that is taken back takes back what was made of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.ops.api import Delta, Operator, batch_of
from penstock.ops.expressions import compile_predicate, compile_projection, true_mask
from penstock.plan import nodes as n


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
    predicate = compile_predicate(node.condition, node.child.schema)

    def keep(delta: Delta) -> list[Delta]:
        mask = predicate(delta.batch)
        if delta.weights is None and isinstance(mask, pa.Array):
            if mask.true_count == len(mask):
                return [delta]
            kept = delta.batch.filter(mask)
            return [Delta(kept)] if kept.num_rows else []
        chosen = delta.where(true_mask(mask, len(delta)))
        return [chosen] if len(chosen) else []

    return Stateless(keep)


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
