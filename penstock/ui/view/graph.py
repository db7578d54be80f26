"""A query as a graph: which node stands in which rank and row, how busy each is. Pure.

The page draws it, from left to right or, on a phone, from top to bottom. Laws: every edge leads
from a lower rank to a higher one; no two nodes have one place; edges that would make a circle are
left out, since no query has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.ui.view.facts import Facts, number, sub, text, texts, things
from penstock.ui.view.figures import event_time, lag_rows, lag_seconds, rate, share

#: From this share of its time on, a task is the reason why others wait.
HOT_SHARE: Final = 0.9
BUSY_SHARE: Final = 0.6
#: Rows that wait for so long are a problem.
LATE_SECONDS: Final = 5.0
#: No query has as many; whoever may append may say so all the same.
NODES_MAX: Final = 200
EDGES_MAX: Final = 400

_MINOR: Final = ("scan ", "read ", "project ", "filter ", "watermark ")

Edge = tuple[str, str]


def place(nodes: Sequence[str], edges: Sequence[Edge]) -> dict[str, tuple[int, int]]:
    """(rank, row) of each node: one rank beyond the last of those that lead to it."""
    kept = _without_circles(nodes, edges)
    ranks = dict.fromkeys(nodes, 0)
    for _ in nodes:  # no way is longer
        for start, end in kept:
            ranks[end] = max(ranks[end], ranks[start] + 1)
    last = max((ranks[end] for _, end in kept), default=0)
    leads = {start for start, _ in kept}
    reached = {end for _, end in kept}
    for node in nodes:
        if node in reached and node not in leads:
            ranks[node] = last  # results stand at the end, whatever their way
    return _rows(nodes, kept, ranks)


def _without_circles(nodes: Sequence[str], edges: Sequence[Edge]) -> list[Edge]:
    following: dict[str, list[str]] = {node: [] for node in nodes}
    kept: list[Edge] = []
    for start, end in edges:
        if start not in following or end not in following or _leads(following, end, start):
            continue
        following[start].append(end)
        kept.append((start, end))
    return kept


def _leads(following: Mapping[str, list[str]], start: str, end: str) -> bool:
    seen, left = {start}, [start]
    while left:
        node = left.pop()
        if node == end:
            return True
        for after in following[node]:
            if after not in seen:
                seen.add(after)
                left.append(after)
    return False


def _rows(
    nodes: Sequence[str], edges: Sequence[Edge], ranks: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """Within a rank, a node stands where those that lead to it stand, on average."""
    places: dict[str, tuple[int, int]] = {}
    for rank in sorted(set(ranks.values())):
        here = [node for node in nodes if ranks[node] == rank]

        def height(node: str) -> float:
            before = [places[start][1] for start, end in edges if end == node and start in places]
            return sum(before) / len(before) if before else 0.0

        for row, node in enumerate(sorted(here, key=height)):
            places[node] = (rank, row)
    return places


def show_graph(progress: Facts, now_ms: float, *, runs: bool = True) -> dict[str, Any] | None:
    """None: the query's driver does not tell of it. Not `runs`: it is of the past."""
    graph = sub(progress, "graph")
    nodes = {str(node.get("id")): node for node in things(graph, "nodes")[:NODES_MAX]}
    if not nodes:
        return None
    edges = [
        (index, str(edge.get("from")), str(edge.get("to")), edge)
        for index, edge in enumerate(things(graph, "edges")[:EDGES_MAX])
    ]
    places = place(list(nodes), [(start, end) for _, start, end, _ in edges])
    shown = [
        _show_node(index, id, node, places[id], runs=runs)
        for index, (id, node) in enumerate(nodes.items())
    ]
    return {
        "ranks": 1 + max(node["rank"] for node in shown),
        "nodes": shown,
        "edges": [
            _show_edge(index, nodes[start], nodes[end], edge, now_ms, runs=runs)
            for index, start, end, edge in edges
            if start in places and end in places and places[start][0] < places[end][0]
        ],
    }


def _show_node(
    index: int, id: str, node: Facts, where: tuple[int, int], *, runs: bool
) -> dict[str, Any]:
    base = f"progress.graph.nodes.{index}"
    kind = node.get("kind")
    is_stage = kind not in ("source", "sink")
    busy = number(node, "busyShare")
    does = texts(node, "does")[:12]
    return {
        "id": id,
        "kind": kind if isinstance(kind, str) else "stage",
        "name": text(node, "name") or id,
        "does": does,
        "mainly": _main_step(does),
        "tasks": len(texts(node, "tasks")) if is_stage else None,
        "busiest": text(node, "busiestTask"),
        "busy": share(busy, f"{base}.busyShare") if is_stage else None,
        "waiting": share(number(node, "waitingShare"), f"{base}.waitingShare")
        if is_stage
        else None,
        "pressed": share(number(node, "backPressuredShare"), f"{base}.backPressuredShare")
        if is_stage
        else None,
        "heat": heat(busy if runs else None) if is_stage else "",
        "rank": where[0],
        "row": where[1],
    }


def _main_step(does: Sequence[str]) -> str | None:
    """What a stage is there for: its last step that does more than choose rows and columns."""
    steps = [step for step in does if not step.startswith(_MINOR)]
    chosen = steps or does
    return chosen[-1] if chosen else None


def heat(busy: float | None) -> str:
    """The colour of a box."""
    if busy is None:
        return "unknown"
    return "hot" if busy >= HOT_SHARE else "busy" if busy >= BUSY_SHARE else "calm"


def _show_edge(
    index: int, start: Facts, end: Facts, edge: Facts, now_ms: float, *, runs: bool
) -> dict[str, Any]:
    """A stream tells no watermark, and what stands in the result lags behind nothing."""
    base = f"progress.graph.edges.{index}"
    lag = sub(edge, "lag")
    is_result = end.get("kind") == "sink"
    return {
        "from": str(start.get("id")),
        "to": str(end.get("id")),
        "rate": rate(number(edge, "rowsPerSecond"), f"{base}.rowsPerSecond"),
        "rows": None if is_result else lag_rows(lag, f"{base}.lag"),
        "lag": None if is_result else lag_seconds(lag, f"{base}.lag"),
        "watermark": None
        if start.get("kind") == "source"
        else event_time(edge.get("watermark"), now_ms, f"{base}.watermark"),
        "is_late": runs and (number(lag, "seconds") or 0) >= LATE_SECONDS,
    }
