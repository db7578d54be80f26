"""A batch's changes as statements of SQLite, inside a transaction that somebody else began.

SQLite takes rows one by one: they become tuples here, and go through `executemany`, both in C. Its
unique indexes do not take nulls for equal, so the few rows with a null in their key are found by
`IS`, which uses the index all the same.

Law: BadRow and Refused name the row; whoever began the transaction rolls it back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.delivery.api import Batch
from penstock.delivery.targets.changes import Ints, TableChanges, where
from penstock.delivery.targets.columns import COUNT, ROW, TableShape, described
from penstock.delivery.targets.sql import listed, quoted
from penstock.delivery.targets.strictness import meets_another, not_as_it_was, taken_too_often
from penstock.errors import BadRow
from penstock.plain_text import plain_line


def change_rows(
    connection: sqlite3.Connection,
    shape: TableShape,
    batch: Batch,
    changes: TableChanges,
    *,
    strict: bool,
) -> None:
    """All of them, or an error."""
    change = _Change(connection, shape, batch, changes)
    if shape.is_counted:
        change.add_counts(strict)
    elif strict and shape.key:
        change.take_back()
        change.insert_new()
    else:
        change.delete()
        change.upsert()


@dataclass(frozen=True, slots=True)
class _Change:
    """Parameters of statements are numbered: ?1 is the first column of the row."""

    connection: sqlite3.Connection
    shape: TableShape
    batch: Batch
    changes: TableChanges

    @property
    def table(self) -> str:
        return quoted(self.shape.table)

    def delete(self) -> None:
        deletes = self.changes.deletes
        condition = self._is_given(deletes.schema.names, deletes.schema.names)
        statement = f"DELETE FROM {self.table} WHERE {condition}"
        self._run_all(statement, deletes, self.changes.delete_places)

    def upsert(self) -> None:
        rows, places = self.changes.upserts, self.changes.upsert_places
        nulls = _has_null(rows, self.shape.key)
        plain_insert = f"{self._insert()} VALUES ({self._marks()})"
        self._run_all(
            plain_insert + self._on_conflict(), rows.filter(pa.array(~nulls)), places[~nulls]
        )
        if nulls.any():
            rows, places = rows.filter(pa.array(nulls)), places[nulls]
            values = [column.name for column in self.shape.value_columns]
            if values:
                sets = ", ".join(f"{quoted(name)} = {self._mark(name)}" for name in values)
                statement = f"UPDATE {self.table} SET {sets} WHERE {self._is_its_key()}"
                self._run_all(statement, rows, places)
            self._run_all(self._insert_if_new(), rows, places)

    def take_back(self) -> None:
        """Strict: rows that must be there as they are given."""
        deletes = self.changes.deletes
        names = deletes.schema.names
        statement = f"DELETE FROM {self.table} WHERE {self._is_given(names, names)}"
        idle = self._run_all(statement, deletes, self.changes.delete_places, each=True)
        if idle is not None:
            raise not_as_it_was(self.batch, deletes.select(list(self.shape.key)), idle)

    def insert_new(self) -> None:
        """Strict: rows whose keys must not be there."""
        rows = self.changes.upserts
        idle = self._run_all(self._insert_if_new(), rows, self.changes.upsert_places, each=True)
        if idle is not None:
            keys = rows.select(list(self.shape.key))
            raise meets_another(self.batch, described(keys, idle))

    def add_counts(self, strict: bool) -> None:
        rows, places = self.changes.upserts, self.changes.upsert_places
        added = np.asarray(rows.column(COUNT)) > 0 if strict else np.ones(rows.num_rows, bool)
        statement = f"{self._insert()} VALUES ({self._marks()}){self._on_conflict()}"
        self._run_all(statement, rows.filter(pa.array(added)), places[added])
        taken = rows.filter(pa.array(~added))
        row, count = self._mark(ROW), self._mark(COUNT)
        statement = (
            f"UPDATE {self.table} SET {COUNT} = {COUNT} + {count} "
            f"WHERE {ROW} = {row} AND {COUNT} + {count} >= 0"
        )
        idle = self._run_all(statement, taken, places[~added], each=True)
        if idle is not None:
            raise taken_too_often(self.batch, taken, idle)
        statement = f"DELETE FROM {self.table} WHERE {ROW} = ?1 AND {COUNT} = 0"
        self._run_all(statement, rows.select([ROW]), places)

    # -- pieces of statements

    def _mark(self, name: str) -> str:
        return f"?{self.shape.names.index(name) + 1}"

    def _marks(self) -> str:
        return ", ".join(map(self._mark, self.shape.names))

    def _is_its_key(self) -> str:
        return self._is_given(self.shape.key, self.shape.names)

    def _is_given(self, names: Sequence[str], all_names: Sequence[str]) -> str:
        """That these columns are as given, nulls included."""
        return " AND ".join(
            f"{quoted(name)} IS ?{all_names.index(name) + 1}{self._exactly(name)}" for name in names
        )

    def _exactly(self, name: str) -> str:
        """Whatever collation a user's table has: texts that differ are different."""
        kinds = {column.name: column.sql_type("sqlite") for column in self.shape.columns}
        return " COLLATE BINARY" if kinds[name] == "TEXT" else ""

    def _insert(self) -> str:
        return f"INSERT INTO {self.table} ({listed(self.shape.names)})"

    def _insert_if_new(self) -> str:
        return (
            f"{self._insert()} SELECT {self._marks()} WHERE NOT EXISTS "
            f"(SELECT 1 FROM {self.table} WHERE {self._is_its_key()})"
        )

    def _on_conflict(self) -> str:
        if not self.shape.key:
            return ""
        key = ", ".join(f"{quoted(name)}{self._exactly(name)}" for name in self.shape.key)
        target = f" ON CONFLICT ({key}) DO "
        if self.shape.is_counted:
            return f"{target}UPDATE SET {COUNT} = {COUNT} + excluded.{COUNT}"
        names = [quoted(column.name) for column in self.shape.value_columns]
        if not names:
            return target + "NOTHING"
        return f"{target}UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in names)}"

    # -- running them

    def _run_all(
        self, statement: str, rows: pa.RecordBatch, places: Ints, *, each: bool = False
    ) -> int | None:
        """Run it for each row. `each`: the first row for which it changed nothing, or None."""
        if not rows.num_rows:
            return None
        tuples = list(zip(*map(sqlite_values, rows.columns), strict=True))
        self.connection.execute("SAVEPOINT penstock")
        try:
            changed = self.connection.executemany(statement, tuples).rowcount
        except sqlite3.Error as error:
            if not isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
                raise
            self.connection.execute("ROLLBACK TO penstock")
            raise self._bad_row(statement, tuples, places, error) from None
        if not each or changed == len(tuples):
            return None
        self.connection.execute("ROLLBACK TO penstock")
        return self._first_idle(statement, tuples)

    def _first_idle(self, statement: str, tuples: Sequence[tuple[Any, ...]]) -> int:
        counts = (self.connection.execute(statement, values).rowcount for values in tuples)
        return next(number for number, changed in enumerate(counts) if not changed)

    def _bad_row(
        self, statement: str, tuples: Sequence[tuple[Any, ...]], places: Ints, error: sqlite3.Error
    ) -> BadRow:
        for place, values in zip(places.tolist(), tuples, strict=True):
            try:
                self.connection.execute(statement, values)
            except (sqlite3.IntegrityError, sqlite3.DataError) as found:
                words = plain_line(str(found))
                return BadRow(f"row {place} {where(self.batch)}: {words}", place)
        return BadRow(f"rows {where(self.batch)}: {plain_line(str(error))}")


def _has_null(rows: pa.RecordBatch, names: Sequence[str]) -> np.ndarray:
    nulls = np.zeros(rows.num_rows, bool)
    for name in names:
        column = rows.column(name)
        if column.null_count:
            nulls |= np.asarray(column.is_null())
    return nulls


def sqlite_values(column: pa.Array) -> list[Any]:
    """The values as SQLite keeps them: numbers, text that sorts, bytes."""
    kind = column.type
    if pt.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pt.is_floating(kind):
        # SQLite has no NaN, and would keep null instead. As text it sorts above all numbers.
        if pc.any(pc.is_nan(column)).as_py():
            return ["NaN" if value != value else value for value in column.to_pylist()]
    elif pt.is_decimal(kind):
        return _decimal_texts(column)
    elif pt.is_timestamp(kind):
        column = pc.replace_substring(column.cast(pa.string()), " ", "T")
    elif pt.is_date(kind):
        column = column.cast(pa.string())
    elif pt.is_time(kind):
        column = column.cast(pa.time64("us")).cast(pa.string())
    elif pt.is_duration(kind):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _decimal_texts(column: pa.Array) -> list[str | None]:
    texts: list[str | None] = column.cast(pa.string()).to_pylist()
    # Arrow writes very small numbers as 1E-38.
    short = pc.match_substring(column.cast(pa.string()), "E")
    for place in np.flatnonzero(np.asarray(short.fill_null(False))):
        texts[place] = format(column[place].as_py(), "f")
    return texts
