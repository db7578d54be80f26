"""What a processor keeps, as tables: one object per key, or any number of entries per key.

Objects of the keys of one round (a batch, or the timers that expire together) are looked up
together, and written back when the round ends; entries are read and written at once. Every state
variable is a table of its own, so a processor may gain or lose variables between versions.

Law: an order that Spark leaves open is fixed here, so that a replay sees the same: entries of a key
come in ascending order of their entry keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.api import Table
from penstock.state.keys import key_objects

#: The one column of every such table.
VALUE: Final = "value"


class Round:
    """The distinct keys at work, and the one whose turn it is."""

    def __init__(self, schema: pa.Schema, placed: Sequence[int]) -> None:
        self.schema = schema
        #: Positions of the key columns that place a row.
        self.placed = tuple(placed)
        self.number = 0
        self.keys: list[pa.Array] = []
        self.objects: list[object] = []
        self.at = 0
        self.now_ms = 0

    def begin(self, keys: list[pa.Array], now_ms: int) -> None:
        """Other keys from here on."""
        self.number += 1
        self.keys = keys
        self.objects = key_objects(keys, len(keys[0]))
        self.at = 0
        self.now_ms = now_ms

    def current(self, times: int = 1) -> list[pa.Array]:
        """The key columns of the current key, repeated."""
        if times == 1:
            return [column.slice(self.at, 1) for column in self.keys]
        places = pa.array(np.full(times, self.at))
        return [column.take(places) for column in self.keys]


class PerKey:
    """One object per key. Those of a round's keys are read together, and written together."""

    def __init__(self, table: Table, round: Round) -> None:
        self._table = table
        self._round = round
        self._number = -1
        self._objects: list[Any] = []
        self._changed: dict[int, None] = {}

    def read(self) -> Any:
        if self._number != self._round.number:
            self._load()
        return self._objects[self._round.at]

    def write(self, value: object) -> None:
        """None forgets the key."""
        self.read()
        self._objects[self._round.at] = value
        self._changed[self._round.at] = None

    def _load(self) -> None:
        self._number = self._round.number
        slots = self._table.find(self._round.keys)
        self._objects = [None] * len(slots)
        present = np.flatnonzero(slots >= 0)
        values = self._table.read(VALUE, slots[present])
        for position, value in zip(present.tolist(), values.tolist(), strict=True):
            self._objects[position] = value

    def flush(self) -> None:
        kept = [at for at in self._changed if self._objects[at] is not None]
        gone = [at for at in self._changed if self._objects[at] is None]
        self._changed = {}
        if kept:
            slots, _ = self._table.locate(_take(self._round.keys, kept))
            self._table.write(VALUE, slots, _objects([self._objects[at] for at in kept]))
            self._table.touch(slots)
        if gone:
            slots = self._table.find(_take(self._round.keys, gone))
            self._table.delete(slots[slots >= 0])

    def sweep(self, is_alive: Callable[[Any], bool]) -> None:
        """Delete what nobody is shown any more."""
        _sweep(self._table, is_alive)
        self._number = -1


class PerEntry:
    """Any number of entries per key, each under an entry key of its own."""

    def __init__(self, table: Table, round: Round, entry: pa.DataType) -> None:
        self.table = table
        self._round = round
        self._entry = entry
        #: By key, its entry keys; made when somebody first asks for all of a key's entries.
        self._index: dict[object, dict[object, object]] | None = None
        #: Rows in the table when the index was last right; others may have been restored since.
        self._indexed = -1

    def read(self, entries: list[Any]) -> list[Any]:
        """The value of each entry of the current key, None where there is none."""
        if not entries:
            return []
        slots = self.table.find(self._keys(entries))
        values = [None] * len(slots)
        present = np.flatnonzero(slots >= 0)
        read = self.table.read(VALUE, slots[present]).tolist()
        for position, value in zip(present.tolist(), read, strict=True):
            values[position] = value
        return values

    def write(self, entry: object, value: object) -> None:
        slots, _ = self.table.locate(self._keys([entry]))
        self.table.write(VALUE, slots, _objects([value]))
        self.table.touch(slots)
        if self._index is not None:
            (name,) = key_objects([pa.array([entry], self._entry)], 1)
            self._index.setdefault(self._round.objects[self._round.at], {})[name] = entry
            self._indexed = len(self.table)

    def remove(self, entry: object) -> None:
        slots = self.table.find(self._keys([entry]))
        if slots[0] < 0:
            return
        self.table.delete(slots)
        if self._index is not None:
            (name,) = key_objects([pa.array([entry], self._entry)], 1)
            self._index[self._round.objects[self._round.at]].pop(name, None)
            self._indexed = len(self.table)

    def entries(self) -> list[Any]:
        """The entry keys of the current key, in order."""
        if self._index is None or self._indexed != len(self.table):
            self._index = self._make_index()
            self._indexed = len(self.table)
        found = self._index.get(self._round.objects[self._round.at], {})
        return sorted(found.values(), key=order_of)

    def _make_index(self) -> dict[object, dict[object, object]]:
        columns = self.table.keys(self.table.slots())
        count = len(self.table)
        index: dict[object, dict[object, object]] = {}
        keys, names = key_objects(columns[:-1], count), key_objects(columns[-1:], count)
        for key, name, entry in zip(keys, names, columns[-1].to_pylist(), strict=True):
            index.setdefault(key, {})[name] = entry
        return index

    def _keys(self, entries: list[Any]) -> list[pa.Array]:
        return [*self._round.current(len(entries)), pa.array(entries, self._entry)]

    def flush(self) -> None:
        """Nothing waits."""

    def sweep(self, is_alive: Callable[[Any], bool]) -> None:
        """Delete what nobody is shown any more."""
        _sweep(self.table, is_alive)


def _sweep(table: Table, is_alive: Callable[[Any], bool]) -> None:
    slots = table.slots()
    values = table.read(VALUE, slots).tolist()
    dead = np.fromiter((not is_alive(value) for value in values), bool, len(slots))
    table.delete(slots[dead])


def _take(columns: list[pa.Array], positions: list[int]) -> list[pa.Array]:
    places = pa.array(positions, pa.int64())
    return [column.take(places) for column in columns]


def _objects(values: list[Any]) -> npt.NDArray[np.object_]:
    return np.fromiter(values, object, len(values))


def order_of(kept: Any) -> Any:
    """Something by which kept values of one type can be sorted: nulls first, NaN last."""
    if kept is None:
        return (0,)
    if isinstance(kept, dict):
        return (1, tuple(map(order_of, kept.values())))
    if isinstance(kept, list | tuple):
        return (1, tuple(map(order_of, kept)))
    if isinstance(kept, float) and math.isnan(kept):
        return (2,)
    return (1, kept)
