"""The shell of a task against a real log server: what its loops do when something goes wrong.

Each is a finding of a review, as a schedule.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from embedded_server import kill_server, stop_server
from engine_samples import SOURCE, count_by, scan, spec_of
from harness.waiting import until

import penstock
from penstock.errors import DeadlineExceeded, PenstockError, StaleInstance, Unavailable, Unknown
from penstock.log.client import packing
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import endpoint
from penstock.log.pairing import PairedConnection
from penstock.log.records import Kind, NewEntry
from penstock.protocol.markers import Marker, Range, decode_marker, encode_marker
from penstock.protocol.names import query_key
from penstock.runtime import checkpoints, coordinator
from penstock.runtime import task as shell
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.dead_letters import DEAD_LETTER_DDL
from penstock.runtime.lag import Lag, measure_lag
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.results import result_deltas
from penstock.runtime.spec import QuerySpec, Settings
from penstock.runtime.task import Task
from penstock.runtime.trim import trim_consumed
from penstock.runtime.worker import close_within
from penstock.stream.batches import encode_trusted
from penstock.stream.session import Log
from penstock.stream.stream import Stream


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "log"
    stop_server(tmp_path / "log")


def make(directory: Path, settings: Settings) -> tuple[penstock.Log, Stream, QuerySpec]:
    """A log with a source and a query that counts its keys."""
    log = penstock.connect(directory)
    source = log.create_stream("in", SOURCE)
    spec = spec_of(count_by(scan(), 0), settings=settings)
    log.create_stream("out", spec.to_schema)
    log.create_stream("dead", DEAD_LETTER_DDL)
    return log, source, spec


@asynccontextmanager
async def at_work(
    directory: Path, spec: QuerySpec
) -> AsyncIterator[tuple[AsyncLog, list[Task], list[asyncio.Future[None]]]]:
    async with await AsyncLog.connect(endpoint(directory), timeout=30) as log:
        tasks = [
            await Task.open(log, spec, one, await log.claim(one.producer)) for one in spec.task_ids
        ]
        running = [asyncio.ensure_future(task.run()) for task in tasks]
        yield log, tasks, running
        for task in tasks:
            task.drain()
        await asyncio.wait(running, timeout=60)


def keys(first: int, last: int) -> pa.RecordBatch:
    values = pa.array(np.arange(first, last))
    return pa.record_batch([values, values], schema=SOURCE)


async def test_a_task_that_fails_resumes_after_its_whole_commit(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of several groups is on its way when user code raises: it is known before we resume.

    The instance stays the same, so nothing would fence a marker that comes later.
    """
    monkeypatch.setattr(packing, "GROUP_BYTES", 20_000)
    log, source, spec = make(directory, Settings(dead_letter="dead"))

    async with at_work(directory, spec) as (client, tasks, running):
        last = tasks[-1]
        await until(lambda: last.last_marker is not None)
        appender = last.appender
        append, sent = appender.append_nowait, []
        send, name = PairedConnection.send, last.task.producer.encode()

        def counted(entries: Any, **options: Any) -> Any:
            sent.append(entries)
            return append(entries, **options)

        def send_late(self: PairedConnection[Any], *args: Any) -> None:
            """As a log with a slow disk would order what this task appends."""
            if len(args) < 4 or name not in args[3][:200]:
                return send(self, *args)

            def do() -> None:
                send(self, *args)
                self.flush()

            asyncio.get_running_loop().call_later(0.1, do)

        monkeypatch.setattr(appender, "append_nowait", counted)
        monkeypatch.setattr(PairedConnection, "send", send_late)
        pipeline = last.core._pipeline
        push, failures = pipeline.push, [RuntimeError("a user's function, once")]

        def fail_once(place: int, delta: Any) -> Any:
            if len(sent) > 1 and failures:
                raise failures.pop()
            return push(place, delta)

        monkeypatch.setattr(pipeline, "push", fail_once)
        await asyncio.to_thread(source.append, keys(0, 5_000))
        await until(lambda: len(sent) > 1)
        await asyncio.to_thread(source.append, keys(5_000, 5_001))
        await until(lambda: not failures)
        await until(lambda: last.last_marker and last.last_marker.rows_in == 5_001)
        assert not [one for one in running if one.done()]
        found = await client.read([last.task.marker_tag])
        markers = [decode_marker(entry.payload) for entry in found]
    assert [marker.number for marker in markers] == list(range(len(markers)))
    weights: Counter[int] = Counter()
    rows = log.stream("out").read()
    for key, weight in zip(rows[0].to_pylist(), rows["_weight"].to_pylist(), strict=True):
        weights[key] += weight
    assert len(weights) == 5_001
    assert set(weights.values()) == {1}
    log.close()


def register(log: Log, spec: QuerySpec) -> None:
    """As `start` does: only what registered queries have consumed is ever trimmed."""
    counts = list(spec.tasks)
    query = RegisteredQuery(
        "q", "id", 1, "plan", "update", "out", {"in": 0}, counts, 1,
        checkpoints=spec.settings.checkpoints,
    )  # fmt: skip
    log.client.compare_and_set(query_key("q"), expected=None, value=encode_query(query))


async def test_a_task_whose_first_markers_had_no_state_resumes_after_a_trim(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "REFRESH_SECONDS", 0.05)
    log, source, spec = make(directory, Settings())
    register(log, spec)
    other = log.create_stream("other", "x long")

    async with at_work(directory, spec) as (client, tasks, _):
        await until(lambda: all(task.last_marker is not None for task in tasks))
        marked = (await client.bounds()).tail

        async def are_first_markers_gone() -> bool:
            """The log grows, and the query has no rows."""
            await asyncio.to_thread(other.append, {"x": 1})
            return await trim_consumed(client) >= marked

        await until(are_first_markers_gone)
        await asyncio.to_thread(source.append, keys(0, 3))
        await until(lambda: tasks[-1].last_marker and tasks[-1].last_marker.rows_in == 3)
    async with at_work(directory, spec) as (_, again, running):
        await until(lambda: all(one.meter.is_running for one in again) or running[-1].done())
        assert not [one.exception() for one in running if one.done()]
    assert sum(len(delta) for delta in result_deltas(log, spec)) == 3, "no row was trimmed"
    log.close()


async def test_a_result_is_the_querys_own_rows(directory: Path) -> None:
    """Not those of another query in the stream, of an earlier life, or of a producer."""
    log, source, spec = make(directory, Settings())
    async with at_work(directory, spec) as (_, tasks, _):
        await asyncio.to_thread(source.append, keys(0, 3))
        await until(lambda: tasks[-1].last_marker and tasks[-1].last_marker.rows_in == 3)
    rows = log.stream("out").read()

    log.stream("out").append(rows)
    for other in ("other.1/1/0", f"{spec.name}.{spec.version + 1}/1/0"):
        with log.client.appender(f"@{other}") as appender:
            payload = encode_trusted(rows.to_batches()[0])
            appender.append([NewEntry(payload, ("s/out",), Kind.DATA)])

    assert log.stream("out").read().num_rows == 4 * rows.num_rows
    assert sum(len(delta) for delta in result_deltas(log, spec)) == rows.num_rows
    log.close()


async def test_a_task_whose_successor_has_trimmed_does_not_resume_with_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read its last marker and slept; meanwhile all up to that marker was given up."""
    log, source, spec = make(directory, Settings())
    async with at_work(directory, spec) as (_, tasks, _):
        await asyncio.to_thread(source.append, keys(0, 3))
        await until(lambda: tasks[-1].last_marker and tasks[-1].last_marker.rows_in == 3)
    async with await AsyncLog.connect(endpoint(directory), timeout=30) as client:
        bounds = client.bounds

        async def trim_first() -> Any:
            await client.trim((await bounds()).tail)
            return await bounds()

        last = spec.task_ids[-1]
        late = await Task.open(client, spec, last, await client.claim(last.producer))
        monkeypatch.setattr(client, "bounds", trim_first)
        with pytest.raises(StaleInstance, match="has a successor"):
            await late.run()
    log.close()


async def test_queries_of_two_logs_with_one_place_for_checkpoints_keep_their_own(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have one name. What the one sweeps, far ahead, is nothing of the other."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 1)
    root, other = tmp_path / "shared", tmp_path / "other"
    settings = Settings(checkpoints=str(root), checkpoint_interval_ms=1)
    named: list[list[Path]] = []
    try:
        for place, rows in ((directory, 1), (other, 100)):
            log, source, spec = make(place, settings)
            for _ in range(rows):  # further in its log from the start
                source.append({"k": 1, "v": 1})
            async with at_work(place, spec) as (_, tasks, _):
                seen: set[str] = set()
                feed = partial(_feed_and_look, source, tasks[-1], seen)
                await until(feed, "too few to sweep the first of them", seconds=60)
            named.append([root / path for path in _named(tasks[-1])])
            log.close()
    finally:
        stop_server(other)

    assert [path for paths in named for path in paths if not path.exists()] == []


async def test_a_store_that_is_away_stops_nobody_whose_changes_are_in_the_log(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 1)
    root = tmp_path / "mounted"
    log, source, spec = make(directory, Settings(checkpoints=str(root), checkpoint_interval_ms=1))
    register(log, spec)
    async with at_work(directory, spec) as (_, tasks, _):
        await until(partial(_feed_and_look, source, tasks[-1], set()), seconds=60)
    root.rename(tmp_path / "unmounted")
    last = spec.task_ids[-1]
    async with await AsyncLog.connect(endpoint(directory), timeout=30) as client:
        resumed = await Task.open(client, spec, last, await client.claim(last.producer))
        running = asyncio.ensure_future(resumed.run())
        await until(lambda: resumed.core.state.rows_kept() == 1_000)
        resumed.drain()
        await running

        # Once the changes were trimmed there is nothing but to wait for it: it is no loss.
        assert await trim_consumed(client) > 0
        late = await Task.open(client, spec, last, await client.claim(last.producer))
        with pytest.raises(Unavailable, match=r"needs a checkpoint.*mounted"):
            await late.run()
        (tmp_path / "unmounted").rename(root)
        found = await Task.open(client, spec, last, await client.claim(last.producer))
        running = asyncio.ensure_future(found.run())
        await until(lambda: found.core.state.rows_kept() == 1_000)
        found.drain()
        await running
    log.close()


async def _feed_and_look(source: Stream, task: Task, seen: set[str]) -> bool:
    """Changes of as many bytes as the state make a checkpoint due; whether some were swept."""
    await asyncio.to_thread(source.append, keys(0, 1000))
    await asyncio.sleep(0.1)
    seen.update(_named(task))
    return len(seen) >= 5


def _named(task: Task) -> list[str]:
    marker = task.last_marker
    return [] if marker is None else [str(found["path"]) for found in marker.checkpoints]


async def test_a_run_that_was_replaced_ends_when_it_is_told_to(directory: Path) -> None:
    log, _, spec = make(directory, Settings())
    options: dict[str, Any] = {"id": "a", "workers": 1, "trims": False}
    first = await Coordinator.open(endpoint(directory), spec, **options)
    second = await Coordinator.open(endpoint(directory), spec, **options)
    for run in (first, second):
        await run.finish()
        async with asyncio.timeout(60):
            await run.run()
    assert "was started again, by this or another driver" in str(first.error)
    assert second.error is None
    log.close()


@pytest.mark.parametrize("error", [Unknown, DeadlineExceeded])
async def test_a_trim_that_was_not_answered_is_asked_for_again_and_ends_no_query(
    directory: Path,
    error: type[PenstockError],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, _, spec = make(directory, Settings())
    asked = list[int]()

    async def unanswered_at_first(*_: object) -> int:
        asked.append(len(asked))
        if len(asked) == 1:
            raise error("no answer to Trim")
        return 0

    monkeypatch.setattr(coordinator, "trim_consumed", unanswered_at_first)
    monkeypatch.setattr(coordinator, "PULSES_PER_TRIM", 1)
    monkeypatch.setattr(coordinator, "PULSE_SECONDS", 0.01)

    run = await Coordinator.open(endpoint(directory), spec, id="a", workers=1, trims=True)
    running = asyncio.ensure_future(run.run())
    await until(lambda: len(asked) > 1 or running.done())
    await run.finish()
    async with asyncio.timeout(60):
        await running

    assert run.error is None and len(asked) > 1
    assert "query=q trims again later: no answer to Trim" in caplog.text
    log.close()


def stage(log: penstock.Log, stream: Stream, values: list[int]) -> int:
    """Rows that a marker names, one entry each; returns where the marker stands."""
    entries = [
        NewEntry(encode_trusted(pa.record_batch([pa.array([value])], schema=stream.schema)))
        for value in values
    ]
    tags = (f"s/{stream.name}",)
    done = log.client.append(
        [entry._replace(tags=tags, kind=Kind.STAGED, rows=1) for entry in entries]
    )
    named = (Range(done.first_lsn, done.count),)
    marker = Marker("q.1/0/0", 1, 0, done.first_lsn, 0, ranges=named)
    return log.client.append([NewEntry(encode_marker(marker), tags, Kind.MARKER)]).first_lsn


def test_a_tail_goes_on_after_all_that_a_marker_names(directory: Path) -> None:
    with penstock.connect(directory) as log:
        stream = log.create_stream("o", "x long")
        stage(log, stream, [1, 2, 3])
        stream.append({"x": 4})

        with stream.tail("earliest") as tail:
            first = next(tail).column(0).to_pylist()
            position = tail.position
        rest = [batch.column(0).to_pylist() for batch in stream.tail(position, "latest")]
        assert [first, *rest] == [[1, 2, 3], [4]]


def test_a_tail_that_cannot_fetch_ends_and_can_be_continued(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.connect(directory) as log:
        stream = log.create_stream("o", "x long")
        marker = stage(log, stream, [1, 2])
        stream.append({"x": 3})
        tail = stream.tail(marker)  # what it names was not shown

        def away(*_: object, **__: object) -> None:
            raise penstock.Unavailable("the log is away")

        with monkeypatch.context() as patch:
            patch.setattr(log.client, "read", away)
            with pytest.raises(penstock.Unavailable):
                next(tail)
        assert list(tail) == []
        rest = [batch.column(0).to_pylist() for batch in stream.tail(tail.position, "latest")]
        assert rest == [[1, 2], [3]]


async def test_a_trim_while_the_lag_is_measured_is_no_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.connect(directory) as log:
        stream = log.create_stream("o", "x long")
        stream.append({"x": 1})
        stream.append({"x": 2})

    async with await AsyncLog.connect(endpoint(directory)) as client:
        bounds = client.bounds

        async def bounds_then_trim() -> Any:
            found = await bounds()
            await client.trim(found.tail)
            return found

        monkeypatch.setattr(client, "bounds", bounds_then_trim)
        assert await measure_lag(client, "o", 0, now_ms=0) == Lag(0, 0.0)


async def test_a_client_of_a_log_that_is_away_can_be_closed(directory: Path) -> None:
    penstock.connect(directory).close()

    log = await AsyncLog.connect(endpoint(directory, start=False), timeout=600)
    await log.append([NewEntry(b"here")])
    kill_server(directory)
    lost = asyncio.ensure_future(log.append([NewEntry(b"lost")]))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(60):
        await close_within(log, 0.2)
    with pytest.raises(penstock.PenstockError):
        await lost
