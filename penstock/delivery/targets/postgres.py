"""PostgreSQL as a target: rows and position in one transaction of the server.

Owns one connection, the tables, and the position; rows are written by postgres_rows.py.

Law (I14): rows change only with the position, by a compare-and-set that takes the lock of its row
(postgres_sql.py). Whatever the connection does, lost in COMMIT included, `open` tells what counts.
"""

from __future__ import annotations

from typing import Final

from psycopg.types.numeric import Int4, Int8

from penstock.config import masked_uri
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
from penstock.delivery.targets.postgres_connection import (
    ANSWER_SECONDS,
    Connection,
    connect,
    told,
)
from penstock.delivery.targets.postgres_rows import RowWriter, own_parameters
from penstock.delivery.targets.postgres_sql import Statements
from penstock.delivery.targets.sql import (
    create_positions,
    has_foreign_rows,
    listed,
    qualified,
    split_table,
)
from penstock.errors import BadRequest, Refused, SchemaMismatch
from penstock.ids import Lsn
from penstock.plain_text import plain

#: The server cuts longer names, without an error.
_NAME_BYTES_MAX: Final = 63
#: Who makes tables for deliveries takes this lock: of two at once, one would fail.
_TABLES_LOCK: Final = int.from_bytes(b"penstock")
#: Names of the columns of an index that tells all texts apart, and whether they are NOT NULL or
#: nulls are equal.
_UNIQUE_INDEXES: Final = """
    SELECT array_agg(attname::text), bool_and(indnullsnotdistinct OR attnotnull)
    FROM pg_index JOIN pg_attribute ON attrelid = indrelid
        AND attnum = ANY ((indkey::int2[])[0 : indnkeyatts - 1])
    WHERE indrelid = to_regclass($1) AND indisunique AND indisvalid AND indimmediate
        AND indpred IS NULL AND indexprs IS NULL AND NOT EXISTS (
            SELECT FROM pg_collation
            WHERE oid = ANY (indcollation) AND NOT collisdeterministic)
    GROUP BY indexrelid"""
_VAGUE_COLUMNS: Final = """
    SELECT attname::text FROM pg_attribute JOIN pg_collation ON pg_collation.oid = attcollation
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
        AND NOT collisdeterministic"""
_COLUMNS: Final = """
    SELECT attname::text, format_type(atttypid, atttypmod),
        attnotnull AND NOT atthasdef AND attidentity = ''
    FROM pg_attribute
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped"""


class PostgresTarget:
    """See penstock/delivery/api.py."""

    def __init__(self, uri: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._uri = uri
        self._answer_seconds = answer_seconds
        self._connection: Connection | None = None
        self._rows: RowWriter | None = None

    def __repr__(self) -> str:
        return f"PostgresTarget({masked_uri(self._uri)!r})"

    def open(self, shard: Shard, term: int) -> Lsn:
        self.close()
        try:
            return self._open(shard, term)
        except BaseException:
            self.close()
            raise

    def _open(self, shard: Shard, term: int) -> Lsn:
        shape = shape_of(shard)
        _check_names(shape)
        connection = self._connection = connect(self._uri, self._answer_seconds)
        with told(self._uri):
            schema, table = split_table(shape.table)
            schema = schema or self._current_schema(connection)
            sql = Statements(shape, qualified(schema, table), qualified(schema, POSITIONS))
            with connection.transaction():
                connection.run("SELECT pg_advisory_xact_lock($1)", Int8(_TABLES_LOCK))
                if not _exists(connection, sql.positions):
                    connection.run(create_positions(sql.positions))
                position = _claim(connection, sql, shard, term)
                if not _exists(connection, sql.table):
                    check_is_new(shape, position, shard.start)
                    connection.run(sql.create_table())
                else:
                    _fit_table(connection, sql, shard)
        self._rows = RowWriter(connection, sql, shard)
        return position

    def apply(self, batch: Batch) -> Lsn:
        assert self._rows is not None, "a target is opened before batches come"
        rows = self._rows
        with told(self._uri):
            return apply_once(
                batch,
                rows.shard,
                lambda: rows.apply(batch, table_changes(batch, rows.shard, rows.shape)),
                lambda: _stored(rows),
            )

    def close(self) -> None:
        connection, self._connection, self._rows = self._connection, None, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # whatever it says, it is of no use any more
                pass

    def _current_schema(self, connection: Connection) -> str:
        ((schema,),) = connection.ask("SELECT current_schema()")
        if schema is None:
            raise Refused(
                f"{masked_uri(self._uri)}: the search path names no schema that is there; "
                "give the table as schema.table"
            )
        return str(schema)


def _check_names(shape: TableShape) -> None:
    for name in (*split_table(shape.table), *shape.names):
        if len(name.encode()) > _NAME_BYTES_MAX:
            raise BadRequest(
                f"{plain(name)}: names have at most {_NAME_BYTES_MAX} bytes in PostgreSQL"
            )


def _exists(connection: Connection, name: str) -> bool:
    return connection.ask("SELECT to_regclass($1) IS NOT NULL", name) == [(True,)]


def _fit_table(connection: Connection, sql: Statements, shard: Shard) -> None:
    name, shape = sql.table, sql.shape
    kinds = "SELECT relkind::text FROM pg_class WHERE oid = to_regclass($1)"
    if connection.ask(kinds, name) not in ([("r",)], [("p",)]):
        raise SchemaMismatch(f"{plain(shape.table)} is no table: deliver to another one")
    found = [Found(*column) for column in connection.ask(_COLUMNS, name)]
    missing = missing_columns(shape, found, "postgresql")
    vague = {column for (column,) in connection.ask(_VAGUE_COLUMNS, name)}
    if vague & set(shape.key):
        raise SchemaMismatch(
            f"table {plain(shape.table)} has a collation that takes different texts for equal, in "
            f"{plain(', '.join(sorted(vague & set(shape.key))))} of the key: ALTER TABLE {name} "
            'ALTER COLUMN … TYPE text COLLATE "C"'
        )
    unique = connection.ask(_UNIQUE_INDEXES, name)
    check_key_is_unique(
        shape,
        [frozenset(names) for names, nulls_are_told in unique if nulls_are_told],
        f"ALTER TABLE {name} ADD UNIQUE NULLS NOT DISTINCT ({listed(shape.key)})",
    )
    if shard.changing:
        asked = has_foreign_rows(sql.positions, name, ("$1", "$2", "$3", "$4"))
        values = [shard.delivery, shard.id, Int8(shard.start), Int4(shard.index)]
        ((has_rows,),) = connection.ask(asked, *values)
        check_is_empty(shape, has_rows)
    for column in missing:
        connection.run(sql.add_column(column))


def _claim(connection: Connection, sql: Statements, shard: Shard, term: int) -> Lsn:
    """Make the position if it is missing, keep older players out, and answer the position."""
    own = own_parameters(shard)
    connection.run(sql.insert_position(), *own, Int8(shard.start), Int8(term))
    claimed = connection.ask(sql.set_term(), *own, Int8(term))
    if not claimed:
        stored = connection.ask(sql.read_position(), *own)
        raise fenced(shard, stored[0][1], term) if stored else anothers(shard)
    return Lsn(claimed[0][0])


def _stored(rows: RowWriter) -> tuple[int, int] | None:
    found = rows.connection.ask(rows.sql.read_position(), *own_parameters(rows.shard))
    return (found[0][0], found[0][1]) if found else None
