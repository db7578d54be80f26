"""Queries and Spark's own engine with tokens that allow just what they need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from embedded_server import end_log
from harness.files import token_file
from small_queries import running

import penstock
from penstock.errors import Forbidden
from penstock.log.core.rights import allow_caveat
from penstock.log.serving.directory import read_token
from penstock.wire.token import make_token

ID = "00000000000000ee"
DDL = "k long NOT NULL, v long"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A log with a stream of another query, which nobody here may touch."""
    directory = tmp_path_factory.mktemp("narrowed") / "log"
    with penstock.connect(directory) as root:
        for name in ("in", "secret"):
            root.create_stream(name, DDL).append([{"k": n, "v": n} for n in range(4)])
        yield directory
    end_log(directory)


def connect(place: Path, name: str, *rights: str) -> penstock.Log:
    token = make_token(read_token(place / "token"), ID, [allow_caveat(rights)])
    path = place.parent / name
    token_file(path, token)
    return penstock.connect(place, token_file=path)


def test_a_query_runs_with_the_rights_to_it_and_its_workers_with_fewer(
    spark: Any, place: Path
) -> None:
    rights = ("run:sums", "read:in", "append:sums_out", "read:sums_out", "append:sums_dead")
    with connect(place, "driver", *rights) as log:
        totals = log.stream("in").df(spark).groupBy("k").agg({"v": "sum"})
        with running(
            totals, to="sums_out", name="sums", log=log, workers=2, replicas=1,
            dead_letter="sums_dead", checkpoints="",
        ) as query:  # fmt: skip
            query.processAllAvailable()
            assert query.result().num_rows == 4
        with pytest.raises(Forbidden, match="secret"):
            log.stream("secret")
        with pytest.raises(Forbidden):
            penstock.start(totals, to="sums_out", name="others", log=log)
    with penstock.connect(place) as root:
        told = root.client.read(["ctl/sums"])
        voices = {entry.producer for entry in told if entry.producer != "@sums"}
        assert voices and all(voice.startswith(f"anon-{ID}-") for voice in voices)


def test_a_driver_with_the_root_token_gives_its_workers_another(spark: Any, place: Path) -> None:
    with penstock.connect(place) as root:
        rows = root.stream("in").df(spark).where("k > 0")
        with running(rows, to="copied", name="copy", log=root, mode="append") as query:
            query.processAllAvailable()
            assert query.result().num_rows == 3
        told = root.client.read(["ctl/copy"])
        voices = {entry.producer for entry in told if entry.producer != "@copy"}
        ids = {voice.split("-")[1] for voice in voices}
        assert len(ids) == 1 and len(ids.pop()) == 16, voices


def test_spark_writes_where_it_may(spark: Any, place: Path) -> None:
    with penstock.connect(place) as root:
        root.create_stream("written", DDL)
    with connect(place, "batch", "run:spark/*", "append:written", "read:written") as log:
        options = dict(log.stream("written").found_by)
        rows = spark.createDataFrame([(1, 2), (3, 4)], DDL)
        writer = rows.write.format("penstock").mode("append").options(**options)
        writer.option("stream", "written").save()
        read = spark.read.format("penstock").options(**options)
        assert read.option("stream", "written").load().count() == 2
        assert log.stream("written").read().num_rows == 2
        with pytest.raises(Exception, match=r"may not|not allowed"):
            writer.option("stream", "secret").save()
    with connect(place, "plain", "append:written") as log:
        options = dict(log.stream("written").found_by)
        writer = rows.write.format("penstock").mode("append").options(**options)
        with pytest.raises(Exception, match="may not ask for metadata key staging/"):
            writer.option("stream", "written").save()
        assert log.stream("written").append([{"k": 9, "v": 9}]).rows == 1
