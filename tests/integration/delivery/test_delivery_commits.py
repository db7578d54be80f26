"""What counts is delivered, and nothing else; and what counts at one place is never cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from harness.delivery_targets import MemoryTarget
from harness.waiting import wait_until

import penstock
from penstock.delivery import player, source
from penstock.delivery.deliver import ResultOf
from penstock.delivery.player_core import Limits
from penstock.errors import BadRequest, NotFound, PlanChanged, Trimmed
from penstock.ids import Lsn
from penstock.log.records import Kind, NewEntry
from penstock.protocol.committed import read_entries
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import TaskId, query_key, with_naming
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.stream.batches import encode_batch
from penstock.stream.registration import stream_tag
from penstock.stream.stream import Stream

SCHEMA = "k long, v string"
ROWS_OF_A_COMMIT = 30


class Writer:
    """One task of a query: stages entries, and commits them with a marker."""

    def __init__(self, log: penstock.Log, stream: Stream, task: TaskId) -> None:
        self._log = log
        self._stream = stream
        self._task = task
        self._appender = log.client.appender(task.producer)
        self._number = 0

    def entry(self, kind: Kind, *rows: dict[str, Any]) -> NewEntry:
        batch = pa.RecordBatch.from_pylist(list(rows), schema=self._stream.schema)
        tags = (stream_tag(self._stream.name),)
        return NewEntry(encode_batch(batch), tags, kind, rows=len(rows))

    def stage(self, *entries: NewEntry) -> Range:
        done = self._appender.append(list(entries))
        return Range(done.first_lsn, done.count)

    def commit(self, *ranges: Range, inline: tuple[NewEntry, ...] = ()) -> int:
        marker = Marker(
            str(self._task), self._appender.instance, self._number, Lsn(0), len(inline),
            ranges=ranges, rows_out=1,
        )  # fmt: skip
        self._number += 1
        tags: tuple[str, ...] = (stream_tag(self._stream.name), self._task.marker_tag)
        tags = with_naming(tags) if ranges else tags
        entry = NewEntry(encode_marker(marker), tags, Kind.MARKER)
        done = self._appender.append([*inline, entry])
        return int(done.first_lsn) + done.count - 1

    def commit_rows(self, commit: int) -> int:
        """A commit of its own size, in three ranges; half of it staged long before the marker."""
        rows = [{"k": key, "v": f"{commit}"} for key in range(ROWS_OF_A_COMMIT)]
        first = self.stage(*(self.entry(Kind.STAGED, row) for row in rows[:10]))
        second = self.stage(self.entry(Kind.STAGED, *rows[10:20]))
        self._stream.append({"k": 0, "v": "plain"})
        third = self.stage(*(self.entry(Kind.STAGED, row) for row in rows[20:]))
        return self.commit(first, second, third)


@pytest.fixture(params=["kept", "fetched"])
def keeping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the reader still has staged entries when their marker comes."""
    if request.param == "fetched":
        monkeypatch.setattr(source, "read_entries", partial(read_entries, bytes_max=0))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is cut as small as it can be."""
    monkeypatch.setattr(player, "Limits", partial(Limits, batch_bytes_max=1))
    monkeypatch.setattr(player, "READ_BYTES", 1)
    monkeypatch.setattr(player, "QUEUES_BYTES", 0)
    monkeypatch.setattr(player, "QUEUE_BYTES_MIN", 4_000)


@pytest.fixture
def stream(module_log: penstock.Log, request: pytest.FixtureRequest) -> Stream:
    name = request.node.name[5:].translate(str.maketrans("[]", "__"))
    return module_log.create_stream(name, SCHEMA)


def commits_of(target: MemoryTarget) -> Iterator[Counter[str]]:
    """The rows of each commit in each transaction."""
    for batch in target.transactions:
        yield Counter(value for value in batch.rows["v"].to_pylist() if value != "plain")


@pytest.mark.usefixtures("keeping", "small")
def test_a_commit_of_many_entries_is_never_cut(module_log: penstock.Log, stream: Stream) -> None:
    """On the shared tail and in a target's own reads, whatever the bounds are."""
    writer = Writer(module_log, stream, TaskId(stream.name[:90], 1, 0, 0))
    targets = [MemoryTarget(), MemoryTarget()]
    lost = writer.stage(writer.entry(Kind.STAGED, {"k": 1, "v": "never marked"}))
    with penstock.deliver(stream, targets, key="k", name=stream.name[:90]) as delivery:
        for commit in range(12):
            writer.commit_rows(commit)
            if commit == 4:
                delivery.processAllAvailable()
                backup = targets[0].backup()
            elif commit == 8:
                targets[0].restore(backup)
        delivery.processAllAvailable()

    assert lost.count == 1
    expected = [
        {"k": key, "v": f"{commit}"} for commit in range(12) for key in range(ROWS_OF_A_COMMIT)
    ]
    found = [row for target in targets for row in target.rows if row["v"] != "plain"]
    assert sorted(map(str, found)) == sorted(map(str, expected))
    for target in targets:
        sizes = {count for counts in commits_of(target) for count in counts.values()}
        assert len(sizes) == 1, f"a commit was cut: {sizes}"
        order = [int(row["v"]) for row in target.rows if row["v"] != "plain"]
        assert order == sorted(order)


@pytest.mark.usefixtures("small")
def test_entries_of_one_group_are_in_one_transaction(
    module_log: penstock.Log, stream: Stream
) -> None:
    writer = Writer(module_log, stream, TaskId("groups", 1, 0, 0))
    target = MemoryTarget()
    for commit in range(5):
        rows = [{"k": key, "v": f"{commit}"} for key in range(6)]
        writer.commit(inline=tuple(writer.entry(Kind.DATA, row) for row in rows))

    with penstock.deliver(stream, target, name=stream.name[:90]) as delivery:
        delivery.processAllAvailable()

    assert len(target.rows) == 30
    assert {count for counts in commits_of(target) for count in counts.values()} == {6}


# ---- the result of a query


def register(log: penstock.Log, name: str, to: str, **changes: Any) -> RegisteredQuery:
    fields: dict[str, Any] = {
        "name": name, "id": "an-id", "version": 1, "plan": "the plan", "mode": "update", "to": to,
        "starts": {}, "tasks": [1], "created_ms": 1,
    }  # fmt: skip
    query = RegisteredQuery(**{**fields, **changes})
    value = log.client.get(query_key(name))
    expected = None if value is None else value.data
    log.client.compare_and_set(query_key(name), expected=expected, value=encode_query(query))
    return query


def test_only_rows_of_the_query_and_version_are_delivered(
    module_log: penstock.Log, stream: Stream
) -> None:
    register(module_log, "own", stream.name, version=2)
    tasks = [TaskId("own", 1, 0, 0), TaskId("own", 2, 0, 0), TaskId("own2", 2, 0, 0)]
    writers = [Writer(module_log, stream, task) for task in tasks]
    for number, writer in enumerate(writers):
        inline = writer.entry(Kind.DATA, {"k": number, "v": "inline"})
        staged = writer.stage(writer.entry(Kind.STAGED, {"k": number, "v": "staged"}))
        writer.commit(staged, inline=(inline,))
    stream.append({"k": 9, "v": "a producer's"})
    target = MemoryTarget()

    with penstock.deliver(ResultOf(module_log, "own"), target) as delivery:
        delivery.processAllAvailable()
        assert delivery.name == "own-MemoryTarget"

    assert target.rows == [{"k": 1, "v": "inline"}, {"k": 1, "v": "staged"}]
    assert target.shard is not None
    assert target.shard.table == "own"
    register(module_log, "own", stream.name, version=3)
    with pytest.raises(
        PlanChanged, match="query was own in its version 2, is own in its version 3"
    ):
        penstock.deliver(ResultOf(module_log, "own"), target)


def test_a_query_that_does_not_exist_is_said(module_log: penstock.Log) -> None:
    with pytest.raises(NotFound, match="no query nobody"):
        penstock.deliver(ResultOf(module_log, "nobody"), MemoryTarget())


def test_the_key_of_a_result_is_what_it_is_grouped_by(module_log: penstock.Log) -> None:
    stream = module_log.create_stream("grouped", f"{SCHEMA}, _weight long NOT NULL")
    register(module_log, "grouped", stream.name, result_key=["k"])
    target = MemoryTarget()

    with penstock.deliver(ResultOf(module_log, "grouped"), target):
        wait_until(lambda: target.shard is not None)

    assert target.shard is not None
    assert target.shard.key == ("k",)


def test_a_changing_result_without_a_key_asks_for_one(module_log: penstock.Log) -> None:
    stream = module_log.create_stream("keyless", f"{SCHEMA}, _weight long NOT NULL")
    register(module_log, "keyless", stream.name)
    target = MemoryTarget()

    with pytest.raises(BadRequest, match="with some of k, v, or an empty one"):
        penstock.deliver(ResultOf(module_log, "keyless"), target)
    with penstock.deliver(ResultOf(module_log, "keyless"), target, key=[]):
        wait_until(lambda: target.shard is not None)
    assert target.shard is not None
    assert target.shard.key == ()


def test_a_changing_result_that_lost_its_first_rows_is_refused(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("out", f"{SCHEMA}, _weight long NOT NULL")
    register(own_log, "query", stream.name, result_key=["k"])
    writer = Writer(own_log, stream, TaskId("query", 1, 0, 0))
    for _ in range(2):
        row = {"k": 1, "v": "x", "_weight": 1}
        last = writer.commit(inline=(writer.entry(Kind.DATA, row),))
    own_log.trim(last - 1)

    with pytest.raises(Trimmed, match="first rows of query query"):
        penstock.deliver(ResultOf(own_log, "query"), MemoryTarget())
