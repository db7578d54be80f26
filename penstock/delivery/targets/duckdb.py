"""DuckDB as a target: rows and position in one transaction of one file.

DuckDB reads Arrow batches as tables, so every change is one command over columns. A row is replaced
by deleting and inserting it, without an index: with one, or with UPDATE, a batch of 1,000 rows into
a million took 20 to 40 times as long (DuckDB 2.0). Keys are compared by IS NOT DISTINCT FROM.

Law (I14): two transactions that change one position conflict, and the later one fails (Unavailable)
with all its rows. Another process cannot open the file meanwhile.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.delivery.api import Batch, Shard
from penstock.delivery.targets.changes import TableChanges, table_changes, where
from penstock.delivery.targets.columns import COUNT, POSITIONS, ROW, described, shape_of
from penstock.delivery.targets.existing import Found, check_is_empty, check_is_new, missing_columns
from penstock.delivery.targets.positions import anothers, apply_once, fenced
from penstock.delivery.targets.sql import (
    column_definitions,
    create_positions,
    has_foreign_rows,
    listed,
    qualified,
    quoted,
    split_table,
)
from penstock.delivery.targets.strictness import meets_another, not_as_it_was, taken_too_often
from penstock.errors import BadRow, PenstockError, Refused, SchemaMismatch, Unavailable
from penstock.ids import Lsn
from penstock.plain_text import plain, plain_line

_OWN: Final = "delivery = ? AND shard = ? AND id = ?"
#: What rows are to blame for.
_BAD_ROW: Final = (
    duckdb.ConstraintException,
    duckdb.ConversionException,
    duckdb.InvalidInputException,
    duckdb.OutOfRangeException,
)
_BAD_TABLE: Final = (duckdb.BinderException, duckdb.CatalogException)
_REFUSED: Final = (duckdb.PermissionException, duckdb.NotSupportedError)


class DuckdbTarget:
    """See penstock/delivery/api.py."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: duckdb.DuckDBPyConnection | None = None

    def __repr__(self) -> str:
        return f"DuckdbTarget({self._path!r})"

    def open(self, shard: Shard, term: int) -> Lsn:
        self.close()
        try:
            return self._open(shard, term)
        except BaseException:
            self.close()
            raise

    def _open(self, shard: Shard, term: int) -> Lsn:
        shape = self._shape = shape_of(shard)
        self._shard = shard
        folder = os.path.dirname(self._path)
        if folder and not os.path.isdir(folder):
            raise Refused(f"duckdb {plain(self._path)}: there is no directory {plain(folder)}")
        with self._told():
            self._connection = duckdb.connect(self._path)
            schema, table = split_table(shape.table)
            self._schema, self._name = schema or "main", table
            self._table = qualified(self._schema, table)
            self._positions = qualified(self._schema, POSITIONS)
            with self._transaction():
                self._run(create_positions(self._positions))
                position = self._claim(term)
                if not self._table_type():
                    check_is_new(shape, position, shard.start)
                    definitions = ", ".join(column_definitions(shape, "duckdb"))
                    self._run(f"CREATE TABLE {self._table} ({definitions})")
                else:
                    self._fit_table()
        return position

    def apply(self, batch: Batch) -> Lsn:
        assert self._connection is not None, "a target is opened before batches come"
        with self._told():
            return apply_once(batch, self._shard, lambda: self._attempt(batch), self._stored)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # whatever it says, it is of no use any more
                pass

    # -- tables and positions

    def _table_type(self) -> str:
        found = self._run(
            "SELECT table_type FROM information_schema.tables WHERE table_catalog = "
            "current_database() AND lower(table_schema) = lower(?) AND lower(table_name) = "
            "lower(?)",
            [self._schema, self._name],
        )
        return str(found[0][0]) if found else ""

    def _fit_table(self) -> None:
        if self._table_type() != "BASE TABLE":
            raise SchemaMismatch(f"{plain(self._shape.table)} is no table: deliver to another one")
        columns = self._run(
            "SELECT column_name, data_type, NOT is_nullable AND column_default IS NULL "
            "FROM duckdb_columns() WHERE database_name = current_database() "
            "AND lower(schema_name) = lower(?) AND lower(table_name) = lower(?)",
            [self._schema, self._name],
        )
        found = [Found(*column) for column in columns]
        if self._shard.changing:
            asked = has_foreign_rows(self._positions, self._table, ("?", "?", "?", "?"))
            shard = self._shard
            ((has_rows,),) = self._run(asked, [shard.delivery, shard.id, shard.start, shard.index])
            check_is_empty(self._shape, has_rows)
        for column in missing_columns(self._shape, found, "duckdb"):
            kind = column.sql_type("duckdb")
            self._run(f"ALTER TABLE {self._table} ADD COLUMN {quoted(column.name)} {kind}")

    @property
    def _own(self) -> list[object]:
        return [self._shard.delivery, self._shard.index, self._shard.id]

    def _claim(self, term: int) -> Lsn:
        shard = self._shard
        own = self._own
        self._run(
            f"INSERT INTO {self._positions} (delivery, shard, id, position, term) "
            "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [*own, shard.start, term],
        )
        stored = self._stored()
        if stored is None:
            raise anothers(shard)
        if stored[1] > term:
            raise fenced(shard, stored[1], term)
        self._run(f"UPDATE {self._positions} SET term = ? WHERE {_OWN}", [term, *own])
        return Lsn(stored[0])

    def _stored(self) -> tuple[int, int] | None:
        own = self._own
        found = self._run(f"SELECT position, term FROM {self._positions} WHERE {_OWN}", own)
        return (found[0][0], found[0][1]) if found else None

    # -- rows

    def _attempt(self, batch: Batch) -> bool:
        changes = table_changes(batch, self._shard, self._shape)
        own = self._own
        try:
            with self._transaction():
                moved = self._run(
                    f"UPDATE {self._positions} SET position = ?, term = ? "
                    f"WHERE {_OWN} AND position = ? AND term <= ?",
                    [batch.upto, batch.term, *own, batch.after, batch.term],
                )
                if moved != [(1,)]:
                    return False
                self._change(batch, changes)
                return True
        except _BAD_ROW as error:
            raise self._bad_row(batch, changes, error) from None

    def _change(self, batch: Batch, changes: TableChanges) -> None:
        if self._shape.is_counted:
            changes = self._counted(batch, changes)
        elif self._shard.strict and self._shape.key:
            self._check_taken(batch, changes)
        self._delete(changes.deletes)
        if self._shape.key and not self._shape.is_counted:
            if self._shard.strict:
                self._check_new(batch, changes)
            else:
                self._delete(changes.upserts)
        self._insert(changes.upserts)

    def _counted(self, batch: Batch, changes: TableChanges) -> TableChanges:
        """All rows go, and come back with the counts that they have now, if any."""
        rows = changes.upserts
        keys = rows.select([ROW])
        counts = np.asarray(rows.column(COUNT)).copy()
        with self._given(keys) as connection:
            found = connection.execute(
                f"SELECT given.place, stored.{COUNT} FROM penstock_given AS given "
                f"JOIN {self._table} AS stored ON {self._matches(keys.schema.names)}"
            ).fetchnumpy()
        counts[np.asarray(found["place"])] += np.asarray(found[COUNT])
        if self._shard.strict and (counts < 0).any():
            raise taken_too_often(batch, rows, int(np.flatnonzero(counts < 0)[0]))
        kept = counts != 0
        rows = rows.set_column(rows.schema.names.index(COUNT), COUNT, pa.array(counts))
        places = changes.upsert_places
        return TableChanges(rows.filter(pa.array(kept)), keys, places[kept], places)

    def _check_taken(self, batch: Batch, changes: TableChanges) -> None:
        """Strict: rows that go are there as they are given."""
        missing = self._first_place(changes.deletes, "NOT EXISTS")
        if missing is not None:
            raise not_as_it_was(batch, changes.deletes.select(list(self._shape.key)), missing)

    def _check_new(self, batch: Batch, changes: TableChanges) -> None:
        """Strict: no row of these keys is there."""
        keys = changes.upserts.select(list(self._shape.key))
        there = self._first_place(keys, "EXISTS")
        if there is not None:
            raise meets_another(batch, described(keys, there))

    def _first_place(self, rows: pa.RecordBatch, test: str) -> int | None:
        if not rows.num_rows:
            return None
        with self._given(rows):
            found = self._run(
                f"SELECT min(given.place) FROM penstock_given AS given WHERE {test} "
                f"(SELECT 1 FROM {self._table} AS stored WHERE {self._matches(rows.schema.names)})"
            )
        place: int | None = found[0][0]
        return place

    def _matches(self, keys: Sequence[str]) -> str:
        """By bytes: of a user's table that takes texts for equal which differ, too."""
        texts = {one.name for one in self._shape.columns if one.sql_type("duckdb") == "VARCHAR"}
        return " AND ".join(
            f"stored.{quoted(name)}{' COLLATE C' if name in texts else ''} "
            f"IS NOT DISTINCT FROM given.c{place}"
            for place, name in enumerate(keys)
        )

    def _delete(self, rows: pa.RecordBatch) -> None:
        """The rows with these keys."""
        if rows.num_rows:
            keys = rows.select(list(self._shape.key))
            with self._given(keys):
                self._run(
                    f"DELETE FROM {self._table} AS stored USING penstock_given AS given "
                    f"WHERE {self._matches(keys.schema.names)}"
                )

    def _insert(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            names = self._shape.names
            given = ", ".join(f"c{rows.schema.names.index(name)}" for name in names)
            with self._given(rows):
                self._run(
                    f"INSERT INTO {self._table} ({listed(names)}) SELECT {given} "
                    "FROM penstock_given ORDER BY place"
                )

    def _bad_row(self, batch: Batch, changes: TableChanges, error: duckdb.Error) -> BadRow:
        words = plain_line(str(error))
        number = self._first_bad(batch, changes)
        if number is None:
            return BadRow(f"rows {where(batch)}: {words}")
        row = int(changes.upsert_places[number])
        return BadRow(f"row {row} {where(batch)}: {words}", row)

    def _first_bad(self, batch: Batch, changes: TableChanges) -> int | None:
        """The first upsert that fails after all before it; tried out, and rolled back."""

        def fails(count: int) -> bool:
            part = replace(
                changes,
                upserts=changes.upserts.slice(0, count),
                upsert_places=changes.upsert_places[:count],
            )
            try:
                with self._transaction(rolls_back=True):
                    self._change(batch, part)
            except _BAD_ROW:
                return True
            return False

        count = changes.upserts.num_rows
        if fails(0) or not fails(count):
            return None
        return bisect.bisect_left(range(1, count), True, key=fails)

    # -- the connection

    def _run(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _given(self, rows: pa.RecordBatch) -> Iterator[duckdb.DuckDBPyConnection]:
        """Rows as a table `penstock_given`, whose columns are c0, c1, …, and place from 0."""
        assert self._connection is not None
        arrays = [*map(_as_duckdb_has_it, rows.columns), pa.array(np.arange(rows.num_rows))]
        names = [*(f"c{place}" for place in range(rows.num_columns)), "place"]
        self._connection.register("penstock_given", pa.Table.from_arrays(arrays, names))
        yield self._connection
        # Not after an error: then DuckDB takes nothing but ROLLBACK. The next rows replace these.
        self._connection.unregister("penstock_given")

    @contextmanager
    def _transaction(self, *, rolls_back: bool = False) -> Iterator[None]:
        assert self._connection is not None
        connection = self._connection
        connection.execute("BEGIN")
        try:
            yield
            connection.execute("ROLLBACK" if rolls_back else "COMMIT")
        except BaseException:
            try:
                connection.execute("ROLLBACK")
            except duckdb.Error:
                pass  # it was rolled back by what went wrong
            raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            kind: type[PenstockError] = Unavailable
            if isinstance(error, _BAD_ROW):
                kind = BadRow
            elif isinstance(error, _BAD_TABLE):
                kind = SchemaMismatch
            elif isinstance(error, _REFUSED):
                kind = Refused
            raise kind(f"duckdb {plain(self._path)}: {plain_line(str(error))}") from None


def _as_duckdb_has_it(column: pa.Array) -> pa.Array:
    if pt.is_time(column.type):
        return column.cast(pa.time64("us"))
    return column.cast(pa.string()) if pt.is_null(column.type) else column
