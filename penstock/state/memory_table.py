"""A keyed table: an index from key to slot (key_index.py), and values by slot (columns.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.api import Change, Slots
from penstock.state.columns import Columns, dtype_of
from penstock.state.key_index import make_index
from penstock.state.keys import WORDS, words_column
from penstock.state.parts import TABLE, Part
from penstock.state.room import MEMORY, Room

#: Rows that are applied at once. Measured: a million in pieces of this take 0.4 s, at once 0.8 s,
#: because an index works on arrays that leave the processor's cache.
_APPLIED_ROWS = 65_536


class MemoryTable:
    """See api.Table. `partition` are the positions of the key columns that place a row."""

    def __init__(
        self,
        keys: pa.Schema,
        columns: dict[str, pa.DataType],
        partition: tuple[int, ...],
        room: Room = MEMORY,
    ) -> None:
        self.partition = partition
        self._keys = keys
        self._types = columns
        self._index = make_index(keys, room)
        self._columns = Columns(columns, room)
        #: Of rows with their keys.
        self._schema = pa.schema([*keys, *columns.items()])
        self._touched: list[Slots] = []
        self._deleted: list[list[pa.Array]] = []

    def __len__(self) -> int:
        return len(self._index)

    def locate(self, keys: Sequence[pa.Array]) -> tuple[Slots, npt.NDArray[np.bool_]]:
        slots, is_new = self._locate(keys)
        if is_new.any():
            fresh = slots[is_new]
            self._columns.clear(fresh)
            # A row that was deleted and made again is no deletion: a copy must hear of its zeros.
            self._touched.append(fresh)
        return slots, is_new

    def _locate(self, keys: Sequence[pa.Array]) -> tuple[Slots, npt.NDArray[np.bool_]]:
        slots, is_new = self._index.locate(keys, len(keys[0]) if keys else 1)
        self._columns.grow(self._index.next)
        return slots, is_new

    def find(self, keys: Sequence[pa.Array]) -> Slots:
        return self._index.find(keys, len(keys[0]) if keys else 1)

    def read(self, name: str, slots: Slots) -> npt.NDArray[Any]:
        return self._columns.read(name, slots)

    def write(self, name: str, slots: Slots, values: npt.NDArray[Any]) -> None:
        self._columns.write(name, slots, values)

    def touch(self, slots: Slots) -> None:
        self._touched.append(slots)

    def delete(self, slots: Slots) -> None:
        if len(slots):
            self._deleted.append(self._index.columns(slots))
            self._index.forget(slots)

    def slots(self, among: Slots | None = None) -> Slots:
        if among is None:
            return self._index.slots()
        among = among[among < self._index.next]
        return among[self._index.is_alive(among)]

    def keys(self, slots: Slots) -> list[pa.Array]:
        return self._index.columns(slots)

    def size(self) -> tuple[int, int]:
        """Rows, and about how many bytes: eight for every key column and kept value."""
        rows = len(self._index)
        return rows, rows * 8 * (2 + len(self._keys)) + self._columns.nbytes

    # -- snapshots and changes

    def describe(self) -> Part:
        return Part(TABLE, self._schema, tuple(range(len(self._keys))), self.partition)

    def export(self, name: str) -> list[Change]:
        """All rows, as one change that puts them."""
        slots = self.slots()
        return [self._put(name, slots)] if len(slots) else []

    def freeze(self, name: str) -> list[Change]:
        """All rows as they are now: every array of an export is a copy."""
        return self.export(name)

    def take_changes(self, name: str) -> list[Change]:
        """Deletions of keys that are gone, then the rows that changed and are there."""
        changes = self._take_deleted(name)
        if self._touched:
            slots = np.unique(np.concatenate(self._touched))
            alive = self._index.is_alive(slots)
            if alive.any():
                changes.append(self._put(name, slots[alive]))
        self._touched, self._deleted = [], []
        return changes

    def forget_changes(self) -> None:
        self._touched, self._deleted = [], []

    def _take_deleted(self, name: str) -> list[Change]:
        if not self._deleted:
            return []
        keys = [pa.concat_arrays(parts) for parts in zip(*self._deleted, strict=True)]
        gone = pa.array(self.find(keys) < 0)  # the others came back, and are put
        rows = _batch([key.filter(gone) for key in keys], self._keys)
        return [Change(name, "delete", rows)] if gone.true_count else []

    def _put(self, name: str, slots: Slots) -> Change:
        arrays = self.keys(slots)
        for column, kind in self._types.items():
            arrays.append(to_arrow(self._columns.read(column, slots), kind))
        return Change(name, "put", _batch(arrays, self._schema))

    def apply(self, change: Change) -> None:
        width = len(self._keys)
        if change.kind == "delete":
            gone = np.unique(self.find(change.rows.columns[:width]))
            self._index.forget(gone[gone >= 0])  # some came and went between two changes
            return
        for start in range(0, change.rows.num_rows, _APPLIED_ROWS):
            rows = change.rows.slice(start, _APPLIED_ROWS)
            slots, _ = self._locate(rows.columns[:width])
            for position, (name, kind) in enumerate(self._types.items()):
                values = from_arrow(rows.column(width + position), kind)
                self._columns.write(name, slots, values)


def _batch(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    if not arrays:  # the one row of a table without keys and columns
        return pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_arrow(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A column of a table as Arrow has it."""
    if values.dtype == np.int64 and kind.id in WORDS:
        return words_column(values, kind)
    if values.dtype == object:
        return pa.array(values.tolist(), kind)
    return pa.array(values, kind)


def from_arrow(column: pa.Array, kind: pa.DataType) -> npt.NDArray[Any]:
    """The inverse of to_arrow."""
    if dtype_of(kind) is object:
        return np.fromiter(column.to_pylist(), object, len(column))
    return column.to_numpy(zero_copy_only=False)
