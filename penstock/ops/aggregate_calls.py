"""The aggregate calls of one node: their arguments, filters and distinctness, ready to be fed.

Shared by every operator that aggregates; which rows belong to which group, and where buffers are
kept, is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops import aggregates
from penstock.ops.aggregates.api import AGGREGATES, Accumulator, Buffers, Ints
from penstock.ops.api import Weights
from penstock.ops.expressions import compile_expr, true_mask
from penstock.ops.functions.alignment import as_array
from penstock.ops.functions.registry import Compiled
from penstock.plan.nodes import AggregateCall
from penstock.state.api import Slots, Table
from penstock.state.keys import key_objects

#: From (arguments, row numbers, weights) to the rows that count, and their weights.
Distinct = Callable[[list[pa.Array], Ints, Weights | None], tuple[Ints, Weights | None]]


@dataclass(frozen=True, slots=True)
class BoundCall:
    """One call over batches of a known schema."""

    call: AggregateCall
    accumulator: Accumulator
    args: tuple[Compiled, ...]
    filter: Compiled | None

    def lift(
        self, batch: pa.RecordBatch, weights: Weights | None, distinct: Distinct | None
    ) -> tuple[Ints, Buffers]:
        """The buffers of the rows that count, and which rows those are."""
        rows = np.arange(batch.num_rows)
        if self.filter is not None:
            # Arguments are evaluated only for rows that pass, as Spark does.
            mask = true_mask(self.filter(batch), batch.num_rows)
            rows = rows[mask]
            batch = batch.filter(pa.array(mask))
            weights = None if weights is None else weights[mask]
        values = [as_array(arg(batch), batch.num_rows) for arg in self.args]
        if distinct is not None:
            chosen, weights = distinct(values, rows, weights)
            values = [value.take(pa.array(chosen)) for value in values]
            rows = rows[chosen]
        return self._weigh(rows, values, weights)

    def _weigh(
        self, rows: Ints, values: list[pa.Array], weights: Weights | None
    ) -> tuple[Ints, Buffers]:
        if weights is None:
            return rows, self.accumulator.lift(values, len(rows))
        if (np.abs(weights) != 1).any():
            repeated = np.repeat(np.arange(len(rows)), np.abs(weights))
            values = [value.take(pa.array(repeated)) for value in values]
            rows, weights = rows[repeated], weights[repeated]
        buffers = self.accumulator.lift(values, len(rows))
        if (weights < 0).any():
            inverted = self.accumulator.invert(buffers)
            assert inverted is not None, "only invertible functions are fed retractions"
            buffers = [
                np.where(weights < 0, taken, given)
                for taken, given in zip(inverted, buffers, strict=True)
            ]
        return rows, buffers


def bind_calls(calls: tuple[AggregateCall, ...], schema: pa.Schema) -> list[BoundCall]:
    """The calls over batches of this schema."""
    aggregates.load()
    return [_bind(call, schema) for call in calls]


def _bind(call: AggregateCall, schema: pa.Schema) -> BoundCall:
    function = AGGREGATES[call.function]
    return BoundCall(
        replace(call, distinct=True) if function.distinct else call,
        function.build(call),
        tuple(compile_expr(arg, schema) for arg in call.args),
        compile_expr(call.filter, schema) if call.filter is not None else None,
    )


def can_take_back(calls: list[BoundCall]) -> bool:
    """Whether every function can take rows back by itself."""
    return all(bound.accumulator.invert(_no_rows(bound)) is not None for bound in calls)


def _no_rows(bound: BoundCall) -> Buffers:
    return bound.accumulator.lift([pa.nulls(0, arg.type) for arg in bound.call.args], 0)


def distinct_within(groups: Ints) -> Distinct:
    """Keeps the first row of each (group, arguments); weights must be positive."""

    def choose(
        values: list[pa.Array], rows: Ints, weights: Weights | None
    ) -> tuple[Ints, Weights | None]:
        seen: dict[object, int] = {}
        objects = key_objects(values, len(rows))
        for position, key in enumerate(zip(groups[rows].tolist(), objects, strict=True)):
            seen.setdefault(key, position)
        return np.fromiter(seen.values(), np.int64, len(seen)), None

    return choose


def aggregate_rows(
    calls: list[BoundCall],
    batch: pa.RecordBatch,
    weights: Weights | None,
    groups: Ints,
    count: int,
) -> list[pa.Array]:
    """The value of every call in every group, from all of its rows: row i belongs to groups[i]."""
    results = []
    for bound in calls:
        if bound.accumulator.whole:
            results.append(_of_groups(bound, batch, weights, groups, count))
            continue
        distinct = distinct_within(groups) if bound.call.distinct else None
        rows, buffers = bound.lift(batch, weights, distinct)
        merged = bound.accumulator.merge(buffers, groups[rows], count)
        results.append(bound.accumulator.finish(merged))
    return results


def _of_groups(
    bound: BoundCall, batch: pa.RecordBatch, weights: Weights | None, groups: Ints, count: int
) -> pa.Array:
    args = [as_array(arg(batch), batch.num_rows) for arg in bound.args]
    if weights is not None:
        places = np.repeat(np.arange(len(groups)), weights)
        args, groups = [arg.take(pa.array(places)) for arg in args], groups[places]
    return bound.accumulator.of_groups(args, groups, count)


def existing(weights: npt.NDArray[np.int64]) -> Weights | None:
    """The weights of kept rows, or None if each of them counts once."""
    return None if (weights == 1).all() else weights


# -- the buffers of all calls, as columns of a table


def read_buffers(table: Table, calls: Sequence[BoundCall], slots: Slots) -> list[Buffers]:
    return [
        [table.read(f"{index}.{name}", slots) for name in bound.accumulator.columns]
        for index, bound in enumerate(calls)
    ]


def write_buffers(
    table: Table, calls: Sequence[BoundCall], slots: Slots, buffers: list[Buffers]
) -> None:
    for index, bound in enumerate(calls):
        for name, values in zip(bound.accumulator.columns, buffers[index], strict=True):
            table.write(f"{index}.{name}", slots, values)
