"""From a node of the IR to its operator. One entry per kind of node; the state says the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa

from penstock.errors import InvariantBroken
from penstock.ops import stateless
from penstock.ops.aggregate import AggregateOperator
from penstock.ops.aggregate_calls import bind_calls, can_take_back
from penstock.ops.api import Delta, OnLate, Operator
from penstock.ops.deduplicate import DeduplicateOperator
from penstock.ops.generate import build_generate
from penstock.ops.join import JoinOperator, StaticJoinOperator
from penstock.ops.map_batches import build_map_batches
from penstock.ops.mended import MendedAggregate, can_mend
from penstock.ops.partial import build_partial
from penstock.ops.python_eval import build_python_eval
from penstock.ops.regroup import build_regroup_aggregate
from penstock.ops.sessions import SessionOperator, SessionRegroup
from penstock.ops.static_rows import KeepingJoin, StaticSource
from penstock.ops.table_functions import build_table_function
from penstock.ops.top_n import ChangingWindow, GrowingWindow
from penstock.ops.watermarks import WatermarkOperator
from penstock.ops.whole_groups import build_grouped_map, build_whole_aggregate
from penstock.ops.windows import ClosingWindow
from penstock.plan import nodes as n
from penstock.plan.changes import is_append_only, is_static, kept_static
from penstock.state.api import State


def build_operator(
    node: n.Node,
    state: State,
    statics: Mapping[int, pa.Table],
    on_late: OnLate,
    now_ms: Callable[[], int],
) -> Operator:
    """The operator of a node, over the state that it left behind, if any."""
    match node:
        case n.Static():
            return StaticSource(partial(_static_rows, node, statics), state)
        case n.Project():
            return stateless.build_project(node)
        case n.Filter():
            return stateless.build_filter(node)
        case n.Expand():
            return stateless.build_expand(node)
        case n.Union():
            return stateless.build_union(node)
        case n.Generate():
            return build_generate(node)
        case n.Watermark():
            return WatermarkOperator(node, state)
        case n.PartialAggregate():
            return build_partial(node)
        case n.Aggregate():
            return _build_aggregate(node, state, on_late)
        case n.Join():
            return _build_join(node, state, statics, on_late)
        case n.Window() | n.TopN():
            return _build_window(node, state, on_late)
        case n.Deduplicate():
            return DeduplicateOperator(node, state, on_late)
        case n.PythonEval():
            return build_python_eval(node)
        case n.MapBatches():
            return build_map_batches(node)
        case n.TableFunction():
            return build_table_function(node)
        case n.GroupedMap():
            return build_grouped_map(node, state, on_late)
        case n.GroupedMapWithState():
            # As below.
            from penstock.ops.group_state import GroupStateOperator

            return GroupStateOperator(node, state, on_late, now_ms)
        case n.TransformWithState():
            # Loads pyspark, which takes a second: only for those who have a processor.
            from penstock.ops.with_state import TransformWithStateOperator

            initial = statics[node.initial.id] if node.initial is not None else None
            return TransformWithStateOperator(node, state, on_late, now_ms, initial)
        case _:
            raise InvariantBroken(f"{type(node).__name__} has passed planning without an operator")


def _build_aggregate(node: n.Aggregate, state: State, on_late: OnLate) -> Operator:
    if node.merges:
        return AggregateOperator(node, state, on_late)
    calls = bind_calls(node.calls, node.child.schema)
    append_only = is_append_only(node.child)
    of_whole_groups = any(bound.accumulator.whole for bound in calls)
    if node.session is not None:
        if append_only and not of_whole_groups and not any(bound.call.distinct for bound in calls):
            return SessionOperator(node, state, on_late)
        return SessionRegroup(node, state, on_late)
    if of_whole_groups:
        return build_whole_aggregate(node, state, on_late)
    if not append_only and not can_take_back(calls):
        if can_mend(calls):
            return MendedAggregate(node, state, on_late)
        return build_regroup_aggregate(node, state, on_late)
    return AggregateOperator(node, state, on_late)


def _build_window(node: n.Window | n.TopN, state: State, on_late: OnLate) -> Operator:
    if not is_append_only(node.child):
        return ChangingWindow(node, state, on_late)
    if node.emit == "finals":
        return ClosingWindow(node, state, on_late)
    return GrowingWindow(node, state, on_late)


def _build_join(
    node: n.Join, state: State, statics: Mapping[int, pa.Table], on_late: OnLate
) -> Operator:
    kept = kept_static(node)
    if kept is not None:
        rows = partial(_static_rows, node.children[kept], statics)
        return KeepingJoin(node, rows, 1 - kept, state)
    for port, other in ((0, node.right), (1, node.left)):
        if is_static(other) and not is_static(node.children[port]):
            return StaticJoinOperator(node, _static_rows(other, statics), port)
    return JoinOperator(node, state, on_late)


def _static_rows(node: n.Node, statics: Mapping[int, pa.Table]) -> pa.Table:
    """The rows of a static table, with the columns that a join's keys were computed into."""
    if isinstance(node, n.Project):
        project = stateless.build_project(node)
        below = _static_rows(node.child, statics).to_batches()
        made = [out.batch for batch in below for out in project.on_batch(0, Delta(batch))]
        return pa.Table.from_batches(made, node.schema)
    assert isinstance(node, n.Static), node
    rows = statics[node.id]
    if not rows.column_names:
        return rows  # nothing but a number of rows
    return pa.Table.from_arrays(rows.columns, schema=node.schema)
