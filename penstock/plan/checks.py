"""What cannot run over a stream that takes rows back: whoever sees rows but not retractions.

Asked after the mode is known, because append mode makes aggregations and joins below append-only.
"""

from __future__ import annotations

from typing import Final

from penstock.plan import nodes as n
from penstock.plan.changes import is_append_only
from penstock.plan.refusals import Refusals

_INSTEAD: Final = "use it below the aggregation or join, or close windows: mode='append'"


def check_changes(root: n.Node, refusals: Refusals) -> None:
    """Note every node that would be handed rows that are taken back later, and cannot bear it."""
    for node in root.walk():
        problem = _problem(node)
        if problem is not None and not all(is_append_only(child) for child in node.children):
            refusals.add(type(node).__name__, problem, _INSTEAD)


def _problem(node: n.Node) -> str | None:
    match node:
        case n.MapBatches():
            return f"{node.name} sees rows, not that some are taken back later"
        case n.TransformWithState():
            name = type(node.processor).__name__
            return f"the processor {name} sees rows, not that some are taken back later"
        case n.Deduplicate():
            return "dropDuplicates by some columns keeps a row that may be taken back later"
        case n.PythonEval():
            for call in node.calls:
                if not call.deterministic:
                    return f"{call.name} may answer otherwise when its row is taken back"
    return None
