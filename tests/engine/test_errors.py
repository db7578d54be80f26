"""What a user is told who made a mistake: the fact, the values, and what to do instead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_queries import running

import penstock
from penstock.errors import (
    BadConfig,
    BadRequest,
    EvaluationFailed,
    NotFound,
    QueryFailed,
    SchemaMismatch,
    Unsupported,
)

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.fixture(scope="module")
def bids(log: penstock.Log) -> penstock.Stream:
    return log.create_stream("bids", "auction long, price long")


def refused(error: type[Exception], frame: Any, **options: Any) -> str:
    """What `penstock.start` says; nothing was started."""
    with pytest.raises(error) as raised:
        penstock.start(frame, **{"to": "out", "name": "refused", "mode": "append", **options})
    return str(raised.value)


# -- before anything runs


def test_a_wrong_column_is_told_by_spark_itself(spark: Any, bids: penstock.Stream) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=r"(?s)prize.*price"):
        bids.df(spark).select("prize")


def test_a_missing_stream_is_told_with_names_that_are_close(
    spark: Any, log: penstock.Log, bids: penstock.Stream
) -> None:
    with pytest.raises(NotFound, match=r"no stream bidz: did you mean bids\?"):
        log.stream("bidz")

    bids.df(spark)  # makes the directory that Spark wants
    reader = spark.readStream.format("parquet").schema(bids.ddl).option("stream", "bidz")
    frame = reader.option("log", log.target).load(str(log.target))
    assert "no stream bidz: did you mean bids?" in refused(NotFound, frame)


def test_a_column_that_the_stream_does_not_have_is_told(
    spark: Any, log: penstock.Log, bids: penstock.Stream
) -> None:
    reader = spark.readStream.format("parquet").option("stream", "bids").option("log", log.target)

    missing = refused(NotFound, reader.schema("auction long, prize long").load(str(log.target)))
    other = refused(BadRequest, reader.schema("auction long, price int").load(str(log.target)))

    assert missing == "stream bids has no column prize: it has auction, price"
    assert "price of stream bids is int64, the query reads it as int32" in other


def test_a_source_of_sparks_own_is_refused_and_what_it_says_works(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    spark.range(5).write.parquet(str(tmp_path / "rows"))
    files = spark.readStream.schema("id long").parquet(str(tmp_path / "rows"))
    said = refused(Unsupported, files)
    assert "a source of Spark's own" in said and "writeStream.format('penstock')" in said

    log.create_stream("of_files", "id long")
    writer = files.writeStream.format("penstock").options(**log.stream("of_files").found_by)
    copied = writer.option("stream", "of_files").option("checkpointLocation", str(tmp_path / "c"))
    assert copied.trigger(availableNow=True).start().awaitTermination(60)
    frame = log.stream("of_files").df(spark)
    with running(frame, to="of_files_out", mode="append", workers=1) as query:
        query.processAllAvailable()
        assert sorted(query.result()["id"].to_pylist()) == [0, 1, 2, 3, 4]


def test_a_result_cannot_go_where_it_came_from(spark: Any, bids: penstock.Stream) -> None:
    said = refused(BadRequest, bids.df(spark), to="bids")
    assert said == "the query reads bids: write its result to another stream, with to="


def test_a_result_does_not_fit_a_stream_of_other_columns(
    spark: Any, log: penstock.Log, bids: penstock.Stream
) -> None:
    log.create_stream("prices", "price int")
    said = refused(SchemaMismatch, bids.df(spark).select("price"), to="prices")
    assert "price" in said
    assert "write it to another stream" in said.lower()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "upsert"}, "mode 'upsert': use append, update or complete"),
        ({"workers": 0}, "workers=0: give a whole number, at least 1"),
        ({"workers": 4}, "workers=4, but local[3] has 3 cores"),
        ({"name": "my query"}, "query name 'my query'"),
        ({"to": "my stream"}, "my stream"),
        ({"on_change": "restart"}, "use one of refuse, restart_from_earliest"),
        ({"start": "yesterday"}, "yesterday"),
        ({"start": {"bidz": "latest"}}, "start names bidz, but the query reads bids"),
        ({"commit_interval": -1}, "commit_interval of -1 s: 0 to 86400 allowed"),
        ({"idle_after": 1e9}, "idle_after of"),
        ({"dead_letter": "bids"}, "bids"),
        ({"dead_letter": "out"}, "out"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    spark: Any, bids: penstock.Stream, options: dict[str, Any], expected: str
) -> None:
    assert expected in refused(penstock.Refused, bids.df(spark), **options)


def test_a_batch_dataframe_is_refused(spark: Any) -> None:
    said = refused(Unsupported, spark.range(3))
    assert "it reads no stream" in said
    assert "spark.readStream" in said


def test_what_is_no_dataframe_is_refused(spark: Any) -> None:
    assert "DataFrame" in refused(BadRequest, [1, 2, 3])


def test_streams_of_a_remote_log_are_found_by_their_options(
    spark: Any, bids: penstock.Stream, tmp_path: Path
) -> None:
    reader = spark.readStream.format("parquet").schema(bids.ddl).option("stream", "bids")
    frame = reader.option("log", "penstock://db.example:7070").load(str(tmp_path))
    assert "db.example is not this machine: give tls_ca" in refused(BadConfig, frame)


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("startingPosition", "latest", "give start= to penstock.start"),
    ],
)
def test_what_only_sparks_engine_can_follow_is_refused(
    spark: Any, bids: penstock.Stream, log: penstock.Log, option: str, value: str, remedy: str
) -> None:
    reader = spark.readStream.format("penstock").option("stream", "bids")
    frame = reader.option("log", log.target).option(option, value).load()
    said = refused(Unsupported, frame)
    assert f"option {option}" in said
    assert remedy in said


# -- while it runs


def test_a_function_that_raises_stops_the_query_with_its_traceback(
    spark: Any, log: penstock.Log
) -> None:
    from pyspark.sql import functions as F

    source = log.create_stream("raising_in", "n long")

    @F.udf("long")
    def hundredth(n):  # type: ignore[no-untyped-def]
        return 100 // n

    query = penstock.start(
        source.df(spark).select(hundredth("n")), to="raising", name="raising", mode="append"
    )
    source.append([{"n": 1}])
    query.processAllAvailable()
    source.append([{"n": 0}])

    with pytest.raises(QueryFailed) as raised:
        query.processAllAvailable()
    said = str(raised.value)
    assert said.startswith("query raising stopped. ")
    assert "ZeroDivisionError" in said.splitlines()[0]
    assert "dead_letter" in said, "the way out is not told"
    assert "in hundredth" in said
    assert "return 100 // n" in said
    with pytest.raises(QueryFailed, match="ZeroDivisionError"):
        query.awaitTermination()
    with pytest.raises(QueryFailed, match="ZeroDivisionError"):
        query.processAllAvailable()
    assert not query.isActive
    assert query.status["message"] == "Terminated with an error"
    assert query.result().num_rows == 1
    query.stop()


def test_an_expression_that_fails_stops_the_query_as_spark_would(
    spark: Any, log: penstock.Log
) -> None:
    source = log.create_stream("dividing_in", "n long")
    frame = source.df(spark).selectExpr("100 DIV n AS part")
    query = penstock.start(frame, to="dividing", name="dividing", mode="append", workers=1)
    source.append([{"n": 0}])

    with pytest.raises(QueryFailed, match="DIVIDE_BY_ZERO"):
        query.processAllAvailable()
    query.stop()
    assert issubclass(EvaluationFailed, penstock.Refused)


def test_a_query_that_was_stopped_says_so(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("stopped_in", "n long")
    with running(source.df(spark), to="stopped", mode="append", workers=1) as query:
        query.processAllAvailable()
    with pytest.raises(QueryFailed, match="query stopped was stopped: start it again"):
        query.processAllAvailable()


def test_a_module_that_was_not_shipped_is_told(
    spark: Any, log: penstock.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as F

    (tmp_path / "left_at_home.py").write_text("def same(n):\n    return n\n")
    monkeypatch.syspath_prepend(tmp_path)
    import left_at_home  # type: ignore[import-not-found,unused-ignore]

    source = log.create_stream("unshipped_in", "n long")
    frame = source.df(spark).select(F.udf(left_at_home.same, "long")("n"))
    query = penstock.start(frame, to="unshipped", name="unshipped", mode="append", workers=1)
    source.append([{"n": 0}])

    with pytest.raises(QueryFailed, match=r"(?s)left_at_home.*addPyFile"):
        query.processAllAvailable()
    query.stop()


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With PySpark, as every worker of Spark's has it, and nothing else."""
    import pyspark

    bare = tmp_path_factory.mktemp("bare") / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    (packages,) = bare.glob("lib/python*/site-packages")
    zips = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    (packages / "spark.pth").write_text("\n".join(map(str, zips)))
    return str(bare / "bin" / "python")


@pytest.fixture(params=["pyspark.daemon", "penstock.spark.daemon"])
def daemon(spark: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """What Spark forks its workers from: its own, and what `penstock.tuned` sets."""
    settings = spark.sparkContext._jsc.sc().conf()
    before = settings.get("spark.python.daemon.module")
    settings.set("spark.python.daemon.module", request.param)
    yield request.param
    settings.set("spark.python.daemon.module", before)


def test_a_python_without_penstock_is_told(
    spark: Any, log: penstock.Log, monkeypatch: pytest.MonkeyPatch, bare_python: str, daemon: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", bare_python)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare_python)
    name = "bare-" + daemon.replace(".", "-")
    source = log.create_stream(f"{name}-in", "n long")

    query = penstock.start(source.df(spark), to=name, name=name, mode="append", workers=1)
    with pytest.raises(QueryFailed) as raised:
        query.awaitTermination(120)

    said = str(raised.value).split("\n")[0]
    assert "penstock" in said
    assert "PYSPARK_PYTHON" in said
    query.stop()
