"""Which settings of Spark are set for a user and which are left alone; the tables of the guide."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from penstock.connector import tuned as subject
from penstock.connector.options import (
    BATCH_READ,
    STREAM_READ,
    STREAM_WRITE,
    WRITE,
    ReadOptions,
    WriteOptions,
    read_options,
    write_options,
)
from penstock.connector.tuned import (
    FILE_MANAGER,
    LOADED_WORKERS,
    RAW_FILES,
    SHUFFLE_PARTITIONS,
    UNIX_SOCKETS,
    count_cores,
    raw_files_are_safe,
    tuned,
    tuned_settings,
)
from penstock.errors import BadRequest

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
LOCAL = {"spark.master": "local[2]"}


def test_all_is_set_on_a_local_builder_of_which_nothing_else_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.delenv("PYSPARK_UDS_MODE", raising=False)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    builder = SparkSession.builder.master("local[2]")

    assert tuned(builder) is builder

    expected = FILE_MANAGER | RAW_FILES | UNIX_SOCKETS | LOADED_WORKERS | LOCAL
    assert builder._options == expected | {SHUFFLE_PARTITIONS: "2"}


def test_what_the_user_said_stays() -> None:
    from pyspark.sql import SparkSession

    every = FILE_MANAGER | RAW_FILES | UNIX_SOCKETS | LOADED_WORKERS | {SHUFFLE_PARTITIONS: ""}
    said = {name: f"mine {number}" for number, name in enumerate(every)}
    builder = SparkSession.builder.master("local[2]").config(map=said)

    assert tuned(builder)._options == said | LOCAL


@pytest.mark.parametrize(
    ("said", "environment"),
    [
        (LOCAL | {STATE_STORE: ROCKSDB}, {}),
        (LOCAL | {STATE_STORE: "com.example.OwnStateStore"}, {}),
        (LOCAL | {CHECKPOINTS: "s3a://bucket/checkpoints"}, {}),
        (LOCAL | {"spark.hadoop.fs.s3a.endpoint": "http://localhost:9000"}, {}),
        (LOCAL, {"HADOOP_CONF_DIR": "/etc/hadoop"}),
        ({"spark.master": "spark://host:7077"}, {}),
        ({"spark.master": "local-cluster[2,1,1024]"}, {}),
        ({}, {}),
    ],
)
def test_raw_files_are_left_out_where_they_could_break_something(
    said: dict[str, str], environment: dict[str, str]
) -> None:
    assert not raw_files_are_safe(said, environment)
    assert not tuned_settings(said, environment).keys() & RAW_FILES.keys()
    is_local = said.get("spark.master", "").startswith("local")
    for settings in (FILE_MANAGER, LOADED_WORKERS):
        assert (tuned_settings(said, environment).items() >= settings.items()) is is_local


@pytest.mark.parametrize(
    "said",
    [
        LOCAL,
        LOCAL | {STATE_STORE: HDFS},
        LOCAL | {CHECKPOINTS: "/tmp/checkpoints"},
        LOCAL | {CHECKPOINTS: "file:///tmp/checkpoints"},
        {"spark.master": "local[*]"},
        {"spark.master": "local[2,4]"},
    ],
)
def test_raw_files_are_taken_on_one_machine(said: dict[str, str]) -> None:
    assert raw_files_are_safe(said, {})


def test_sockets_are_left_to_the_environment_if_it_says_something() -> None:
    assert tuned_settings(LOCAL, {}).items() >= UNIX_SOCKETS.items()
    for chosen in ("true", "false"):
        settings = tuned_settings(LOCAL, {"PYSPARK_UDS_MODE": chosen})
        assert not settings.keys() & UNIX_SOCKETS.keys()


@pytest.mark.parametrize(
    ("said", "cores"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[3, 5]"}, 3),
        ({"spark.master": "local[*]"}, os.cpu_count()),
        ({"spark.master": "local-cluster[2,3,1024]"}, 6),
        ({"spark.executor.instances": "4", "spark.executor.cores": "2"}, 8),
        ({"spark.executor.instances": "4"}, None),
        ({"spark.master": "yarn"}, None),
        ({}, None),
    ],
)
def test_a_shuffle_has_as_many_parts_as_there_are_cores(
    said: dict[str, str], cores: int | None
) -> None:
    assert count_cores(said) == cores
    expected = None if cores is None else str(cores)
    assert tuned_settings(said, {}).get(SHUFFLE_PARTITIONS) == expected


# ---- docs/spark.md


def table_of(head: str) -> list[list[str]]:
    """The cells of the guide's table that begins with this cell."""
    guide = (Path(subject.__file__).parents[2] / "docs" / "spark.md").read_text()
    lines = guide[guide.index(f"\n| {head} |") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def test_the_guide_names_every_setting() -> None:
    told = {row[0].strip("`") for row in table_of("setting") if row[1].startswith("yes")}

    set_here = FILE_MANAGER | RAW_FILES | UNIX_SOCKETS | LOADED_WORKERS | {SHUFFLE_PARTITIONS: ""}
    assert told == set(set_here)


#: Where an option is taken, as the guide says it: by streaming and batch readers and writers.
PLACES = {
    "everywhere": (STREAM_READ, BATCH_READ, STREAM_WRITE, WRITE),
    "readers": (STREAM_READ, BATCH_READ),
    "sinks": (STREAM_WRITE, WRITE),
    "spark.readStream": (STREAM_READ,),
    "spark.read": (BATCH_READ,),
    "writeStream": (STREAM_WRITE,),
}


def test_the_guide_has_every_option_where_it_is_taken() -> None:
    rows = table_of("option")
    for names in (STREAM_READ, BATCH_READ, STREAM_WRITE, WRITE):
        told = [row[0].strip("`") for row in rows if names in PLACES[row[2]]]
        assert sorted(told) == sorted(names)
    assert len({row[0] for row in rows}) == len(rows)


def said(place: tuple[str, ...], options: dict[str, str]) -> ReadOptions | WriteOptions:
    given = options if "streams" in options else {"stream": "s"} | options
    if place in (STREAM_READ, BATCH_READ):
        return read_options(given, place)
    return write_options(given, place)


@pytest.mark.parametrize("row", table_of("option"), ids=lambda row: row[0].strip("`"))
def test_the_guide_s_defaults_and_allowed_values_are_so(row: list[str]) -> None:
    option, default, places, allowed = row[0].strip("`"), row[1], PLACES[row[2]], row[4]
    values = re.findall(r"`([^`]+)`", allowed)
    if option in ("log", "tokenFile", "tlsCa", "stream", "streams", "keyBy"):
        assert not default.startswith("`")
        return  # names, of which any may be given
    wrong = ["nonsense"] if values else ["-1", "1.5", "many"]
    for place in places:
        for value in values or ["1", "1000"]:
            said(place, {option: value})
        for value in wrong:
            with pytest.raises(BadRequest, match=option):
                said(place, {option: value})
        if default.startswith("`"):
            assert said(place, {option: default.strip("`")}) == said(place, {})


def test_what_else_the_guide_says_of_values() -> None:
    for option in ("startingPosition", "endingPosition"):
        for text in ("12", "2026-11-15T08:00:00Z"):
            said(BATCH_READ, {option: text})
    unlimited = said(STREAM_READ, {"maxBytesPerTrigger": "0"})
    assert isinstance(unlimited, ReadOptions)
    assert unlimited.bytes_max is None
    with pytest.raises(BadRequest, match="maxRowsPerTrigger"):
        said(STREAM_READ, {"maxRowsPerTrigger": "0"})
