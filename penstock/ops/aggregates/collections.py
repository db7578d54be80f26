"""collect_list, collect_set, listagg: what keeps every value; and distinct counts.

Values come in the order of rows, sets in the order of first appearance; Spark promises no order.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate
from penstock.ops.aggregates.sums import count
from penstock.ops.aggregates.values import (
    is_ordered,
    lift_objects,
    objects,
    show_objects,
    stored_type,
)
from penstock.ops.functions.alignment import nulls
from penstock.ops.functions.ordering import order_keys
from penstock.plan.exprs import Literal
from penstock.plan.nodes import AggregateCall
from penstock.state.keys import normalise_floats


class _Collect(Accumulator):
    """All values, or all that are not null."""

    exact = True

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        self._ignore_nulls = bool(call.option("ignoreNulls", True))
        self.columns = {"values": pa.list_(stored_type(call.args[0].type))}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        values = lift_objects(args[0])
        skip = self._ignore_nulls
        kept = (None if skip and value is None else [value] for value in values)
        return [objects(kept, rows)]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        return [_concatenate(buffers[0], groups, count)]

    def finish(self, buffers: Buffers) -> pa.Array:
        return show_objects([values or [] for values in buffers[0].tolist()], self._type)


def _concatenate(lists: Any, groups: Ints, count: int) -> Any:
    """The lists of each group, one after the other; lists given are never changed."""
    parts: list[list[list[Any]]] = [[] for _ in range(count)]
    # Lists of objects have no column kernel: one step per row, one copy per group.
    for group, part in zip(groups.tolist(), lists.tolist(), strict=True):
        if part:
            parts[group].append(part)
    joined = (
        (own[0] if len(own) == 1 else list(chain.from_iterable(own))) if own else None
        for own in parts
    )
    return objects(joined, count)


aggregate("CollectList", sql="collect_list array_agg")(_Collect)


class _CollectDistinct(_Collect):
    """The operator sees to it that each value comes once; Spark shows zeros without sign."""

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        return super().lift([normalise_floats(args[0])], rows)


aggregate("CollectSet", sql="collect_set", distinct=True)(_CollectDistinct)


@aggregate("HyperLogLogPlusPlus", sql="approx_count_distinct", distinct=True)
def approx_count_distinct(call: AggregateCall) -> Accumulator:
    """Counts exactly, which keeps the promise of any relative error, at the price of state that
    grows with the number of distinct values."""
    return count(call)


class _ListAgg(Accumulator):
    """Texts, or bytes, with a delimiter between them, in the order asked for."""

    exact = True

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        delimiter = call.args[1]
        assert isinstance(delimiter, Literal)
        self._delimiter = delimiter.value.as_py()
        orders = call.option("orders", ())
        assert isinstance(orders, tuple)
        #: Per term of ORDER BY: whether descending, whether nulls come first.
        self._orders: tuple[tuple[bool, bool], ...] = orders
        self._order_types = [arg.type for arg in call.args[2:]]
        self.columns = {"values": pa.list_(call.args[0].type)}
        for place, kind in enumerate(self._order_types):
            self.columns[f"order{place}"] = pa.list_(stored_type(kind))

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        there = args[0].is_valid().to_pylist()
        columns = [args[0], *args[2:]]
        return [
            objects(
                (
                    [value] if kept else None
                    for value, kept in zip(lift_objects(column), there, strict=True)
                ),
                rows,
            )
            for column in columns
        ]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        return [_concatenate(part, groups, count) for part in buffers]

    def finish(self, buffers: Buffers) -> pa.Array:
        lists = [part or [] for part in buffers[0].tolist()]
        if self._orders:
            lists = self._sort(lists, buffers[1:])
        empty = b"" if pa.types.is_binary(self._type) else ""
        delimiter = empty if self._delimiter is None else self._delimiter
        return pa.array([delimiter.join(part) if part else None for part in lists], self._type)

    def _sort(self, lists: list[list[Any]], orders: Buffers) -> list[list[Any]]:
        lengths = [len(part) for part in lists]
        groups = np.repeat(np.arange(len(lists)), lengths)
        keys: list[Ints] = []
        terms = zip(orders, self._order_types, self._orders, strict=True)
        for column, kind, (descending, nulls_first) in terms:
            flat = [value for part in column.tolist() if part for value in part]
            shown = show_objects(flat, kind)
            missing = nulls(shown)
            order_key = np.where(missing, 0, order_keys(shown))
            keys += [missing != nulls_first, ~order_key if descending else order_key]
        order = np.lexsort((*keys[::-1], groups))
        flat = list(chain.from_iterable(lists))
        ends = np.cumsum(lengths).tolist()
        placed = [flat[row] for row in order.tolist()]
        return [placed[end - n : end] for end, n in zip(ends, lengths, strict=True)]


def _constant_delimiter(call: AggregateCall) -> str | None:
    if not isinstance(call.args[1], Literal):
        return "listagg with a delimiter that is not a constant"
    for arg in call.args[2:]:
        if not is_ordered(arg.type):
            return f"ordering by {arg.type}"
    return None


aggregate("ListAgg", sql="listagg string_agg", accepts=_constant_delimiter)(_ListAgg)
