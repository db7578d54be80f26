"""A scan reads only the columns that are used above it.

Catalyst puts a projection where columns can be dropped, but leaves a stream's own columns alone.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import columns
from penstock.plan.rewrites.aim import Aim


def prune(root: n.Node, aim: Aim) -> n.Node:
    """The plan with every scan cut to the columns that reach something."""
    return _prune(root, frozenset(root.schema.names))


def _prune(node: n.Node, used: frozenset[str]) -> n.Node:
    match node:
        case n.Scan():
            return _cut(node, used)
        case n.Project():
            below = frozenset().union(*(columns(expr) for expr in node.exprs))
            return replace(node, child=_prune(node.child, below))
        case n.Filter():
            child = _prune(node.child, used | columns(node.condition))
            return replace(node, child=child, schema=child.schema)
        case n.Watermark():
            child = _prune(node.child, used | {node.column})
            return replace(node, child=child, schema=child.schema)
        case _:
            children = tuple(_prune(c, frozenset(c.schema.names)) for c in node.children)
            return node.with_children(children) if children else node


def _cut(node: n.Scan, used: frozenset[str]) -> n.Scan:
    kept = [i for i, name in enumerate(node.schema.names) if name in used]
    # Rows count even if no column of them is looked at: one column carries their number.
    kept = kept or [0]
    return replace(
        node,
        schema=pa.schema([node.schema.field(i) for i in kept]),
        columns=tuple(node.columns[i] for i in kept),
    )
