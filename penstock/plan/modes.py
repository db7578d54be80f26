"""What an output mode asks of a plan.

update    every change, as it happens: operators emit changes
complete  the whole result, again and again: operators emit changes, the sink keeps the result
append    only rows that never change: operators emit finals, and the watermark must bound them
"""

from __future__ import annotations

from penstock.plan import nodes as n
from penstock.plan.changes import is_append_only, is_static
from penstock.plan.finish import needs_whole_result, split_finish
from penstock.plan.open_times import has_open_join
from penstock.plan.refusals import Refusals

_USE_UPDATE = "use mode='update'"
_BY_TIME = (
    "call withWatermark, and group by its column, by window(), or by what rises with it "
    f"(date_trunc, to_date, date_format(ts, 'yyyy-MM-dd HH')); or {_USE_UPDATE}"
)
#: Where a join below has no bounds, times that it hands on are over for nobody.
_BOUND_JOIN = (
    "bound the join below it in event time (b.ts BETWEEN a.ts - INTERVAL 1 HOUR AND a.ts + INTERVAL"
    " 1 HOUR), since without that a row may find its partner after its group was closed"
)


def check_mode(root: n.Node, mode: n.Mode, refusals: Refusals) -> None:
    """Note the reasons why this mode cannot show the result of a plan that was rewritten for it."""
    _check_finish(root, mode, refusals)
    if mode != "append":
        return
    for node in root.walk():
        problem = _needs_watermark(node)
        if problem is not None:
            is_above_join = not isinstance(node, n.Join) and has_open_join(node)
            remedy = f"{_BOUND_JOIN}; {_BY_TIME}" if is_above_join else _BY_TIME
            refusals.add(type(node).__name__, problem, remedy)
    if not refusals.reasons and not is_append_only(root):
        refusals.add(
            type(root).__name__, "its result takes rows back, which append mode cannot", _USE_UPDATE
        )


def _check_finish(root: n.Node, mode: n.Mode, refusals: Refusals) -> None:
    """Only the sink of complete mode has all rows at hand, to be sorted and limited."""
    streaming, _ = split_finish(root)
    whole = needs_whole_result(root if mode != "complete" else streaming)
    if whole is None:
        return
    if mode != "complete":
        refusals.add(
            whole,
            f"{mode} mode shows changes, which have no order among all rows and no first ones",
            "use mode='complete', or read the result with spark.read and sort or limit it there",
        )
    else:
        refusals.add(
            whole,
            "a sort or limit below an operator that keeps state",
            "sort and limit at the end of the query, or write its first part to a table",
        )


def _needs_watermark(node: n.Node) -> str | None:
    match node:
        case n.Aggregate() if node.event_time is None:
            return "append mode needs an aggregation by event time, with a watermark"
        case n.Aggregate() if node.session is not None and _has_sessions(node.child):
            return "several distinct aggregates over sessions, which close at different times"
        case n.GroupedMap() if node.time_key is None:
            return f"append mode needs {node.name} grouped by event time, with a watermark"
        case n.Window() | n.TopN() if node.event_time is None:
            return "append mode needs window functions partitioned by event time, with a watermark"
        case n.Join() if node.kind in ("left", "right", "full", "anti"):
            if is_static(node.left) or is_static(node.right):
                return None
            if node.left_time is None or node.right_time is None:
                return f"append mode needs a {node.kind} join bounded in event time on both sides"
    return None


def _has_sessions(node: n.Node) -> bool:
    return any(isinstance(part, n.Aggregate) and part.session is not None for part in node.walk())
