"""The source without Spark: a follower and the parts it plans, against a real server."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from connector_source import (
    SCHEMA,
    entry,
    keys,
    large_row,
    mark,
    reader,
    rows,
    run_through,
    stage,
    take,
)
from embedded_server import kill_server
from harness.waiting import wait_until
from pyspark.sql.pandas.types import from_arrow_schema

import penstock
from penstock.connector import follower as follower_module
from penstock.connector import partitions as partitions_module
from penstock.connector import stream_reader as stream_reader_module
from penstock.connector.arrow import schema_hash
from penstock.connector.follower import FollowerLimits, SourceFollower
from penstock.connector.items import ItemSource
from penstock.errors import BadFormat, SchemaMismatch, Unavailable
from penstock.log.records import Kind, NewEntry
from penstock.protocol.markers import Range
from penstock.stream.batches import encode_batch
from penstock.stream.registration import stream_tag

NO_LIMITS = FollowerLimits(None, None)


# ---- what counts


def test_data_and_what_markers_name_are_read_once(module_log: penstock.Log, name: str) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    stream.append(rows(0, 3))
    lost = stage(module_log, stream, 100, 5)
    first, second = stage(module_log, stream, 3, 2), stage(module_log, stream, 5, 2)
    mark(module_log, [stream])
    mark(module_log, [stream], first, second)
    stream.append(rows(7, 1))
    assert lost.count == 1

    source = reader(module_log, name)
    batches, end = run_through(source)

    assert [keys(batch) for batch in batches] == [list(range(8))]
    assert source.latestOffset(end, source.getDefaultReadLimit()) is end
    source.stop()


def test_staged_rows_before_the_start_count_at_their_marker(
    module_log: penstock.Log, name: str
) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    staged = stage(module_log, stream, 0, 4)
    start = module_log.bounds().tail
    stage(module_log, stream, 50, 1)
    mark(module_log, [stream], staged)

    batches, _ = run_through(reader(module_log, name, startingPosition=start))
    assert [keys(batch) for batch in batches] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("by", ["size", "virtualNode"])
def test_a_batch_planned_again_after_a_restart_has_the_same_rows(
    module_log: penstock.Log, name: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Carried in its parts, read in LSN spans, and planned from two offsets alone."""
    stream = module_log.create_stream(f"{name}_{by}", SCHEMA)
    for n in range(10):
        made = [entry(stream, n, 1, Kind.DATA, n % 5), entry(stream, 20 + n, 1, Kind.STAGED, n % 3)]
        done = module_log.client.append(made)
        stage(module_log, stream, 1000, 1)
        mark(module_log, [stream], Range(done.first_lsn, 2))
    expected = [*range(10), *range(20, 30)]
    source = reader(module_log, stream.name, partitionBy=by, partitions=3)
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())

    assert keys(take(source, start, end)) == expected
    restarted = reader(module_log, stream.name, partitionBy=by, partitions=3)
    assert keys(take(restarted, start, end)) == expected
    monkeypatch.setattr(partitions_module, "CARRIED_BYTES_MAX", 0)
    assert len(source.partitions(start, end)) == 3
    assert keys(take(source, start, end)) == expected


@pytest.mark.parametrize("carried_max", [10**6, 0])
def test_partitions_by_lane_hold_all_rows_and_keep_those_of_a_key_together(
    module_log: penstock.Log, name: str, carried_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions_module, "CARRIED_BYTES_MAX", carried_max)
    key = SCHEMA.split()[0]
    stream = module_log.create_stream(f"{name}_{carried_max}", SCHEMA, lanes=6, key=[key])
    for _ in range(3):
        stream.append(rows(0, 40))
    source = reader(module_log, stream.name, partitionBy="lane", partitions=4)
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())

    parts = [
        [row for batch in source.read(part) for row in batch.to_pylist()]
        for part in source.partitions(start, end)
    ]

    assert sorted(row[key] for part in parts for row in part) == sorted([*range(40)] * 3)
    homes = {row[key]: at for at, part in enumerate(parts) for row in part}
    assert all(homes[row[key]] == at for at, part in enumerate(parts) for row in part)
    assert 1 < len(parts) <= 4


def test_a_commit_to_several_streams_counts_in_each_and_streams_are_told_apart(
    module_log: penstock.Log, name: str
) -> None:
    one, two = (module_log.create_stream(f"{name}_{n}", SCHEMA) for n in (1, 2))
    ranges = [stage(module_log, one, 0, 2), stage(module_log, two, 10, 2)]
    place = mark(module_log, [one, two], *ranges)
    two.append(rows(12, 1))

    batches, _ = run_through(reader(module_log, one.name, two.name, metadata="_stream,_lsn"))
    (batch,) = batches
    assert {(row["k"], row["_stream"]) for row in batch} == {
        (0, one.name),
        (1, one.name),
        (10, two.name),
        (11, two.name),
        (12, two.name),
    }
    assert {row["_lsn"] for row in batch if row["k"] < 12} == {place.first_lsn}


def test_metadata_says_where_when_and_by_whom(module_log: penstock.Log, name: str) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    producer = stream.producer("me")
    done = producer.append(rows(0, 2))
    staged = stage(module_log, stream, 2, 1)
    marked = mark(module_log, [stream], staged)
    told = {one.lsn: one for one in module_log.client.read([stream_tag(name)])}

    ((batch),), _ = run_through(reader(module_log, name, metadata="_lsn,_time,_producer"))
    for row in batch:
        at = told[marked.first_lsn if row["k"] == 2 else done.first_lsn]
        assert row["_lsn"] == at.lsn
        assert row["_time"].timestamp() * 1000 == pytest.approx(at.time_ms, abs=0.01)
        assert row["_producer"] == at.producer
    assert {row["k"] for row in batch} == {0, 1, 2}


def test_what_stands_before_a_restart_of_the_stream_does_not_count(
    module_log: penstock.Log, name: str
) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    stream.append(rows(0, 3))
    module_log.restart_stream(name)
    stream.append(rows(3, 2))
    for start in ("earliest", "0"):
        batches, _ = run_through(reader(module_log, name, startingPosition=start))
        assert [keys(batch) for batch in batches] == [[3, 4]]


def test_an_empty_stream_has_nothing_and_then_something(
    module_log: penstock.Log, name: str
) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    source = reader(module_log, name)
    batches, at = run_through(source)
    assert batches == []
    stream.append(rows(0, 1))
    wait_until(lambda: source.latestOffset(at, None) != at, "the row did not come")
    batches, _ = run_through(source, at)
    assert [keys(batch) for batch in batches] == [[0]]


def test_positions_say_where_a_query_begins(module_log: penstock.Log, name: str) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    stream.append(rows(0, 2))
    second = stream.append(rows(2, 2)).first_lsn
    assert second is not None
    entry_ = module_log.client.read([stream_tag(name)], start=second)[0]
    begins = {
        "earliest": second - 1,
        str(second): second,
        f"{penstock.stream.times.from_time_ms(entry_.time_ms + 60_000).isoformat()}": None,
        "latest": None,
    }
    for position, lsn in begins.items():
        found = reader(module_log, name, startingPosition=position).initialOffset()["lsn"]
        if position == "earliest":
            assert found <= second - 1
        else:
            assert found == (module_log.bounds().tail if lsn is None else lsn)


# ---- limits


def test_triggers_keep_their_limits(module_log: penstock.Log, name: str) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    for n in range(10):
        stream.append(rows(100 + 10 * n, 10))
    batches, _ = run_through(reader(module_log, name, maxRowsPerTrigger=35))
    assert [len(batch) for batch in batches] == [30, 30, 30, 10]
    assert [row["k"] for batch in batches for row in batch] == list(range(100, 200))

    size = len(module_log.client.read([stream_tag(name)])[0].payload)
    batches, _ = run_through(reader(module_log, name, maxBytesPerTrigger=4 * size + size // 2))
    assert [len(batch) for batch in batches] == [40, 40, 20]

    both = reader(module_log, name, maxRowsPerTrigger=95, maxBytesPerTrigger=5 * size)
    assert [len(batch) for batch in run_through(both)[0]] == [50, 50]


def test_all_that_is_there_is_taken_if_there_is_no_limit(
    module_log: penstock.Log, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is more than a follower may be ahead."""
    monkeypatch.setattr(stream_reader_module, "AHEAD_BYTES_MAX", 1)
    stream = module_log.create_stream(name, SCHEMA)
    for n in range(30):
        stream.append([{"k": n, "v": "x" * 500_000}])
    batches, _ = run_through(reader(module_log, name, maxBytesPerTrigger=0))
    assert [keys(batch) for batch in batches] == [list(range(30))]


def test_available_now_ends_at_what_was_there(module_log: penstock.Log, name: str) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    for n in range(10):
        stream.append(rows(n, 1))
    staged = stage(module_log, stream, 50, 1)
    source = reader(module_log, name, maxRowsPerTrigger=4)
    source.prepareForTriggerAvailableNow()
    mark(module_log, [stream], staged)
    stream.append(rows(10, 5))
    batches, _ = run_through(source)
    assert [keys(batch) for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    unlimited = reader(module_log, name, maxBytesPerTrigger=0)
    unlimited.prepareForTriggerAvailableNow()
    stream.append(rows(90, 1))
    batches, _ = run_through(unlimited)
    assert [keys(batch) for batch in batches] == [[*range(15), 50]]


# ---- the follower


def test_it_does_not_run_ahead_without_bound_nor_stops_before_a_large_commit(
    module_log: penstock.Log, name: str
) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    large = [{"k": 0, "v": "x" * 500_000}]
    payload = encode_batch(pa.RecordBatch.from_pylist(large, schema=stream.schema))
    one = NewEntry(payload, (stream_tag(name),), Kind.STAGED, rows=1)
    ranges = [Range(module_log.client.append([one]).first_lsn, 1) for _ in range(20)]
    mark(module_log, [stream], *ranges)
    for _ in range(20):
        stream.append(large)
    tail = module_log.bounds().tail

    follower = SourceFollower(module_log.client, (ItemSource(name),), 0, ahead_max=1)
    at, seen, triggers = 0, 0, 0
    while (end := follower.cut(at, NO_LIMITS)) != at:
        found = follower.items(at, end)
        assert found is not None
        # A delivery of the log is looked at as a whole, and has a bound of its own.
        assert len(found) <= 8
        seen += sum(item.rows for item in found)
        follower.forget(end)
        at, triggers = end, triggers + 1
    assert (seen, at) == (40, tail)
    assert triggers > 1
    follower.close()


def test_it_makes_room_for_what_comes_after_a_batch_that_others_planned(
    module_log: penstock.Log, name: str
) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    for n in range(20):
        stream.append(large_row(n))
    tail = module_log.bounds().tail
    follower = SourceFollower(module_log.client, (ItemSource(name),), 0, ahead_max=1)
    at = 0
    while (end := follower.cut(at, NO_LIMITS)) != at:
        at = end
    assert at == tail
    follower.close()


@pytest.mark.parametrize("why", ["trimmed", "restarted"])
def test_a_checkpoint_below_what_can_be_read_is_followed_by_one_thread(
    own_log: penstock.Log, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trimmed, or before the stream was restarted: no stall, and no thread for each trigger."""
    monkeypatch.setattr(stream_reader_module, "AHEAD_BYTES_MAX", 1)
    stream = own_log.create_stream("s", SCHEMA)
    stream.append(rows(100, 3))
    start = reader(own_log, "s").initialOffset()
    if why == "trimmed":
        own_log.trim(own_log.bounds().tail)
    else:
        own_log.restart_stream("s")

    source = reader(own_log, "s", failOnDataLoss=why == "restarted", maxBytesPerTrigger=1)
    followers = []
    for _ in range(3):
        assert source.latestOffset(start, source.getDefaultReadLimit()) is start
        followers.append(source._driver._follower)
    assert followers[0] is followers[1] is followers[2]
    source.stop()

    for n in range(20):
        stream.append(large_row(n))
    source = reader(own_log, "s", failOnDataLoss=why == "restarted", maxBytesPerTrigger=1)
    batches, _ = run_through(source, start)
    assert [keys(batch) for batch in batches] == [[n] for n in range(20)]
    source.stop()


def test_what_it_does_not_know_it_does_not_tell(module_log: penstock.Log, name: str) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    first = stream.append(rows(0, 1)).first_lsn
    second = stream.append(rows(1, 1)).first_lsn
    assert first is not None and second is not None
    follower = SourceFollower(module_log.client, (ItemSource(name),), second)
    assert follower.cut(second, NO_LIMITS) == second + 1
    assert follower.items(first, second + 1) is None
    assert follower.items(second, second + 1000) is None
    assert len(follower.items(second, second + 1) or ()) == 1
    follower.forget(second + 1)
    assert follower.items(second, second + 1) is None
    assert not follower.covers(second) and follower.covers(second + 1)
    follower.close()


def test_no_question_to_the_log_once_it_follows(
    module_log: penstock.Log, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    stream.append(rows(0, 1))
    source = reader(module_log, name)
    _, at = run_through(source)
    client = source._driver._log.client
    for method in ("bounds", "read", "read_last", "get", "find_time", "run"):
        monkeypatch.setattr(client, method, None)
    stream.append(rows(1, 1))
    wait_until(lambda: source.latestOffset(at, None) != at, "the row did not come")
    end = source.latestOffset(at, None)
    assert source.reportLatestOffset() == end
    assert keys(take(source, at, end)) == [1]
    monkeypatch.undo()
    source.stop()


def test_it_goes_on_after_the_server_was_killed(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("s", SCHEMA)
    stream.append(rows(0, 1))
    source = reader(own_log, "s")
    _, at = run_through(source)
    kill_server(Path(own_log.target))
    stream.append(rows(1, 1))
    wait_until(lambda: source.latestOffset(at, None) != at, "the row did not come")
    batches, _ = run_through(source, at)
    assert [keys(batch) for batch in batches] == [[1]]


def test_what_ends_the_thread_is_raised_by_the_next_trigger(
    module_log: penstock.Log, name: str
) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    source = reader(module_log, name)
    _, at = run_through(source)
    module_log.client.append([NewEntry(b"no marker", (stream_tag(stream.name),), Kind.MARKER)])
    wait_until(lambda: source._driver._follower._error is not None, "it did not notice")
    with pytest.raises(BadFormat, match="no marker"):
        source.latestOffset(at, None)


def test_a_server_that_is_gone_is_told(
    own_log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_log.create_stream("s", SCHEMA).append(rows(0, 1))
    directory = Path(own_log.target)
    told = json.loads((directory / "server.json").read_text())
    address = f"penstock://{told['host']}:{told['port']}"
    monkeypatch.setattr(follower_module, "QUIET_SECONDS", 0.2)
    with penstock.connect(address, token_file=directory / "token", timeout=5.0) as log:
        own_log.close()  # it would start the server again
        follower = SourceFollower(log.client, (ItemSource("s"),), 0)
        at = follower.cut(0, NO_LIMITS)
        assert follower.cut(at, NO_LIMITS) == at
        kill_server(directory)
        wait_until(lambda: follower._error is not None, "it did not notice")
        with pytest.raises(Unavailable):
            follower.cut(at, NO_LIMITS)


def test_a_thread_that_was_cancelled_does_not_leave_triggers_waiting(
    module_log: penstock.Log, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_log.create_stream(name, SCHEMA).append(rows(0, 1))

    def cancelled(*_: Any, **__: Any) -> Any:
        raise asyncio.CancelledError

    monkeypatch.setattr(module_log.client, "tail", cancelled)
    follower = SourceFollower(module_log.client, (ItemSource(name),), 0)
    wait_until(lambda: not follower._thread.is_alive(), "it did not end")
    assert follower._error is not None
    with pytest.raises(Unavailable, match="Cancelled"):
        follower.cut(0, NO_LIMITS)


def test_it_can_be_closed_while_it_fetches(module_log: penstock.Log, name: str) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    begin = stage(module_log, stream, 0, 1).first_lsn
    marked = mark(module_log, [stream], Range(begin, 1_000_000))  # most of it is not there
    follower = SourceFollower(module_log.client, (ItemSource(name),), marked.first_lsn)
    threading.Event().wait(0.3)
    assert follower._thread.is_alive()
    follower.close()
    wait_until(lambda: not follower._thread.is_alive(), "the thread goes on for ever")
    assert follower._error is None


def test_its_thread_ends_when_it_is_closed(module_log: penstock.Log, name: str) -> None:
    module_log.create_stream(name, SCHEMA)
    follower = SourceFollower(module_log.client, (ItemSource(name),), 0)
    follower.close()
    follower.close()
    wait_until(lambda: follower._thread not in threading.enumerate(), "the thread goes on for ever")


# ---- columns


def test_some_columns_in_another_order_and_looser(module_log: penstock.Log, name: str) -> None:
    stream = module_log.create_stream(
        name, "k long NOT NULL, s struct<x: int NOT NULL, y: array<string>> NOT NULL, z double"
    )
    stream.append([{"k": 1, "s": {"x": 2, "y": ["a", None]}, "z": 0.5}])
    wanted = pa.schema(
        [
            (
                "s",
                pa.struct([("x", pa.int32()), ("y", pa.list_(pa.field("element", pa.string())))]),
            ),
            ("k", pa.int64()),
        ]
    )
    source = reader(module_log, name, columns=from_arrow_schema(wanted))
    batches, _ = run_through(source)
    assert batches == [[{"s": {"x": 2, "y": ["a", None]}, "k": 1}]]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([("k", pa.int32(), False)], ["column k", "expected bigint, got int"]),
        ([("v", pa.string(), False)], ["column v", "NOT NULL"]),
        ([("w", pa.string(), True)], ["column w", "not there", "k, v"]),
        ([("_time", pa.timestamp("us", tz="UTC"), False)], ["_time", "option metadata"]),
    ],
)
def test_columns_that_do_not_fit_are_named(
    module_log: penstock.Log, name: str, columns: list[Any], words: list[str]
) -> None:
    module_log.create_stream(name, SCHEMA)
    schema = pa.schema([pa.field(name_, kind, nullable) for name_, kind, nullable in columns])
    source = reader(module_log, name, columns=from_arrow_schema(schema))
    with pytest.raises(SchemaMismatch) as told:
        source.initialOffset()
    for word in words:
        assert word in str(told.value)


def test_the_hash_of_a_schema_knows_every_difference_but_comments() -> None:
    ddls = [
        "k long",
        "k long NOT NULL",
        "j long",
        "k int",
        "k long, v long",
        "k map<string, long>",
        "k struct<a: long>",
        "k struct<a: long NOT NULL>",
        "k array<long>",
    ]
    parse = penstock.stream.schema.normalise
    hashes = {schema_hash(parse(ddl)) for ddl in ddls}
    assert len(hashes) == len(ddls)
    assert schema_hash(parse("k long COMMENT 'the key'")) == schema_hash(parse("k long"))


def test_many_small_entries_become_few_batches(
    module_log: penstock.Log, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = module_log.create_stream(name, SCHEMA)
    module_log.client.append([entry(stream, 100 * n, 100, Kind.DATA) for n in range(1200)])
    monkeypatch.setattr(partitions_module, "CARRIED_BYTES_MAX", 0)
    source = reader(module_log, name, partitions=1)
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())
    (part,) = source.partitions(start, end)
    sizes = [batch.num_rows for batch in source.read(part)]
    assert sizes == [50_000, 50_000, 20_000]
