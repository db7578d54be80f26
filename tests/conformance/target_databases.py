"""Every database that must behave alike as a target, and its tables as a test reads them.

Law: a table is read without the code that wrote it, back to the values of the stream.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.types as pt
from harness.postgres import PostgresServer

from penstock.delivery.api import Shard, Target
from penstock.delivery.targets.columns import Column, is_window, shape_of
from penstock.delivery.targets.duckdb import DuckdbTarget
from penstock.delivery.targets.memory import MemoryDatabase, MemoryTarget
from penstock.delivery.targets.postgres import PostgresTarget
from penstock.delivery.targets.sqlite import SqliteTarget
from penstock.stream.json_lines import row_from_json

Row = dict[str, Any]


class Database(Protocol):
    """One fresh database of one kind."""

    #: Whether it tells -0.0 from 0.0, also in JSON; and whether maps keep the order of entries.
    keeps_zero_signs: bool
    is_exact_in_json: bool
    #: For another process; empty if it can have none.
    uri: str

    def target(self) -> Target:
        """Another one, with a connection of its own."""

    def rows(self, shard: Shard) -> list[Row]:
        """The table: values as the stream has them, but windows as two columns."""

    def stored(self, shard: Shard) -> tuple[int, int] | None:
        """Position and term."""

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """As a user would, beside us."""


class Memory:
    keeps_zero_signs = True
    is_exact_in_json = True

    uri = ""

    def __init__(self) -> None:
        self._database = MemoryDatabase()

    def target(self) -> Target:
        return MemoryTarget(self._database)

    def rows(self, shard: Shard) -> list[Row]:
        table = self._database.tables[shard.table]
        shown = []
        for counts in table.counts.values():
            for row, count in counts.items():
                values = flat(table.rows.get(row, {}), shard)
                if shape_of(shard).is_counted:
                    shown.append(values | {"_count": count})
                elif count > 0:
                    shown += [values] * count
        return shown

    def stored(self, shard: Shard) -> tuple[int, int] | None:
        return self._database.positions.get((shard.delivery, shard.index))

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError(statement)


class Sqlite:
    keeps_zero_signs = False
    is_exact_in_json = True

    def __init__(self, place: Path) -> None:
        self.path = str(place / "target.db")
        self.uri = f"sqlite:///{self.path}"

    def target(self) -> Target:
        return SqliteTarget(self.path)

    def rows(self, shard: Shard) -> list[Row]:
        columns = own_columns(shard)
        names = ", ".join(f"{quoted(column.name)}" for column in columns)
        return [
            {
                column.name: _from_sqlite(value, column, shard)
                for column, value in zip(columns, row, strict=True)
            }
            for row in self.run(f"SELECT {names} FROM {quoted(shard.table)}")
        ]

    def stored(self, shard: Shard) -> tuple[int, int] | None:
        return stored_in(self, "penstock_positions", shard)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()


class Postgres:
    keeps_zero_signs = True
    is_exact_in_json = False

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self.server, self.schema = server, schema
        self.uri = server.uri(schema)
        server.run(f"CREATE SCHEMA {schema}")

    def target(self) -> Target:
        return PostgresTarget(self.uri)

    def rows(self, shard: Shard) -> list[Row]:
        columns = own_columns(shard)
        names = ", ".join(_postgres_expression(column) for column in columns)
        return [
            {
                column.name: _from_postgres(value, column, shard)
                for column, value in zip(columns, row, strict=True)
            }
            for row in self.run(f"SELECT {names} FROM {quoted(shard.table)}")
        ]

    def stored(self, shard: Shard) -> tuple[int, int] | None:
        return stored_in(self, "penstock_positions", shard)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute("SET timezone = 'UTC'")
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


class Duckdb:
    keeps_zero_signs = True
    is_exact_in_json = True

    def __init__(self, place: Path) -> None:
        self.path = str(place / "target.duckdb")
        self.uri = f"duckdb:///{self.path}"

    def target(self) -> Target:
        return DuckdbTarget(self.path)

    def rows(self, shard: Shard) -> list[Row]:
        columns = own_columns(shard)
        names = ", ".join(_duckdb_expression(column) for column in columns)
        return [
            {
                column.name: _from_duckdb(value, column, shard)
                for column, value in zip(columns, row, strict=True)
            }
            for row in self.run(f"SELECT {names} FROM {quoted(shard.table)}")
        ]

    def stored(self, shard: Shard) -> tuple[int, int] | None:
        return stored_in(self, "penstock_positions", shard)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(self.path) as connection:
            return connection.execute(statement).fetchall()


def stored_in(database: Database, table: str, shard: Shard) -> tuple[int, int] | None:
    delivery = shard.delivery.replace("'", "''")
    rows = database.run(
        f"SELECT position, term FROM {table} "
        f"WHERE delivery = '{delivery}' AND shard = {shard.index}"
    )
    return (rows[0][0], rows[0][1]) if rows else None


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def own_columns(shard: Shard) -> list[Column]:
    return [column for column in shape_of(shard).columns if column.name != "_row"]


def flat(row: Row, shard: Shard) -> Row:
    """A row of the stream as the table has it."""
    shown: Row = {}
    for field in shard.schema:
        value = row.get(field.name)
        if is_window(field.type):
            ends = value or {"start": None, "end": None}
            shown |= {f"{field.name}_{end}": ends[end] for end in ("start", "end")}
        else:
            shown[field.name] = value
    return shown


def _read_json(text: str, kind: pa.DataType) -> Any:
    return row_from_json(f'{{"x":{text}}}', pa.schema([("x", kind)]))["x"]


def _with_floats(value: Any, kind: pa.DataType) -> Any:
    """JSON that went through jsonb, where 1e16 became 10000000000000000, and 0.0 has no sign."""
    if pt.is_floating(kind) and isinstance(value, int | float):
        return float(value)
    if pt.is_list(kind) and isinstance(value, list):
        return [_with_floats(item, kind.value_type) for item in value]
    if pt.is_struct(kind) and isinstance(value, dict):
        return {field.name: _with_floats(value[field.name], field.type) for field in kind}
    if pt.is_map(kind) and isinstance(value, list):
        types = (kind.key_type, kind.item_type)
        return [list(map(_with_floats, pair, types)) for pair in value]
    if pt.is_map(kind) and isinstance(value, dict):
        return {name: _with_floats(item, kind.item_type) for name, item in value.items()}
    return value


def _nested_type(column: Column, shard: Shard) -> pa.DataType:
    return shard.schema.field(column.name).type


def _from_sqlite(value: Any, column: Column, shard: Shard) -> Any:
    if value is None:
        return None
    if column.is_json:
        return _read_json(value, _nested_type(column, shard))
    if pt.is_boolean(column.type):
        return {0: False, 1: True}[value]
    if pt.is_duration(column.type):
        return timedelta(microseconds=value)
    if pt.is_decimal(column.type) or pt.is_temporal(column.type):
        return _read_json(f'"{value}"', column.type)
    return float(value) if pt.is_floating(column.type) else value


def _postgres_expression(column: Column) -> str:
    name = quoted(column.name)
    if column.is_json:
        return f"{name}::text"
    if pt.is_duration(column.type):
        return f"(extract(epoch FROM {name}) * 1000000)::bigint"
    return f"{name}::double precision" if pt.is_floating(column.type) else name


def _from_postgres(value: Any, column: Column, shard: Shard) -> Any:
    if value is None:
        return None
    if column.is_json:
        kind = _nested_type(column, shard)
        return _read_json(json.dumps(_with_floats(json.loads(value), kind)), kind)
    return timedelta(microseconds=value) if pt.is_duration(column.type) else value


def _duckdb_expression(column: Column) -> str:
    name = quoted(column.name)
    if pt.is_timestamp(column.type) or pt.is_duration(column.type):
        return f"epoch_us({name})"
    return f"{name}::DOUBLE" if pt.is_floating(column.type) else name


def _from_duckdb(value: Any, column: Column, shard: Shard) -> Any:
    if value is None:
        return None
    if column.is_json:
        return _read_json(value, _nested_type(column, shard))
    if pt.is_duration(column.type):
        return timedelta(microseconds=value)
    if pt.is_timestamp(column.type):
        zone = UTC if column.type.tz else None
        return datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=value)
    return value
