"""Whose result depends on the order in which rows come, and who must keep that order for them.

Law: an operator whose result depends on it takes the rows of a key in log order of their source,
however many tasks there are. Several tasks that share a source write their rows to the exchange
each at its own pace; so the stages between such an operator and its sources hand on where each row
stands, or have one task (runtime/spec.py). Behind
joins of two streams, aggregations and windows there are results, not rows of a source: their order
is nobody's. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.plan import nodes as n
from penstock.plan.changes import is_static

#: Catalyst's names. Among equal rows the earlier or the later one counts, or all are kept as they
#: came.
AGGREGATES_IN_ORDER: Final = frozenset(
    (
        "First",
        "Last",
        "MaxBy",
        "MinBy",
        "MaxMinByK",
        "PivotFirst",
        "CollectList",
        "CollectSet",
        "ListAgg",
        "PythonUDAF",
    )
)
#: Those that give peers, rows that are equal in the window's order, the same value.
PEERS_ALIKE: Final = frozenset(("Rank", "DenseRank", "PercentRank", "CumeDist"))


def depends_on_order(node: n.Node) -> bool:
    """Whether the node's result can differ when its rows come in another order."""
    match node:
        case n.Aggregate():
            return any(call.function in AGGREGATES_IN_ORDER for call in node.calls)
        case n.Deduplicate():
            return not node.keeps_rows
        case n.Window():
            return any(map(_tells_peers_apart, node.calls))
        case n.TopN():
            return node.function == "RowNumber" or any(map(_tells_peers_apart, node.calls))
        case n.GroupedMap() | n.GroupedMapWithState() | n.TransformWithState():
            return True
        case _:
            return False


def _tells_peers_apart(call: n.WindowCall) -> bool:
    if call.function in PEERS_ALIKE:
        return False
    if call.aggregate is None or call.frame == "rows":
        return True
    return call.aggregate.function in AGGREGATES_IN_ORDER


def stages_in_order(roots: Sequence[n.Node]) -> frozenset[int]:
    """Which stages must hand on rows in log order of their sources, by the roots of all stages."""
    found: set[int] = set()
    ordered = [node for root in roots for node in root.walk() if depends_on_order(node)]
    waiting = [child for node in ordered for child in node.children]
    while waiting:
        for leaf in _rows_below(waiting.pop()):
            if isinstance(leaf, n.Scan) or leaf.stage in found:
                continue
            root = roots[leaf.stage]
            if any(True for _ in _rows_below(root)):
                found.add(leaf.stage)
                waiting.append(root)
    return frozenset(found)


def _rows_below(node: n.Node) -> Iterator[n.Scan | n.StageInput]:
    """The inputs whose rows come through to the node as they are."""
    match node:
        case n.Scan() | n.StageInput():
            yield node
        case n.Aggregate() | n.PartialAggregate() | n.Window() | n.TopN() | n.GroupedMap():
            return
        case n.Join() if not is_static(node.left) and not is_static(node.right):
            return
        case _:
            for child in node.children:
                yield from _rows_below(child)
