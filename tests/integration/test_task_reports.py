"""What tasks at work report, of a real log: all of it is taken in, and it is so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from embedded_server import stop_server
from harness.waiting import until
from test_task_shell import at_work, keys, make

from penstock.runtime import checkpoints
from penstock.runtime.edges import GraphFacts, stage_lag
from penstock.runtime.spec import Settings
from penstock.runtime.task_report import read_report
from penstock.state.checkpoint_store import CheckpointStore


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "log"
    stop_server(tmp_path / "log")


async def test_all_that_a_task_reports_is_taken_in_and_is_so(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 1)
    root = tmp_path / "checkpoints"
    settings = Settings(checkpoints=str(root), checkpoint_interval_ms=1)
    _, source, spec = make(directory, settings)
    began = time.perf_counter()
    async with at_work(directory, spec) as (_, tasks, _running):
        await asyncio.to_thread(source.append, keys(0, 1_000))
        await until(lambda: tasks[-1].report()["checkpoints"] > 0)
        await until(lambda: tasks[-1].report()["inputs"]["stage:0"]["rows"] == 1_000)
        for task in tasks:
            report = task.report()
            known = {name for name, value in report.items() if value is not None}
            assert read_report(report).keys() == known, "what is dropped is not shown"
        first, last = tasks[0].report(), tasks[-1].report()
        assert first["inputs"]["source:in"]["rows"] == 1_000
        assert first["inputs"]["source:in"]["delay_ms"] is not None
        assert last["checkpoint_bytes"] > 0 and last["checkpoint_ms"] > 0
        assert abs(last["checkpoint_at_ms"] - time.time() * 1000) < 60_000
        assert last["checkpoint_failures"] == 0 and last["checkpoint_error"] is None
        assert "visible_counts" not in first, "its commits are not the result's"
        assert sum(last["visible_counts"]) > 0
        spent = last["busy_ms"] + last["waiting_ms"] + last["blocked_ms"]
        assert 0 < last["busy_ms"] < spent <= (time.perf_counter() - began) * 1000

        def lag() -> Any:
            reports = {task.task: task.report() for task in tasks}
            return stage_lag(GraphFacts(spec, reports, {}, {}, {}, 0, None), 0, 1)

        await until(lambda: lag() is not None and lag().records == 0)


def is_full(*_: Any, **__: Any) -> Any:
    """A disk without room, and a message that would drive a terminal."""
    raise OSError(28, "No space left on device\x1b[31m")


async def test_a_checkpoint_that_cannot_be_written_is_told_with_its_cause(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 1)
    monkeypatch.setattr(CheckpointStore, "_write_file", is_full)
    settings = Settings(checkpoints=str(tmp_path / "full"), checkpoint_interval_ms=1)
    _, source, spec = make(directory, settings)
    async with at_work(directory, spec) as (_, tasks, _running):
        await asyncio.to_thread(source.append, keys(0, 100))
        await until(lambda: tasks[-1].report()["checkpoint_failures"] > 0)
        report = tasks[-1].report()
    assert report["checkpoints"] == 0 and report["checkpoint_at_ms"] is None
    assert r"No space left on device\x1b[31m" in report["checkpoint_error"]
    assert "\x1b" not in report["checkpoint_error"]
