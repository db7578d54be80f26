"""An instance that throws its state away names no checkpoint that was begun before."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from engine_samples import count_by, scan, spec_of

from penstock.ids import Lsn
from penstock.protocol.names import TaskId
from penstock.runtime.checkpoint_counts import CheckpointCounts
from penstock.runtime.checkpointer import Checkpointer
from penstock.runtime.task import Task
from penstock.runtime.task_core import TaskCore


async def test_a_checkpoint_on_its_way_is_not_named_by_who_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would take the place of the older one, before the newer one was read to its end."""
    written = asyncio.Event()

    async def make(self: Checkpointer, commit: Any, lsn: Lsn) -> dict[str, object]:
        await written.wait()
        return {"path": "p", "marker_lsn": lsn, "instance": 1, "bytes": 1, "crc": 0}

    monkeypatch.setattr(Checkpointer, "_make", make)

    def make_core() -> TaskCore:
        core = TaskCore(spec_of(count_by(scan(), 0)), TaskId("q", 1, 0, 0), 1, lambda: 0)
        core.begin(None)
        return core

    task: Any = SimpleNamespace(
        core=make_core(),
        _make_core=make_core,
        _now=time.monotonic,
        host=SimpleNamespace(monotonic=time.monotonic, now_ms=lambda: 0),
        checkpoint_counts=CheckpointCounts(),
        last_marker=None,
    )
    task.checkpointer = Checkpointer(task, None, "f", lambda: None)  # type: ignore[arg-type]
    commit: Any = SimpleNamespace(changes=(), is_checkpoint=True, frozen=None)
    task.checkpointer.committed(commit, Lsn(7))
    await asyncio.sleep(0)
    assert task.checkpointer.is_writing
    Task._begin_anew(task)
    written.set()
    await asyncio.sleep(0.01)
    assert task.core.checkpoints.named == () and not task.checkpointer.is_writing
    task.checkpointer.committed(commit, Lsn(9))
    await asyncio.sleep(0.01)
    assert task.core.checkpoint_lsn == 9, "the next one is made"
