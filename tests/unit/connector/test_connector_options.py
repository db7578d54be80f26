"""Options of `format("penstock")`: what is refused, and that the refusal says what is allowed."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.connector.items import Division
from penstock.connector.options import (
    BATCH_READ,
    BYTES_PER_TRIGGER,
    STREAM_READ,
    STREAM_WRITE,
    WRITE,
    Where,
    checkpoint_place,
    read_options,
    write_options,
)
from penstock.errors import BadRequest
from penstock.log.directories import default_data_dir


def test_a_stream_alone_is_enough() -> None:
    found = read_options({"stream": "bids"}, STREAM_READ)
    assert found.streams == ("bids",)
    assert found.where == Where(str(default_data_dir()))
    assert (found.start, found.end) == ("earliest", "latest")
    assert (found.rows_max, found.bytes_max) == (None, BYTES_PER_TRIGGER)
    assert found.fail_on_data_loss and not found.push_filters and found.division is None
    assert found.partitions is None and found.metadata == ()


def test_everything_can_be_said_in_any_case() -> None:
    said = {
        "LOG": "penstock://host:7070",
        "tokenfile": "/t",
        "TlsCa": "/ca",
        "streams": " bids , asks,",
        "metadata": "_time, _lsn",
        "startingposition": "2026-11-15T08:00:00Z",
        "partitions": "8",
        "partitionBy": "VIRTUALNODE",
        "maxRowsPerTrigger": "100",
        "maxbytespertrigger": "0",
        "failOnDataLoss": "False",
    }
    found = read_options(said, STREAM_READ)
    assert found.where == Where("penstock://host:7070", "/t", "/ca")
    assert found.streams == ("bids", "asks")
    assert found.metadata == ("_lsn", "_time"), "in their own order"
    assert found.start == datetime(2026, 11, 15, 8, tzinfo=UTC)
    assert (found.partitions, found.division) == (8, Division.NODE)
    assert (found.rows_max, found.bytes_max) == (100, None)
    assert not found.fail_on_data_loss


def test_options_of_spark_itself_are_let_through() -> None:
    said = {"stream": "bids", "checkpointLocation": "/c", "path": "x", "queryName": "q"}
    read_options(said, STREAM_READ)
    read_options(said, BATCH_READ)
    write_options(said, WRITE)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, ["stream", "streams"]),
        ({"stream": "a", "streams": "b,c"}, ["stream", "streams"]),
        ({"streams": ","}, ["streams", "commas"]),
        ({"streams": "a,a"}, ["streams", "'a,a'", "once"]),
        ({"stream": "no/slash"}, ["no/slash"]),
        ({"stream": "a", "metadata": "_lsn,_offset"}, ["metadata", "_offset", "_producer"]),
        ({"stream": "a", "startingPosition": "first"}, ["startingPosition", "earliest", "latest"]),
        ({"stream": "a", "partitions": "0"}, ["partitions", "'0'", "1 or more"]),
        ({"stream": "a", "partitions": "-1"}, ["partitions", "'-1'"]),
        ({"stream": "a", "partitionBy": "key"}, ["partitionBy", "size", "virtualNode", "lane"]),
        ({"stream": "a", "maxRowsPerTrigger": "0"}, ["maxRowsPerTrigger", "1 or more"]),
        ({"stream": "a", "maxBytesPerTrigger": "1k"}, ["maxBytesPerTrigger", "'1k'"]),
        ({"stream": "a", "failOnDataLoss": "maybe"}, ["failOnDataLoss", "true", "false"]),
        ({"stream": "a", "maxRowsPerTriger": "5"}, ["maxRowsPerTriger", "maxRowsPerTrigger"]),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(said: dict[str, str], words: list[str]) -> None:
    with pytest.raises(BadRequest) as refused:
        read_options(said, STREAM_READ)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("allowed", "name", "value"),
    [
        (STREAM_READ, "endingPosition", "latest"),
        (STREAM_READ, "pushFilters", "true"),
        (BATCH_READ, "maxRowsPerTrigger", "5"),
        (BATCH_READ, "failOnDataLoss", "true"),
    ],
)
def test_an_option_of_the_other_kind_of_read_is_not_known(
    allowed: tuple[str, ...], name: str, value: str
) -> None:
    with pytest.raises(BadRequest, match=name):
        read_options({"stream": "a", name: value}, allowed)


def test_what_a_sink_is_told() -> None:
    said = {"stream": "out", "keyBy": "k, v", "takeOver": "TRUE", "checkpointLocation": "/c/"}
    found = write_options(said, STREAM_WRITE)
    assert (found.stream, found.key_by, found.take_over) == ("out", ("k", "v"), True)
    assert found.checkpoint == "/c"


@pytest.mark.parametrize(
    ("said", "allowed", "word"),
    [
        ({}, WRITE, "stream"),
        ({"stream": "a", "takeOver": "true"}, WRITE, "takeOver"),
        ({"stream": "a", "streams": "b"}, STREAM_WRITE, "streams"),
        ({"stream": "1a"}, WRITE, "1a"),
    ],
)
def test_a_bad_option_of_a_sink_is_named(
    said: dict[str, str], allowed: tuple[str, ...], word: str
) -> None:
    with pytest.raises(BadRequest, match=word):
        write_options(said, allowed)


def test_a_checkpoint_has_one_name_however_it_is_written() -> None:
    places = ["/c/d", "/c/d/", "file:/c/d", "file:///c/d/", "/c/x/../d"]
    assert {checkpoint_place(place) for place in places} == {"/c/d"}
    assert checkpoint_place("s3://bucket/c/") == "s3://bucket/c"
    for place in ("d", "dbfs:/c", "hdfs:/c"):
        assert checkpoint_place(place) == place, "not of this driver's working directory"
    assert checkpoint_place(None) is None


def test_a_log_is_one_place_for_processes_with_other_directories_and_environments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said = {"stream": "a", "log": "log", "tokenFile": "t", "tlsCa": "ca"}
    where = write_options(said, WRITE).where
    assert where == Where(f"{tmp_path}/log", f"{tmp_path}/t", f"{tmp_path}/ca")
    monkeypatch.setenv("PENSTOCK_DIR", "other")
    assert write_options({"stream": "a"}, WRITE).where == Where(f"{tmp_path}/other")
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", "token")
    there = read_options({"stream": "a", "log": "penstock://h:1"}, STREAM_READ).where
    assert there == Where("penstock://h:1", f"{tmp_path}/token")


@pytest.mark.parametrize("make", [read_options, write_options])
def test_options_go_to_other_processes_and_hold_no_secret(make: Any) -> None:
    found = make({"stream": "a", "tokenFile": "/t"}, STREAM_READ if make is read_options else WRITE)
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301
    assert found.where.token_file == "/t"
