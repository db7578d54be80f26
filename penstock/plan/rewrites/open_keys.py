"""Keys whose times come late by themselves never close: groups above a join without time bounds.

The watermark passes while such a join still waits for partners of its rows (open_times.py). An
operator that closed its groups then would lose what the join finds later. So it keeps them, as the
join keeps its rows; append mode, which shows a group when it closes, has none to show, and refuses.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.plan import nodes as n
from penstock.plan.open_times import is_open
from penstock.plan.rewrites.aim import Aim


def open_keys(root: n.Node, _: Aim) -> n.Node:
    """The plan in which no operator forgets, or takes for late, what a join may still bring."""
    return root.rebuild(_open)


def _open(node: n.Node) -> n.Node:
    match node:
        case n.Aggregate() | n.Window() | n.TopN() | n.Deduplicate(within_ms=None):
            time = node.event_time
            if time is not None and is_open(time, node.children[0]):
                return replace(node, event_time=None)
        case n.GroupedMap() if node.time_key is not None:
            times = [keys[node.time_key].name for keys in node.keys]
            if any(map(is_open, times, node.inputs)):
                return replace(node, time_key=None)
        case n.Join():
            sides = zip((node.left_time, node.right_time), node.children, strict=True)
            if any(time is not None and is_open(time.column, child) for time, child in sides):
                return replace(node, left_time=None, right_time=None)
    return node
