"""What an aggregate function is: rows lifted to buffers, buffers merged, a buffer finished.

A buffer is a fixed set of columns (NumPy arrays of int64, float64, bool or objects), one element
per group. `lift` makes the buffer of each single row; `merge` folds buffers that belong to the same
group, in order; `finish` shows a group's value. A group without rows has the buffer of zeros and
Nones, and merging it changes nothing.

Laws: merge is associative over consecutive rows, so chunking and partial aggregation change
nothing (float sums are folded from left to right only, see `exact`). If `invert` exists, merging a
row's inverted buffer takes the row back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.functions.alignment import Ints as Ints
from penstock.ops.functions.alignment import valid_mask
from penstock.plan.nodes import AggregateCall

#: One array per buffer column.
Buffers: TypeAlias = list[npt.NDArray[Any]]


class Accumulator(Protocol):
    """One aggregate call at work; stateless itself."""

    #: Buffer columns: name within the call, and type.
    columns: dict[str, pa.DataType]
    #: Whether merging may be regrouped freely: false for sums of floating point numbers.
    exact: bool
    #: Whether merging adds up every buffer column, all of int64, and inverting negates it.
    adds: bool = False
    #: Whether it has no buffers: `of_groups` is handed all rows of each group.
    whole: bool = False

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        """The buffer of each row."""

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        """The buffers of groups 0 .. count-1; row i belongs to groups[i]."""

    def finish(self, buffers: Buffers) -> pa.Array:
        """The value of each group."""

    def invert(self, buffers: Buffers) -> Buffers | None:
        """Buffers that take rows back, or None if this function cannot."""
        return None

    def may_lose(self, kept: Buffers, taken: Buffers) -> npt.NDArray[np.bool_] | None:
        """Where the buffer of a row that is taken back may be what made the group's buffer.

        Elsewhere the group's buffer stays as it is. None if this function cannot tell.
        """
        return None

    def of_groups(self, args: list[pa.Array], groups: Ints, count: int) -> pa.Array:
        """The value of each group, from all of its rows; of none without rows is ever asked."""
        raise AssertionError(f"{type(self).__name__} has buffers")


#: Makes the accumulator of a call.
Build: TypeAlias = Callable[[AggregateCall], Accumulator]


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """A registered aggregate function."""

    kinds: tuple[str, ...]
    sql: tuple[str, ...]
    build: Build
    accepts: Callable[[AggregateCall], str | None]
    #: Whether equal arguments count once even if the call does not say DISTINCT.
    distinct: bool


AGGREGATES: dict[str, AggregateFunction] = {}


def aggregate(
    *kinds: str,
    sql: str,
    accepts: Callable[[AggregateCall], str | None] = lambda call: None,
    distinct: bool = False,
) -> Callable[[Build], Build]:
    """Register what builds the accumulator of a call of these Catalyst functions."""

    def register(build: Build) -> Build:
        row = AggregateFunction(kinds, tuple(sql.split()), build, accepts, distinct)
        for kind in kinds:
            assert kind not in AGGREGATES, f"{kind} is registered twice"
            AGGREGATES[kind] = row
        return build

    return register


def judge_aggregate(call: AggregateCall) -> str | None:
    """Why the call cannot be computed, or None if it can."""
    function = AGGREGATES.get(call.function)
    if function is None:
        return f"no aggregate function for {call.function}"
    return function.accepts(call)


def has_values(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Where the column is not null."""
    return valid_mask(column) if column.null_count else np.ones(len(column), bool)


def fold_add(values: npt.NDArray[Any], groups: Ints, count: int) -> npt.NDArray[Any]:
    """Sums per group, added from left to right."""
    total = np.zeros(count, values.dtype)
    if values.dtype == np.int64:  # wraps around without a word
        np.add.at(total, groups, values)
        return total
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are sums like others
        np.add.at(total, groups, values)
    return total


def any_of(flags: npt.NDArray[Any], groups: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Whether any flag of the group is set."""
    flagged = np.zeros(count, bool)
    flagged[groups[flags.astype(bool)]] = True
    return flagged
