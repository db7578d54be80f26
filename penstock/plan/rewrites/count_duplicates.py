"""Distinct rows of a stream that takes rows back: rows are counted, one is shown while any is left.

Deduplicate remembers only that it saw a key; it could not tell when the last such row is gone.
"""

from __future__ import annotations

from penstock.plan import nodes as n
from penstock.plan.changes import is_append_only
from penstock.plan.rewrites.aim import Aim


def count_duplicates(root: n.Node, aim: Aim) -> n.Node:
    """The plan with Deduplicate over changing rows as an Aggregate without functions.

    Append mode cannot show such rows whoever counts them: there the plan stays as the user wrote
    it, and what makes rows change is refused (modes.py).
    """
    return root if aim.mode == "append" else root.rebuild(_count)


def _count(node: n.Node) -> n.Node:
    if isinstance(node, n.Deduplicate) and node.keeps_rows and not is_append_only(node.child):
        keys = n.columns_of(node.child.schema)
        return n.Aggregate(schema=node.schema, child=node.child, keys=keys, calls=())
    return node
