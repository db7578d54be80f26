"""Rows that were left unread come in their time, however long batches take."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

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
