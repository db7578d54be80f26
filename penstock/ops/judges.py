"""What the operators can do, as the translation asks it."""

from __future__ import annotations

from penstock.ops import aggregates, functions
from penstock.ops.aggregates.api import judge_aggregate
from penstock.ops.functions.registry import judge
from penstock.plan.exprs import Call
from penstock.plan.nodes import AggregateCall, WindowCall
from penstock.plan.translate import Judges


def _call(call: Call) -> str | None:
    functions.load()
    return judge(call)


def _aggregate(call: AggregateCall) -> str | None:
    aggregates.load()
    return judge_aggregate(call)


def _window(call: WindowCall) -> str | None:
    return f"no window function for {call.function}"


def _generator(kind: str) -> str | None:
    return f"no generator for {kind}"


def _udf(kind: int) -> str | None:
    return f"Python functions of eval type {kind}"


JUDGES = Judges(_call, _aggregate, _window, _generator, _udf)
