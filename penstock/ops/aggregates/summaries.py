"""percentile_approx: percentiles from a summary that stays small however many rows there are.

A summary has some of a group's values in order, the least and the largest among them. For each it
knows a number of rows that are at most as large, and a number that no more rows than are smaller.
Of two summaries both add up. Between neighbours u < v the law `smaller(v) + 1 - upto(u) <= 2en`
holds, where n is the number of rows and e = 1 / accuracy; it survives merging, and values are left
out only as far as it allows. So for every rank there is a value whose own rank is at most en away,
which is what Spark promises (Greenwald and Khanna, 2001).

Nothing is left out while a group has no more than `accuracy` distinct values. Its percentiles are
then exact, and what Spark shows as long as it has at most half as many rows. Beyond that, Spark's
answer depends on how rows came and were partitioned, and ours on how they came.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate, has_values
from penstock.ops.aggregates.values import last_of_each, lift_values, show_values, take_rows
from penstock.ops.functions.casts import decimals_to_floats
from penstock.ops.functions.decimals import from_decimals
from penstock.plan.exprs import Expr, Literal
from penstock.plan.nodes import AggregateCall

Floats: TypeAlias = npt.NDArray[np.float64]
_LONG_MAX: Final = np.int64(2**63 - 1)


@dataclass(frozen=True, slots=True)
class Summary:
    """Some values of `rows` rows, in ascending order, none of them twice."""

    values: Floats
    #: At most this many rows are smaller than the value.
    smaller: Ints
    #: At least this many rows are not larger than the value.
    upto: Ints
    rows: int

    @staticmethod
    def read(raw: bytes, rows: int) -> Summary:
        """From bytes that `write` gave."""
        values, smaller, upto = np.frombuffer(raw, np.int64).reshape(3, -1)
        return Summary(values.view(np.float64), smaller, upto, rows)

    def write(self) -> bytes:
        parts = (self.values.view(np.int64), self.smaller, self.upto)
        return np.concatenate(parts).tobytes()

    def merge(self, other: Summary) -> Summary:
        """The summary of the rows of both."""
        values = np.unique(np.concatenate((self.values, other.values)))
        smaller, upto = np.zeros(len(values), np.int64), np.zeros(len(values), np.int64)
        for part in (self, other):
            # Before the least value there is no row; after the largest all of them were.
            below = np.append(part.smaller, part.rows)
            smaller += below[np.searchsorted(part.values, values, "left")]
            above = np.insert(part.upto, 0, 0)
            upto += above[np.searchsorted(part.values, values, "right")]
        return Summary(values, smaller, upto, self.rows + other.rows)

    def compress(self, accuracy: int) -> Summary:
        """With so few values as the law allows, if there are more than `accuracy`."""
        if len(self.values) <= accuracy:
            return self
        widest = 2 * self.rows // accuracy
        farthest = np.searchsorted(self.smaller, self.upto + (widest - 1), "right") - 1
        following = np.maximum(farthest, np.arange(1, len(self.values) + 1)).tolist()
        kept = [0]
        # Each step begins where the one before it ended: one step for each value that is kept.
        while kept[-1] < len(self.values) - 1:
            kept.append(following[kept[-1]])
        return Summary(self.values[kept], self.smaller[kept], self.upto[kept], self.rows)

    def at(self, rank: int) -> float:
        """A value whose rank is as near to this one as the summary can tell."""
        distance = np.maximum(self.smaller + 1 - rank, rank - self.upto)
        return float(self.values[np.maximum(distance, 0).argmin()])


class _ApproximatePercentile(Accumulator):
    """A group of one row is that row's value; a summary is made of two rows or more."""

    exact = True

    def __init__(self, call: AggregateCall) -> None:
        asked, accuracy = (_constant(arg) for arg in call.args[1:])
        self._is_list = isinstance(asked, list)
        self._percentages: list[float] = asked if isinstance(asked, list) else [asked]
        self._accuracy = int(accuracy)
        self._type = call.type
        self.columns = {"rows": pa.int64(), "value": pa.float64(), "summary": pa.binary()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        values = args[0]
        if pt.is_decimal(values.type):
            values = decimals_to_floats(values, pa.float64())
        lifted = lift_values(values).astype(np.float64)
        return [has_values(values).astype(np.int64), lifted, np.empty(rows, object)]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        places = np.flatnonzero(buffers[0])
        groups, buffers = groups[places], [part[places] for part in buffers]
        last = last_of_each(groups, count, np.arange(len(places)))
        rows, values, summaries = (take_rows(part, last) for part in buffers)
        is_mixed = np.bincount(groups, minlength=count) > 1
        if not is_mixed.any():
            return [rows, values, summaries]
        totals: dict[int, Summary] = {}
        for group, part in self._parts(buffers, groups, is_mixed[groups]):
            have = totals.get(group)
            totals[group] = part if have is None else have.merge(part)
        for group, total in totals.items():
            rows[group] = total.rows
            summaries[group] = total.compress(self._accuracy).write()
        return [rows, values, summaries]

    def _parts(
        self, buffers: Buffers, groups: Ints, chosen: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[int, Summary]]:
        """The summaries of each group, first those there are, then one of its single rows."""
        rows, values, summaries = buffers
        for place in np.flatnonzero(chosen & (rows > 1)):
            yield int(groups[place]), Summary.read(summaries[place], int(rows[place]))
        chosen = chosen & (rows == 1)
        yield from exact_summaries(groups[chosen], values[chosen].astype(np.float64))

    def finish(self, buffers: Buffers) -> pa.Array:
        asked = len(self._percentages)
        found: list[float] = []
        for rows, value, raw in zip(*(part.tolist() for part in buffers), strict=True):
            found += [value] * asked if rows < 2 else self._found(raw, rows)
        present = buffers[0] > 0
        shown = self._show(np.array(found, np.float64), np.repeat(present, asked))
        if not self._is_list:
            return shown
        offsets = np.arange(len(present) + 1, dtype=np.int32) * asked
        missing = pa.array(~present if asked else np.ones(len(present), bool))
        return pa.ListArray.from_arrays(offsets, shown, self._type, mask=missing)

    def _found(self, raw: bytes, rows: int) -> list[float]:
        summary, error = Summary.read(raw, rows), 1.0 / self._accuracy
        # What is this near to an end is the end, as Spark has it.
        return [
            float(summary.values[0])
            if part <= error
            else float(summary.values[-1])
            if part >= 1 - error
            else summary.at(math.ceil(part * rows))
            for part in self._percentages
        ]

    def _show(self, values: Floats, present: npt.NDArray[np.bool_]) -> pa.Array:
        """Doubles as values of the type of the argument."""
        kind = self._type.value_type if self._is_list else self._type
        if pt.is_decimal(kind):
            shown = zip(values.tolist(), present.tolist(), strict=True)
            numbers = [Decimal(repr(value)) if there else None for value, there in shown]
            return from_decimals(numbers, kind, is_ansi=False)
        if not pt.is_floating(kind):
            # The largest long is no double; Java makes it of the next one.
            too_large = values >= 2.0**63
            whole = np.where(too_large, 0.0, values).astype(np.int64)
            return show_values(np.where(too_large, _LONG_MAX, whole), present, kind)
        return show_values(values, present, kind)


def exact_summaries(groups: Ints, values: Floats) -> Iterator[tuple[int, Summary]]:
    """The exact summary of each group's values."""
    order = np.lexsort((values, groups))
    groups, values = groups[order], values[order]
    is_new = np.ones(len(values), bool)
    is_new[1:] = groups[1:] != groups[:-1]
    begins = np.flatnonzero(is_new)
    # NaN is equal to NaN here.
    same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    is_other = is_new.copy()
    is_other[1:] |= ~same
    firsts = np.flatnonzero(is_other)
    ends = np.append(firsts[1:], len(values))
    cuts = np.append(np.searchsorted(firsts, begins), len(firsts)).tolist()
    for place, begin in enumerate(begins.tolist()):
        own = slice(cuts[place], cuts[place + 1])
        smaller, upto = firsts[own] - begin, ends[own] - begin
        yield int(groups[begin]), Summary(values[firsts[own]], smaller, upto, int(upto[-1]))


def _constant(expr: Expr) -> Any:
    assert isinstance(expr, Literal)
    return expr.value.as_py()


def _constants(call: AggregateCall) -> str | None:
    if all(isinstance(arg, Literal) for arg in call.args[1:]):
        return None
    return "percentiles that are not constants"


aggregate("ApproximatePercentile", sql="percentile_approx approx_percentile", accepts=_constants)(
    _ApproximatePercentile
)
