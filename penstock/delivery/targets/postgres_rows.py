"""A batch's changes on their way into PostgreSQL: in one statement, or strictly, in a transaction.

One statement serves batches of any size. COPY into a temporary table and a merge from there were
tried: up to 20,000 rows they took longer, by 40 ms at least (temporary tables are emptied by
making new files), and at 150,000 rows they were faster by a twentieth.

Law (I14): both ways change rows and position in one transaction, and nothing if the position was
not the one that the batch follows.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.types.numeric import Int4, Int8

from penstock.delivery.api import Batch, Shard
from penstock.delivery.targets.changes import Ints, TableChanges, where
from penstock.delivery.targets.columns import ROW, Column, TableShape, bad_row
from penstock.delivery.targets.postgres_connection import Connection, WireBytes, is_of_rows
from penstock.delivery.targets.postgres_format import array_bytes, fields_of
from penstock.delivery.targets.postgres_sql import Nulls, Statements, unnested
from penstock.delivery.targets.strictness import meets_another, not_as_it_was, taken_too_often
from penstock.errors import BadRow
from penstock.plain_text import plain_line
from penstock.stream.columns import Misfit


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Over one connection, to one table."""

    connection: Connection
    sql: Statements
    shard: Shard

    @property
    def shape(self) -> TableShape:
        return self.sql.shape

    def apply(self, batch: Batch, changes: TableChanges) -> bool:
        """Whether the position was met; otherwise nothing is changed."""
        count = changes.upserts.num_rows + changes.deletes.num_rows
        try:
            if self.shard.strict and count:
                return self._apply_strictly(batch, changes)
            return self._apply_at_once(batch, changes)
        except psycopg.Error as error:
            if not is_of_rows(error):
                raise
            raise self._bad_row(batch, changes, error) from None

    def _apply_at_once(self, batch: Batch, changes: TableChanges) -> bool:
        nulls = self._null_patterns(changes.deletes)
        has_puts = changes.upserts.num_rows > 0
        parameters = [
            *self._position(batch),
            *(self._arrays_of_deletes(changes) if nulls else ()),
            *(self._arrays_of_upserts(changes) if has_puts else ()),
        ]
        moved = self.connection.ask(self.sql.all_at_once(puts=has_puts, gone=nulls), *parameters)
        return moved == [(1,)]

    def _apply_strictly(self, batch: Batch, changes: TableChanges) -> bool:
        with self.connection.transaction():
            if not self.connection.run(self.sql.move(), *self._position(batch)):
                return False
            self._check_deletes(batch, changes)
            self._delete(changes)
            try:
                self._insert(changes)
            except psycopg.errors.UniqueViolation as error:
                raise meets_another(batch, error.diag.message_detail or str(error)) from None
            if self.shape.is_counted:
                self._settle_counts(batch, changes)
        return True

    # -- parts of a transaction

    def _insert(self, changes: TableChanges) -> None:
        if changes.upserts.num_rows:
            source, arrays = unnested(self.shape.columns, 1), self._arrays_of_upserts(changes)
            self.connection.run(self.sql.insert(source, strict=self.shard.strict), *arrays)

    def _delete(self, changes: TableChanges) -> None:
        if changes.deletes.num_rows:
            source, arrays = unnested(self._deleted_columns, 1), self._arrays_of_deletes(changes)
            for nulls in self._null_patterns(changes.deletes):
                self.connection.run(self.sql.delete(source, nulls), *arrays)

    def _check_deletes(self, batch: Batch, changes: TableChanges) -> None:
        """Strict: the rows that go are there, as they are given."""
        if not changes.deletes.num_rows:
            return
        source = unnested(self._deleted_columns, 1, numbered=True)
        arrays = self._arrays_of_deletes(changes)
        for nulls in self._null_patterns(changes.deletes):
            missing = self.connection.ask(self.sql.find_missing(source, nulls), *arrays)
            if missing:
                keys = changes.deletes.select(list(self.shape.key))
                raise not_as_it_was(batch, keys, missing[0][0] - 1)

    def _settle_counts(self, batch: Batch, changes: TableChanges) -> None:
        """Strict: no row was taken back more often than it was there."""
        source, arrays = unnested(self.shape.columns, 1), self._arrays_of_upserts(changes)
        negative = self.connection.ask(self.sql.find_negative(source), *arrays)
        if negative:
            row = changes.upserts.column(ROW).to_pylist().index(bytes(negative[0][0]))
            raise taken_too_often(batch, changes.upserts, row)
        self.connection.run(self.sql.delete_void(source), *arrays)

    # -- parameters

    def _position(self, batch: Batch) -> list[object]:
        return [*own_parameters(self.shard), Int8(batch.after), Int8(batch.upto), Int8(batch.term)]

    @property
    def _deleted_columns(self) -> tuple[Column, ...]:
        """Of rows that go: the key first, and if strict all others."""
        others = self.shape.value_columns if self.shard.strict else ()
        return (*self.shape.key_columns, *others)

    def _arrays_of_upserts(self, changes: TableChanges) -> list[WireBytes]:
        fields = _fields(changes.upserts, self.shape.columns, changes.upsert_places)
        return _arrays(fields, self.shape.columns)

    def _arrays_of_deletes(self, changes: TableChanges) -> list[WireBytes]:
        fields = _fields(changes.deletes, self._deleted_columns, changes.delete_places)
        return _arrays(fields, self._deleted_columns)

    def _null_patterns(self, deletes: pa.RecordBatch) -> list[Nulls]:
        """Which columns of the key are null, in at least one row: nearly always none at all."""
        if not deletes.num_rows:
            return []
        columns = [deletes.column(column.name) for column in self.shape.key_columns]
        if not any(column.null_count for column in columns):
            return [(False,) * len(columns)]
        nulls = np.stack([np.asarray(column.is_null()) for column in columns], axis=1)
        return [tuple(map(bool, pattern)) for pattern in np.unique(nulls, axis=0)]

    # -- rows that will not do

    def _bad_row(self, batch: Batch, changes: TableChanges, error: psycopg.Error) -> BadRow:
        words = plain_line(str(error))
        number = self._first_bad(changes)
        if number is None:
            return BadRow(f"rows {where(batch)}: {words}")
        row = int(changes.upsert_places[number])
        return BadRow(f"row {row} {where(batch)}: {words}", row)

    def _first_bad(self, changes: TableChanges) -> int | None:
        """The first upsert that fails after all before it; tried out, and rolled back."""

        def fails(count: int) -> bool:
            part = TableChanges(
                changes.upserts.slice(0, count),
                changes.deletes,
                changes.upsert_places[:count],
                changes.delete_places,
            )
            try:
                with self.connection.transaction(force_rollback=True):
                    self._delete(part)
                    self._insert(part)
            except psycopg.Error as error:
                if not is_of_rows(error):
                    raise
                return True
            return False

        count = changes.upserts.num_rows
        if fails(0) or not fails(count):
            return None  # it is a row that goes, or something that is looked at in COMMIT
        return bisect.bisect_left(range(1, count), True, key=fails)


def own_parameters(shard: Shard) -> list[object]:
    """What finds its position."""
    return [shard.delivery, Int4(shard.index), shard.id]


def _fields(rows: pa.RecordBatch, columns: Sequence[Column], places: Ints) -> list[pa.Array]:
    fields = []
    for column in columns:
        try:
            fields.append(fields_of(rows.column(column.name), column))
        except Misfit as misfit:
            raise bad_row(misfit, column.name, places) from None
    return fields


def _arrays(fields: Sequence[pa.Array], columns: Sequence[Column]) -> list[WireBytes]:
    return [
        WireBytes(array_bytes(array, column)) for array, column in zip(fields, columns, strict=True)
    ]
