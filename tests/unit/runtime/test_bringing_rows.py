"""Rows that were left unread come in their time, however long batches take."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import Unavailable
from penstock.runtime.meter import Meter
from penstock.runtime.standby import ROWS_BESIDE
from penstock.runtime.task import Task

NODES = 3
PIECES = 150
BATCH_SECONDS, PIECE_SECONDS = 0.02, 0.0001


class Table:
    """Takes what it is given."""

    def __init__(self) -> None:
        self.pieces = 0
        self.done: list[int] = []

    def make_places(self, unread: Any) -> None:
        pass

    def expect(self, unread: Any, places: None) -> None:
        pass

    def bring(self, unread: Any, rows: pa.RecordBatch) -> None:
        time.sleep(PIECE_SECONDS)
        self.pieces += 1

    def brought(self, unread: Any, node: int) -> None:
        self.done.append(node)


async def test_batches_that_take_long_leave_it_as_much_time() -> None:
    rows = pa.record_batch({"k": pa.array(range(PIECES * ROWS_BESIDE), pa.int64())})
    unread: Any = SimpleNamespace(nodes=list(range(NODES)), read_node=lambda node: rows)
    task: Any = SimpleNamespace(_now=time.monotonic, meter=Meter(time.monotonic))
    table: Any = Table()
    bringing = asyncio.ensure_future(Task._bring_rows_of(task, table, unread))
    batches = 0
    while not bringing.done():
        task.meter.begin()
        time.sleep(BATCH_SECONDS)
        task.meter.end()
        batches += 1
        await asyncio.sleep(0)
    await bringing
    assert table.done == list(range(NODES)) and table.pieces == NODES * PIECES
    assert batches < table.pieces / 2, "one batch for each piece would be far more"


async def test_a_task_that_has_time_is_not_kept_from_its_batches() -> None:
    """One piece at a time, if no step was longer."""
    rows = pa.record_batch({"k": pa.array(range(5 * ROWS_BESIDE), pa.int64())})
    unread: Any = SimpleNamespace(nodes=[0], read_node=lambda node: rows)
    task: Any = SimpleNamespace(_now=time.monotonic, meter=Meter(time.monotonic))
    table: Any = Table()
    bringing = asyncio.ensure_future(Task._bring_rows_of(task, table, unread))
    seen = {0}
    while not bringing.done():
        seen.add(table.pieces)
        await asyncio.sleep(0)
    assert seen == set(range(6))


class Shelf(Table):
    """It has room for the keys of what it is given, and none for the values."""

    def __init__(self, unread: Any) -> None:
        super().__init__()
        self.unread = unread

    def bring(self, unread: Any, rows: pa.RecordBatch) -> None:
        raise Unavailable("state needs 1 MiB more")


async def test_nothing_is_captured_of_rows_that_are_here_in_part() -> None:
    """Other loops may run before it is heard that these could not be brought in."""
    rows = pa.record_batch({"k": pa.array([1], pa.int64())})
    table = Shelf(SimpleNamespace(nodes=[0], read_node=lambda node: rows))
    captured: list[int] = []
    task: Any = SimpleNamespace(
        _now=time.monotonic,
        meter=Meter(time.monotonic),
        spec=SimpleNamespace(settings=SimpleNamespace(commit_interval_ms=0)),
        core=SimpleNamespace(
            state=SimpleNamespace(tables_unread=lambda: [table]),
            take_commit=lambda: captured.append(1),
            has_work=False,
        ),
        _committer=SimpleNamespace(finish=lambda: asyncio.sleep(0)),
        _is_halting=False,
        _is_draining=False,
        _due=asyncio.Event(),
        _hurry=asyncio.Event(),
        _committed=asyncio.Event(),
    )
    task._bring_rows_of = lambda *of: Task._bring_rows_of(task, *of)
    bringing = asyncio.ensure_future(Task._bring_rows(task))
    bringing.add_done_callback(lambda _: task._due.set())  # rows came, at the worst time
    with pytest.raises(Unavailable):
        await bringing
    try:
        async with asyncio.timeout(0.05):
            await Task._commit_again_and_again(task)
    except TimeoutError:
        pass
    assert not captured
