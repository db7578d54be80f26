"""What a processor keeps, as tables: one object per key, or any number of entries per key.

Objects of the keys of one round (a batch, or the timers that expire together) are looked up
together, entries when they are asked for; both are written back when the round ends. Every state
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
    """The distinct keys of a batch, and the one that the processor is called for now."""

    def __init__(self, schema: pa.Schema, placed: Sequence[int]) -> None:
        self.schema = schema
        #: Positions of the key columns that place a row.
        self.placed = tuple(placed)
        self.number = 0
        self.keys: list[pa.Array] = []
        self.objects: list[object] = []
        self.place = 0
        self.now_ms = 0

    def begin(self, keys: list[pa.Array], now_ms: int) -> None:
        """Begin a round with other keys."""
        self.number += 1
        self.keys = keys
        self.objects = key_objects(keys, len(keys[0]))
        self.place = 0
        self.now_ms = now_ms

    def current(self, times: int = 1) -> list[pa.Array]:
        """The key columns of the current key, repeated."""
        if times == 1:
            return [column.slice(self.place, 1) for column in self.keys]
        places = pa.array(np.full(times, self.place))
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
        return self._objects[self._round.place]

    def write(self, value: object) -> None:
        """Set the object of the current key; None deletes it."""
        self.read()
        self._objects[self._round.place] = value
        self._changed[self._round.place] = None

    def _load(self) -> None:
        self._number = self._round.number
        self._objects = _find(self._table, self._round.keys)

    def flush(self) -> None:
        kept = [place for place in self._changed if self._objects[place] is not None]
        gone = [place for place in self._changed if self._objects[place] is None]
        self._changed = {}
        if kept:
            slots, _ = self._table.locate(_take(self._round.keys, kept))
            self._table.write(VALUE, slots, _objects([self._objects[place] for place in kept]))
            self._table.touch(slots)
        if gone:
            slots = self._table.find(_take(self._round.keys, gone))
            self._table.delete(slots[slots >= 0])

    def sweep(self, is_alive: Callable[[Any], bool]) -> None:
        """Delete values that have expired."""
        _sweep(self._table, is_alive)
        self._number = -1


class PerEntry:
    """Any number of entries per key, each under an entry key of its own.

    An entry is read when it is asked for, and written when the round ends.
    """

    def __init__(self, table: Table, round: Round, entry: pa.DataType) -> None:
        self._table = table
        self._round = round
        self._entry = entry
        self._number = -1
        #: By key of the round: what is known of its entries, and the entry keys that changed.
        self._values: dict[int, dict[Any, Any]] = {}
        self._changed: dict[int, dict[Any, Any]] = {}
        #: By key, its entry keys in the table; made when somebody first asks for all of them.
        self._index: dict[object, dict[Any, Any]] | None = None
        #: Rows in the table when the index was last right; others may have been restored since.
        self._indexed = -1

    def read(self, entries: list[Any]) -> list[Any]:
        """The value of each entry of the current key, None where there is none."""
        values = self._values_read()
        names = [order_of(entry) for entry in entries]
        unread = [place for place, name in enumerate(names) if name not in values]
        if unread:
            keys = [
                *self._round.current(len(unread)),
                self._array([entries[place] for place in unread]),
            ]
            for place, value in zip(unread, _find(self._table, keys), strict=True):
                values[names[place]] = value
        return [values[name] for name in names]

    def write(self, entry: Any, value: object) -> None:
        """Set an entry of the current key; None deletes it."""
        name = order_of(entry)
        self._values_read()[name] = value
        self._changed.setdefault(self._round.place, {})[name] = entry

    def entries(self) -> list[Any]:
        """The entry keys of the current key, in order."""
        values = self._values_read()
        if self._index is None or self._indexed != len(self._table):
            self._index = self._make_index()
            self._indexed = len(self._table)
        entries = dict(self._index.get(self._round.objects[self._round.place], {}))
        for name, entry in self._changed.get(self._round.place, {}).items():
            if values[name] is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
        return [entries[name] for name in sorted(entries)]

    def _values_read(self) -> dict[Any, Any]:
        if self._number != self._round.number:
            assert not self._changed, "the round before was not flushed"
            self._number = self._round.number
            self._values = {}
        return self._values.setdefault(self._round.place, {})

    def _make_index(self) -> dict[object, dict[Any, Any]]:
        columns = self._table.keys(self._table.slots())
        keys = key_objects(columns[:-1], len(self._table))
        index: dict[object, dict[Any, Any]] = {}
        for key, entry in zip(keys, columns[-1].to_pylist(), strict=True):
            index.setdefault(key, {})[order_of(entry)] = entry
        return index

    def _array(self, entries: list[Any]) -> pa.Array:
        return pa.array(entries, self._entry)

    def flush(self) -> None:
        changed = [
            (place, entry, self._values[place][name])
            for place, names in self._changed.items()
            for name, entry in names.items()
        ]
        self._note(changed)
        self._changed = {}
        kept = [change for change in changed if change[2] is not None]
        gone = [change for change in changed if change[2] is None]
        if kept:
            slots, _ = self._table.locate(self._keys(kept))
            self._table.write(VALUE, slots, _objects([value for _, _, value in kept]))
            self._table.touch(slots)
        if gone:
            slots = self._table.find(self._keys(gone))
            self._table.delete(slots[slots >= 0])
        if self._index is not None:
            self._indexed = len(self._table)

    def _keys(self, changes: list[tuple[int, Any, Any]]) -> list[pa.Array]:
        keys = _take(self._round.keys, [place for place, _, _ in changes])
        return [*keys, self._array([entry for _, entry, _ in changes])]

    def _note(self, changed: list[tuple[int, Any, Any]]) -> None:
        """Bring the index up to date, or drop it if it was out of date already."""
        if self._index is None or self._indexed != len(self._table):
            self._index = None
            return
        for place, entry, value in changed:
            entries = self._index.setdefault(self._round.objects[place], {})
            if value is None:
                entries.pop(order_of(entry), None)
            else:
                entries[order_of(entry)] = entry

    def sweep(self, is_alive: Callable[[Any], bool]) -> None:
        """Delete values that have expired."""
        _sweep(self._table, is_alive)
        self._number = -1


def _find(table: Table, keys: list[pa.Array]) -> list[Any]:
    """The value of each key, None where there is none."""
    slots = table.find(keys)
    present = slots >= 0
    if not present.any():
        return [None] * len(slots)
    values = iter(table.read(VALUE, slots[present]).tolist())
    return [next(values) if is_there else None for is_there in present.tolist()]


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
