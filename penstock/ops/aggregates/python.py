"""The user's own aggregate functions, in pandas or Arrow: from a group's columns to one value."""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate
from penstock.ops.python_groups import AggregateFunction, python_of
from penstock.plan.nodes import AggregateCall


def _accepts(call: AggregateCall) -> str | None:
    name = python_of(call).name
    if call.distinct:
        return f"{name} of distinct values: take them in the function"
    if call.filter is not None:
        return f"{name} with a filter: filter in the function, or before the aggregation"
    return None


@aggregate("PythonUDAF", sql="", accepts=_accepts)
class _Python(Accumulator):
    exact = False
    whole = True

    def __init__(self, call: AggregateCall) -> None:
        self._call = call
        self.columns: dict[str, pa.DataType] = {}

    @cached_property
    def _function(self) -> AggregateFunction:
        return AggregateFunction(self._call)

    def of_groups(self, args: list[pa.Array], groups: Ints, count: int) -> pa.Array:
        return self._function.values(args, groups, count)

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        raise AssertionError("it has no buffers")

    merge = finish = lift  # type: ignore[assignment]
