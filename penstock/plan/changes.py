"""Whether a node's output only ever grows, or also takes rows back.

Law: an operator below which everything is append-only is never handed a negative weight.
"""

from __future__ import annotations

from penstock.plan import nodes as n


def is_append_only(node: n.Node) -> bool:
    """Whether no row of the output is ever taken back."""
    below = all(is_append_only(child) for child in node.children)
    match node:
        case n.Aggregate():
            return node.emit == "finals" and below
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
