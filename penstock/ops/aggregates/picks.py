"""first, last, max_by, min_by, pivots: one row of the group gives the value.

Law: among equal rows the later one is taken (by first the earlier one), as Spark does when it meets
the rows in this order.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate, has_values
from penstock.ops.aggregates.values import (
    buffer_keys,
    buffer_type,
    is_ordered,
    last_of_each,
    lift_objects,
    lift_values,
    objects,
    show_objects,
    show_values,
    stored_type,
    take_rows,
)
from penstock.ops.functions.ordering import order_keys
from penstock.plan.exprs import Literal
from penstock.plan.nodes import AggregateCall


class _Pick(Accumulator):
    """The first or last row, or the first or last one that is not null."""

    exact = True

    def __init__(self, call: AggregateCall, *, last: bool) -> None:
        self._type = call.type
        self._last = last
        self._ignore_nulls = bool(call.option("ignoreNulls", False))
        self.columns = {"value": buffer_type(call.type), "valid": pa.bool_(), "seen": pa.bool_()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        valid = has_values(args[0])
        seen = valid if self._ignore_nulls else np.ones(rows, bool)
        return [lift_values(args[0]), valid, seen]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        rows = np.flatnonzero(buffers[2])
        chosen = last_of_each(groups, count, rows if self._last else rows[::-1])
        return [take_rows(part, chosen) for part in buffers]

    def finish(self, buffers: Buffers) -> pa.Array:
        return show_values(buffers[0], buffers[1], self._type)


aggregate("First", sql="first first_value any_value")(partial(_Pick, last=False))
aggregate("Last", sql="last last_value")(partial(_Pick, last=True))


class _PickBy(Accumulator):
    """The value of the row whose second argument is largest, or smallest; nulls take no part."""

    exact = True

    def __init__(self, call: AggregateCall, *, largest: bool) -> None:
        self._type = call.type
        self._order = call.args[1].type
        self._largest = largest
        self.columns = {
            "value": buffer_type(call.type),
            "valid": pa.bool_(),
            "order": buffer_type(self._order),
            "seen": pa.bool_(),
        }

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        value, order = args
        return [lift_values(value), has_values(value), lift_values(order), has_values(order)]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        rows = np.flatnonzero(buffers[3])
        keys = buffer_keys(buffers[2][rows], self._order)
        by_group = np.lexsort((keys if self._largest else ~keys, groups[rows]))
        chosen = last_of_each(groups, count, rows[by_group])
        return [take_rows(part, chosen) for part in buffers]

    def finish(self, buffers: Buffers) -> pa.Array:
        return show_values(buffers[0], buffers[1], self._type)


def _order_known(call: AggregateCall) -> str | None:
    kind = call.args[1].type
    return None if is_ordered(kind) else f"ordering by {kind}"


aggregate("MaxBy", sql="max_by", accepts=_order_known)(partial(_PickBy, largest=True))
aggregate("MinBy", sql="min_by", accepts=_order_known)(partial(_PickBy, largest=False))


class _PickSome(Accumulator):
    """The values of the k rows whose second argument is largest, or smallest, in that order.

    Among equals the earlier rows come first; Spark promises no order of them.
    """

    exact = True

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        self._order = call.args[1].type
        self._largest = not call.option("reverse")
        literal = call.args[2]
        assert isinstance(literal, Literal)
        self._limit = int(literal.value.as_py())
        self.columns = {
            "values": pa.list_(stored_type(call.args[0].type)),
            "orders": pa.list_(stored_type(self._order)),
        }

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        values, orders = (lift_objects(arg) for arg in args[:2])
        taken = zip(values, orders, strict=True)
        kept = ([value] if order is not None else None for value, order in taken)
        return [
            objects(kept, rows),
            objects(([order] if order is not None else None for order in orders), rows),
        ]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        rows = [row for row, part in enumerate(buffers[0].tolist()) if part]
        values = [value for row in rows for value in buffers[0][row]]
        orders = [order for row in rows for order in buffers[1][row]]
        lengths = [len(buffers[0][row]) for row in rows]
        owners = np.repeat(groups[rows], lengths) if rows else np.zeros(0, np.int64)
        kept: list[list[list[Any]]] = [[[] for _ in range(count)] for _ in range(2)]
        keys = order_keys(pa.array(orders, stored_type(self._order)))
        sorted_rows = np.lexsort((~keys if self._largest else keys, owners))
        for row in sorted_rows.tolist():  # lists of objects are filled one by one
            owner = owners[row]
            if len(kept[0][owner]) < self._limit:
                kept[0][owner].append(values[row])
                kept[1][owner].append(orders[row])
        return [objects((part or None for part in column), count) for column in kept]

    def finish(self, buffers: Buffers) -> pa.Array:
        return show_objects(buffers[0].tolist(), self._type)


def _limit_known(call: AggregateCall) -> str | None:
    if not isinstance(call.args[2], Literal):
        return "max_by and min_by with a number of rows that is not a constant"
    return _order_known(call)


aggregate("MaxMinByK", sql="max_by min_by", accepts=_limit_known)(_PickSome)


class _Pivot(Accumulator):
    """An array with one place per value of the pivot column: the last value that was not null."""

    exact = True

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        self._kind = call.args[1].type
        self._wanted = _pivot_values(call)
        self.columns = {}
        for place in range(len(self._wanted)):
            self.columns[f"value{place}"] = buffer_type(self._kind)
            self.columns[f"valid{place}"] = pa.bool_()

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        values, valid = lift_values(args[1]), has_values(args[1])
        pivots = lift_objects(args[0])
        buffers: Buffers = []
        for wanted in self._wanted:
            here = np.fromiter((pivot == wanted for pivot in pivots), bool, rows)
            buffers += [values, valid & here]
        return buffers

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        merged: Buffers = []
        for values, valid in zip(buffers[::2], buffers[1::2], strict=True):
            chosen = last_of_each(groups, count, np.flatnonzero(valid))
            merged += [take_rows(values, chosen), take_rows(valid, chosen)]
        return merged

    def finish(self, buffers: Buffers) -> pa.Array:
        shown = [
            show_values(values, valid, self._kind)
            for values, valid in zip(buffers[::2], buffers[1::2], strict=True)
        ]
        width, rows = len(shown), len(buffers[0])
        by_row = np.arange(width * rows).reshape(width, rows).T.ravel()
        elements = pa.concat_arrays(shown).take(pa.array(by_row))
        offsets = pa.array(np.arange(rows + 1) * width, pa.int32())
        return pa.ListArray.from_arrays(offsets, elements).cast(self._type)


def _pivot_values(call: AggregateCall) -> tuple[object, ...]:
    values = call.option("pivotColumnValues")
    assert isinstance(values, tuple)
    return values


def _pivot_known(call: AggregateCall) -> str | None:
    """Spark's own values must be ours: numbers, text, and days or microseconds."""
    kind = call.args[0].type
    is_taken = pt.is_string(kind) or pt.is_timestamp(kind) or pt.is_date32(kind)
    if is_taken or pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind):
        return None
    return f"pivot by a column of {kind}"


aggregate("PivotFirst", sql="", accepts=_pivot_known)(_Pivot)
