"""What the operators can do, as the translation asks it."""

from __future__ import annotations

from penstock.ops import aggregates, functions
from penstock.ops.aggregates.api import judge_aggregate
from penstock.ops.functions.registry import judge
from penstock.ops.generate import judge_generator
from penstock.ops.map_batches import MAP_KINDS
from penstock.ops.python_eval import EVAL_KINDS
from penstock.ops.python_groups import AGGREGATE_KINDS, GROUP_KINDS, STATE_KIND
from penstock.ops.table_functions import TABLE_KINDS
from penstock.ops.window_calls import judge_window
from penstock.plan.exprs import Call
from penstock.plan.nodes import AggregateCall, TransformWithState
from penstock.plan.translation.registry import Judges

#: Spark's eval types of a StatefulProcessor: pandas and rows, without and with initial state.
PROCESSOR_KINDS = frozenset({211, 212, 213, 214})

_KINDS = (
    EVAL_KINDS
    | MAP_KINDS
    | PROCESSOR_KINDS
    | GROUP_KINDS
    | AGGREGATE_KINDS
    | TABLE_KINDS
    | {STATE_KIND}
)


def _call(call: Call) -> str | None:
    functions.load()
    return judge(call)


def _aggregate(call: AggregateCall) -> str | None:
    aggregates.load()
    return judge_aggregate(call)


def _udf(kind: int) -> str | None:
    return None if kind in _KINDS else f"Python functions of eval type {kind}"


def _processor(node: TransformWithState) -> str | None:
    # Loads pyspark, which takes a second: only for those who have a processor.
    from penstock.ops.with_state import judge_processor

    return judge_processor(node)


JUDGES = Judges(_call, _aggregate, judge_window, judge_generator, _udf, _processor)
