"""Targets of deliveries for tests: one in memory that fails on request, one in a file."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.delivery.api import Batch, Shard
from penstock.errors import Fenced
from penstock.ids import Lsn
from penstock.stream.json_lines import rows_to_json_lines

#: Done with a batch before it is applied, or after; what it raises is what the player hears.
Fault = Callable[[Batch], None]


class MemoryTarget:
    """Rows as dicts, in the order in which they came; every transaction is remembered."""

    def __init__(self) -> None:
        self.position: Lsn | None = None
        self.term = 0
        self.rows: list[dict[str, Any]] = []
        self.transactions: list[Batch] = []
        self.opens = 0
        self.shard: Shard | None = None
        #: The next of each is done, once.
        self.before: deque[Fault] = deque()
        self.after: deque[Fault] = deque()
        #: Done at every opening.
        self.at_open: Callable[[], None] = lambda: None
        #: While it is clear, batches hang.
        self.runs = threading.Event()
        self.runs.set()

    def open(self, shard: Shard, term: int) -> Lsn:
        self.opens += 1
        self.at_open()
        self._check_term(term)
        self.shard = shard
        self.term = term
        return shard.start if self.position is None else self.position

    def apply(self, batch: Batch) -> Lsn:
        self.runs.wait()
        assert self.shard is not None
        if self.before:
            self.before.popleft()(batch)
        self._check_term(batch.term)
        stored = self.shard.start if self.position is None else self.position
        if batch.after != stored:
            return stored
        self.rows += batch.rows.to_pylist()
        self.position = batch.upto
        self.transactions.append(batch)
        if self.after:
            self.after.popleft()(batch)
        return batch.upto

    def _check_term(self, term: int) -> None:
        if term < self.term:
            raise Fenced(f"term {term}, but {self.term} was here")

    def close(self) -> None:
        pass

    def backup(self) -> tuple[Lsn | None, list[dict[str, Any]]]:
        return self.position, list(self.rows)

    def restore(self, backup: tuple[Lsn | None, list[dict[str, Any]]]) -> None:
        self.position, self.rows = backup[0], list(backup[1])


class FileTarget:
    """One database file: rows as JSON text, and the position, in one transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: sqlite3.Connection | None = None
        self._shard: Shard | None = None

    def open(self, shard: Shard, term: int) -> Lsn:
        self._shard = shard
        self._file = sqlite3.connect(self._path, isolation_level=None)
        self._file.execute("PRAGMA journal_mode=WAL")
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            for table in ("rows (place INTEGER PRIMARY KEY, row)", "positions (position, term)"):
                self._file.execute(f"CREATE TABLE IF NOT EXISTS {table}")
            position, stored = self._stored()
            if term < stored:
                raise Fenced(f"term {term}, but {stored} was here")
            self._store(position, term)
        return position

    def apply(self, batch: Batch) -> Lsn:
        assert self._file is not None
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            position, term = self._stored()
            if batch.term < term:
                raise Fenced(f"term {batch.term}, but {term} was here")
            if batch.after != position:
                return position
            texts = [(text,) for text in rows_to_json_lines(batch.rows)]
            self._file.executemany("INSERT INTO rows (row) VALUES (?)", texts)
            self._store(batch.upto, batch.term)
        return batch.upto

    def _stored(self) -> tuple[Lsn, int]:
        assert self._file is not None and self._shard is not None
        found = self._file.execute("SELECT position, term FROM positions").fetchone()
        return (self._shard.start, 0) if found is None else (Lsn(found[0]), found[1])

    def _store(self, position: Lsn, term: int) -> None:
        assert self._file is not None
        self._file.execute("DELETE FROM positions")
        self._file.execute("INSERT INTO positions VALUES (?, ?)", (position, term))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def file_rows(path: Path) -> tuple[list[str], int]:
    """All rows of a FileTarget in their order, and its position, at one moment."""
    file = sqlite3.connect(path)
    file.execute("BEGIN")
    tables = file.execute("SELECT count(*) FROM sqlite_master WHERE name = 'positions'").fetchone()
    rows, position = [], 0
    if tables[0]:
        rows = [row for (row,) in file.execute("SELECT row FROM rows ORDER BY place")]
        ((position,),) = file.execute("SELECT position FROM positions").fetchall()
    file.close()
    return rows, position
