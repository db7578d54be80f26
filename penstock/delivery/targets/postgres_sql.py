"""What is said to PostgreSQL: all of a batch in one statement. Pure.

    WITH moved AS (UPDATE positions … WHERE position = after AND term <= own RETURNING 1),
         gone  AS (DELETE … FROM unnest(…) WHERE EXISTS (SELECT FROM moved) …),
         put   AS (INSERT … FROM unnest(…) WHERE EXISTS (SELECT FROM moved) ON CONFLICT …)
    SELECT count(*) FROM moved

The parts of such a statement see one snapshot and run in no defined order, but for one thing: who
asks for the rows of another part waits for it. The UPDATE waits for a rival that holds the row, and
then looks again. So rows change only if the position was moved, by this very statement.

Columns that are given are called c0, c1, …: no name of the user's can be among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.delivery.targets.columns import COUNT, Column, TableShape
from penstock.delivery.targets.postgres_format import transport_type
from penstock.delivery.targets.sql import column_definitions, listed, quoted

#: Of a statement that moves a position: delivery, shard, id, after, upto, term.
POSITION_PARAMETERS: Final = 6
_OWN: Final = "delivery = $1 AND shard = $2 AND id = $3"
#: Columns of the key that are null in a row that goes: an index finds no row by `= NULL`.
Nulls = tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Statements:
    """For one table, with names that are quoted and complete."""

    shape: TableShape
    table: str
    positions: str

    # -- tables

    def create_table(self) -> str:
        parts = column_definitions(self.shape, "postgresql")
        if self.shape.key:
            # Keys are null in results of Spark; null equals null, as it does where rows are
            # grouped.
            nullable = any(column.nullable for column in self.shape.key_columns)
            kind = "UNIQUE NULLS NOT DISTINCT" if nullable else "PRIMARY KEY"
            parts.append(f"{kind} ({listed(self.shape.key)})")
        return f"CREATE TABLE {self.table} ({', '.join(parts)})"

    def add_column(self, column: Column) -> str:
        kind = column.sql_type("postgresql")
        return f"ALTER TABLE {self.table} ADD COLUMN {quoted(column.name)} {kind}"

    # -- positions

    def insert_position(self) -> str:
        return (
            f"INSERT INTO {self.positions} (delivery, shard, id, position, term) "
            "VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"
        )

    def set_term(self) -> str:
        return (
            f"UPDATE {self.positions} SET term = $4 WHERE {_OWN} AND term <= $4 RETURNING position"
        )

    def read_position(self) -> str:
        return f"SELECT position, term FROM {self.positions} WHERE {_OWN}"

    def move(self) -> str:
        """The compare-and-set: everything else depends on it."""
        return (
            f"UPDATE {self.positions} SET position = $5, term = $6 "
            f"WHERE {_OWN} AND position = $4 AND term <= $6 RETURNING 1"
        )

    def all_at_once(self, *, puts: bool, gone: Sequence[Nulls]) -> str:
        """One statement; its parameters: of the position, of deletes if any, of upserts if any."""
        parts = [f"moved AS ({self.move()})"]
        first = POSITION_PARAMETERS + 1
        if gone:
            source = unnested(self.shape.key_columns, first)
            first += len(self.shape.key_columns)
            parts += [
                f"gone{place} AS ({self.delete(source, nulls, guarded=True)})"
                for place, nulls in enumerate(gone)
            ]
        if puts:
            source = unnested(self.shape.columns, first)
            if self.shape.is_counted:
                parts.append(f"emptied AS ({self.delete_counted(source)})")
            parts.append(f"put AS ({self.insert(source, guarded=True)})")
        return f"WITH {', '.join(parts)} SELECT count(*) FROM moved"

    # -- rows

    def delete(self, source: str, nulls: Nulls, *, guarded: bool = False) -> str:
        """Rows of those keys that are null here, and nowhere else."""
        terms = ["EXISTS (SELECT FROM moved)"] if guarded else []
        terms += self._matches(nulls)
        return f"DELETE FROM {self.table} AS stored USING {source} WHERE {' AND '.join(terms)}"

    def find_missing(self, source: str, nulls: Nulls) -> str:
        """The number of a row that is given, from 1, and not there; the source is numbered."""
        terms = " AND ".join([*self._matches(nulls), *self._equal_values()])
        picked = " AND ".join(_null_terms(nulls))
        return (
            f"SELECT place FROM {source} WHERE {picked} AND NOT EXISTS "
            f"(SELECT FROM {self.table} AS stored WHERE {terms}) ORDER BY place LIMIT 1"
        )

    def insert(self, source: str, *, guarded: bool = False, strict: bool = False) -> str:
        """New rows, and those that replace others; strict: no row may meet another of its key."""
        given = ", ".join(
            f"given.c{place}{_cast(column)}" for place, column in enumerate(self.shape.columns)
        )
        terms = ["EXISTS (SELECT FROM moved)"] if guarded else []
        if self.shape.is_counted and guarded:
            row = self.shape.names.index(self.shape.key[0])
            terms.append(f"NOT EXISTS (SELECT FROM emptied WHERE emptied.row = given.c{row})")
        condition = f" WHERE {' AND '.join(terms)}" if terms else ""
        return (
            f"INSERT INTO {self.table} AS stored ({listed(self.shape.names)}) "
            f"SELECT {given} FROM {source}{condition}{self._on_conflict(strict)}"
        )

    def delete_counted(self, source: str) -> str:
        """Of a multiset, all at once: rows whose count will be 0; `insert` leaves them out."""
        row, count = (self.shape.names.index(name) for name in (self.shape.key[0], COUNT))
        return (
            f"DELETE FROM {self.table} AS stored USING {source} WHERE EXISTS (SELECT FROM moved) "
            f"AND stored.{quoted(self.shape.key[0])} = given.c{row} "
            f"AND stored.{quoted(COUNT)} + given.c{count} = 0 RETURNING given.c{row} AS row"
        )

    def delete_void(self, source: str) -> str:
        """Of a multiset, after counts were added: rows with none."""
        row = self.shape.names.index(self.shape.key[0])
        return (
            f"DELETE FROM {self.table} AS stored USING {source} "
            f"WHERE stored.{quoted(self.shape.key[0])} = given.c{row} "
            f"AND stored.{quoted(COUNT)} = 0"
        )

    def find_negative(self, source: str) -> str:
        """Of a multiset, after counts were added: the digest of a row that was taken too often."""
        key = quoted(self.shape.key[0])
        row = self.shape.names.index(self.shape.key[0])
        return (
            f"SELECT stored.{key} FROM {self.table} AS stored, {source} "
            f"WHERE stored.{key} = given.c{row} AND stored.{quoted(COUNT)} < 0 LIMIT 1"
        )

    def _on_conflict(self, strict: bool) -> str:
        if not self.shape.key or (strict and not self.shape.is_counted):
            return ""
        target = f" ON CONFLICT ({listed(self.shape.key)}) DO "
        if self.shape.is_counted:
            count = quoted(COUNT)
            return f"{target}UPDATE SET {count} = stored.{count} + excluded.{count}"
        names = [quoted(column.name) for column in self.shape.value_columns]
        if not names:
            return target + "NOTHING"
        return f"{target}UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in names)}"

    def _matches(self, nulls: Nulls) -> list[str]:
        """Given are the columns of the key, before all others."""
        terms = _null_terms(nulls)
        for place, (column, is_null) in enumerate(zip(self.shape.key_columns, nulls, strict=True)):
            name = f"stored.{quoted(column.name)}"
            terms.append(
                f"{name} IS NULL" if is_null else f"{name} = given.c{place}{_cast(column)}"
            )
        return terms

    def _equal_values(self) -> list[str]:
        first = len(self.shape.key)
        return [
            f"stored.{quoted(column.name)} IS NOT DISTINCT FROM given.c{place}{_cast(column)}"
            for place, column in enumerate(self.shape.value_columns, first)
        ]


def unnested(columns: Sequence[Column], first: int, *, numbered: bool = False) -> str:
    """Parameters from this number on, one array a column, as a table called `given`."""
    arrays = (f"${first + n}::{transport_type(column)}[]" for n, column in enumerate(columns))
    names = [f"c{place}" for place in range(len(columns))]
    order = ""
    if numbered:
        order = " WITH ORDINALITY"
        names.append("place")
    return f"unnest({', '.join(arrays)}){order} AS given({', '.join(names)})"


def _null_terms(nulls: Nulls) -> list[str]:
    words = {True: "IS NULL", False: "IS NOT NULL"}
    return [f"given.c{place} {words[is_null]}" for place, is_null in enumerate(nulls)]


def _cast(column: Column) -> str:
    """What turns the transported value into one of the column's type."""
    kind = column.sql_type("postgresql")
    return "" if kind == transport_type(column) else f"::{kind}"
