"""A keyed table: an index from key to slot (key_index.py), and values by slot (columns.py).

Rows of a checkpoint may be in its files still; they come when they are asked for (unread.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.api import Change, Slots
from penstock.state.columns import Columns, dtype_of
from penstock.state.key_index import ObjectIndex, make_index
from penstock.state.keys import WORDS, words_column
from penstock.state.parts import TABLE, Part
from penstock.state.room import MEMORY, Room
from penstock.state.unread import Unread

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
        *,
        is_by_key: bool = False,
    ) -> None:
        self.partition = partition
        self._keys = keys
        self._types = columns
        self._room = room
        self._index = make_index(keys, room)
        self._columns = Columns(columns, room)
        #: Of rows with their keys.
        self._schema = pa.schema([*keys, *columns.items()])
        self._touched: list[Slots] = []
        self._deleted: list[list[pa.Array]] = []
        #: Whether rows of a checkpoint may be left unread; and those that are.
        self.may_wait = is_by_key and not isinstance(self._index, ObjectIndex)
        self._unread: Unread | None = None

    def __len__(self) -> int:
        self._bring_all()
        return len(self._index)

    def locate(self, keys: Sequence[pa.Array]) -> tuple[Slots, npt.NDArray[np.bool_]]:
        self._bring_keys(keys)
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
        self._bring_keys(keys)
        return self._find(keys)

    def _find(self, keys: Sequence[pa.Array]) -> Slots:
        return self._index.find(keys, len(keys[0]) if keys else 1)

    def read(self, name: str, slots: Slots) -> npt.NDArray[Any]:
        return self._columns.read(name, slots)

    def write(self, name: str, slots: Slots, values: npt.NDArray[Any]) -> None:
        self._columns.write(name, slots, values)

    def touch(self, slots: Slots) -> None:
        self._touched.append(slots)

    def delete(self, slots: Slots) -> None:
        if len(slots):
            keys = self._index.columns(slots)
            self._deleted.append(keys)
            self._forget(keys, slots)

    def _forget(self, keys: Sequence[pa.Array], slots: Slots) -> None:
        if self._unread is not None:
            self._unread.forget(keys)
        self._index.forget(slots)

    def slots(self, among: Slots | None = None) -> Slots:
        if among is None:
            self._bring_all()
            return self._index.slots()
        among = among[among < self._index.next]
        return among[self._index.is_alive(among)]

    def keys(self, slots: Slots) -> list[pa.Array]:
        return self._index.columns(slots)

    def size(self) -> tuple[int, int]:
        """Rows, and about how many bytes: eight for every key column and kept value."""
        rows = len(self._index) + self.rows_unread
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
        gone = pa.array(self._find(keys) < 0)  # the others came back, and are put
        rows = _batch([key.filter(gone) for key in keys], self._keys)
        return [Change(name, "delete", rows)] if gone.true_count else []

    def _put(self, name: str, slots: Slots) -> Change:
        arrays = self.keys(slots)
        for column, kind in self._types.items():
            arrays.append(to_arrow(self._columns.read(column, slots), kind))
        return Change(name, "put", _batch(arrays, self._schema))

    def apply(self, change: Change) -> None:
        if change.kind == "delete":
            keys = change.rows.columns[: len(self._keys)]
            gone = np.unique(self._find(keys))
            self._forget(keys, gone[gone >= 0])  # some came and went between two changes
            return
        self._set(change.rows)

    def _set(self, rows: pa.RecordBatch) -> None:
        width = len(self._keys)
        for start in range(0, rows.num_rows, _APPLIED_ROWS):
            piece = rows.slice(start, _APPLIED_ROWS)
            slots, _ = self._locate(piece.columns[:width])
            for position, (name, kind) in enumerate(self._types.items()):
                values = from_arrow(piece.column(width + position), kind)
                self._columns.write(name, slots, values)

    # -- rows of a checkpoint that are still in its files (unread.py)

    @property
    def unread(self) -> Unread | None:
        """To be read by a thread, one virtual node after the other, and brought in."""
        return self._unread

    @property
    def rows_unread(self) -> int:
        """About how many rows are still in files."""
        return 0 if self._unread is None else self._unread.rows

    def lend(self, unread: Unread) -> None:
        """These rows belong to the table, which is empty."""
        assert self.may_wait and not len(self._index), "rows are left unread of an empty table"
        self._unread = unread if unread.nodes else None

    def make_places(self, unread: Unread) -> Slots | None:
        """For a thread: what is long to make of what these rows need."""
        return None if self._room.is_bounded else self._index.make_places(unread.rows)

    def expect(self, unread: Unread, places: Slots | None) -> None:
        """All of these will be brought in; nobody is to wait then until there is room."""
        if self._unread is unread:
            self._index.expect(unread.rows, places)
            self._columns.grow(self._index.next + unread.rows)

    def bring(self, unread: Unread, rows: pa.RecordBatch) -> None:
        """Rows that were read ahead: what is here counts, and what was deleted here is gone."""
        if self._unread is not unread:
            return  # all are here
        keys = rows.columns[: len(self._keys)]
        is_wanted = (self._find(keys) < 0) & ~unread.is_gone(keys)
        self._take_in(rows if is_wanted.all() else rows.filter(pa.array(is_wanted)))
        self._room.tidy()  # there may be no commit for long

    def brought(self, unread: Unread, node: int) -> None:
        """All rows of a virtual node were."""
        if self._unread is unread:
            unread.finish(node)
            if not unread.nodes:
                self._unread = None

    def _bring_keys(self, keys: Sequence[pa.Array]) -> None:
        if self._unread is None:
            return
        absent = self._find(keys) < 0
        if absent.any():
            mask = pa.array(absent)
            rows = self._unread.find([key.filter(mask) for key in keys])
            if rows is not None:
                self._take_in(rows)

    def _take_in(self, rows: pa.RecordBatch) -> None:
        """Rows that are not here. A slot that changed before it was free says nothing of them."""
        had = self._index.next
        self._set(rows)
        if self._touched:
            slots = self._find(rows.columns[: len(self._keys)])
            reused = slots[slots < had]
            if len(reused):
                self._touched = [old[~np.isin(old, reused)] for old in self._touched]

    def _bring_all(self) -> None:
        """For who asks for more than some keys."""
        unread = self._unread
        for node in [] if unread is None else unread.nodes:
            assert unread is not None
            rows = unread.read_node(node)
            if rows is not None:
                self.bring(unread, rows)
            self.brought(unread, node)


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
