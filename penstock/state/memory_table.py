"""A keyed table in memory: a dictionary from key to slot, and one growing array per column.

The dictionary is Python's own: looking up a thousand keys is one C loop (`map` over its
`__getitem__`, about 60 ns a key), exact for every type, and knows deletion. A vectorised hash table
in NumPy took longer and would have had to compare keys itself (decision 0007).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.state.api import Change, Slots
from penstock.state.keys import key_columns, key_objects

_CAPACITY_MIN = 1024


class _Index(dict[object, int]):
    """Key → slot; asking for a new key takes the next free slot."""

    def __init__(self) -> None:
        super().__init__()
        self.free: list[int] = []
        self.next = 0

    def __missing__(self, key: object) -> int:
        if self.free:
            slot = self.free.pop()
        else:
            slot = self.next
            self.next += 1
        self[key] = slot
        return slot


class MemoryTable:
    """See api.Table. `partition` are the positions of the key columns that place a row."""

    def __init__(
        self, keys: pa.Schema, columns: dict[str, pa.DataType], partition: tuple[int, ...]
    ) -> None:
        self.partition = partition
        self._keys = keys
        self._key_types = list(keys.types)
        self._types = columns
        self._index = _Index()
        self._objects = np.empty(_CAPACITY_MIN, object)
        self._columns = {
            name: np.zeros(_CAPACITY_MIN, _dtype(kind)) for name, kind in columns.items()
        }
        self._touched: list[Slots] = []
        self._deleted: list[object] = []

    def __len__(self) -> int:
        return len(self._index)

    def locate(self, keys: Sequence[pa.Array]) -> tuple[Slots, npt.NDArray[np.bool_]]:
        rows = len(keys[0]) if keys else 1
        objects = key_objects(keys, rows)
        before, freed = self._index.next, len(self._index.free)
        count = len(self._index)
        slots = np.fromiter(map(self._index.__getitem__, objects), np.int64, rows)
        if len(self._index) == count:
            return slots, np.zeros(rows, bool)
        self._grow(self._index.next)
        is_new = slots >= before
        if freed > len(self._index.free):
            # Slots of deleted rows were taken again; an empty place in _objects tells which.
            is_new |= _is_none(self._objects[slots])
        fresh = np.flatnonzero(is_new)
        for name, column in self._columns.items():
            column[slots[fresh]] = _zero(self._types[name])
        for (
            row
        ) in fresh.tolist():  # only rows of new keys; an object array takes tuples no other way
            self._objects[slots[row]] = (objects[row],)
        return slots, is_new

    def find(self, keys: Sequence[pa.Array]) -> Slots:
        rows = len(keys[0]) if keys else 1
        get = self._index.get
        return np.fromiter((get(k, -1) for k in key_objects(keys, rows)), np.int64, rows)

    def read(self, name: str, slots: Slots) -> npt.NDArray[Any]:
        return self._columns[name][slots]

    def write(self, name: str, slots: Slots, values: npt.NDArray[Any]) -> None:
        self._columns[name][slots] = values

    def touch(self, slots: Slots) -> None:
        self._touched.append(slots)

    def delete(self, slots: Slots) -> None:
        for slot in slots.tolist():  # a dictionary forgets one key at a time
            (key,) = self._objects[slot]
            del self._index[key]
            self._index.free.append(slot)
            self._deleted.append(key)
            self._objects[slot] = None

    def slots(self) -> Slots:
        return np.fromiter(self._index.values(), np.int64, len(self._index))

    def keys(self, slots: Slots) -> list[pa.Array]:
        return key_columns([key for (key,) in self._objects[slots].tolist()], self._key_types)

    def _grow(self, needed: int) -> None:
        capacity = len(self._objects)
        if needed <= capacity:
            return
        while capacity < needed:
            capacity *= 2
        grown = np.empty(capacity, object)
        grown[: len(self._objects)] = self._objects
        self._objects = grown
        for name, column in self._columns.items():
            wider = np.zeros(capacity, column.dtype)
            wider[: len(column)] = column
            self._columns[name] = wider

    # -- snapshots and changes

    def export(self, name: str) -> list[Change]:
        """All rows, as one change that puts them."""
        slots = self.slots()
        return [self._put(name, slots)] if len(slots) else []

    def take_changes(self, name: str) -> list[Change]:
        changes = []
        deleted = [key for key in self._deleted if key not in self._index]
        if deleted:
            keys = key_columns(deleted, self._key_types)
            rows = _batch(keys, self._keys)
            changes.append(Change(name, "delete", rows))
        if self._touched:
            slots = np.unique(np.concatenate(self._touched))
            alive = ~_is_none(self._objects[slots])
            if alive.any():
                changes.append(self._put(name, slots[alive]))
        self._touched, self._deleted = [], []
        return changes

    def _put(self, name: str, slots: Slots) -> Change:
        arrays = self.keys(slots)
        fields = list(self._keys)
        for column, kind in self._types.items():
            arrays.append(_to_arrow(self._columns[column][slots], kind))
            fields.append(pa.field(column, kind))
        return Change(name, "put", _batch(arrays, pa.schema(fields)))

    def apply(self, change: Change) -> None:
        width = len(self._keys)
        keys = change.rows.columns[:width]
        if change.kind == "delete":
            self.delete(self.find(keys))
            self._deleted = []
            return
        slots, _ = self.locate(keys)
        for position, (name, kind) in enumerate(self._types.items()):
            self._columns[name][slots] = _from_arrow(change.rows.column(width + position), kind)


def _is_none(objects: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where an array of objects is empty."""
    return objects == None  # noqa: E711 - element by element


def _batch(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    if not arrays:  # the one row of a table without keys and columns
        return pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _dtype(kind: pa.DataType) -> npt.DTypeLike:
    """Numbers are kept as such, everything else as Python objects."""
    if pt.is_int64(kind):
        return np.int64
    if pt.is_float64(kind):
        return np.float64
    if pt.is_boolean(kind):
        return np.bool_
    return object


def _zero(kind: pa.DataType) -> object:
    return None if _dtype(kind) is object else 0


def _to_arrow(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    if values.dtype == object:
        return pa.array(values.tolist(), kind)
    return pa.array(values, kind)


def _from_arrow(column: pa.Array, kind: pa.DataType) -> npt.NDArray[Any]:
    if _dtype(kind) is object:
        values = np.empty(len(column), object)
        values[:] = column.to_pylist()
        return values
    return column.to_numpy(zero_copy_only=False)
