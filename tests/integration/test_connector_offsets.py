"""What the source cannot go on from, or only with a loss: offsets, trimmed positions, streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from connector_source import SCHEMA, keys, mark, read_now, reader, rows, run_through, stage, take
from embedded_server import stop_server

import penstock
from penstock.connector.arrow import stream_struct
from penstock.connector.batch_reader import PenstockBatchReader
from penstock.connector.options import BATCH_READ, read_options
from penstock.errors import BadRequest, NotFound, SchemaMismatch, Trimmed

# ---- what is refused


def test_a_trimmed_start_is_told_or_passed_over(
    own_log: penstock.Log, caplog: pytest.LogCaptureFixture
) -> None:
    stream = own_log.create_stream("s", SCHEMA)
    for n in range(5):
        stream.append(rows(n, 1))
    _, at = run_through(reader(own_log, "s", maxRowsPerTrigger=1))
    source = reader(own_log, "s", maxRowsPerTrigger=1)
    first = source.initialOffset()
    second = source.latestOffset(first, None)
    own_log.trim(second["lsn"] + 1)
    trim_point = own_log.bounds().trim_point

    for call in (
        lambda new: new.latestOffset(second, None),
        lambda new: new.partitions(second, at),
    ):
        with pytest.raises(Trimmed) as told:
            call(reader(own_log, "s"))
        for word in ("stream s", str(second["lsn"]), str(trim_point), "checkpoint", "failOnData"):
            assert word in str(told.value)

    lenient = reader(own_log, "s", failOnDataLoss="false")
    batches, _ = run_through(lenient, second)
    assert [keys(batch) for batch in batches] == [[2, 3, 4]]
    assert keys(take(reader(own_log, "s", failOnDataLoss="false"), second, at)) == [2, 3, 4]
    assert "rows are lost" in caplog.text


def test_a_part_that_is_trimmed_before_its_task_reads_it(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("s", SCHEMA)
    for n in range(5):
        stream.append(rows(n, 1))
    start, end = {}, {}
    parts = {}
    for lenient in ("true", "false"):
        source = reader(own_log, "s", failOnDataLoss=lenient, partitions=1)
        start, end = source.initialOffset(), run_through(source)[1]
        fresh = reader(own_log, "s", failOnDataLoss=lenient, partitions=1)
        parts[lenient] = (fresh, fresh.partitions(start, end))
    own_log.trim(end["lsn"] - 2)
    source, (part,) = parts["true"]
    with pytest.raises(Trimmed, match="failOnDataLoss"):
        list(source.read(part))
    source, (part,) = parts["false"]
    assert keys([row for batch in source.read(part) for row in batch.to_pylist()]) == [3, 4]


def test_rows_of_a_commit_that_are_trimmed_are_told_or_passed_over(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("s", SCHEMA)
    gone, kept = stage(own_log, stream, 0, 1), stage(own_log, stream, 1, 1)
    own_log.trim(kept.first_lsn)
    mark(own_log, [stream], gone, kept)
    said: dict[str, Any] = {"startingPosition": kept.first_lsn}
    with pytest.raises(Trimmed, match="failOnDataLoss"):
        run_through(reader(own_log, "s", **said))
    batches, _ = run_through(reader(own_log, "s", failOnDataLoss="false", **said))
    assert [keys(batch) for batch in batches] == [[1]]


def test_a_commit_that_a_trim_cut_off_is_told_with_where_to_go_on(own_log: penstock.Log) -> None:
    """By the follower, by a task of a query, by a batch; and what they say helps.

    Whoever begins at the earliest begins after it.
    """
    stream = own_log.create_stream("s", SCHEMA)
    gone, kept = stage(own_log, stream, 0, 1), stage(own_log, stream, 1, 1)
    after = mark(own_log, [stream], gone, kept).first_lsn + 1
    stream.append(rows(2, 1))
    own_log.trim(kept.first_lsn)

    said: dict[str, Any] = {"startingPosition": kept.first_lsn}
    source = reader(own_log, "s", **said)
    start = source.initialOffset()
    calls = {
        "follower": lambda: run_through(source),
        "task": lambda: take(reader(own_log, "s"), start, start | {"lsn": after + 1}),
        "batch": lambda: read_now(own_log, "s", **said),
    }
    for who, call in calls.items():
        with pytest.raises(Trimmed) as told:
            call()
        text = str(told.value)
        trimmed_at = f"trimmed at {kept.first_lsn}"
        for word in ("stream s", f"commit at LSN {after - 1}", trimmed_at, "startingPosition"):
            assert word in text, who
        assert str(after) in text, who
        assert ("failOnDataLoss" in text) == (who != "batch"), who
        assert ("checkpoint" in text) == (who != "batch"), who

    # A batch looks before it begins: of all such commits it names the last.
    options = {"log": own_log.target, "stream": "s", "startingPosition": str(kept.first_lsn)}
    found = read_options(options, BATCH_READ)
    with pytest.raises(Trimmed, match=f"startingPosition to {after}"):
        PenstockBatchReader(found, stream_struct(found)).partitions()
    for position in (after, "earliest"):
        assert keys(read_now(own_log, "s", startingPosition=position)) == [2]
        batches, _ = run_through(reader(own_log, "s", startingPosition=position))
        assert [keys(batch) for batch in batches] == [[2]]
    assert reader(own_log, "s").initialOffset()["lsn"] == after


def test_a_trim_between_planning_a_batch_and_reading_it_is_told(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("s", SCHEMA)
    for n in range(3):
        stream.append(rows(n, 1))
    found = read_options({"log": own_log.target, "stream": "s", "partitions": "1"}, BATCH_READ)
    planned = PenstockBatchReader(found, stream_struct(found))
    (part,) = planned.partitions()
    own_log.trim(own_log.bounds().tail)
    with pytest.raises(Trimmed) as told:
        list(planned.read(part))
    assert "startingPosition" in str(told.value) and "failOnDataLoss" not in str(told.value)


def test_a_trim_while_it_fetches_repeats_nothing(
    own_log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = own_log.create_stream("s", SCHEMA)
    before = stage(own_log, stream, 90, 1)
    one, two = stage(own_log, stream, 1, 1), stage(own_log, stream, 2, 1)
    stream.append(rows(5, 1))
    mark(own_log, [stream], before)
    mark(own_log, [stream], one, two)
    source = reader(own_log, "s", failOnDataLoss="false", startingPosition=one.first_lsn)
    start = source.initialOffset()
    client = source._driver._log.client
    tail = client.tail

    def racing(tags: Any, *, start: int, end: int | None = None) -> Any:
        if end is not None:
            own_log.trim(two.first_lsn)
        return tail(tags, start=start, end=end)

    monkeypatch.setattr(client, "tail", racing)
    batches, _ = run_through(source, start)
    assert own_log.bounds().trim_point == two.first_lsn, "it did fetch"
    # Of the rows that are trimmed, it had been shown one.
    assert [keys(batch) for batch in batches] == [[1, 2, 5]]
    source.stop()


# ---- offsets


def test_the_first_batch_is_the_same_after_a_restart(own_log: penstock.Log) -> None:
    """Spark stores where it ended only, and asks again where it began."""
    stream = own_log.create_stream("s", SCHEMA)
    stream.append(rows(0, 3))
    source = reader(own_log, "s", startingPosition="latest")
    start = source.initialOffset()
    stream.append(rows(3, 4))
    end = source.latestOffset(start, source.getDefaultReadLimit())
    assert keys(take(source, start, end)) == [3, 4, 5, 6]
    stream.append(rows(7, 1))

    again = reader(own_log, "s", startingPosition="latest")
    later = again.initialOffset()
    assert later["lsn"] > end["lsn"]
    assert keys(take(again, later, json.loads(json.dumps(end)))) == [3, 4, 5, 6]
    batches, _ = run_through(again, end)
    assert [keys(batch) for batch in batches] == [[7]]

    # A batch in which another source of the query had news.
    assert list(again.partitions(later, start)) == []

    # "earliest" moves with the trim point.
    first = reader(own_log, "s")
    start = first.initialOffset()
    end = first.latestOffset(start, first.getDefaultReadLimit())
    own_log.trim(end["lsn"] - 1)
    later = reader(own_log, "s").initialOffset()
    with pytest.raises(Trimmed, match=f"from LSN {start['lsn']}"):
        reader(own_log, "s").partitions(later, end)
    assert keys(take(reader(own_log, "s", failOnDataLoss="false"), later, end)) == [7]


def test_every_offset_says_where_the_query_began(module_log: penstock.Log, name: str) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    for n in range(4):
        stream.append(rows(n, 1))
    source = reader(module_log, name, maxRowsPerTrigger=1)
    start = at = source.initialOffset()
    assert start["from"] == start["lsn"]
    for _ in range(2):
        at = source.latestOffset(at, source.getDefaultReadLimit())
    # As Spark gives it back after a restart.
    at = json.loads(json.dumps(at))
    restarted = reader(module_log, name, maxRowsPerTrigger=1)
    end = restarted.latestOffset(at, restarted.getDefaultReadLimit())
    assert list(start) == list(end) == ["lsn", "from", "schema", "log"]
    assert end == start | {"lsn": end["lsn"]}
    assert restarted.reportLatestOffset()["from"] == start["from"]
    assert restarted.reportLatestOffset().keys() == end.keys()


def test_offsets_that_are_not_of_one_query_are_told(module_log: penstock.Log, name: str) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    stream.append(rows(0, 1))
    source = reader(module_log, name)
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())
    with pytest.raises(BadRequest, match="new checkpoint"):
        source.partitions(end, start)

    def without(offset: Any) -> Any:
        return {key: value for key, value in offset.items() if key != "from"}

    with pytest.raises(BadRequest, match="where the query began"):
        source.partitions(without(start), without(end))
    with pytest.raises(BadRequest, match="where the query began"):
        source.partitions(start, without(end))
    # One that does not say it began there.
    found = source.latestOffset(without(start), source.getDefaultReadLimit())
    assert found["from"] == start["lsn"]
    assert keys(take(source, without(start), found)) == [0]


def test_a_checkpoint_of_another_log_is_told(own_log: penstock.Log, tmp_path: Path) -> None:
    own_log.create_stream("s", SCHEMA).append(rows(0, 1))
    offset = run_through(reader(own_log, "s"))[1]
    with penstock.connect(tmp_path / "other") as other:
        stream = other.create_stream("s", SCHEMA)
        for n in range(10):
            stream.append(rows(n, 1))
        source = reader(other, "s")
        nothing = {key: value for key, value in offset.items() if key != "log"}
        for call in (
            lambda: source.latestOffset(offset, None),
            lambda: source.partitions(offset, offset),
            lambda: source.latestOffset(nothing, None),
        ):
            with pytest.raises(BadRequest, match=r"another log.*option log.*new checkpoint"):
                call()
        source.stop()
    stop_server(tmp_path / "other")


def test_an_offset_beyond_the_tail_is_of_another_log(module_log: penstock.Log, name: str) -> None:
    module_log.create_stream(name, SCHEMA)
    source = reader(module_log, name)
    offset = source.initialOffset() | {"lsn": module_log.bounds().tail + 1}
    with pytest.raises(BadRequest, match="another log"):
        source.latestOffset(offset, None)
    with pytest.raises(BadRequest, match="another log"):
        reader(module_log, name, startingPosition=10**9).initialOffset()


def test_another_schema_than_the_checkpoints_is_told(module_log: penstock.Log, name: str) -> None:
    module_log.create_stream(name, SCHEMA)
    source = reader(module_log, name)
    offset = source.initialOffset() | {"schema": "0" * 16}
    with pytest.raises(SchemaMismatch, match="new checkpoint"):
        source.latestOffset(offset, None)
    with pytest.raises(SchemaMismatch, match="new checkpoint"):
        source.partitions(offset, offset)


def test_streams_of_two_schemas_are_not_read_as_one(module_log: penstock.Log, name: str) -> None:
    module_log.create_stream(f"{name}_1", SCHEMA)
    module_log.create_stream(f"{name}_2", "k long NOT NULL, v int")
    with pytest.raises(SchemaMismatch, match="column v: expected string, got int"):
        reader(module_log, f"{name}_1", f"{name}_2")


def test_a_stream_that_is_not_there_is_told(module_log: penstock.Log, name: str) -> None:
    module_log.create_stream(name, SCHEMA)
    with pytest.raises(NotFound, match=name):
        reader(module_log, name + "x")


def test_a_column_of_the_stream_is_no_metadata(module_log: penstock.Log, name: str) -> None:
    module_log.create_stream(name, "_lsn long, k long")
    assert reader(module_log, name)._columns.names == ["_lsn", "k"]
    with pytest.raises(BadRequest, match="_lsn"):
        reader(module_log, name, metadata="_lsn")
