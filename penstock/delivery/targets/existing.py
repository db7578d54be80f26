"""A table that is there already: does it fit, and what must be added? Pure.

Law: a column is added only if rows without it stay what they are (it is null in them, and no part
of the key). Whatever else differs is refused, with both types, before a row is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.delivery.targets.columns import Column, Database, TableShape
from penstock.errors import Refused, SchemaMismatch
from penstock.ids import Lsn
from penstock.plain_text import plain

#: Types that hold every value of ours as it is; a user may have made the table with them.
_WIDER: Final[dict[Database, dict[str, tuple[str, ...]]]] = {
    "postgresql": {
        "smallint": ("integer", "bigint"),
        "integer": ("bigint",),
        "real": ("double precision",),
        "text": ("character varying",),
    },
    "sqlite": {},
    "duckdb": {
        "TINYINT": ("SMALLINT", "INTEGER", "BIGINT"),
        "SMALLINT": ("INTEGER", "BIGINT"),
        "INTEGER": ("BIGINT",),
        "FLOAT": ("DOUBLE",),
    },
}


@dataclass(frozen=True, slots=True)
class Found:
    """A column as the database has it."""

    name: str
    type: str
    #: Whether a row needs a value for it that nobody but us could give.
    is_required: bool


def missing_columns(shape: TableShape, found: Sequence[Found], database: Database) -> list[Column]:
    """Those to add. Raises SchemaMismatch with everything that is in the way."""
    ours = {_name(column.name, database): column for column in shape.columns}
    theirs = {_name(column.name, database): column for column in found}
    problems = []
    missing = []
    for name, column in ours.items():
        wanted = column.sql_type(database)
        if name not in theirs:
            missing.append(column)
            if column.name in shape.key:
                problems.append(f"column {plain(name)} of the key ({wanted}) is missing")
        elif theirs[name].type not in (wanted, *_WIDER[database].get(wanted, ())):
            problems.append(
                f"column {plain(name)} is {plain(theirs[name].type)}, expected {wanted}"
            )
    for name, other in theirs.items():
        if name not in ours and other.is_required:
            problems.append(
                f"column {plain(name)} is not in the stream, NOT NULL and without a default"
            )
    if problems:
        raise SchemaMismatch(
            f"table {plain(shape.table)} does not fit the stream: {'; '.join(problems)}; change "
            "it, or deliver to another table"
        )
    return missing


def check_key_is_unique(shape: TableShape, unique: Sequence[frozenset[str]], remedy: str) -> None:
    """Among the sets of columns that are unique, nulls alike, must be the key."""
    if shape.key and frozenset(shape.key) not in unique:
        raise SchemaMismatch(
            f"table {plain(shape.table)} has no unique index of its key "
            f"({plain(', '.join(shape.key))}): {plain(remedy)}"
        )


def check_is_new(shape: TableShape, position: Lsn, start: Lsn) -> None:
    """A table that is about to be made, although rows were delivered to it."""
    if position > start:
        raise Refused(
            f"table {plain(shape.table)} is gone, but rows were delivered to it up to LSN "
            f"{position}: restore it, or delete its row in penstock_positions to begin anew"
        )


def check_is_empty(shape: TableShape, has_rows: bool) -> None:
    """A table to which nothing of a stream that takes rows back was delivered yet."""
    if has_rows:
        raise Refused(
            f"table {plain(shape.table)} has rows that are none of this delivery's, which takes "
            "rows back and would never take those: empty it, or deliver to another table"
        )


def _name(name: str, database: Database) -> str:
    return name if database == "postgresql" else name.lower()
