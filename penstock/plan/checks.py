"""What cannot run although each of its parts could.

Over a stream that takes rows back: whoever sees rows but not retractions. That is asked after the
mode is known, because append mode makes aggregations and joins below append-only. With a static
table: whatever would show its rows by themselves, since every task has the whole of it. Keys that
cannot be keys, and variants that would be shown or kept. And, only when a query is to be started,
sources that are no stream of the log.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.changes import has_rows, is_append_only
from penstock.plan.refusals import Refusals
from penstock.plan.stages import Query, required_keys
from penstock.plan.types import holds_variant

#: What passes rows on, and remembers none.
_WITHOUT_STATE: Final = (n.Project, n.Filter, n.Expand, n.Union, n.Generate, n.Watermark)
_INSTEAD: Final = "use it below the aggregation or join, or close windows: mode='append'"


def check_changes(root: n.Node, refusals: Refusals) -> None:
    """Note every node that gets rows which are taken back later, and cannot work with those."""
    for node in root.walk():
        problem = _problem(node)
        if problem is not None and not all(is_append_only(child) for child in node.children):
            refusals.add(type(node).__name__, problem, _INSTEAD)


def check_statics(root: n.Node, refusals: Refusals) -> None:
    """Note every node that would show rows of a static table by themselves."""
    for node in root.walk():
        match node:
            case n.GroupedMap() if any(has_rows(child) for child in node.children):
                refusals.add(
                    node.name,
                    "a cogroup of a stream and a static table",
                    "append the static rows to a stream and read both as streams",
                )


def check_keys(root: n.Node, refusals: Refusals) -> None:
    """Note every node whose rows would have to be placed by something that has no hash."""
    for node in root.walk():
        for keys in required_keys(node) or ():
            for key in keys or ():
                if pa.types.is_interval(key.type):
                    refusals.add(
                        type(node).__name__,
                        "a key that is a calendar interval",
                        "use a day-time interval: make_dt_interval, or a difference of timestamps",
                    )


def check_sources(query: Query) -> None:
    """Raise Unsupported if rows come from anywhere but the log: a plan of them can only be shown.

    A DataFrame over a stream of the log names the stream as an option.
    """
    refusals = Refusals()
    for leaf in (leaf for stage in query.stages for leaf in stage.inputs):
        if isinstance(leaf, n.Scan) and not any(
            name.lower() == "stream" for name, _ in leaf.options
        ):
            refusals.add(
                leaf.stream,
                "a source of Spark's own: queries read streams of the log",
                "bring its rows into a stream with Spark's own engine, "
                "source.writeStream.format('penstock').option('stream', name) with a "
                "checkpointLocation, and start the query over log.stream(name).df(spark)",
            )
    refusals.check()


def check_variants(root: n.Node, refusals: Refusals) -> None:
    """Note where a variant would leave the query, or be kept."""
    remedy = "keep what you need of it: variant_get(v, '$.a', 'int'), or to_json(v)"
    if any(holds_variant(field.type) for field in root.schema):
        refusals.add("the result", "a column that is a variant", remedy)
    for node in root.walk():
        if any(holds_variant(field.type) for kept in _kept(node) for field in kept.schema):
            refusals.add(type(node).__name__, "a column that is a variant", remedy)


def _kept(node: n.Node) -> tuple[n.Node, ...]:
    """Whose rows this node reads from outside, or has to remember."""
    if not node.children or isinstance(node, n.Aggregate | n.PartialAggregate):
        return (node,)
    return () if isinstance(node, _WITHOUT_STATE) else node.children


def _problem(node: n.Node) -> str | None:
    match node:
        case n.MapBatches():
            return f"{node.name} sees rows, not that some are taken back later"
        case n.TableFunction() if not node.deterministic or hasattr(node.call.handler, "terminate"):
            return f"{node.call.name} may yield other rows when its row is taken back"
        case n.GroupedMapWithState():
            return f"{node.name} sees rows, not that some are taken back later"
        case n.TransformWithState():
            name = type(node.processor).__name__
            return f"the processor {name} sees rows, not that some are taken back later"
        case n.Deduplicate() if not node.keeps_rows:
            return "dropDuplicates by some columns keeps a row that may be taken back later"
        case n.PythonEval():
            for call in node.calls:
                if not call.deterministic:
                    return f"{call.name} may answer otherwise when its row is taken back"
    return None
