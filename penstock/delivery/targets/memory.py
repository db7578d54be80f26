"""The reference: a target in memory, which looks at each row, one after the other.

It keeps all rows ever added and taken back as a multiset and shows what is left, without a fold:
whatever other targets do at once must come to the same table. For tests, and to try things out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.delivery.api import Batch, Shard
from penstock.delivery.fold import WEIGHT
from penstock.delivery.targets.changes import table_changes
from penstock.delivery.targets.columns import shape_of
from penstock.delivery.targets.existing import check_is_new
from penstock.delivery.targets.positions import anothers, apply_once, fenced
from penstock.errors import Refused
from penstock.ids import Lsn
from penstock.state.keys import key_objects

#: A key or a row as something that is equal where grouping has it so.
Key = object


@dataclass(slots=True)
class MemoryTable:
    """The rows of one table, by key and by what they are."""

    #: How often each row is there; what is not there is not here.
    counts: dict[Key, Counter[Key]] = field(default_factory=dict)
    #: Each row as it came last.
    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)

    def copy(self) -> MemoryTable:
        return MemoryTable({key: count.copy() for key, count in self.counts.items()}, {**self.rows})

    def add(self, key: Key, row: Key, values: dict[str, Any], weight: int) -> None:
        count = self.counts.setdefault(key, Counter())
        count[row] += weight
        if not count[row]:
            del count[row]
        if not count:
            del self.counts[key]
        self.rows[row] = values

    def put(self, key: Key, row: Key, values: dict[str, Any]) -> None:
        """In place of all others of its key."""
        self.counts[key] = Counter({row: 1})
        self.rows[row] = values


@dataclass(slots=True)
class MemoryDatabase:
    """What stays when a target is closed; several targets may share it."""

    tables: dict[str, MemoryTable] = field(default_factory=dict)
    #: Position and term by delivery and shard, and whose they are.
    positions: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    owners: dict[tuple[str, int], str] = field(default_factory=dict)


class MemoryTarget:
    """See penstock/delivery/api.py."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self._shard: Shard | None = None

    def open(self, shard: Shard, term: int) -> Lsn:
        shape = shape_of(shard)
        own = (shard.delivery, shard.index)
        position, stored = self._database.positions.get(own, (shard.start, term))
        if self._database.owners.setdefault(own, shard.id) != shard.id:
            raise anothers(shard)
        if stored > term:
            raise fenced(shard, stored, term)
        if shard.table not in self._database.tables:
            check_is_new(shape, Lsn(position), shard.start)
            self._database.tables[shard.table] = MemoryTable()
        self._database.positions[own] = (position, term)
        self._shard = shard
        return Lsn(position)

    def apply(self, batch: Batch) -> Lsn:
        shard = self._shard
        assert shard is not None, "a target is opened before batches come"
        return apply_once(
            batch, shard, lambda: self._attempt(batch, shard), lambda: self._stored(shard)
        )

    def close(self) -> None:
        self._shard = None

    def _stored(self, shard: Shard) -> tuple[int, int] | None:
        return self._database.positions.get((shard.delivery, shard.index))

    def _attempt(self, batch: Batch, shard: Shard) -> bool:
        table_changes(batch, shard, shape_of(shard))  # for what it refuses
        stored = self._stored(shard)
        if stored is None or stored[0] != batch.after or stored[1] > batch.term:
            return False
        table = self._database.tables[shard.table].copy()
        _add_rows(table, batch, shard)
        if shard.strict:
            _check(table, shard)
        self._database.tables[shard.table] = table
        self._database.positions[(shard.delivery, shard.index)] = (batch.upto, batch.term)
        return True


def _add_rows(table: MemoryTable, batch: Batch, shard: Shard) -> None:
    rows = batch.rows.select(shard.schema.names)
    count = rows.num_rows
    keys = key_objects([rows.column(name) for name in shard.key], count)
    objects = _identities(rows)
    weights = batch.rows.column(WEIGHT).to_pylist() if shard.changing else [1] * count
    replaces = bool(shard.key) and not shard.changing and not shard.strict
    for key, row, values, weight in zip(keys, objects, rows.to_pylist(), weights, strict=True):
        if replaces:
            table.put(key, row, values)
        else:
            table.add(key, row, values, weight)


def _identities(rows: pa.RecordBatch) -> list[Key]:
    """Of each row: what is not null, so that a column which is added later changes nothing."""
    parts: list[list[tuple[str, object]]] = [[] for _ in range(rows.num_rows)]
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        values = key_objects([column], rows.num_rows)
        for part, value, is_there in zip(parts, values, column.is_valid(), strict=True):
            if is_there.as_py():
                part.append((name, value))
    return list(map(tuple, parts))


def _check(table: MemoryTable, shard: Shard) -> None:
    for key, counts in table.counts.items():
        if any(count < 0 for count in counts.values()):
            raise Refused(f"a row of key {key!r} is taken back and was not there")
        if shard.key and counts.total() > 1:
            raise Refused(f"key {key!r} has two rows")
