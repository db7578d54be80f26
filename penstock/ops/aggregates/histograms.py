"""Mode, median and percentiles: how often each value occurs, which can be taken back.

State grows with the number of distinct values of a group, as Spark's does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import EvaluationFailed
from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate
from penstock.ops.aggregates.values import is_fixed, lift_objects, objects
from penstock.ops.functions.casts import decimals_to_floats
from penstock.ops.functions.ordering import order_keys
from penstock.plan.exprs import Literal
from penstock.plan.nodes import AggregateCall
from penstock.state.keys import canonical_ints, key_columns

#: (value, how often) per distinct value; Arrow's form of a map.
_Counts = list[tuple[Any, int]]


class _Histogram(Accumulator):
    """Counts per value; numbers are kept by their bits, so that NaN equals NaN."""

    exact = True

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self.columns = {"counts": pa.map_(pa.int64() if is_fixed(kind) else kind, pa.int64())}

    def _lift(self, column: pa.Array, often: list[int]) -> Buffers:
        bits = is_fixed(column.type)
        values = canonical_ints(column).tolist() if bits else lift_objects(column)
        there = column.is_valid().to_pylist()
        rows = zip(values, often, there, strict=True)
        kept = ([(value, n)] if here and n else None for value, n, here in rows)
        return [objects(kept, len(column))]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        totals: list[dict[Any, int] | None] = [None] * count
        # A dictionary per group: no column kernel counts values of several groups at once.
        for group, counts in zip(groups.tolist(), buffers[0].tolist(), strict=True):
            if not counts:
                continue
            have = totals[group]
            if have is None:
                totals[group] = dict(counts)
                continue
            for value, n in counts:
                have[value] = have.get(value, 0) + n
        kept = ([(v, n) for v, n in have.items() if n] if have else None for have in totals)
        return [objects(kept, count)]

    def invert(self, buffers: Buffers) -> Buffers | None:
        negated = (
            [(value, -n) for value, n in counts] if counts else None
            for counts in buffers[0].tolist()
        )
        return [objects(negated, len(buffers[0]))]


class _Mode(_Histogram):
    """The value that occurs most; of several the smallest, or the largest if asked for."""

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call.type)
        self._largest = call.option("reverseOpt") is False

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        return self._lift(args[0], [1] * rows)

    def finish(self, buffers: Buffers) -> pa.Array:
        chosen = [self._choose(counts) if counts else None for counts in buffers[0].tolist()]
        (column,) = key_columns(chosen, [self._kind])
        return column

    def _choose(self, counts: _Counts) -> Any:
        most = max(n for _, n in counts)
        values = [value for value, n in counts if n == most]
        if len(values) == 1:
            return values[0]
        (column,) = key_columns(values, [self._kind])
        order = order_keys(column)
        return values[int(order.argmax() if self._largest else order.argmin())]


def _countable(call: AggregateCall) -> str | None:
    kind = call.args[0].type
    if pt.is_nested(kind) or pt.is_interval(kind):
        return f"{call.function.lower()} of {kind}"
    return None


aggregate("Mode", sql="mode", accepts=_countable)(_Mode)


class _Percentile(_Histogram):
    """Percentiles of numbers as doubles, interpolated between neighbours."""

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(pa.float64())
        self._type = call.type
        self._reverse = bool(call.option("reverse"))
        literal = call.args[1]
        assert isinstance(literal, Literal)
        asked = literal.value.as_py()
        self._is_list = isinstance(asked, list)
        self._percentages: list[float] = asked if isinstance(asked, list) else [asked]

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        often = _frequencies(args[2]) if len(args) > 2 else [1] * rows
        return self._lift(_as_doubles(args[0]), often)

    def finish(self, buffers: Buffers) -> pa.Array:
        shown: list[Any] = []
        for counts in buffers[0].tolist():
            if not counts:
                shown.append(None)
                continue
            percentiles = self._percentiles(counts)
            shown.append(percentiles if self._is_list else percentiles[0])
        inner = self._type.value_type if self._is_list else self._type
        if not pt.is_duration(inner):
            return pa.array(shown, self._type)
        # Spark cuts intervals to whole microseconds.
        whole = [_truncate(value) for value in shown]
        stored = pa.list_(pa.int64()) if self._is_list else pa.int64()
        return pa.array(whole, stored).cast(self._type)

    def _percentiles(self, counts: _Counts) -> list[float]:
        bits, often = (np.array(part, np.int64) for part in zip(*counts, strict=True))
        values = bits.view(np.float64)
        order = np.argsort(order_keys(pa.array(values)))
        order = order[::-1] if self._reverse else order
        ends = np.cumsum(often[order])
        return [self._at(values[order], ends, part) for part in self._percentages]

    def _at(self, values: npt.NDArray[np.float64], ends: Ints, part: float) -> float:
        position = float(ends[-1] - 1) * part
        lower, higher = math.floor(position), math.ceil(position)
        low = float(values[np.searchsorted(ends, lower + 1)])
        high = float(values[np.searchsorted(ends, higher + 1)])
        return low if lower == higher or low == high else low + (position - lower) * (high - low)


class _DiscretePercentile(_Percentile):
    """The first value at or below which lies at least the asked part of all values."""

    def _at(self, values: npt.NDArray[np.float64], ends: Ints, part: float) -> float:
        wanted = max(1.0, np.ceil(float(ends[-1]) * part))
        return float(values[np.searchsorted(ends, wanted)])


def _truncate(value: Any) -> Any:
    if isinstance(value, list):
        return [int(item) for item in value]
    return None if value is None else int(value)


def _frequencies(column: pa.Array) -> list[int]:
    often = [0 if n is None else n for n in column.to_pylist()]
    if any(n < 0 for n in often):
        raise EvaluationFailed("NEGATIVE_VALUES_IN_FREQUENCY_EXPRESSION", "percentile")
    return often


def _as_doubles(column: pa.Array) -> pa.Array:
    if pt.is_decimal(column.type):
        return decimals_to_floats(column, pa.float64())
    if pt.is_duration(column.type):
        column = column.cast(pa.int64())
    return column.cast(pa.float64(), safe=False)


def _constant(call: AggregateCall) -> str | None:
    if not isinstance(call.args[1], Literal):
        return "percentiles that are not constants"
    if call.option("legacyCalculation"):
        return "spark.sql.legacy.percentileDiscCalculation"
    return None


aggregate("Percentile", sql="percentile percentile_cont median", accepts=_constant)(_Percentile)
aggregate("PercentileDisc", sql="percentile_disc", accepts=_constant)(_DiscretePercentile)
