"""What `penstock.start` registers, against a real log server and without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from embedded_server import stop_server
from engine_samples import SOURCE, count_by, scan

import penstock
from penstock.errors import BadRequest, PlanChanged, Trimmed
from penstock.log.records import Value
from penstock.plan.stages import Query, cut
from penstock.protocol.names import query_key
from penstock.runtime.registry import decode_query, encode_query
from penstock.runtime.spec import QuerySpec, Settings
from penstock.runtime.writers import read_writers
from penstock.spark import start
from penstock.stream.registration import stream_key

COUNTS = count_by(scan(), 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[penstock.Log]:
    with penstock.connect(tmp_path / "log") as opened:
        opened.create_stream("in", SOURCE)
        yield opened
    stop_server(tmp_path / "log")


def query_of(root: Any) -> Query:
    return cut(root, "update", tuple(name.replace("#", "_") for name in root.schema.names))


def register(
    log: penstock.Log, name: str, to: str, root: Any = COUNTS, **options: Any
) -> QuerySpec:
    """As `penstock.start` does, up to the point where tasks are made."""
    chosen: dict[str, Any] = {
        "on_change": "refuse", "shared": False, "start": "earliest", "fail_on_data_loss": True,
        "workers": 1,
    }  # fmt: skip
    spec, _ = start._register(
        log, query_of(root), name=name, to=to, mode="update", settings=Settings(), statics={},
        **{**chosen, **options},
    )  # fmt: skip
    return spec


# -- one stream, one writer


def test_a_stream_has_one_writing_query_unless_it_is_shared(log: penstock.Log) -> None:
    register(log, "first", "out")

    with pytest.raises(BadRequest, match="is the result of query first") as refused:
        register(log, "second", "out")
    assert "another `to=`" in str(refused.value) and "shared=True" in str(refused.value)
    assert log.client.get(query_key("second")) is None

    register(log, "second", "out", shared=True)
    register(log, "third", "elsewhere")
    for name in ("first", "second"):  # they are known: each goes on, whoever else writes there
        assert register(log, name, "out").version == 1
    assert read_writers(log.client, "out").names == ["first", "second"]


def test_a_query_that_is_forgotten_writes_no_more(log: penstock.Log) -> None:
    register(log, "first", "out")
    value = log.client.get(query_key("first"))
    assert value is not None
    log.client.compare_and_set(query_key("first"), expected=value.data, value=None)

    register(log, "second", "out")


def test_queries_that_shared_a_stream_before_go_on(log: penstock.Log) -> None:
    """Registered by a program that knew nothing of writers."""
    register(log, "first", "out")
    value = log.client.get(query_key("first"))
    assert value is not None
    second = replace(decode_query("first", value.data), name="second", id="another")
    log.client.compare_and_set(query_key("second"), expected=None, value=encode_query(second))

    assert register(log, "second", "out").name == "second"
    assert register(log, "first", "out").name == "first"
    with pytest.raises(BadRequest, match="of query first, second"):
        register(log, "third", "out")


def test_of_two_starts_at_once_only_one_gets_the_stream(
    log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked before either registers: there is nobody else."""
    look = start.read_writers

    def look_then_lose(client: Any, stream: str) -> Any:
        monkeypatch.setattr(start, "read_writers", look)
        seen = look(client, stream)
        register(log, "first", "out")
        return seen

    monkeypatch.setattr(start, "read_writers", look_then_lose)
    with pytest.raises(BadRequest, match="is the result of query first"):
        register(log, "second", "out")

    monkeypatch.setattr(start, "read_writers", look_then_lose)
    assert register(log, "third", "out", shared=True).name == "third"


def test_a_changed_plan_is_told_both_ways_out(log: penstock.Log) -> None:
    register(log, "first", "out", COUNTS)

    with pytest.raises(PlanChanged) as changed:
        register(log, "first", "out", count_by(scan(), 1))

    advice = str(changed.value).splitlines()[0]
    assert "another name and with another `to=`" in advice
    assert "restart_from_earliest" in advice


def test_a_shared_stream_does_not_begin_anew_for_one_of_its_queries(log: penstock.Log) -> None:
    register(log, "first", "out")
    register(log, "second", "out", shared=True)
    changed: dict[str, Any] = {
        "root": count_by(scan(), 1), "on_change": "restart_from_earliest", "shared": True,
    }  # fmt: skip

    with pytest.raises(BadRequest, match="result of query second, too"):
        register(log, "first", "out", **changed)
    assert log.stream("out").start_lsn == 0

    assert register(log, "first", "own", **changed).version == 2
    assert read_writers(log.client, "out").names == ["second"]


# -- to begin anew after a trim

ANEW: dict[str, Any] = {"root": count_by(scan(), 1), "on_change": "restart_from_earliest"}


def test_a_query_whose_input_was_trimmed_does_not_begin_anew_in_silence(
    log: penstock.Log, caplog: pytest.LogCaptureFixture
) -> None:
    register(log, "q", "out")
    before = log.client.get(query_key("q"))
    log.stream("in").append([{"k": 1, "v": 1}])
    trim_point = log.trim("latest")

    with pytest.raises(Trimmed, match=rf"of in \(LSN \d+ to {trim_point - 1}\)") as refused:
        register(log, "q", "elsewhere", **ANEW)
    assert "fail_on_data_loss=False" in str(refused.value)
    assert log.client.get(query_key("q")) == before, "nothing was changed"
    assert "elsewhere" not in [stream.name for stream in log.streams()]

    spec = register(log, "q", "elsewhere", fail_on_data_loss=False, **ANEW)
    assert spec.version == 2 and spec.sources["in"].start >= trim_point
    assert f"of in (LSN {find(log, 'in').lsn} to {trim_point - 1})" in caplog.text


def test_a_trim_of_what_was_no_input_of_the_query_is_no_loss(log: penstock.Log) -> None:
    log.create_stream("other", "x long").append([{"x": 1}])
    log.create_stream("late", SOURCE)
    register(log, "late_q", "late_out", count_by(scan("late"), 0))
    log.stream("in").append([{"k": 1, "v": 1}])
    register(log, "q", "out", start="latest")

    log.trim(find(log, "late").lsn)  # what is older than the stream
    changed = {**ANEW, "root": count_by(scan("late"), 1)}
    assert register(log, "late_q", "late_anew", **changed).version == 2
    log.trim(register(log, "q", "out").sources["in"].start)  # older than where the query began
    assert register(log, "q", "anew", **ANEW).version == 2


def find(log: penstock.Log, stream: str) -> Value:
    value = log.client.get(stream_key(stream))
    assert value is not None
    return value


# -- what a stranger met


def counted(spec: QuerySpec) -> list[dict[str, Any]]:
    """A row of a result like this query's."""
    return [dict.fromkeys(spec.to_schema.names, 1)]


def test_a_restart_into_another_stream_leaves_the_rows_there_alone(log: penstock.Log) -> None:
    spec = register(log, "q", "out")
    archive = log.create_stream("archive", spec.to_schema)
    archive.append(counted(spec))

    restarted = register(log, "q", "archive", on_change="restart_from_earliest")

    assert restarted.version == 2
    assert log.stream("archive").read().num_rows == 1


def test_a_restart_into_another_querys_stream_is_refused(log: penstock.Log) -> None:
    register(log, "q", "out")
    register(log, "other", "theirs")
    with pytest.raises(BadRequest, match="is the result of query other"):
        register(log, "q", "theirs", on_change="restart_from_earliest")


def test_a_query_that_cannot_be_read_stops_no_other(log: penstock.Log) -> None:
    register(log, "q", "out")
    newer = {"format": 99, "name": "newer", "to": "theirs"}
    for name, data in (("newer", json.dumps(newer).encode()), ("broken", b"{")):
        log.client.compare_and_set(query_key(name), expected=None, value=data)

    assert register(log, "q", "out").version == 1
    with pytest.raises(BadRequest, match="is the result of query newer"):
        register(log, "another", "theirs")


def test_a_query_can_begin_anew_although_its_plan_is_the_same(log: penstock.Log) -> None:
    assert register(log, "q", "out", on_change="restart_from_earliest").version == 1
    assert register(log, "q", "out", restart=True).version == 2


def test_a_query_that_begins_anew_gets_the_tasks_of_its_workers(log: penstock.Log) -> None:
    assert register(log, "q", "out").tasks == (0, 1)
    assert register(log, "q", "out", workers=4).tasks == (0, 1)
    assert register(log, "q", "out", workers=4, restart=True).tasks == (4, 4)


def test_workers_without_tasks_are_told_of(
    log: penstock.Log, caplog: pytest.LogCaptureFixture
) -> None:
    start._tell_idle_workers(register(log, "q", "out", workers=4), 4)
    few = register(log, "small", "few")
    start._tell_idle_workers(few, 4)
    assert few.tasks == (0, 1)
    assert "tasks for 4 workers" not in caplog.text, "it gets more with them"
    start._tell_idle_workers(replace(few, shares_sources=False), 4)
    assert "1 tasks for 4 workers" in caplog.text and "restart=True" in caplog.text


def test_a_result_that_goes_back_to_a_former_stream_begins_anew_there(log: penstock.Log) -> None:
    first = register(log, "q", "a")
    log.stream("a").append(counted(first))
    register(log, "q", "b", restart=True)
    assert log.stream("a").read().num_rows == 1, "the old result stays where it is"

    assert register(log, "q", "a", restart=True).version == 3

    assert log.stream("a").read().num_rows == 0
