"""Event times that come late by themselves: what a join without time bounds hands on.

Such a join keeps a row for ever, since a partner may come at any time, and then hands the row on,
as old as it is. So no watermark says that a time of that side is over. Pure.

Law: a time that is not open comes no later behind the watermark than `Join.lag_ms` allows.
"""

from __future__ import annotations

from penstock.plan import nodes as n
from penstock.plan.changes import is_static
from penstock.plan.exprs import Expr, columns


def keeps_for_ever(join: n.Join, port: int) -> bool:
    """Whether a row of this side may find a partner however late."""
    time = (join.left_time, join.right_time)[port]
    return (
        time is None
        and not is_static(join.children[port])
        and not is_static(join.children[1 - port])
    )


def is_open(name: str, node: n.Node) -> bool:
    """Whether this column of the node's output may hold a time that a join handed on late."""
    match node:
        case n.Watermark(column=column) if column == name:
            return False  # from here on it is told anew
        case n.Project():
            return _is_made_of_open(node.exprs[_place(name, node)], node.child)
        case n.Expand():
            place = _place(name, node)
            return any(_is_made_of_open(exprs[place], node.child) for exprs in node.projections)
        case n.Union():
            place = _place(name, node)
            return any(is_open(child.schema.names[place], child) for child in node.inputs)
        case n.Join():
            return any(
                name in child.schema.names and (keeps_for_ever(node, port) or is_open(name, child))
                for port, child in enumerate(node.children)
            )
    return any(name in child.schema.names and is_open(name, child) for child in node.children)


def has_open_join(node: n.Node) -> bool:
    """Whether a join of two streams below remembers rows for ever."""
    joins = [join for join in node.walk() if isinstance(join, n.Join)]
    return any(keeps_for_ever(join, port) for join in joins for port in (0, 1))


def _is_made_of_open(expr: Expr, child: n.Node) -> bool:
    return any(is_open(name, child) for name in columns(expr))


def _place(name: str, node: n.Node) -> int:
    return int(node.schema.get_field_index(name))
