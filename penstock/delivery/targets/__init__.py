"""Databases as targets: each holds a table and a position, and changes both in one transaction.

columns.py              the table's columns for a stream's, and their values
existing.py             a table that is there already
changes.py              what a batch changes, in the table's columns
digests.py              the sixteen bytes of a row of a multiset
positions.py            a batch and a position: applied if they meet
strictness.py           what a strict delivery says
sql.py                  SQL that all databases understand
sqlite.py               SQLite
sqlite_rows.py          its statements for a batch
postgres.py             PostgreSQL
postgres_connection.py  its connections and errors
postgres_sql.py         its statements
postgres_rows.py        a batch on its way into it
postgres_format.py      columns in its binary format
duckdb.py               DuckDB
memory.py               dictionaries: the reference that all others are compared with
"""

from __future__ import annotations

from penstock.config import masked_uri
from penstock.delivery.api import Target
from penstock.errors import BadConfig, Refused

__all__ = ["open_target"]


def open_target(uri: str) -> Target:
    """The target of `sqlite:///file`, `duckdb:///file` or `postgresql://user@host/database`.

    A path is relative to the working directory unless it begins with a fourth slash. Nothing is
    connected yet: `Target.open` does that.
    """
    scheme, _, rest = uri.partition("://")
    match scheme:
        case "postgresql" | "postgres":
            try:
                from penstock.delivery.targets.postgres import PostgresTarget
            except ImportError as error:
                raise _missing("postgres", error) from None
            return PostgresTarget(uri)
        case "sqlite":
            from penstock.delivery.targets.sqlite import SqliteTarget

            return SqliteTarget(_path(uri, rest))
        case "duckdb":
            try:
                from penstock.delivery.targets.duckdb import DuckdbTarget
            except ImportError as error:
                raise _missing("duckdb", error) from None
            return DuckdbTarget(_path(uri, rest))
    raise BadConfig(
        f"{masked_uri(uri)} is no target: give sqlite:///file.db, duckdb:///file.duckdb or "
        "postgresql://user@host/database"
    )


def _path(uri: str, rest: str) -> str:
    path = rest.removeprefix("/")
    if path == rest or path in ("", ":memory:"):
        raise BadConfig(f"{masked_uri(uri)} names no file: write {uri.partition(':')[0]}:///file")
    return path


def _missing(extra: str, error: ImportError) -> Refused:
    return Refused(f"{error}: pip install 'penstock[{extra}]'")
