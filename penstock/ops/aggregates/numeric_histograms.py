"""histogram_numeric: at most so many bins, and where there are more the nearest two become one.

Values are added one after the other, as Spark adds them. Where several pairs are equally near, it
draws lots from Java's generator with a fixed seed; the state of that is part of the buffer. So the
bins are those of Spark if rows come in the same order. Up to the number of bins they are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate, has_values
from penstock.ops.aggregates.values import lift_values, objects, show_values
from penstock.ops.functions.casts import decimals_to_floats
from penstock.ops.functions.decimals import from_decimals
from penstock.plan.exprs import Literal
from penstock.plan.nodes import AggregateCall

_MULTIPLIER: Final = 0x5DEECE66D
_MASK: Final = 2**48 - 1
#: The seed that Spark's histogram has, scrambled as java.util.Random does it.
_SEED: Final = 31183 ^ _MULTIPLIER


@dataclass(slots=True)
class _Bins:
    """Middles in ascending order, how much is in each, and the state of the generator."""

    at: list[float] = field(default_factory=list)
    much: list[float] = field(default_factory=list)
    seed: int = _SEED

    def add(self, value: float, most: int) -> None:
        low, high, place = 0, len(self.at), 0
        while low < high:  # Java's search, because a NaN is found where it looks first
            place = (low + high) // 2
            if self.at[place] > value:
                high = place
            elif self.at[place] < value:
                low = place = place + 1
            else:
                break
        if place < len(self.at) and self.at[place] == value:
            self.much[place] += 1.0
            return
        self.at.insert(place, value)
        self.much.insert(place, 1.0)
        if len(self.at) > most:
            self._trim()

    def merge(self, other: _Bins, most: int) -> None:
        """Put in the bins of another; equal ones become one."""
        for value, height in zip(other.at, other.much, strict=True):
            if value in self.at:
                self.much[self.at.index(value)] += height
            else:
                self.at.append(value)
                self.much.append(height)
        order = sorted(range(len(self.at)), key=self.at.__getitem__)
        self.at = [self.at[place] for place in order]
        self.much = [self.much[place] for place in order]
        while len(self.at) > most:
            self._trim()

    def _trim(self) -> None:
        at, much = self.at, self.much
        nearest, place, ties = at[1] - at[0], 0, 1
        for other in range(1, len(at) - 1):
            distance = at[other + 1] - at[other]
            if distance < nearest:
                nearest, place, ties = distance, other, 1
            elif distance == nearest:
                ties += 1
                place = other if self._draw() <= 1.0 / ties else place
        both = much[place] + much[place + 1]
        at[place] *= much[place] / both
        at[place] += at[place + 1] / both * much[place + 1]
        much[place] = both
        del at[place + 1], much[place + 1]

    def _draw(self) -> float:
        """java.util.Random.nextDouble."""
        return ((self._bits(26) << 27) + self._bits(27)) * 2.0**-53

    def _bits(self, count: int) -> int:
        self.seed = (self.seed * _MULTIPLIER + 0xB) & _MASK
        return self.seed >> (48 - count)


class _NumericHistogram(Accumulator):
    """A row is its value; a group has bins."""

    exact = False

    def __init__(self, call: AggregateCall) -> None:
        bins = call.args[1]
        assert isinstance(bins, Literal)
        self._most = int(bins.value.as_py())
        self._type = call.type
        doubles = pa.list_(pa.float64())
        self.columns = {"count": pa.int64(), "value": pa.float64()}
        self.columns |= {"at": doubles, "much": doubles, "seed": pa.int64()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        values = args[0]
        if pt.is_decimal(values.type):
            values = decimals_to_floats(values, pa.float64())
        lifted = lift_values(values).astype(np.float64)
        none = np.empty(rows, object)
        return [has_values(values).astype(np.int64), lifted, none, none, np.zeros(rows, np.int64)]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        totals: list[_Bins | None] = [None] * count
        rows = zip(groups.tolist(), *(part.tolist() for part in buffers), strict=True)
        # Each value changes the bins that the next one meets: no kernel does that.
        for group, here, value, at, much, seed in rows:
            if not here:
                continue
            bins = totals[group]
            kept = _Bins(list(at), list(much), seed) if at is not None else None
            if bins is None:
                bins = totals[group] = kept or _Bins()
            elif kept is not None:  # of sessions that have become one
                bins.merge(kept, self._most)
            if kept is None:
                bins.add(value, self._most)
        there = np.array([bins is not None for bins in totals], np.int64)
        seeds = np.array([bins.seed if bins is not None else 0 for bins in totals], np.int64)
        at_lists = objects((bins.at if bins is not None else None for bins in totals), count)
        heights = objects((bins.much if bins is not None else None for bins in totals), count)
        return [there, np.zeros(count), at_lists, heights, seeds]

    def finish(self, buffers: Buffers) -> pa.Array:
        lists = [bins or [] for bins in buffers[2].tolist()]
        offsets = np.cumsum([0, *(len(bins) for bins in lists)]).astype(np.int32)
        heights = [value for bins in buffers[3].tolist() for value in bins or []]
        fields = list(self._type.value_type)
        shown = self._show(np.array([v for bins in lists for v in bins]), fields[0].type)
        entries = pa.StructArray.from_arrays(
            [shown, pa.array(heights, pa.float64())], fields=fields
        )
        missing = pa.array(buffers[0] == 0)
        return pa.ListArray.from_arrays(offsets, entries, self._type, mask=missing)

    def _show(self, values: Any, kind: pa.DataType) -> pa.Array:
        if pt.is_decimal(kind):
            return from_decimals(list(_decimals(values.tolist(), kind)), kind, is_ansi=False)
        if not pt.is_floating(kind):
            values = np.trunc(values).astype(np.int64)
        return show_values(values, np.ones(len(values), bool), kind)


def _decimals(values: list[float], kind: pa.DataType) -> Iterator[Decimal]:
    """Rounded to the digits of the type, then to its scale."""
    digits = Context(kind.precision, ROUND_HALF_UP)
    for value in values:
        number = digits.create_decimal(repr(value))
        yield number.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, Context(60))


def _constant_bins(call: AggregateCall) -> str | None:
    if not isinstance(call.args[1], Literal):
        return "a number of bins that is not constant"
    return None


aggregate("HistogramNumeric", sql="histogram_numeric", accepts=_constant_bins)(_NumericHistogram)
