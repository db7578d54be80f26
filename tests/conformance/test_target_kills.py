"""Whoever is killed, player or database, at whatever moment: rows and position agree afterwards."""

from __future__ import annotations

import itertools
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import target_player
from harness.waiting import wait_until
from target_databases import Database, Postgres, Sqlite
from target_player import SHARD, table_at

from penstock.delivery.api import Batch
from penstock.delivery.targets.sqlite import SqliteTarget
from penstock.errors import Unavailable
from penstock.ids import Lsn

#: Each takes about a second: the player's imports.
KILLS = 3


@contextmanager
def player(uri: str, term: int, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, target_player.__file__, uri, str(term)]
    with output.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answers(output: Path) -> list[int]:
    """The positions that were printed; whatever else there is makes the test fail."""
    lines = output.read_text().split("\n")
    return [int(line) for line in lines[:-1]]  # the last one may be half of a line


def check(database: Database, answered: int) -> int:
    """Nothing that was answered is lost, and the table is what it must be at its position."""
    with closing(database.target()) as target:
        position = target.open(SHARD, 10**6)
    assert answered <= position <= answered + 1
    rows = sorted((row["number"], row["batch"]) for row in database.rows(SHARD))
    assert rows == table_at(position)
    return position


def test_a_player_that_is_killed_leaves_whole_batches(
    sql_database: Database, tmp_path: Path
) -> None:
    """Also with its terms: each check opens the target with a large one, which is set back."""
    rng = random.Random(7)
    position = 0
    for life in range(KILLS):
        wanted = position + rng.randrange(1, 8)
        answered = play_until(sql_database.uri, life, wanted, tmp_path / f"output {life}")
        position = check(sql_database, answered)
        sql_database.run("UPDATE penstock_positions SET term = 0")


def play_until(uri: str, term: int, wanted: int, output: Path) -> int:
    """Kill a player once it has come so far; how far it is known to have come."""
    with player(uri, term, output) as process:
        wait_until(lambda: process.poll() is not None or wanted in answers(output))
    assert wanted in answers(output), output.read_text()
    return max(answers(output))


@pytest.mark.parametrize("sql_database", ["duckdb"], indirect=True)
def test_a_file_that_another_process_has_open_is_unavailable(
    sql_database: Database, tmp_path: Path
) -> None:
    """DuckDB's: a player that was replaced must end before the next one can begin."""
    output = tmp_path / "output"
    with player(sql_database.uri, 1, output), closing(sql_database.target()) as target:
        wait_until(lambda: answers(output))
        with pytest.raises(Unavailable, match="lock"):
            target.open(SHARD, 2)
    check(sql_database, max(answers(output)))


@pytest.mark.parametrize("sql_database", ["sqlite"], indirect=True)
def test_a_file_that_another_process_writes_to_is_unavailable(sql_database: Sqlite) -> None:
    with closing(SqliteTarget(sql_database.path, busy_seconds=0.1)) as target:
        position = target.open(SHARD, 1)
        batch = Batch(
            1, position, Lsn(position + 1), pa.RecordBatch.from_pylist([], schema=SHARD.schema)
        )
        with closing(sqlite3.connect(sql_database.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="locked"):
                target.apply(batch)
        assert target.apply(batch) == position + 1


@pytest.mark.parametrize("sql_database", ["postgresql"], indirect=True)
def test_backends_that_are_terminated_at_any_moment_lose_and_repeat_nothing(
    sql_database: Postgres, tmp_path: Path
) -> None:
    """The player goes on with a new connection, from the position that it finds."""
    output = tmp_path / "output"
    killed: list[int] = []
    pauses = itertools.cycle([0.0, 0.003, 0.011, 0.0, 0.02, 0.007])
    stop = threading.Event()

    def terminate() -> None:
        while not stop.wait(next(pauses)):
            for pid in sql_database.server.backends():
                killed.append(pid)
                sql_database.server.run(f"SELECT pg_terminate_backend({pid})")

    with player(sql_database.uri, 1, output) as process:
        wait_until(lambda: answers(output))
        thread = threading.Thread(target=terminate)
        thread.start()
        try:
            wait_until(lambda: process.poll() is not None or len(killed) >= 60, seconds=200.0)
        finally:
            stop.set()
            thread.join()
        assert process.poll() is None, output.read_text()
        last = max(answers(output))
        wait_until(lambda: max(answers(output)) > last)

    check(sql_database, max(answers(output)))
    assert len(set(killed)) >= 30


def test_the_check_notices_rows_without_their_position(sql_database: Database) -> None:
    with closing(sql_database.target()) as target:
        target.open(SHARD, 1)
    for statement in (
        "INSERT INTO results VALUES (0, 0)",
        "UPDATE penstock_positions SET position = 1",
    ):
        sql_database.run(statement)
        with pytest.raises(AssertionError):
            check(sql_database, 0)
