"""Variance, deviation, skewness, kurtosis, covariance, correlation, linear regression.

A buffer holds sums of powers of (value - shift), where the shift is the group's first value: what
is lost to cancellation then grows with the number of rows, not with the size of the values, and
sums are added from left to right, so that chunking changes nothing. Spark folds running means
instead; results agree up to rounding, as Spark's own do between two runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.aggregates.api import (
    Accumulator,
    Buffers,
    Ints,
    aggregate,
    fold_add,
    has_values,
)
from penstock.ops.aggregates.values import last_of_each, lift_values, take_rows
from penstock.plan.nodes import AggregateCall

Floats: TypeAlias = npt.NDArray[np.float64]
#: A value per group, and where it is null.
_Shown: TypeAlias = tuple[Floats, npt.NDArray[np.bool_]]


class _Moments(Accumulator):
    """Central moments of one column: n, shift, and sums of the first to the fourth power."""

    exact = False

    def __init__(self, powers: int, show: Callable[[Floats, list[Floats]], _Shown]) -> None:
        self._powers = powers
        self._show = show
        self.columns = {"count": pa.int64(), "shift": pa.float64()}
        self.columns |= {f"power{power}": pa.float64() for power in range(1, powers + 1)}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        values: Floats = lift_values(args[0]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            nothing = values - values  # zero, or NaN where the value is not finite
        return [has_values(args[0]).astype(np.int64), values] + [nothing] * self._powers

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        counts, shifts, *sums = (part.astype(np.float64) for part in buffers)
        rows = np.flatnonzero(counts)
        first = last_of_each(groups, count, rows[::-1])
        shift: Floats = take_rows(shifts, first).astype(np.float64)
        groups = groups[rows]
        with np.errstate(invalid="ignore", over="ignore"):
            step = shifts[rows] - shift[groups]
            powers = [counts[rows], *(part[rows] for part in sums)]
            moved = [_move(powers, step, power) for power in range(1, self._powers + 1)]
            folded = [fold_add(part, groups, count) for part in moved]
        return [fold_add(buffers[0][rows], groups, count), shift, *folded]

    def finish(self, buffers: Buffers) -> pa.Array:
        count = buffers[0].astype(np.float64)
        with np.errstate(all="ignore"):
            value, missing = self._show(count, self._central(count, buffers[2:]))
        return pa.array(value, mask=missing | (count == 0))

    def _central(self, count: Floats, sums: Buffers) -> list[Floats]:
        """Sums of powers of (value - mean), from the second on."""
        powers = [count, *(part.astype(np.float64) for part in sums)]
        step = -powers[1] / count
        central = [_move(powers, step, power) for power in range(2, self._powers + 1)]
        # Sums of squares cannot be negative; beyond the largest number they are infinite.
        central[0] = np.where(np.isinf(powers[2]), np.inf, np.maximum(central[0], 0.0))
        return central


def _move(powers: list[Floats], step: Floats, power: int) -> Floats:
    """The sum of (value + step)**power, from the sums of value**0 to value**power."""
    total = powers[power].copy()
    for lower in range(power):
        # Where there is no step, nothing is added: zero times infinity would be NaN.
        term = comb(power, lower) * powers[lower] * step ** (power - lower)
        total += np.where(step == 0.0, 0.0, term)
    return total


def _never(count: Floats) -> npt.NDArray[np.bool_]:
    return np.zeros(len(count), bool)


def _skewness(count: Floats, central: list[Floats]) -> _Shown:
    second, third = central
    return np.sqrt(count) * third / np.sqrt(second**3), second == 0.0


def _kurtosis(count: Floats, central: list[Floats]) -> _Shown:
    second, _, fourth = central
    return count * fourth / (second * second) - 3.0, second == 0.0


#: Catalyst's name: the highest power, and what is shown.
_OF_ONE: Final[dict[str, tuple[int, Callable[[Floats, list[Floats]], _Shown]]]] = {
    "VariancePop": (2, lambda n, m: (m[0] / n, _never(n))),
    "VarianceSamp": (2, lambda n, m: (m[0] / (n - 1.0), n == 1.0)),
    "StddevPop": (2, lambda n, m: (np.sqrt(m[0] / n), _never(n))),
    "StddevSamp": (2, lambda n, m: (np.sqrt(m[0] / (n - 1.0)), n == 1.0)),
    "RegrReplacement": (2, lambda n, m: (m[0], _never(n))),
    "Skewness": (3, _skewness),
    "Kurtosis": (4, _kurtosis),
}


def _null_on_zero(call: AggregateCall) -> str | None:
    if call.option("nullOnDivideByZero", True):
        return None
    return "spark.sql.legacy.statisticalAggregate"


@aggregate(
    *_OF_ONE,
    sql="variance var_samp var_pop stddev std stddev_samp stddev_pop skewness kurtosis"
    " regr_sxx regr_syy",
    accepts=_null_on_zero,
)
def moments(call: AggregateCall) -> Accumulator:
    return _Moments(*_OF_ONE[call.function])


@dataclass(frozen=True, slots=True)
class _Line:
    """What a group's pairs come to: means, and sums of products of distances from them."""

    count: Floats
    mean_x: Floats
    mean_y: Floats
    xx: Floats
    yy: Floats
    xy: Floats


class _Pairs(Accumulator):
    """Sums over pairs (x, y), neither of which is null."""

    exact = False
    _SUMS = ("x", "y", "xx", "yy", "xy")

    def __init__(self, show: Callable[[_Line], _Shown]) -> None:
        self._show = show
        self.columns = {"count": pa.int64(), "shift_x": pa.float64(), "shift_y": pa.float64()}
        self.columns |= {name: pa.float64() for name in self._SUMS}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        x: Floats = lift_values(args[0]).astype(np.float64)
        y: Floats = lift_values(args[1]).astype(np.float64)
        present = has_values(args[0]) & has_values(args[1])
        with np.errstate(invalid="ignore"):
            of_x, of_y = x - x, y - y  # zero, or NaN where the value is not finite
        return [present.astype(np.int64), x, y, of_x, of_y, of_x, of_y, of_x + of_y]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        rows = np.flatnonzero(buffers[0])
        first = last_of_each(groups, count, rows[::-1])
        shift_x: Floats = take_rows(buffers[1], first).astype(np.float64)
        shift_y: Floats = take_rows(buffers[2], first).astype(np.float64)
        groups = groups[rows]
        n, at_x, at_y, x, y, xx, yy, xy = (part[rows].astype(np.float64) for part in buffers)
        with np.errstate(invalid="ignore", over="ignore"):
            a, b = at_x - shift_x[groups], at_y - shift_y[groups]
            moved = [x + n * a, y + n * b]
            moved += [xx + 2.0 * a * x + n * a * a, yy + 2.0 * b * y + n * b * b]
            moved.append(xy + a * y + b * x + n * a * b)
            folded = [fold_add(part, groups, count) for part in moved]
        return [fold_add(buffers[0][rows], groups, count), shift_x, shift_y, *folded]

    def finish(self, buffers: Buffers) -> pa.Array:
        n, at_x, at_y, x, y, xx, yy, xy = (part.astype(np.float64) for part in buffers)
        with np.errstate(all="ignore"):
            line = _Line(
                n,
                at_x + x / n,
                at_y + y / n,
                np.maximum(xx - x * x / n, 0.0),
                np.maximum(yy - y * y / n, 0.0),
                xy - x * y / n,
            )
            value, missing = self._show(line)
        return pa.array(value, mask=missing | (n == 0))


def _correlation(line: _Line) -> _Shown:
    missing = (line.count == 1.0) | (line.xx == 0.0) | (line.yy == 0.0)
    return line.xy / np.sqrt(line.xx * line.yy), missing


def _r2(line: _Line) -> _Shown:
    value = line.xy * line.xy / line.xx / line.yy
    return np.where(line.xx == 0.0, 1.0, value), line.yy == 0.0


def _intercept(line: _Line) -> _Shown:
    return line.mean_x - line.xy / line.yy * line.mean_y, line.yy == 0.0


#: Catalyst's name: what is shown. Regressions are of the first argument on the second.
_OF_TWO: Final[dict[str, Callable[[_Line], _Shown]]] = {
    "CovPopulation": lambda line: (line.xy / line.count, _never(line.count)),
    "CovSample": lambda line: (line.xy / (line.count - 1.0), line.count == 1.0),
    "Corr": _correlation,
    "RegrR2": _r2,
    "RegrSXY": lambda line: (line.xy, _never(line.count)),
    "RegrSlope": lambda line: (line.xy / line.yy, line.yy == 0.0),
    "RegrIntercept": _intercept,
}


@aggregate(
    *_OF_TWO,
    sql="covar_pop covar_samp corr regr_r2 regr_sxy regr_slope regr_intercept",
    accepts=_null_on_zero,
)
def pairs(call: AggregateCall) -> Accumulator:
    return _Pairs(_OF_TWO[call.function])
