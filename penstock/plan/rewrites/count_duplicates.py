"""Distinct rows of a stream that takes rows back: rows are counted, one is shown while any is left.

Deduplicate remembers only that it saw a key; it could not tell when the last such row is gone.
"""

from __future__ import annotations

from penstock.plan import nodes as n
from penstock.plan.changes import is_append_only


def count_duplicates(node: n.Node) -> n.Node:
    """The plan with Deduplicate over changing rows as an Aggregate without functions."""
    children = tuple(count_duplicates(child) for child in node.children)
    if children:
        node = node.with_children(children)
    if (
        isinstance(node, n.Deduplicate)
        and not is_append_only(node.child)
        and {key.name for key in node.keys} == set(node.child.schema.names)
    ):
        keys = n.columns_of(node.child.schema)
        return n.Aggregate(schema=node.schema, child=node.child, keys=keys, calls=())
    return node
