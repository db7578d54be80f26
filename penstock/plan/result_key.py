"""The columns by which rows of a query's result replace each other, where the plan tells. Pure.

They are the grouping columns of the last aggregation, as far as all of them are in the result and
nothing but projections and filters comes after it. Law: a result has at most one row for a key at a
time. Where that is not certain there is no key.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.plan import nodes as n
from penstock.plan.closing import CLOSES
from penstock.plan.exprs import Column
from penstock.plan.stages import Query


def result_key(query: Query) -> tuple[str, ...]:
    """Names of result columns; none: the plan does not tell."""
    root = query.stages[-1].root
    if any(isinstance(node, n.Project) for node in query.finish):
        return ()  # its columns are not those of the result
    return _key(root, dict(zip(root.schema.names, query.schema.names, strict=True)))


def _key(node: n.Node, names: Mapping[str, str]) -> tuple[str, ...]:
    """Of a node, some of whose columns are in the result, under these names."""
    match node:
        case n.Filter(child=child) | n.Watermark(child=child):
            return _key(child, names)
        case n.Project(child=child, exprs=exprs):
            below: dict[str, str] = {}
            for expr, field in zip(exprs, node.schema, strict=True):
                if isinstance(expr, Column) and field.name in names:
                    below.setdefault(expr.name, names[field.name])
            return _key(child, below)
        case n.Aggregate(keys=keys):
            shown = [key.name for key in keys if not key.name.endswith(CLOSES)]
            key = tuple(names[name] for name in shown if name in names)
            return key if len(key) == len(shown) else ()
    return ()
