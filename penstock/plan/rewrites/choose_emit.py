"""Operators that have the choice emit finals in append mode, and changes in the other modes."""

from __future__ import annotations

from dataclasses import replace

from penstock.plan import nodes as n
from penstock.plan.rewrites.aim import Aim


def choose_emit(root: n.Node, aim: Aim) -> n.Node:
    """The plan with every such operator emitting what the mode can show."""
    emit: n.Emit = "finals" if aim.mode == "append" else "changes"

    def choose(node: n.Node) -> n.Node:
        if isinstance(node, n.Aggregate | n.Join | n.Window | n.TopN | n.GroupedMap):
            return replace(node, emit=emit)
        return node

    return root.rebuild(choose)
