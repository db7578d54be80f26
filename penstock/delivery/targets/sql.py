"""SQL that all databases understand: names in quotes, and the table of positions. Pure.

Law: a name is data. Whatever it holds, it stands between quotes and ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.delivery.targets.columns import POSITIONS, Database, TableShape

#: The columns of the table of positions: one row for each delivery and shard.
POSITION_COLUMNS: Final = (
    "(delivery text NOT NULL, shard integer NOT NULL, id text NOT NULL, "
    "position bigint NOT NULL, term bigint NOT NULL, PRIMARY KEY (delivery, shard))"
)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def qualified(schema: str, table: str) -> str:
    return f"{quoted(schema)}.{quoted(table)}"


def split_table(table: str) -> tuple[str, str]:
    """Schema and name of `schema.table`; the schema may be missing."""
    schema, _, name = table.rpartition(".")
    return schema, name


def create_positions(place: str = quoted(POSITIONS)) -> str:
    return f"CREATE TABLE IF NOT EXISTS {place} {POSITION_COLUMNS}"


def has_foreign_rows(positions: str, table: str, marks: tuple[str, str, str, str]) -> str:
    """Whether there are rows, the shard was applied none, and no other of the delivery is here; of
    name, id, start, number. (Another that is here was let in, and may stand where this begins.)"""
    delivery, id, start, shard = marks
    return (
        f"SELECT EXISTS (SELECT 1 FROM {table}) AND NOT EXISTS (SELECT 1 FROM {positions} "
        f"WHERE delivery = {delivery} AND id = {id} AND (position <> {start} OR shard <> {shard}))"
    )


def column_definitions(shape: TableShape, database: Database) -> list[str]:
    """Names, types and NOT NULL, for CREATE TABLE."""
    return [
        f"{quoted(column.name)} {column.sql_type(database)}{'' if column.nullable else ' NOT NULL'}"
        for column in shape.columns
    ]
