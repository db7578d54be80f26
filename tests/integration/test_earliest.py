"""A stream whose log was trimmed between staged rows and their marker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from embedded_server import stop_server
from engine_samples import SOURCE, join, scan, spec_of
from harness.waiting import until

import penstock
from penstock.errors import Trimmed
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import endpoint
from penstock.log.records import Kind, NewEntry
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import with_naming
from penstock.runtime.results import result_deltas
from penstock.runtime.spec import QuerySpec
from penstock.runtime.task import Task
from penstock.stream import earliest
from penstock.stream.batches import encode_trusted
from penstock.stream.positions import resolve_position
from penstock.stream.registration import stream_tag
from penstock.stream.stream import Stream


@pytest.fixture
def log(tmp_path: Path) -> Iterator[penstock.Log]:
    with penstock.connect(tmp_path / "log") as found:
        yield found
    stop_server(tmp_path / "log")


def staged(log: penstock.Log, stream: Stream, *rows: dict[str, Any]) -> Range:
    """Rows that no marker names yet, one entry each."""
    batches = [pa.RecordBatch.from_pylist([row], schema=stream.schema) for row in rows]
    payloads = [encode_trusted(batch) for batch in batches]
    tags = (stream_tag(stream.name),)
    done = log.client.append([NewEntry(one, tags, Kind.STAGED, rows=1) for one in payloads])
    return Range(done.first_lsn, done.count)


def mark(log: penstock.Log, stream: Stream, *ranges: Range) -> int:
    marker = Marker("spark/a", 0, 0, ranges[0].first_lsn, 0, ranges=ranges)
    tags = with_naming([stream_tag(stream.name)])
    return int(log.client.append([NewEntry(encode_marker(marker), tags, Kind.MARKER)]).first_lsn)


def values(table: pa.Table) -> list[int]:
    return [int(value) for value in table["x"].to_pylist()]


def said_by(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of positions: clients that other tests left in this process may say something, too."""
    name = earliest.logger.name
    return [record.getMessage() for record in caplog.records if record.name == name]


@pytest.fixture
def cut(log: penstock.Log) -> tuple[Stream, int]:
    """A stream with a commit that has lost one of its two rows, and where its marker stands."""
    stream = log.create_stream("numbers", "x bigint")
    lost, whole = (staged(log, stream, {"x": x}, {"x": x + 1}) for x in (1, 3))
    stream.append({"x": 5})
    at = mark(log, stream, lost)
    mark(log, stream, whole)
    stream.append({"x": 6})
    log.trim(lost.first_lsn + 1)
    return stream, at


def test_earliest_is_after_the_last_commit_that_has_lost_rows(
    cut: tuple[Stream, int], caplog: pytest.LogCaptureFixture
) -> None:
    stream, at = cut

    with caplog.at_level(logging.WARNING):
        assert values(stream.read()) == [3, 4, 6]

    [said] = said_by(caplog)
    assert f'"earliest" is LSN {at + 1}, not the trim point' in said
    assert "commits=1" in said and "entries=1" in said
    with stream.tail("earliest", "latest") as batches:
        assert [batch["x"].to_pylist() for batch in batches] == [[3, 4], [6]]
    assert stream.resolve("earliest") == at + 1


def test_an_explicit_position_that_needs_what_is_trimmed_is_told_so(
    cut: tuple[Stream, int], log: penstock.Log
) -> None:
    stream, at = cut
    start = log.bounds().trim_point

    with pytest.raises(Trimmed):
        stream.read(start)

    assert values(stream.read(start, at)) == [5], "what else counts before it"
    assert values(stream.read(at + 1)) == [3, 4, 6]


def test_a_stream_without_such_a_commit_begins_at_the_trim_point(
    cut: tuple[Stream, int], log: penstock.Log, caplog: pytest.LogCaptureFixture
) -> None:
    other = log.create_stream("other", "x bigint")

    with caplog.at_level(logging.WARNING):
        assert other.resolve("earliest") == log.bounds().trim_point

    assert said_by(caplog) == []
    assert resolve_position(log.client, "earliest") == log.bounds().trim_point


@asynccontextmanager
async def at_work(log: penstock.Log, spec: QuerySpec) -> AsyncIterator[list[asyncio.Future[None]]]:
    """The tasks of a query, one future each."""
    async with await AsyncLog.connect(endpoint(log.target), timeout=30) as client:
        tasks = [
            await Task.open(client, spec, one, await client.claim(one.producer))
            for one in spec.task_ids
        ]
        running = [asyncio.ensure_future(task.run()) for task in tasks]
        yield running
        for task in tasks:
            task.drain()
        await asyncio.wait(running, timeout=60)


def make_join(log: penstock.Log, start: Callable[[Stream], int]) -> QuerySpec:
    """A query of two streams; of the first, a commit lost its rows, and one stands."""
    left, right = (log.create_stream(name, SOURCE) for name in "ab")
    lost = staged(log, left, {"k": 1, "v": 1})
    right.append({"k": 1, "v": 10})
    mark(log, left, lost)
    left.append({"k": 1, "v": 2})
    log.trim(lost.end)
    starts = {stream.name: start(stream) for stream in (left, right)}
    spec = spec_of(join(scan("a"), scan("b", id=11)), starts=starts)
    log.create_stream("out", spec.to_schema)
    return spec


async def test_a_query_that_begins_at_the_earliest_of_two_streams_gets_what_is_left(
    log: penstock.Log,
) -> None:
    """Its position is one for both, and before the commit that the first has lost."""
    spec = make_join(log, lambda stream: stream.resolve("earliest"))

    async with at_work(log, spec) as running:
        await until(lambda: log.stream("out").read().num_rows or any(map(_is_done, running)))
        assert not [task.exception() for task in running if task.done()]

    assert [sorted(row.values()) for row in log.stream("out").read().to_pylist()] == [[1, 1, 2, 10]]


async def test_a_query_that_needs_what_is_trimmed_is_told_what_and_how_to_go_on(
    log: penstock.Log,
) -> None:
    spec = make_join(log, lambda _: log.bounds().trim_point)

    async with at_work(log, spec) as running:
        await until(lambda: any(map(_is_done, running)))
        [error] = [task.exception() for task in running if task.done()]

    assert isinstance(error, Trimmed)
    assert "has lost rows from LSN" in str(error) and "restart=True" in str(error)


def _is_done(task: asyncio.Future[None]) -> bool:
    return task.done()


def test_a_result_whose_first_commit_was_cut_into_is_not_told_as_whole(log: penstock.Log) -> None:
    spec = spec_of(scan())
    out = log.create_stream("out", spec.to_schema)
    [task] = spec.task_ids
    rows = [encode_trusted(pa.record_batch([[key], [key]], schema=out.schema)) for key in (1, 2)]
    tags = (stream_tag("out"),)
    marker = Marker(str(task), 1, 0, Lsn(0), 2, rows_out=2)
    done = log.client.appender(task.producer).append(
        [
            *(NewEntry(row, tags, rows=1) for row in rows),
            NewEntry(encode_marker(marker), (task.marker_tag, *tags), Kind.MARKER),
        ]
    )
    assert sum(len(delta) for delta in result_deltas(log, spec)) == 2

    log.trim(done.first_lsn + 1)

    with pytest.raises(Trimmed, match="the first rows of query q's result were trimmed"):
        result_deltas(log, spec)
