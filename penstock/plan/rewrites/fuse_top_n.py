"""A Window over the best rows of each partition, as one operator.

Spark puts its cut right below the window functions that read the ranks: a WindowGroupLimit, or,
without a partition, a limit of the sorted rows.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.plan import nodes as n
from penstock.plan.rewrites.aim import Aim


def fuse_top_n(root: n.Node, aim: Aim) -> n.Node:
    """The plan with every such pair as a TopN that computes the window functions."""
    return root.rebuild(_fuse)


def _fuse(node: n.Node) -> n.Node:
    if not isinstance(node, n.Window):
        return node
    match node.child:
        case n.TopN(calls=()) as cut if (cut.partition, cut.order) == (node.partition, node.order):
            return replace(cut, schema=node.schema, calls=node.calls)
        case n.Limit(count=int(limit), offset=0, child=n.Sort(order=order, child=rows)) if (
            not node.partition and order == node.order
        ):
            return n.TopN(
                schema=node.schema,
                child=rows,
                partition=(),
                order=order,
                function="RowNumber",
                limit=limit,
                calls=node.calls,
            )
    return node
