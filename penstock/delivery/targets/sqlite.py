"""SQLite as a target: rows and position in one transaction of one file.

    BEGIN IMMEDIATE     from here on nobody else writes: a position that was read cannot change
    position == after?  otherwise nothing, and the position is the answer
    rows                sqlite_rows.py
    COMMIT              with WAL and synchronous=FULL: durable when it returns

Owns the connection, the tables and the position.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.delivery.api import Batch, Shard
from penstock.delivery.targets.changes import table_changes
from penstock.delivery.targets.columns import POSITIONS, TableShape, shape_of
from penstock.delivery.targets.existing import (
    Found,
    check_is_empty,
    check_is_new,
    check_key_is_unique,
    missing_columns,
)
from penstock.delivery.targets.positions import anothers, apply_once, fenced
from penstock.delivery.targets.sql import (
    column_definitions,
    create_positions,
    has_foreign_rows,
    listed,
    quoted,
)
from penstock.delivery.targets.sqlite_rows import change_rows
from penstock.errors import BadRow, PenstockError, Refused, SchemaMismatch, Unavailable
from penstock.ids import Lsn
from penstock.plain_text import plain, plain_line

#: How long another process may hold the file.
BUSY_SECONDS: Final = 10.0
_OWN: Final = "delivery = ? AND shard = ? AND id = ?"
#: Of the last byte of SQLite's codes: what rows are to blame for, the table, or the file.
_ERRORS: Final[dict[int, type[PenstockError]]] = {
    sqlite3.SQLITE_CONSTRAINT: BadRow,
    sqlite3.SQLITE_TOOBIG: BadRow,
    sqlite3.SQLITE_MISMATCH: BadRow,
    sqlite3.SQLITE_ERROR: SchemaMismatch,
    sqlite3.SQLITE_AUTH: Refused,
    sqlite3.SQLITE_CORRUPT: Refused,
    sqlite3.SQLITE_NOTADB: Refused,
    sqlite3.SQLITE_PERM: Refused,
}


class SqliteTarget:
    """See penstock/delivery/api.py."""

    def __init__(self, path: str, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self._path = path
        self._busy_seconds = busy_seconds
        self._connection: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"SqliteTarget({self._path!r})"

    def open(self, shard: Shard, term: int) -> Lsn:
        self.close()
        try:
            return self._open(shard, term)
        except BaseException:
            self.close()
            raise

    def _open(self, shard: Shard, term: int) -> Lsn:
        self._shard, self._shape = shard, shape_of(shard)
        folder = os.path.dirname(self._path)
        if folder and not os.path.isdir(folder):
            raise Refused(f"sqlite {plain(self._path)}: there is no directory {plain(folder)}")
        with self._told():
            connection = self._connection = sqlite3.connect(
                self._path, timeout=self._busy_seconds, isolation_level=None
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                self._run(create_positions())
                position = self._claim(term)
                if not self._table_type():
                    check_is_new(self._shape, position, shard.start)
                    self._run(_create_table(self._shape))
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

    def _attempt(self, batch: Batch) -> bool:
        changes = table_changes(batch, self._shard, self._shape)
        own = self._own
        with self._transaction() as connection:
            moved = connection.execute(
                f"UPDATE {POSITIONS} SET position = ?, term = ? "
                f"WHERE {_OWN} AND position = ? AND term <= ?",
                (batch.upto, batch.term, *own, batch.after, batch.term),
            ).rowcount
            if moved:
                change_rows(connection, self._shape, batch, changes, strict=self._shard.strict)
        return bool(moved)

    # -- tables and positions

    def _table_type(self) -> str:
        """`table`, `view`, or nothing."""
        found = self._run(
            "SELECT type FROM sqlite_master WHERE lower(name) = lower(?) "
            "AND type IN ('table', 'view')",
            (self._shape.table,),
        ).fetchone()
        return found[0] if found else ""

    def _fit_table(self) -> None:
        shape = self._shape
        if self._table_type() != "table":
            raise SchemaMismatch(f"{plain(shape.table)} is no table: deliver to another one")
        columns = self._run(
            'SELECT name, type, "notnull" AND dflt_value IS NULL FROM pragma_table_info(?)',
            (shape.table,),
        )
        found = [Found(name, _affinity(kind), bool(needed)) for name, kind, needed in columns]
        missing = missing_columns(shape, found, "sqlite")
        check_key_is_unique(
            shape,
            self._unique_columns(),
            f"CREATE UNIQUE INDEX … ON {quoted(shape.table)} ({listed(shape.key)})",
        )
        if self._shard.changing:
            asked = has_foreign_rows(POSITIONS, quoted(shape.table), ("?", "?", "?", "?"))
            shard = self._shard
            values = (shard.delivery, shard.id, shard.start, shard.index)
            check_is_empty(shape, bool(self._run(asked, values).fetchone()[0]))
        for column in missing:
            kind = column.sql_type("sqlite")
            self._run(f"ALTER TABLE {quoted(shape.table)} ADD COLUMN {quoted(column.name)} {kind}")

    def _unique_columns(self) -> list[frozenset[str]]:
        """Of each unique index that tells all texts apart, and the number of the row."""
        own = {name.lower(): name for name in self._shape.names}
        table = (self._shape.table,)
        unique = []
        indexes = self._run(
            'SELECT name, origin FROM pragma_index_list(?) WHERE "unique" AND NOT partial', table
        ).fetchall()
        if all(origin != "pk" for _, origin in indexes):
            # A primary key that is the number of the row has no index.
            primary = self._run("SELECT name FROM pragma_table_info(?) WHERE pk > 0", table)
            unique.append(frozenset(own.get(name.lower(), name) for (name,) in primary))
        for index, _ in indexes:
            columns = self._run(
                "SELECT name, upper(coll) FROM pragma_index_xinfo(?) WHERE key", (index,)
            ).fetchall()
            if all(collation == "BINARY" for _, collation in columns):
                # The name of an expression is null.
                names = (name or "" for name, _ in columns)
                unique.append(frozenset(own.get(name.lower(), name) for name in names))
        return unique

    @property
    def _own(self) -> tuple[str, int, str]:
        return (self._shard.delivery, self._shard.index, self._shard.id)

    def _claim(self, term: int) -> Lsn:
        shard = self._shard
        own = self._own
        self._run(
            f"INSERT INTO {POSITIONS} (delivery, shard, id, position, term) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (*own, shard.start, term),
        )
        stored = self._stored()
        if stored is None:
            raise anothers(shard)
        if stored[1] > term:
            raise fenced(shard, stored[1], term)
        self._run(f"UPDATE {POSITIONS} SET term = ? WHERE {_OWN}", (term, *own))
        return Lsn(stored[0])

    def _stored(self) -> tuple[int, int] | None:
        own = self._own
        found: tuple[int, int] | None = self._run(
            f"SELECT position, term FROM {POSITIONS} WHERE {_OWN}", own
        ).fetchone()
        return found

    # -- the connection

    def _run(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        assert self._connection is not None
        return self._connection.execute(statement, values)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        assert self._connection is not None
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            kind = Unavailable if code is None else _ERRORS.get(code & 0xFF, Unavailable)
            raise kind(f"sqlite {plain(self._path)}: {plain_line(str(error))}") from None


def _create_table(shape: TableShape) -> str:
    parts = column_definitions(shape, "sqlite")
    if shape.key:
        nullable = any(column.nullable for column in shape.key_columns)
        parts.append(f"{'UNIQUE' if nullable else 'PRIMARY KEY'} ({listed(shape.key)})")
    return f"CREATE TABLE {quoted(shape.table)} ({', '.join(parts)})"


def _affinity(declared: str) -> str:
    """The kind that SQLite makes of a declared type (its manual: "Determination Of Affinity")."""
    name = declared.upper()
    if "INT" in name or name in ("BOOLEAN", "BOOL"):
        return "INTEGER"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in name or not name:
        return "BLOB"
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "NUMERIC"
