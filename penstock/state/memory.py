"""State in this process's memory, or in mapped files (room.py), which only its arrays know.

A store holds all virtual nodes of one task together, because batches mix them: splitting a batch of
a thousand rows by virtual node would cost more than working on it. Snapshots and changes are split
by hashing their keys, which costs only when they are taken; a log of changes is not split at all.

What changed has one form, whoever asks: of a table, deletions before what is put; of a row set, one
eviction before what is added, which is without the rows that the eviction struck afterwards. So the
changes of the task itself come first and those of virtual nodes follow in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.api import Change, Changes, RowSet, Table, Value
from penstock.state.checkpoint_format import NODE_OF_TASK
from penstock.state.keys import VIRTUAL_NODES, Hashes, hash_columns, virtual_nodes, words_column
from penstock.state.memory_row_set import MemoryRowSet
from penstock.state.memory_table import MemoryTable
from penstock.state.parts import VALUE, Part
from penstock.state.room import MEMORY, Room
from penstock.state.unread import Unread

#: Where states are that are given no room.
IN_MEMORY: Room = MEMORY
#: Stands for the task itself in a dictionary of snapshots.
OF_TASK = NODE_OF_TASK
_VALUE_SCHEMA = pa.schema([("value", pa.int64())])


Kept = TypeVar("Kept", MemoryTable, MemoryRowSet, "_Value")


class MemoryState:
    """The state of one task, or the part of it under a prefix."""

    def __init__(self, owned: frozenset[int] | None = None, room: Room | None = None) -> None:
        self.room = IN_MEMORY if room is None else room
        self._prefix = ""
        self._parts: dict[str, MemoryTable | MemoryRowSet | _Value] = {}
        self._owned = owned
        #: What was restored before the operators said what they keep, and of which virtual nodes.
        self._waiting: dict[str, list[tuple[Change, frozenset[int] | None]]] = {}

    def within(self, prefix: str) -> MemoryState:
        inner = MemoryState(self._owned, self.room)
        inner._prefix = f"{self._prefix}{prefix}/"
        inner._parts = self._parts
        inner._waiting = self._waiting
        return inner

    def owns(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        if self._owned is None:
            return np.ones(len(hashes), bool)
        return np.isin(virtual_nodes(hashes), sorted(self._owned))

    def value(self, name: str, *, is_largest: bool = False) -> Value:
        return self._add(name, _Value(is_largest=is_largest))

    def table(
        self,
        name: str,
        keys: pa.Schema,
        columns: dict[str, pa.DataType],
        partition: Sequence[int] | None = None,
        *,
        is_by_key: bool = False,
    ) -> Table:
        placed = tuple(partition) if partition is not None else tuple(range(len(keys)))
        made = MemoryTable(keys, columns, placed, self.room, is_by_key=is_by_key)
        return self._add(name, made)

    def row_set(
        self,
        name: str,
        rows: pa.Schema,
        keys: Sequence[int],
        event_time: int | None = None,
        partition: Sequence[int] | None = None,
    ) -> RowSet:
        placed = tuple(partition) if partition is not None else tuple(keys)
        made = MemoryRowSet(rows, tuple(keys), event_time, placed, self.room)
        return self._add(name, made)

    def _add(self, name: str, part: Kept) -> Kept:
        full = self._prefix + name
        assert full not in self._parts, f"{full} exists"
        self._parts[full] = part
        for change, nodes in self._waiting.pop(full, []):
            self._apply_to(part, change, nodes)
        return part

    # -- for the runtime

    def is_largest(self, name: str) -> bool:
        """Whether the value of this name is a largest one."""
        part = self._parts.get(name)
        return isinstance(part, _Value) and part.is_largest

    def rows_kept(self) -> int:
        """Rows of all tables and row sets."""
        return sum(len(part) for part in self._parts.values() if not isinstance(part, _Value))

    def size(self) -> tuple[int, int]:
        """About how many rows and bytes: cheap, for reports; what is evicted may still count."""
        sizes = [part.size() for part in self._parts.values() if not isinstance(part, _Value)]
        return sum(rows for rows, _ in sizes), sum(size for _, size in sizes)

    def tables_that_may_wait(self) -> dict[str, Part]:
        """Tables of which rows of a checkpoint may be left unread."""
        tables = self._tables().items()
        return {name: table.describe() for name, table in tables if table.may_wait}

    def lend(self, unread: Mapping[str, Unread]) -> None:
        """Rows of these tables were left unread; nothing was applied to them yet."""
        tables = self._tables()
        for name, rows in unread.items():
            tables[name].lend(rows)

    def tables_unread(self) -> list[MemoryTable]:
        """Those of which rows are unread."""
        return [table for table in self._tables().values() if table.unread is not None]

    def rows_unread(self) -> int:
        """About how many."""
        return sum(table.rows_unread for table in self._tables().values())

    def _tables(self) -> dict[str, MemoryTable]:
        return {name: part for name, part in self._parts.items() if isinstance(part, MemoryTable)}

    def snapshot(self) -> Changes:
        """Everything, by virtual node; what belongs to the task itself is under OF_TASK."""
        by_node: dict[int, list[Change]] = {}
        for name, part in self._parts.items():
            for change in part.export(name):
                for node, piece in _split(part, change):
                    by_node.setdefault(node, []).append(piece)
        return {node: tuple(parts) for node, parts in sorted(by_node.items())}

    def restore(self, changes: Changes) -> None:
        """Apply the changes of another instance; operators may be built before or after.

        The task's own changes come first: what is added is without what an eviction struck.
        """
        for node in sorted(changes):
            self.apply(changes[node])

    def take_changes(self) -> Changes:
        """What changed since the last call, by virtual node."""
        by_node: dict[int, list[Change]] = {}
        for change in self.take_log():
            for node, piece in _split(self._parts[change.name], change):
                by_node.setdefault(node, []).append(piece)
        return {node: tuple(changes) for node, changes in sorted(by_node.items())}

    def take_log(self) -> tuple[Change, ...]:
        """What changed since the last call of this or take_changes, to be applied in order."""
        self.room.tidy()
        parts = self._parts.items()
        return tuple(change for name, part in parts for change in part.take_changes(name))

    def forget_log(self) -> None:
        """Drop what take_log would give; for callers that never ask for changes."""
        self.room.tidy()
        for part in self._parts.values():
            part.forget_changes()

    def freeze(self) -> tuple[Change, ...]:
        """Everything, as it is now: nothing that happens later shows in it.

        Cheaper than a snapshot, because it is neither split nor tidied up; checkpoint_format.py
        does that, in another thread, and is told by `parts` which columns place the rows.
        """
        parts = self._parts.items()
        return tuple(change for name, part in parts for change in part.freeze(name))

    def parts(self) -> dict[str, Part]:
        """What the parts say of themselves; there are all of them once operators were built."""
        return {name: part.describe() for name, part in self._parts.items()}

    def apply(self, changes: Sequence[Change], nodes: frozenset[int] | None = None) -> None:
        """Apply changes that another instance made, in order.

        `nodes`: those that count, of a task that had these: other rows are neither taken nor
        struck, and stay as they are. None: all count, and nobody else's rows are here.
        """
        for change in changes:
            part = self._parts.get(change.name)
            if part is None:
                self._waiting.setdefault(change.name, []).append((change, nodes))
            else:
                self._apply_to(part, change, nodes)
        self.room.tidy()

    def _apply_to(
        self,
        part: MemoryTable | MemoryRowSet | _Value,
        change: Change,
        nodes: frozenset[int] | None,
    ) -> None:
        if nodes is None or isinstance(part, _Value):
            part.apply(change)
        elif change.kind != "evict":
            is_counted = _are_of(nodes, part, change.rows)
            rows = change.rows if is_counted.all() else change.rows.filter(pa.array(is_counted))
            if rows.num_rows:
                part.apply(Change(change.name, change.kind, rows))
        elif self._owned is not None and self._owned <= nodes:
            part.apply(change)  # whatever is here
        else:
            assert isinstance(part, MemoryRowSet)
            part.strike(change, lambda rows: _are_of(nodes, part, rows))


def _are_of(
    nodes: frozenset[int], part: MemoryTable | MemoryRowSet, rows: pa.RecordBatch
) -> npt.NDArray[np.bool_]:
    """Which of the rows belong to these virtual nodes."""
    return np.isin(_nodes_of(part, rows), sorted(nodes))


def _nodes_of(part: MemoryTable | MemoryRowSet, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    placed = [rows.column(index) for index in part.partition]
    return virtual_nodes(hash_columns(placed, rows.num_rows), VIRTUAL_NODES)


def _split(part: MemoryTable | MemoryRowSet | _Value, change: Change) -> list[tuple[int, Change]]:
    if isinstance(part, _Value) or change.kind == "evict":
        return [(OF_TASK, change)]
    if not change.rows.num_rows:
        return []
    nodes = _nodes_of(part, change.rows)
    pieces = []
    for node in np.unique(nodes).tolist():
        rows = change.rows.filter(pa.array(nodes == node))
        pieces.append((node, Change(change.name, change.kind, rows)))
    return pieces


class _Value:
    """One integer of the task."""

    def __init__(self, *, is_largest: bool) -> None:
        self.is_largest = is_largest
        self._value: int | None = None
        self._changed = False

    def get(self) -> int | None:
        return self._value

    def set(self, value: int) -> None:
        self._value = value
        self._changed = True

    def describe(self) -> Part:
        return Part(VALUE, _VALUE_SCHEMA, (), ())

    def export(self, name: str) -> list[Change]:
        if self._value is None:
            return []
        values = words_column(np.array([self._value]))
        return [Change(name, "set", pa.RecordBatch.from_arrays([values], schema=_VALUE_SCHEMA))]

    def freeze(self, name: str) -> list[Change]:
        return self.export(name)

    def take_changes(self, name: str) -> list[Change]:
        changed, self._changed = self._changed, False
        return self.export(name) if changed else []

    def forget_changes(self) -> None:
        self._changed = False

    def apply(self, change: Change) -> None:
        self._value = change.rows.column(0)[0].as_py()
