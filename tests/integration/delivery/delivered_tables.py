"""What is seen of delivered tables, and what they must be.

A sample is rows and position of one target, read in one transaction of its database. The oracle
folds what was committed, up to any position; it knows nothing of deliveries.

Law: `problems_of` is empty if and only if each sample is the committed result at its position, and
no position, and no term, went back.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg import conninfo, sql

COUNT = "_count"

#: The columns that are looked at.
Row = tuple[Any, ...]
#: A row, and how often it is added.
Change = tuple[Row, int]


@dataclass(frozen=True)
class Committed:
    """What one commit changed."""

    #: Where it counts: positions above it include it.
    lsn: int
    changes: list[Change]


class Oracle:
    """What the table of each shard is at a position; a shard's positions are asked in order."""

    def __init__(self, commits: Iterable[Committed], homes: Mapping[Row, int], shards: int) -> None:
        self._left: list[list[tuple[int, list[Change]]]] = [[] for _ in range(shards)]
        self._tables: list[Counter[Row]] = [Counter() for _ in range(shards)]
        for one in commits:
            for shard in range(shards):
                own = [change for change in one.changes if homes[change[0]] == shard]
                self._left[shard].append((one.lsn, own))
        for left in self._left:
            left.reverse()

    def table_at(self, shard: int, position: int) -> Counter[Row]:
        """How often each row is there, once all that counts below the position is applied."""
        left, table = self._left[shard], self._tables[shard]
        while left and left[-1][0] < position:
            for row, weight in left.pop()[1]:
                table[row] += weight
        return +table


@dataclass(frozen=True)
class Sample:
    """A target's table and position at one moment."""

    shard: int
    position: int
    term: int
    table: Counter[Row] = field(repr=False)


def problems_of(samples: Sequence[Sample], oracle: Oracle) -> list[str]:
    """Where a table was not the committed result at its position, or a position went back."""
    found = []
    last: dict[int, Sample] = {}
    for sample in samples:
        before = last.get(sample.shard)
        if before is not None and (sample.position < before.position or sample.term < before.term):
            found.append(f"{sample} after {before}")
        last[sample.shard] = sample
    for sample in sorted(samples, key=lambda one: (one.shard, one.position)):
        wanted = oracle.table_at(sample.shard, sample.position)
        if sample.table != wanted:
            extra, missing = sample.table - wanted, wanted - sample.table
            found.append(f"{sample}: {len(extra)} rows too many, {len(missing)} too few")
    return found


@dataclass(frozen=True)
class Look:
    """What to look at."""

    delivery: str
    table: str
    columns: tuple[str, ...]
    #: Whether it is a multiset.
    is_counted: bool = False


class Database(Protocol):
    """Where one shard is."""

    @property
    def uri(self) -> str: ...

    def sample(self, look: Look, shard: int) -> Sample | None:
        """None: there is no table yet, or nobody answers."""

    def close(self) -> None: ...


class PostgresDatabase:
    """A schema, or a whole database."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._connection: psycopg.Connection[Any] | None = None

    def sample(self, look: Look, shard: int) -> Sample | None:
        count = sql.Identifier(COUNT) if look.is_counted else sql.SQL("1")
        columns = sql.SQL(", ").join([*map(sql.Identifier, look.columns), count])
        rows = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(look.table))
        try:
            if self._connection is None or self._connection.closed:
                options = {"application_name": "onlooker"}
                self._connection = psycopg.connect(conninfo.make_conninfo(self.uri, **options))
                self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with self._connection.transaction():
                position = self._connection.execute(
                    "SELECT position, term FROM penstock_positions "
                    "WHERE delivery = %s AND shard = %s",
                    [look.delivery, shard],
                ).fetchone()
                found = self._connection.execute(rows).fetchall()
        except psycopg.Error:
            self.close()
            return None
        return _sample(shard, position, found)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class SqliteDatabase:
    """A file. Its times are text."""

    def __init__(self, path: Path) -> None:
        self.uri = f"sqlite:///{path}"
        self._path = path

    def sample(self, look: Look, shard: int) -> Sample | None:
        if not self._path.exists():
            return None
        count = COUNT if look.is_counted else "1"
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=30)) as connection:
            try:
                connection.execute("BEGIN")
                position = connection.execute(
                    "SELECT position, term FROM penstock_positions "
                    "WHERE delivery = ? AND shard = ?",
                    [look.delivery, shard],
                ).fetchone()
                rows = f"SELECT {', '.join([*look.columns, count])} FROM {look.table}"
                found = connection.execute(rows).fetchall()
            except sqlite3.OperationalError:  # no table yet
                return None
        return _sample(shard, position, [tuple(map(parsed, row)) for row in found])

    def close(self) -> None:
        pass


def parsed(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _sample(
    shard: int, position: tuple[int, int] | None, found: Sequence[tuple[Any, ...]]
) -> Sample | None:
    if position is None:
        return None
    table: Counter[Row] = Counter()
    for *row, count in found:
        table[tuple(row)] += count
    return Sample(shard, position[0], position[1], table)
