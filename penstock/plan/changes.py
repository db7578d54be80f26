"""Whether a node's output only ever grows, or also takes rows back.

Law: an operator below which everything is append-only is never handed a negative weight.
"""

from __future__ import annotations

from typing import Final

from penstock.plan import nodes as n

#: By port, the joins that show rows of that side by themselves.
_KEEPS: Final = (("left", "full", "semi", "anti"), ("right", "full"))


def is_append_only(node: n.Node) -> bool:
    """Whether no row of the output is ever taken back."""
    below = all(is_append_only(child) for child in node.children)
    match node:
        case n.Aggregate():
            return node.emit == "finals" and below
        case n.Join() if kept_static(node) is not None:
            return node.kind == "semi" and below
        case n.Join() if is_static(node.right) or is_static(node.left):
            return below
        case n.Join():
            if node.kind in ("inner", "semi"):
                return below
            return below and node.emit == "finals"
        case n.GroupedMap():
            return node.emit == "finals" and node.time_key is not None and below
        case n.Window() | n.TopN():
            return node.emit == "finals" and node.event_time is not None and below
        case n.StageInput():
            return node.append_only
        case _:
            return below


def is_static(node: n.Node) -> bool:
    """Whether no stream feeds the node: its rows are known before anything runs."""
    if node.children:
        return all(is_static(child) for child in node.children)
    return isinstance(node, n.Static)


def kept_static(node: n.Join) -> int | None:
    """The side that is a static table whose rows the join with a stream shows by themselves."""
    for port, (side, other) in enumerate(((node.left, node.right), (node.right, node.left))):
        if node.kind in _KEEPS[port] and has_rows(side) and not is_static(other):
            return port
    return None


def has_rows(node: n.Node) -> bool:
    """Whether this is a static table that may have rows; a stream proven empty has none."""
    statics = [leaf for leaf in node.walk() if isinstance(leaf, n.Static)]
    return is_static(node) and any(not leaf.empty for leaf in statics)
