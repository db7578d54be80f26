"""From a node of the IR to its operator. One entry per kind of node; the state says the rest."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock.ops import stateless
from penstock.ops.aggregate import AggregateOperator
from penstock.ops.aggregate_calls import bind_calls, can_take_back
from penstock.ops.api import Delta, OnLate, Operator
from penstock.ops.deduplicate import DeduplicateOperator
from penstock.ops.join import JoinOperator, StaticJoinOperator
from penstock.ops.regroup import build_regroup_aggregate
from penstock.ops.watermarks import WatermarkOperator
from penstock.plan import nodes as n
from penstock.plan.changes import is_append_only, is_static
from penstock.state.api import State


class _Source:
    """A leaf; its rows come from the pipeline."""

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        raise AssertionError("a leaf has no input")

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        return []


def build_operator(
    node: n.Node, state: State, statics: Mapping[int, pa.Table], on_late: OnLate
) -> Operator:
    """The operator of a node, over the state that it left behind, if any."""
    match node:
        case n.Static():
            return _Source()
        case n.Project():
            return stateless.build_project(node)
        case n.Filter():
            return stateless.build_filter(node)
        case n.Expand():
            return stateless.build_expand(node)
        case n.Union():
            return stateless.build_union(node)
        case n.Watermark():
            return WatermarkOperator(node, state)
        case n.Aggregate():
            return _build_aggregate(node, state, on_late)
        case n.Join():
            return _build_join(node, state, statics, on_late)
        case n.Deduplicate():
            return DeduplicateOperator(node, state, on_late)
        case _:
            raise NotImplementedError(type(node).__name__)


def _build_aggregate(node: n.Aggregate, state: State, on_late: OnLate) -> Operator:
    if not is_append_only(node.child):
        if not can_take_back(bind_calls(node.calls, node.child.schema)):
            return build_regroup_aggregate(node, state, on_late)
    return AggregateOperator(node, state, on_late)


def _build_join(
    node: n.Join, state: State, statics: Mapping[int, pa.Table], on_late: OnLate
) -> Operator:
    for port, other in ((0, node.right), (1, node.left)):
        if isinstance(other, n.Static) and not is_static(node.children[port]):
            return StaticJoinOperator(node, statics[other.id], port)
    return JoinOperator(node, state, on_late)
