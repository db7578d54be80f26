"""Worlds whose tasks leave rows of their checkpoints in files until they are wanted.

Beside what the table itself may do wrong (tests/unit/state/test_unread.py): what the task does when
rows cannot be read, and what it does meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from crc32c import crc32c
from pipeline_mutants import Mutant, catch, world
from simulation.pipeline import queries
from simulation.pipeline.swarm import Fault

from penstock.errors import Unavailable
from penstock.runtime.task import Task
from penstock.state import checkpoint_store
from penstock.state.checkpoint_store import CheckpointStore
from penstock.state.memory_table import MemoryTable
from penstock.state.unread import Unread, UnreadLost

CHAINS: dict[str, Any] = {
    "shape": "count",
    "mean_ms": {Fault.KILL: 120},
    "checkpoints": True,
    "checkpoint_interval_ms": 0,
    "checkpoint_bytes_min": 1,
    "checkpoint_us_max": 500,
    "trims": True,
    "trail_bytes": 32 << 20,
}
DAMAGED: dict[str, Any] = {**CHAINS, "mean_ms": {Fault.KILL: 120, Fault.CHECKPOINT: 40}}
#: Reading ahead begins so late that much is asked for before it is here.
LATE_SECONDS = 0.1


@pytest.fixture(autouse=True)
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    bring = Task._bring_rows

    async def bring_late(self: Task) -> None:
        await asyncio.sleep(LATE_SECONDS)
        await bring(self)

    monkeypatch.setattr(Task, "_bring_rows", bring_late)
    monkeypatch.setattr(queries, "KEYS", 30)  # so many that what is replayed has not all of them
    monkeypatch.setattr(CheckpointStore, "is_near", True)
    monkeypatch.setattr(checkpoint_store, "LAZY_BYTES_MIN", 0)


def some_reads_fail(patch: pytest.MonkeyPatch) -> None:
    """Of rows that were left in files; always the same ones."""
    original = checkpoint_store._OpenIncrement.rows

    def rows(self: Any, section: Any) -> Any:
        if crc32c(f"{self._line.path} {section.at}".encode()) % 2 == 0:
            raise Unavailable("the store cannot be reached")
        return original(self, section)

    patch.setattr(checkpoint_store._OpenIncrement, "rows", rows)


def what_is_unread_wins_over_what_is_here(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTable, "bring", lambda self, unread, rows: self._set(rows))


def what_is_unread_is_taken_for_absent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTable, "_bring_keys", lambda self, keys: None)


def what_cannot_be_read_is_taken_for_absent(patch: pytest.MonkeyPatch) -> None:
    some_reads_fail(patch)
    find, read = Unread.find, Unread.read_node

    def find_some(self: Unread, keys: Any) -> Any:
        try:
            return find(self, keys)
        except UnreadLost:
            return None

    def read_some(self: Unread, node: int) -> Any:
        try:
            return read(self, node)
        except UnreadLost:
            return None

    patch.setattr(Unread, "find", find_some)
    patch.setattr(Unread, "read_node", read_some)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, "marker", swarm)
    for apply, swarm in (
        (what_is_unread_wins_over_what_is_here, CHAINS),
        (what_is_unread_is_taken_for_absent, CHAINS),
        (what_cannot_be_read_is_taken_for_absent, DAMAGED),
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


@pytest.mark.parametrize("fails", [False, True], ids=["all is read", "reads fail"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2, 3))])
def test_worlds_of_tasks_that_leave_rows_unread_are_clean(
    seed: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[str] = Counter()
    again, find = Task._read_all_first, Unread.find

    def found(self: Unread, keys: Any) -> Any:
        rows = find(self, keys)
        seen["found"] += 0 if rows is None else rows.num_rows
        return rows

    def read(self: Task, lost: UnreadLost) -> None:
        seen["read again"] += 1
        again(self, lost)

    monkeypatch.setattr(Task, "_read_all_first", read)
    monkeypatch.setattr(Unread, "find", found)
    if fails:
        some_reads_fail(monkeypatch)
    world(seed, DAMAGED).run()
    assert seen["read again"] if fails else seen["found"]
