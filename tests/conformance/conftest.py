"""Every test runs on a fresh log of each implementation, or a fresh database of each kind."""

from __future__ import annotations

import itertools
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from log_implementations import IMPLEMENTATIONS

if TYPE_CHECKING:
    from key_engines import Engines
    from target_databases import Database

_SCHEMAS = itertools.count()


@pytest.fixture(params=IMPLEMENTATIONS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractAsyncContextManager[Any]:
    return IMPLEMENTATIONS[request.param](tmp_path)


@pytest.fixture(params=["memory", "sqlite", "postgresql", "duckdb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return _database(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql", "duckdb"])
def sql_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """One in which users can have tables of their own."""
    return _database(request, tmp_path)


def _database(request: pytest.FixtureRequest, place: Path) -> Database:
    import target_databases  # only here: tests of logs need none of it

    match request.param:
        case "sqlite":
            return target_databases.Sqlite(place)
        case "duckdb":
            return target_databases.Duckdb(place)
        case "postgresql":
            server = request.getfixturevalue("postgres")
            return target_databases.Postgres(server, f"test_{next(_SCHEMAS)}")
    return target_databases.Memory()


@pytest.fixture(params=["indexed", "redis", "rocksdb"])
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Engines:
    import key_engines

    match request.param:
        case "redis":
            return key_engines.Redis(request.getfixturevalue("redis"))
        case "rocksdb":
            return key_engines.Rocksdb(tmp_path)
    return key_engines.IndexedFiles(tmp_path)
