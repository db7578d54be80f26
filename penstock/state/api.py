"""What an operator may keep: keyed tables, row sets by key, single values. All of it survives.

State belongs to virtual nodes: a key's virtual node is a function of its partition columns
(keys.py), and whatever is kept for a key moves with it. A store can be snapshotted and restored per
virtual node, tells what changed since it was asked last, and can apply such changes to a copy.

    Table   key → one row of fixed columns          aggregates, deduplication
    RowSet  key → rows, each with a multiplicity    both sides of a join, windows, top-n
    Value   one integer of the task                 largest event time

Law: restore(snapshot()) into an empty store, and apply(take_changes()) after every batch into a
copy, both give a store that answers every question alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.room import Room

Slots = npt.NDArray[np.int64]


class Value(Protocol):
    """One integer of a task, or nothing yet.

    When virtual nodes move to other tasks, these are given the smallest value of those that they
    come from, or nothing if one of them had none; of a `largest`, the largest.
    """

    def get(self) -> int | None: ...

    def set(self, value: int) -> None: ...


class Table(Protocol):
    """One row per key. Slots are this store's names for rows, valid until the row is deleted."""

    def __len__(self) -> int: ...

    def locate(self, keys: Sequence[pa.Array]) -> tuple[Slots, npt.NDArray[np.bool_]]:
        """The slot of each row's key, making rows for new keys; and which keys were new."""

    def find(self, keys: Sequence[pa.Array]) -> Slots:
        """The slot of each row's key, -1 where there is none."""

    def read(self, name: str, slots: Slots) -> npt.NDArray[Any]:
        """The column's values at these slots."""

    def write(self, name: str, slots: Slots, values: npt.NDArray[Any]) -> None:
        """Set the column at these slots; they must be distinct."""

    def touch(self, slots: Slots) -> None:
        """Note that these rows changed, for take_changes."""

    def delete(self, slots: Slots) -> None:
        """Forget these rows; slots must be distinct."""

    def slots(self, among: Slots | None = None) -> Slots:
        """All rows, or those among these places, whatever is there; in an order that follows from
        what was done to the table.
        """

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The key columns of these rows."""


class Found(Protocol):
    """Rows that a row set has found for some keys; they are gathered as far as is asked for.

    Valid until the set changes. Rows of one key are in the order they came, keys in any.
    """

    #: Of each row, which of the given keys it has, and how often it is there.
    @property
    def probe(self) -> npt.NDArray[np.int64]: ...

    @property
    def weights(self) -> npt.NDArray[np.int64]: ...

    def columns(self, wanted: Sequence[int]) -> list[pa.Array]:
        """Some columns of all rows."""

    def take(self, places: npt.NDArray[np.int64] | None) -> pa.RecordBatch:
        """The rows at these places, None: all of them."""

    def order(self) -> npt.NDArray[np.int64] | None:
        """The places with keys in order; None if they are."""


class RowSet(Protocol):
    """Rows by key, each as often as its weight says; rows of weight zero are not there."""

    def __len__(self) -> int: ...

    def insert(self, rows: pa.RecordBatch, weights: npt.NDArray[np.int64] | None) -> None:
        """Add rows; a negative weight takes earlier ones away."""

    def find(self, keys: Sequence[pa.Array]) -> Found:
        """All rows with one of the keys."""

    def fetch(
        self, keys: Sequence[pa.Array], *, in_order: bool = True
    ) -> tuple[npt.NDArray[np.int64], pa.RecordBatch, npt.NDArray[np.int64]]:
        """All rows with one of the keys: (which of the given keys, row, weight), keys in order.

        Who asks for no order gets keys in any; rows of one key are always in the order they came.
        """

    def drop(
        self, rows: pa.RecordBatch, places: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]
    ) -> None:
        """Take rows away that the last fetch gave: `rows` are those at `places` of what it gave.

        Weights are how often, at most as often as they are there. It does what inserting them with
        negative weights does, but nothing has to be compared. Places are distinct, and so were the
        keys; nothing else was done to the set since the fetch.
        """

    def evict(self, bound_us: int) -> None:
        """Forget rows whose event time is at or below the bound."""

    def expired(self, bound_us: int) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """The rows whose event time is at or below the bound, and their weights."""

    def rows(self) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Everything."""


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one table or row set: `kind` says how `rows` is to be read (memory.py)."""

    name: str
    kind: str
    rows: pa.RecordBatch


#: Changes by virtual node; under -1 those of the task itself. A snapshot is one that makes all.
Changes: TypeAlias = dict[int, tuple[Change, ...]]


class State(Protocol):
    """A store, seen by one operator; `within` gives an operator a name space of its own."""

    #: Where its arrays are.
    room: Room

    def within(self, prefix: str) -> State: ...

    def owns(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which of these key hashes belong to virtual nodes of this task."""

    def value(self, name: str, *, is_largest: bool = False) -> Value: ...

    def table(
        self,
        name: str,
        keys: pa.Schema,
        columns: dict[str, pa.DataType],
        partition: Sequence[int] | None = None,
        *,
        is_by_key: bool = False,
    ) -> Table:
        """The table of this name. `partition` are the key columns that place it, or all.

        `is_by_key`: it is never asked for all its rows, at least not while it is at work; so that
        after a restart those need not be here that nobody has asked for.
        """

    def row_set(
        self,
        name: str,
        rows: pa.Schema,
        keys: Sequence[int],
        event_time: int | None = None,
        partition: Sequence[int] | None = None,
    ) -> RowSet:
        """The row set of this name; `keys` are positions of key columns in `rows`."""
