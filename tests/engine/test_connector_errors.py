"""What a user of format("penstock") is told: one clear error each, from the driver, and soon."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.files import token_file

import penstock
from penstock.stream.registration import (
    Registration,
    decode_registration,
    encode_registration,
    stream_key,
)
from penstock.stream.schema import normalise

pytestmark = pytest.mark.usefixtures("interpreted")

#: Less than the 30 s for which a client waits: nobody sits through that to hear of an error.
SECONDS_MAX = 25.0


def told(run: Callable[[], Any]) -> str:
    """The message of what `run` raises, within the time that a user would wait.

    Who waits for a client does so each time; a busy machine is late now and then.
    """
    took: list[float] = []
    while len(took) < 3:
        began = time.monotonic()
        with pytest.raises(Exception) as raised:
            run()
        took.append(time.monotonic() - began)
        if took[-1] < SECONDS_MAX:
            return str(raised.value)
    pytest.fail(f"it took {took} s")


def source(reader: Any, log: penstock.Log, **options: Any) -> Any:
    return reader.format("penstock").option("log", log.target).options(**options)


def copying(spark: Any, log: penstock.Log, place: Path, **options: Any) -> Any:
    """A query from stream `rows` to stream `copy` that takes what is there; not started."""
    frame = source(spark.readStream, log, stream="rows", **options).load()
    writer = source(frame.writeStream, log, stream="copy")
    return writer.option("checkpointLocation", str(place)).trigger(availableNow=True)


def finish(writer: Any) -> None:
    assert writer.start().awaitTermination(120)


@pytest.fixture
def rows(own_log: penstock.Log) -> penstock.Stream:
    made = own_log.create_stream("rows", "n long")
    made.append([{"n": 1}])
    return made


def test_an_error_is_told_without_the_way_to_it(
    spark: Any, rows: penstock.Stream, own_log: penstock.Log
) -> None:
    own_log.trim(own_log.bounds().tail)
    for run in (
        source(spark.read, own_log, stream="rowz").load,
        source(spark.readStream, own_log, stream="rows", startingPosition="noon").load,
        source(spark.range(1).write, own_log, stream="rows").mode("append").save,
        source(spark.read, own_log, stream="rows", startingPosition="0").load().collect,
    ):
        said = told(run)
        python = said.partition("JVM stacktrace")[0]
        assert python.count("File ") == 1 and "causes.py" in python, said
        assert "penstock.errors." in python


# ---- the log


def test_a_missing_server_is_told(spark: Any, tmp_path: Path) -> None:
    token = token_file(tmp_path / "token", "5" * 64)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and not listened to
        log = f"penstock://127.0.0.1:{unused.getsockname()[1]}"
        where = {"log": log, "tokenFile": str(token), "stream": "rows"}
        said = told(spark.read.format("penstock").options(**where).load)

    assert f"no log server answers at {log.removeprefix('penstock://')}" in said
    assert "Start it with `penstock log serve`" in said
    assert "5" * 64 not in said


def test_a_wrong_token_is_told(spark: Any, own_log: penstock.Log, tmp_path: Path) -> None:
    own_log.create_stream("rows", "n long")
    at = json.loads(Path(own_log.target, "server.json").read_text())
    token = token_file(tmp_path / "token", "f" * 64)
    where = {"log": f"penstock://{at['host']}:{at['port']}", "tokenFile": str(token)}

    said = told(spark.read.format("penstock").options(stream="rows", **where).load)

    assert "Unauthorized" in said
    assert "token" in said
    assert "f" * 64 not in said


def test_a_token_file_that_is_not_there_is_told(spark: Any, tmp_path: Path) -> None:
    where = {"log": "penstock://127.0.0.1:7070", "tokenFile": str(tmp_path / "nowhere")}
    said = told(spark.read.format("penstock").options(stream="rows", **where).load)
    assert str(tmp_path / "nowhere") in said


# ---- streams and options


def test_an_unknown_stream_is_told_with_names_that_are_close(
    spark: Any, own_log: penstock.Log, rows: penstock.Stream
) -> None:
    for reader in (spark.read, spark.readStream):
        said = told(source(reader, own_log, stream="rowz").load)
        assert "no stream rowz: did you mean rows?" in said


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stream": "rows", "startAt": "0"}, "option startat is not known here: allowed are log,"),
        ({"stream": "rows", "startingPosition": "noon"}, "option startingPosition: 'noon' is no"),
        ({"stream": "rows", "partitionBy": "n"}, "'n': allowed are size, virtualNode, lane"),
        ({"stream": "rows", "failOnDataLoss": "no"}, "'no': allowed are true, false"),
        ({"stream": "rows", "metadata": "_row"}, "any of _lsn, _time, _producer, _stream"),
        ({"stream": "rows", "maxRowsPerTrigger": "0"}, "maxRowsPerTrigger is '0': a whole number"),
        ({}, "give one of the options stream (one) and streams"),
    ],
)
def test_an_option_that_makes_no_sense_names_itself_and_what_is_allowed(
    spark: Any, log: penstock.Log, options: dict[str, str], expected: str
) -> None:
    """Spark hands over the names of options in lower case."""
    assert expected in told(source(spark.readStream, log, **options).load)


def test_an_option_of_a_sink_is_checked_too(spark: Any, log: penstock.Log) -> None:
    writer = source(spark.range(1).write, log, stream="sunk", keyby="k").mode("append")
    assert "option keyBy names k: the rows have id" in told(writer.save)

    writer = source(spark.range(1).write, log, stream="sunk", takeOver="true").mode("append")
    assert "option takeover is not known here: allowed are log," in told(writer.save)
    assert "sunk" not in [stream.name for stream in log.streams()]


# ---- schemas


def test_columns_that_the_stream_does_not_have_are_told(
    spark: Any, own_log: penstock.Log, rows: penstock.Stream
) -> None:
    wrong = source(spark.read, own_log, stream="rows").schema("n int, m long").load()
    said = told(wrong.collect)

    assert "SchemaMismatch" in said
    assert "column m: not there; there are n" in said
    assert "column n" in said


def test_rows_that_do_not_fit_the_stream_are_told(
    spark: Any, own_log: penstock.Log, rows: penstock.Stream
) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS string) AS n")
    said = told(source(frame.write, own_log, stream="rows").mode("append").save)

    assert "the rows do not fit stream rows" in said
    assert "Select and cast the columns to n bigint, or write to another stream" in said
    assert rows.read().num_rows == 1


def test_a_schema_that_changed_between_restarts_is_told(
    spark: Any, own_log: penstock.Log, rows: penstock.Stream, tmp_path: Path
) -> None:
    finish(copying(spark, own_log, tmp_path))
    key = stream_key("rows")
    known = own_log.client.get(key)
    assert known is not None
    before = decode_registration("rows", known.data)
    after = Registration("rows", normalise("n long, m string"), before.created_ms)
    own_log.client.compare_and_set(key, expected=known.data, value=encode_registration(after))

    said = told(lambda: finish(copying(spark, own_log, tmp_path)))

    assert "stream rows has another schema than when the checkpoint was written" in said
    assert "start with a new checkpoint" in said


# ---- positions


def test_a_start_that_was_trimmed_is_told_and_can_be_passed_over(
    spark: Any, own_log: penstock.Log, rows: penstock.Stream, tmp_path: Path
) -> None:
    finish(copying(spark, own_log, tmp_path))
    for n in (2, 3):
        rows.append([{"n": n}])
        own_log.trim("latest")
    point = own_log.bounds().trim_point
    rows.append([{"n": 4}])

    said = told(lambda: finish(copying(spark, own_log, tmp_path)))

    assert "stream rows is to be read from LSN" in said
    assert f"but the log was trimmed at {point}" in said
    assert "failOnDataLoss=false" in said
    finish(copying(spark, own_log, tmp_path, failOnDataLoss="false"))
    found = own_log.stream("copy").read(start=point).column("n").to_pylist()
    assert found == [4]


def test_a_checkpoint_of_another_log_is_told(
    spark: Any, log: penstock.Log, own_log: penstock.Log, rows: penstock.Stream, tmp_path: Path
) -> None:
    for _ in range(20):
        rows.append([{"n": 1}])
    finish(copying(spark, own_log, tmp_path))
    log.create_stream("rows", "n long")

    said = told(lambda: finish(copying(spark, log, tmp_path)))

    assert "is of another log" in said
    assert "start with a new checkpoint" in said


# ---- modes


def test_overwriting_is_refused(spark: Any, own_log: penstock.Log, rows: penstock.Stream) -> None:
    writer = source(spark.range(1).toDF("n").write, own_log, stream="rows")
    said = told(writer.mode("overwrite").save)

    assert 'a stream of the log only grows: write with mode("append")' in said
    assert rows.read().column("n").to_pylist() == [1]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("complete", 'penstock.foreach_batch_writer("counts")'),
        # Spark refuses it before we are asked; docs/spark.md has the way out.
        ("update", "penstock does not support Update mode"),
    ],
)
def test_modes_that_take_rows_back_are_refused_by_the_plain_sink(
    spark: Any, own_log: penstock.Log, rows: penstock.Stream, tmp_path: Path, mode: str,
    expected: str,
) -> None:  # fmt: skip
    counts = source(spark.readStream, own_log, stream="rows").load().groupBy("n").count()
    writer = source(counts.writeStream, own_log, stream="counts").outputMode(mode)
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)

    assert expected in told(lambda: finish(writer))
    assert "counts" not in [stream.name for stream in own_log.streams()]


def test_a_checkpoint_that_was_copied_is_fenced(
    spark: Any, own_log: penstock.Log, rows: penstock.Stream, tmp_path: Path
) -> None:
    import shutil

    finish(copying(spark, own_log, tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    rows.append([{"n": 2}])

    said = told(lambda: finish(copying(spark, own_log, tmp_path / "two")))

    assert "Fenced" in said
    assert f"writes from checkpoint {tmp_path / 'one'}" in said
    assert "takeOver=true" in said
    finish(copying(spark, own_log, tmp_path / "one"))
    assert own_log.stream("copy").read().column("n").to_pylist() == [1, 2]


def in_a_thread(run: Callable[[], Any]) -> Any:
    """What it returns in a thread that Spark does not know."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


@pytest.mark.soak  # what Spark may change one day, and ten seconds
def test_a_thread_in_which_spark_finds_no_sink_can_be_registered(
    spark: Any, own_log: penstock.Log, rows: penstock.Stream, tmp_path: Path
) -> None:
    """If Spark finds it one day, docs/spark.md has a row too many."""

    def write() -> None:
        source(rows_of(spark, own_log).write, own_log, stream="copy").mode("append").save()

    def start() -> None:
        finish(copying(spark, own_log, tmp_path / "copy"))

    def registered(run: Callable[[], None]) -> None:
        penstock.register(spark)
        run()

    for run in (write, start):
        message = in_a_thread(partial(told, run))
        assert "DATA_SOURCE_NOT_FOUND" in message and "penstock" in message, message
        in_a_thread(partial(registered, run))
    assert own_log.stream("copy").read().num_rows == 2 * rows.read().num_rows > 0


def rows_of(spark: Any, log: penstock.Log) -> Any:
    return source(spark.read, log, stream="rows").load()


def test_a_thread_that_makes_its_dataframe_of_a_stream_needs_nothing_else(
    spark: Any, own_log: penstock.Log, rows: penstock.Stream, tmp_path: Path
) -> None:
    def run() -> None:
        writer = source(rows.df(spark).writeStream, own_log, stream="copy")
        writer = writer.option("checkpointLocation", str(tmp_path / "copy"))
        finish(writer.trigger(availableNow=True))

    in_a_thread(run)

    assert own_log.stream("copy").read().num_rows == rows.read().num_rows > 0
