"""Window functions over sorted rows: ranks, neighbours, picks from a frame, aggregates over one.

A function is handed all rows of its partitions, sorted, and answers with one value per row. Ranks
and picks are arithmetic on positions (frames.py); aggregates are those of ops/aggregates, folded
over each frame in the order of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops import aggregates
from penstock.ops.aggregate_calls import aggregate_rows, bind_calls
from penstock.ops.aggregates.api import judge_aggregate
from penstock.ops.expressions import compile_expr, true_mask
from penstock.ops.frames import Partitions, fold_frames, unfold
from penstock.ops.functions.alignment import as_array
from penstock.ops.ordering import Ints
from penstock.ops.python_groups import WindowFunction, judge_over_frames
from penstock.ops.range_frames import bind_frames
from penstock.plan.exprs import Literal
from penstock.plan.nodes import AggregateCall, PythonAggregate, WindowCall

#: The names that users write, for the documentation; all aggregates are window functions too.
WINDOW_NAMES: Final = (
    "row_number",
    "rank",
    "dense_rank",
    "percent_rank",
    "cume_dist",
    "ntile",
    "lag",
    "lead",
    "first_value",
    "last_value",
    "nth_value",
)
#: From sorted rows and their partitions to one value per row.
Evaluate: TypeAlias = Callable[[pa.RecordBatch, Partitions], pa.Array]


def judge_window(call: WindowCall) -> str | None:
    """Why the function cannot be computed, or None if it can."""
    if call.function in RANKS or call.function in _PICKS:
        return None
    if call.function in _NEIGHBOURS or call.function in ("NTile", "NthValue"):
        number = call.args[0 if call.function == "NTile" else 1]
        return None if isinstance(number, Literal) else f"{call.function} of a number that varies"
    if call.aggregate is None:
        return f"no window function for {call.function}"
    aggregates.load()
    return judge_aggregate(call.aggregate) or judge_over_frames(call.aggregate)


def bind_window_call(call: WindowCall, schema: pa.Schema) -> Evaluate:
    """The function over rows of this schema."""
    if call.function in RANKS:
        return _bind_rank(call)
    if call.function == "NTile":
        return _bind_ntile(call)
    if call.function in _NEIGHBOURS:
        return _bind_neighbour(call, schema)
    if call.function == "NthValue" or call.function in _PICKS:
        return _bind_pick(call, schema)
    return _bind_aggregate(call, schema)


# -- ranks


def _row_number(parts: Partitions) -> Ints:
    return np.arange(len(parts)) - parts.start + 1


def _rank(parts: Partitions) -> Ints:
    return parts.peer_start - parts.start + 1


def _dense_rank(parts: Partitions) -> Ints:
    return parts.peers - parts.peers[parts.start] + 1


def _percent_rank(parts: Partitions) -> npt.NDArray[np.float64]:
    others = parts.end - parts.start - 1
    return (_rank(parts) - 1) / np.maximum(others, 1)


def _cume_dist(parts: Partitions) -> npt.NDArray[np.float64]:
    return (parts.peer_end - parts.start) / (parts.end - parts.start)


#: What depends on nothing but the places of rows.
RANKS: Final[dict[str, Callable[[Partitions], npt.NDArray[np.generic]]]] = {
    "RowNumber": _row_number,
    "Rank": _rank,
    "DenseRank": _dense_rank,
    "PercentRank": _percent_rank,
    "CumeDist": _cume_dist,
}


def ranks(function: str, parts: Partitions) -> Ints:
    """The rows' ranks by one of Spark's three ways of counting."""
    return RANKS[function](parts).astype(np.int64)


def _bind_rank(call: WindowCall) -> Evaluate:
    compute, dtype = RANKS[call.function], call.type.to_pandas_dtype()
    return lambda rows, parts: pa.array(compute(parts).astype(dtype, copy=False))


def _bind_ntile(call: WindowCall) -> Evaluate:
    buckets = _constant(call, 0)

    def evaluate(rows: pa.RecordBatch, parts: Partitions) -> pa.Array:
        """The first buckets take one row more until the remainder is used up."""
        size, larger = np.divmod(parts.end - parts.start, buckets)
        place = _row_number(parts) - 1
        in_larger = place < larger * (size + 1)
        rest = (place - larger * (size + 1)) // np.maximum(size, 1) + larger
        number = np.where(in_larger, place // (size + 1), rest) + 1
        return pa.array(number).cast(call.type)

    return evaluate


# -- neighbours

_NEIGHBOURS: Final = ("Lag", "Lead")


def _bind_neighbour(call: WindowCall, schema: pa.Schema) -> Evaluate:
    value = compile_expr(call.args[0], schema)
    default = compile_expr(call.args[2], schema)
    distance = _constant(call, 1) * (-1 if call.function == "Lag" else 1)
    skips_nulls = bool(dict(call.options).get("ignoreNulls"))

    def evaluate(rows: pa.RecordBatch, parts: Partitions) -> pa.Array:
        column = as_array(value(rows), rows.num_rows)
        if skips_nulls and distance:
            places, is_there = _counted_neighbour(column, distance, parts)
        else:
            places = np.arange(len(parts)) + distance
            is_there = (places >= parts.start) & (places < parts.end)
        absent = np.flatnonzero(~is_there)
        if not len(absent):
            return column.take(pa.array(places))
        # The default is computed for the rows that need it and no others, as Spark does.
        defaults = as_array(default(rows.take(pa.array(absent))), len(absent)).cast(call.type)
        places[absent] = len(column) + np.arange(len(absent))
        return pa.concat_arrays([column, defaults]).take(pa.array(places))

    return evaluate


def _counted_neighbour(
    column: pa.Array, distance: int, parts: Partitions
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The row `distance` values away, nulls not counted; and whether there is one."""
    counted, before = _count(column.is_valid().to_numpy(zero_copy_only=False))
    wanted = before[:-1] + distance if distance < 0 else before[1:] + distance - 1
    exists = (wanted >= 0) & (wanted < len(counted))
    places = np.full(len(parts), -1)
    places[exists] = counted[wanted[exists]]
    return places, exists & (places >= parts.start) & (places < parts.end)


def _count(mask: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """The rows that count, and how many of them lie before each position."""
    return np.flatnonzero(mask), np.concatenate([[0], np.cumsum(mask)])


# -- picks

#: They come as aggregates, but over sorted rows they are positions.
_PICKS: Final = ("First", "Last")


def _bind_pick(call: WindowCall, schema: pa.Schema) -> Evaluate:
    """first_value, last_value, nth_value: the n-th row of the frame among those that count."""
    picked = call if call.aggregate is None else call.aggregate
    value = compile_expr(picked.args[0], schema)
    skips_nulls = bool(dict(picked.options).get("ignoreNulls"))
    condition = None if call.aggregate is None else call.aggregate.filter
    wanted = None if condition is None else compile_expr(condition, schema)
    number = _constant(call, 1) if call.function == "NthValue" else 1
    frames = bind_frames(call, schema)

    def evaluate(rows: pa.RecordBatch, parts: Partitions) -> pa.Array:
        column = as_array(value(rows), rows.num_rows)
        mask = np.ones(len(parts), bool)
        if wanted is not None:
            mask &= true_mask(wanted(rows), len(parts))
        if skips_nulls:
            mask &= column.is_valid().to_numpy(zero_copy_only=False)
        counted, before = _count(mask)
        low, high = frames(rows, parts)
        ranks_wanted = before[high] - 1 if call.function == "Last" else before[low] + number - 1
        exists = (ranks_wanted >= before[low]) & (ranks_wanted < before[high])
        places = np.zeros(len(parts), np.int64)
        places[exists] = counted[ranks_wanted[exists]]
        return column.take(pa.array(places, mask=~exists))

    return evaluate


# -- aggregates


def _bind_aggregate(call: WindowCall, schema: pa.Schema) -> Evaluate:
    assert call.aggregate is not None
    if isinstance(call.aggregate.option("python"), PythonAggregate):
        return _bind_python(call, call.aggregate, schema)
    (bound,) = bind_calls((call.aggregate,), schema)
    accumulator = bound.accumulator
    frames = bind_frames(call, schema)

    def of_partitions(rows: pa.RecordBatch, parts: Partitions) -> pa.Array:
        firsts, partition = np.unique(parts.start, return_inverse=True)
        (values,) = aggregate_rows([bound], rows, None, partition, len(firsts))
        return values.take(pa.array(partition))

    def of_frames(rows: pa.RecordBatch, parts: Partitions) -> pa.Array:
        places, lifted = bound.lift(rows, None, None)
        each = lifted
        if not accumulator.adds or len(places) < len(parts):
            each = accumulator.merge(lifted, places, len(parts))
        return accumulator.finish(fold_frames(accumulator, each, *frames(rows, parts), parts.start))

    def of_distinct(rows: pa.RecordBatch, parts: Partitions) -> pa.Array:
        """What is distinct differs from frame to frame, so each is looked at by itself."""
        pieces = [
            aggregate_rows([bound], rows.take(pa.array(places)), None, owner, count)[0]
            for places, owner, count in unfold(*frames(rows, parts))
        ]
        return pa.concat_arrays(pieces) if pieces else of_partitions(rows, parts)

    if call.lower is None and call.upper is None:
        return of_partitions
    return of_distinct if bound.call.distinct else of_frames


def _bind_python(call: WindowCall, aggregate: AggregateCall, schema: pa.Schema) -> Evaluate:
    args = [compile_expr(arg, schema) for arg in aggregate.args]
    frames = bind_frames(call, schema)
    is_bounded = call.lower is not None or call.upper is not None
    function = WindowFunction(aggregate, is_bounded=is_bounded)

    def evaluate(rows: pa.RecordBatch, parts: Partitions) -> pa.Array:
        columns = [as_array(arg(rows), rows.num_rows) for arg in args]
        low, high = frames(rows, parts)
        return function.evaluate(columns, parts.start, low - parts.start, high - parts.start)

    return evaluate


def _constant(call: WindowCall, position: int) -> int:
    literal = call.args[position]
    assert isinstance(literal, Literal)
    return int(literal.value.as_py())
