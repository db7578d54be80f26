"""Copies of a task's state and a real log server: they catch up, take over, are done without."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import until
from test_task_shell import at_work, directory, keys, make

from penstock.errors import StaleInstance
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import endpoint
from penstock.log.records import Entry, Kind, NewEntry
from penstock.protocol.markers import Marker, Origin, decode_marker, encode_marker
from penstock.protocol.names import TaskId
from penstock.runtime import standby as module
from penstock.runtime.layout import evenly
from penstock.runtime.spec import QuerySpec, Settings
from penstock.runtime.standby import Standby, StateCopy, TaskCopy
from penstock.runtime.task import Task
from penstock.runtime.task_core import TaskCore
from penstock.runtime.worker import _Assigned

__all__ = ["directory"]


def stand_by(log: AsyncLog, spec: QuerySpec, task: TaskId) -> Standby:
    core = TaskCore(spec, task, 0, lambda: 0)
    return Standby(log, task, lambda: TaskCopy(log, core, None))


async def test_a_copy_follows_its_task_and_takes_over(directory: Path) -> None:
    log, source, spec = make(directory, Settings())
    async with at_work(directory, spec) as (client, tasks, running):
        last = tasks[-1]
        await asyncio.to_thread(source.append, keys(0, 1_000))
        await until(lambda: last.core.stats.rows_in == 1_000)
        standby = stand_by(client, spec, last.task)
        await until(lambda: standby.report()["is_ready"])
        await asyncio.to_thread(source.append, keys(1_000, 1_500))
        await until(lambda: standby.report()["state_rows"] == 1_500)

        successor = await Task.open(
            client, spec, last.task, await client.claim(last.task.producer), standby=standby
        )
        tasks[-1] = successor
        running[-1] = asyncio.ensure_future(successor.run())
        await asyncio.to_thread(source.append, keys(1_500, 1_600))
        await until(lambda: successor.core.state.rows_kept() == 1_600)
        assert successor.is_from_standby
        assert successor.report()["from_standby"]
        assert not running[-1].done()
    assert log.stream("out").read().num_rows == 1_600


async def test_a_copy_that_does_not_get_there_is_done_without(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REACH_SECONDS", 0.05)
    _, source, spec = make(directory, Settings())
    async with at_work(directory, spec) as (client, tasks, running):
        last = tasks[-1]
        await asyncio.to_thread(source.append, keys(0, 1_000))
        await until(lambda: last.core.stats.rows_in == 1_000)
        standby = stand_by(client, spec, last.task)
        standby.close()  # as if its loop stood still
        successor = await Task.open(
            client, spec, last.task, await client.claim(last.task.producer), standby=standby
        )
        tasks[-1] = successor
        running[-1] = asyncio.ensure_future(successor.run())
        await until(lambda: successor.core.state.rows_kept() == 1_000)
        assert not successor.is_from_standby


async def test_a_copy_is_not_ready_before_it_is_there(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, source, spec = make(directory, Settings())
    async with at_work(directory, spec) as (client, tasks, _):
        last = tasks[-1]
        await asyncio.to_thread(source.append, keys(0, 100))
        await until(lambda: last.core.stats.rows_in == 100)
        may_load = asyncio.Event()
        load = StateCopy.load

        async def load_later(self: StateCopy, marker: Marker | None) -> Any:
            await may_load.wait()
            return await load(self, marker)

        monkeypatch.setattr(StateCopy, "load", load_later)
        standby = stand_by(client, spec, last.task)
        for _ in range(3):
            await asyncio.sleep(0.1)
            assert not standby.report()["is_ready"]
        may_load.set()
        await until(lambda: standby.report()["is_ready"])
        assert standby.report()["state_rows"] == 100
        standby.close()


async def test_a_copy_of_a_task_without_state_ends_when_the_task_begins(directory: Path) -> None:
    _, _, spec = make(directory, Settings())
    async with at_work(directory, spec) as (client, tasks, running):
        first = tasks[0]  # it reads the source and keeps nothing
        standby = stand_by(client, spec, first.task)
        successor = await Task.open(
            client, spec, first.task, await client.claim(first.task.producer), standby=standby
        )
        tasks[0], running[0] = successor, asyncio.ensure_future(successor.run())
        await until(lambda: successor.resume_ms > 0)
        await until(lambda: standby._has_ended)
        assert not successor.is_from_standby


async def test_a_copy_of_a_task_without_state_reads_nothing_of_what_the_task_has_done(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it has run: of each commit there is a marker."""
    _, source, spec = make(directory, Settings())
    async with at_work(directory, spec) as (client, tasks, _):
        first = tasks[0]
        for number in range(5):
            await asyncio.to_thread(source.append, keys(number, number + 1))
            await until(lambda number=number: first.core.stats.rows_in > number)
        await until(lambda: tasks[-1].core.stats.rows_in == 5)
        before = await client.read_last(first.task.marker_tag)
        assert before is not None
        applied: list[Lsn] = []
        apply = StateCopy._apply

        def note(self: StateCopy, entry: Entry) -> Marker | None:
            applied.append(entry.lsn)
            return apply(self, entry)

        monkeypatch.setattr(StateCopy, "_apply", note)
        standby = stand_by(client, spec, first.task)
        try:
            await until(lambda: standby.report()["is_ready"])
            await asyncio.to_thread(source.append, keys(5, 6))
            await until(lambda: bool(applied))
            assert min(applied) > before.lsn
        finally:
            standby.close()


async def test_a_copy_ends_with_a_task_that_could_not_be_opened(directory: Path) -> None:
    _, _, spec = make(directory, Settings())
    async with await AsyncLog.connect(endpoint(directory), timeout=30) as client:
        standby = stand_by(client, spec, spec.task_ids[-1])

        async def fail(assigned: Any) -> None:
            raise StaleInstance("another one was claimed")

        assigned = _Assigned(spec.task_ids[-1], 1, standby, fail)
        with pytest.raises(StaleInstance):
            await assigned.running
        await until(lambda: standby._has_ended)


async def test_an_heir_whose_checkpoints_cannot_be_read_has_its_predecessors_state_too(
    directory: Path,
) -> None:
    """Its markers name predecessors no more; where nothing was trimmed, its first one does."""
    _, source, spec = make(directory, Settings())
    async with at_work(directory, spec) as (client, tasks, _):
        await asyncio.to_thread(source.append, keys(0, 1_000))
        await until(lambda: tasks[-1].core.state.rows_kept() == 1_000)
    predecessor = tasks[-1].task
    async with await AsyncLog.connect(endpoint(str(directory)), name="t") as client:
        last = await client.read_last(predecessor.marker_tag)
        assert last is not None
        marker = decode_marker(last.payload)
        layout = spec.layout.next({predecessor.stage: evenly(1, 9)}, [], Lsn(0))
        new = spec.under(layout)
        (heir,) = new.tasks_of(predecessor.stage)
        stages = tuple(stage.id for stage in spec.running(predecessor.stage))
        origin = Origin(str(predecessor), last.lsn, stages, spec.holds(predecessor), Lsn(0))
        lost = {"path": "gone", "marker_lsn": 1, "instance": 1, "bytes": 1, "crc": 1}
        first = replace(marker, task=str(heir), instance=0, number=0, inline=0, origins=(origin,))
        second = replace(first, instance=1, number=1, origins=(), checkpoints=(lost, lost))
        for one in (first, second):
            entry = NewEntry(encode_marker(one), (heir.marker_tag,), Kind.MARKER)
            await client.append([entry])
        newest = await client.read_last(heir.marker_tag)
        assert newest is not None
        copy = StateCopy(client, TaskCore(new, heir, 2, lambda: 0), None)
        await copy.restore(newest)
        assert copy.core.state.rows_kept() == 1_000
