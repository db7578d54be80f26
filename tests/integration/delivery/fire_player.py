"""A player as a process, to be killed: `penstock deliver`, forked by one that has imported it.

Most of its start would be Python's imports, and a fire starts many. Before the command begins, its
targets are put behind a network that holds batches back now and then, and mutants are put in.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_PRELOADED = [
    "fire_player",
    "penstock.cli.deliver",
    "penstock.delivery.deliver",
    "penstock.delivery.targets.postgres",
    "penstock.delivery.targets.sqlite",
]
#: Between two transactions that should be one.
_GAP_SECONDS = 0.002
_LATE_SECONDS = 1.5


def context() -> ForkServerContext:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(_PRELOADED)
    return found


def start(arguments: list[str], errors: Path, mutant: str | None, late: float) -> BaseProcess:
    """`penstock deliver` with these arguments; what it says goes to a file."""
    values = (arguments, str(errors), mutant, late)
    process = context().Process(target=_play, args=values, daemon=True)
    process.start()
    return process


def _play(arguments: list[str], errors: str, mutant: str | None, late: float) -> None:
    output = os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    if mutant is not None:
        MUTANTS[mutant]()
    _hold_batches_back(late)
    from penstock.cli.main import main

    sys.argv = ["penstock", "deliver", *arguments]
    main()


def _hold_batches_back(share: float) -> None:
    """Some batches are long under way: meanwhile players come and go."""
    from penstock.delivery.targets.postgres import PostgresTarget
    from penstock.delivery.targets.sqlite import SqliteTarget

    chance = random.Random()
    for target in (PostgresTarget, SqliteTarget):

        def apply(self: Any, batch: Any, now: Any = target.apply) -> Any:
            if chance.random() < share:
                time.sleep(chance.uniform(0, _LATE_SECONDS))
            return now(self, batch)

        _replace(target, "apply", apply)


# ---- mutants: what targets must not do


def rows_and_position_are_two_transactions() -> None:
    """A mistake that is made easily: the position is stored after the rows."""
    from penstock.delivery.targets import postgres_rows, sqlite
    from penstock.delivery.targets.changes import table_changes
    from penstock.delivery.targets.columns import POSITIONS
    from penstock.delivery.targets.sqlite_rows import change_rows

    class Torn(sqlite.SqliteTarget):
        def _attempt(self, batch: Any) -> bool:
            position = self._stored()
            if position is None or position[0] != batch.after:
                return False
            changes = table_changes(batch, self._shard, self._shape)
            with self._transaction() as connection:
                change_rows(connection, self._shape, batch, changes, strict=False)
            time.sleep(_GAP_SECONDS)
            self._run(
                f"UPDATE {POSITIONS} SET position = ? WHERE delivery = ? AND shard = ?",
                (batch.upto, self._shard.delivery, self._shard.index),
            )
            return True

    _replace(sqlite, "SqliteTarget", Torn)

    def torn(self: Any, batch: Any, changes: Any) -> bool:
        with self.connection.transaction():
            self._delete(changes)
            self._insert(changes)
        time.sleep(_GAP_SECONDS)
        return bool(self.connection.run(self.sql.move(), *self._position(batch)))

    _replace(postgres_rows.RowWriter, "_apply_at_once", torn)


def nobody_compares() -> None:
    """The rule of the LogPlayer paper: a target applies what it is sent, all of it at once."""
    from penstock.delivery.targets import sqlite
    from penstock.delivery.targets.changes import table_changes
    from penstock.delivery.targets.columns import POSITIONS
    from penstock.delivery.targets.sqlite_rows import change_rows

    class Trusting(sqlite.SqliteTarget):
        def _attempt(self, batch: Any) -> bool:
            changes = table_changes(batch, self._shard, self._shape)
            with self._transaction() as connection:
                connection.execute(
                    f"UPDATE {POSITIONS} SET position = ? WHERE delivery = ? AND shard = ?",
                    (batch.upto, self._shard.delivery, self._shard.index),
                )
                change_rows(connection, self._shape, batch, changes, strict=False)
            return True

    _replace(sqlite, "SqliteTarget", Trusting)


def _replace(owner: Any, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}: the mutant breaks nothing"
    setattr(owner, name, value)


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant for mutant in (rows_and_position_are_two_transactions, nobody_compares)
}


@contextlib.contextmanager
def ended_at_last(processes: list[BaseProcess]) -> Iterator[None]:
    """Whatever happens, none of them is left."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
            process.close()
