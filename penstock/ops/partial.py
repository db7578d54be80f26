"""Aggregation in two steps: rows to buffers before the exchange, buffers to a result after it.

Law: folding buffers that were folded per batch gives what folding the rows would have given; only
functions for which that is exact are ever split (plan/rewrites/aggregate_early.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.ops import aggregates
from penstock.ops.aggregate_calls import BoundCall, Distinct, bind_calls
from penstock.ops.aggregates.api import AGGREGATES, Buffers, Ints
from penstock.ops.api import Delta, Weights
from penstock.ops.stateless import Stateless
from penstock.plan import nodes as n
from penstock.state.equal_rows import group_rows
from penstock.state.keys import normalise_floats
from penstock.state.memory_table import from_arrow, to_arrow


def buffer_columns(call: n.AggregateCall) -> dict[str, pa.DataType] | None:
    """The buffer columns of a call, or None if it cannot be folded in parts."""
    aggregates.load()
    function = AGGREGATES[call.function]
    if call.distinct or function.distinct:
        return None
    accumulator = function.build(call)
    return accumulator.columns if accumulator.exact else None


def build_partial(node: n.PartialAggregate) -> Stateless:
    """One row of buffers per key of each batch."""
    calls = bind_calls(node.calls, node.child.schema)
    key_at = [node.child.schema.get_field_index(key.name) for key in node.keys]

    def fold(delta: Delta) -> list[Delta]:
        assert delta.weights is None
        keys = [normalise_floats(delta.batch.column(index)) for index in key_at]
        first, groups = group_rows(keys, len(delta))
        columns = [key.take(pa.array(first)) for key in keys]
        for bound in calls:
            rows, lifted = bound.lift(delta.batch, None, None)
            merged = bound.accumulator.merge(lifted, groups[rows], len(first))
            kinds = bound.accumulator.columns.values()
            columns += [to_arrow(part, kind) for part, kind in zip(merged, kinds, strict=True)]
        return [Delta(pa.RecordBatch.from_arrays(columns, schema=node.schema))]

    return Stateless(fold)


@dataclass(frozen=True, slots=True)
class MergedCall(BoundCall):
    """A call whose input rows are buffers: columns at these positions."""

    buffer_at: tuple[int, ...] = ()

    def lift(
        self, batch: pa.RecordBatch, weights: Weights | None, distinct: Distinct | None
    ) -> tuple[Ints, Buffers]:
        assert weights is None and distinct is None
        kinds = self.accumulator.columns.values()
        buffers = [
            from_arrow(batch.column(index), kind)
            for index, kind in zip(self.buffer_at, kinds, strict=True)
        ]
        return np.arange(batch.num_rows), buffers


def bind_merged(node: n.Aggregate) -> list[BoundCall]:
    """The calls of an Aggregate over rows of a PartialAggregate."""
    aggregates.load()
    bound: list[BoundCall] = []
    schema = node.child.schema
    for index, call in enumerate(node.calls):
        accumulator = AGGREGATES[call.function].build(call)
        buffer_at = tuple(schema.get_field_index(f"{index}.{name}") for name in accumulator.columns)
        bound.append(MergedCall(call, accumulator, (), None, buffer_at))
    return bound
