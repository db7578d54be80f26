"""Trimming beside writers of Spark's own engine: what they staged is spared while it can count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from embedded_server import stop_server

import penstock
from penstock.connector.commit import commit_batch, commit_write, forget_staged
from penstock.connector.staging import Staged, Staging
from penstock.errors import BadRequest, Trimmed
from penstock.ids import Lsn
from penstock.log.records import Kind, NewEntry
from penstock.protocol.batch_commit import Batch
from penstock.protocol.markers import Marker, encode_marker
from penstock.protocol.names import STAGING_PREFIX, TaskId, query_key, staging_key
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.trim import trim_consumed

ROWS = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})


@pytest.fixture
def log(tmp_path: Path) -> Iterator[penstock.Log]:
    """With a query that has taken in everything whenever it is asked to."""
    with penstock.connect(tmp_path / "log") as opened:
        opened.create_stream("s", "n long")
        query = RegisteredQuery("q", "id", 0, "plan", "append", "t", {"s": 0}, [1], 0)
        opened.client.compare_and_set(query_key("q"), expected=None, value=encode_query(query))
        yield opened
    stop_server(tmp_path / "log")


def trim_after_all_is_consumed(log: penstock.Log) -> Lsn:
    task = TaskId("q", 0, 0, 0)
    marker = Marker(str(task), 0, 0, position=log.bounds().tail, inline=0)
    log.client.append([NewEntry(encode_marker(marker), (task.marker_tag,), Kind.MARKER)])
    return log.client.run(trim_consumed)


def stage(log: penstock.Log, id: str, batch: int = 0) -> Staged:
    return Staging(log.client, log.stream("s"), reservation=staging_key(id, batch)).write([ROWS])


def commit(log: penstock.Log, number: int, staged: Staged) -> bool:
    return commit_batch(log.client, Batch("a", number, "/c"), ["s"], [staged])


def read(log: penstock.Log) -> list[int]:
    return [row["n"] for row in log.stream("s").read().to_pylist()]


def test_what_is_staged_is_not_trimmed_before_its_marker_comes(log: penstock.Log) -> None:
    staged = stage(log, "a")
    assert trim_after_all_is_consumed(log) <= staged.ranges[0].first_lsn

    assert commit(log, 0, staged)
    assert read(log) == [1, 2, 3]
    assert not log.client.list_metadata(STAGING_PREFIX)


def test_nor_while_a_marker_that_names_it_is_there(log: penstock.Log) -> None:
    """The consumer has read up to a place between the staged rows and the marker."""
    staged = stage(log, "a")
    written = stage(log, "w")
    task = TaskId("q", 0, 0, 0)
    between = Marker(str(task), 0, 0, position=log.bounds().tail, inline=0)
    assert commit(log, 0, staged)
    commit_write(log.client, "w", ["s"], [written])
    log.client.append([NewEntry(encode_marker(between), (task.marker_tag,), Kind.MARKER)])

    assert log.client.run(trim_consumed) <= staged.ranges[0].first_lsn
    assert read(log) == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("is_batch_write", [False, True])
def test_of_one_writer_alone(log: penstock.Log, is_batch_write: bool) -> None:
    staged = stage(log, "a")
    task = TaskId("q", 0, 0, 0)
    between = Marker(str(task), 0, 0, position=log.bounds().tail, inline=0)
    if is_batch_write:
        commit_write(log.client, "a", ["s"], [staged])
    else:
        commit(log, 0, staged)
    log.client.append([NewEntry(encode_marker(between), (task.marker_tag,), Kind.MARKER)])

    assert log.client.run(trim_consumed) <= staged.ranges[0].first_lsn
    assert read(log) == [1, 2, 3]


def test_what_was_consumed_or_given_up_is_trimmed(log: penstock.Log) -> None:
    assert commit(log, 0, stage(log, "a"))
    commit_write(log.client, "w", ["s"], [stage(log, "w")])
    stage(log, "x")
    forget_staged(log.client, staging_key("x"))
    before = log.bounds().tail
    assert trim_after_all_is_consumed(log) == before
    assert read(log) == []


def test_a_reservation_of_a_task_that_came_after_the_commit_holds_nothing_back(
    log: penstock.Log,
) -> None:
    assert commit(log, 0, stage(log, "a"))
    stage(log, "a")
    before = log.bounds().tail
    assert trim_after_all_is_consumed(log) == before
    assert read(log) == []


def test_a_commit_of_rows_that_a_user_trimmed_is_refused(log: penstock.Log) -> None:
    """A marker that names what is gone would stop every reader of the stream."""
    staged = stage(log, "a")
    log.trim("latest")
    with pytest.raises(Trimmed, match="Run it again"):
        commit(log, 0, staged)
    assert read(log) == []
    assert commit(log, 0, stage(log, "a"))
    assert read(log) == [1, 2, 3]


def test_a_commit_whose_reservation_is_gone_is_refused(log: penstock.Log) -> None:
    """Nothing held trimming back since: what it names may be gone."""
    staged, written = stage(log, "a"), stage(log, "w")
    forget_staged(log.client, staging_key("a"))
    forget_staged(log.client, staging_key("w"))
    with pytest.raises(Trimmed, match="the reservation"):
        commit(log, 0, staged)
    with pytest.raises(Trimmed, match="the reservation"):
        commit_write(log.client, "w", ["s"], [written])
    assert read(log) == []


def test_what_tasks_wrote_to_another_log_is_not_named_in_this_one(
    log: penstock.Log, tmp_path: Path
) -> None:
    """A directory that means another place on their machine: the LSNs mean other rows here."""
    stage(log, "somebody else")
    with penstock.connect(tmp_path / "other") as other:
        other.create_stream("s", "n long")
        staged = stage(other, "a")
    with pytest.raises(BadRequest, match="the tasks wrote to log"):
        commit(log, 0, staged)
    with pytest.raises(BadRequest, match="the tasks wrote to log"):
        commit_write(log.client, "a", ["s"], [staged])
    assert read(log) == []
    stop_server(tmp_path / "other")


def test_a_reservation_that_is_late_after_a_batch_write_holds_nothing_back(
    log: penstock.Log,
) -> None:
    commit_write(log.client, "w", ["s"], [stage(log, "w")])
    stage(log, "w")
    before = log.bounds().tail
    assert trim_after_all_is_consumed(log) == before
