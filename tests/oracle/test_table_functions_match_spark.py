"""Python UDTFs: the same class, called by Spark's workers and here."""

from __future__ import annotations

import datetime as dt
import random
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.oracle import ask_spark, assert_refused, assert_same, session_setting
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.functions import SkipRestOfInputTableException, arrow_udtf, udtf
from pyspark.sql.types import Row, StringType, StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from penstock.errors import EvaluationFailed
from penstock.ops.driver import Driver
from penstock.testing.oracle import Failed, Frames, assert_equal, plan_streaming

# The classes here are sent to Spark's workers, which cannot import a test.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("interpreted")
EPOCH = dt.datetime(2024, 1, 1, 12, 30, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def _workers(spark: Any) -> None:
    """Workers run this interpreter: it has pandas and Arrow."""
    spark.sparkContext.pythonExec = sys.executable


def _table(rows: int = 40) -> pa.Table:
    rng = random.Random(5)

    def some(*values: object) -> list[object]:
        return [rng.choice(values) for _ in range(rows)]

    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "s": pa.array(some("a bb", "Ünï \U0001f600", "", "x y  z", None)),
            "n": pa.array(some(0, 1, 3, None), pa.int32()),
            "t": pa.array(some(EPOCH, None), pa.timestamp("us", "UTC")),
            "d": pa.array(some(dt.date(1969, 12, 31), None), pa.date32()),
            "x": pa.array(some(Decimal("1.50"), None), pa.decimal128(10, 2)),
            "r": pa.array(
                some({"x": 1, "y": [1, None]}, {"x": None, "y": None}, None),
                pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int64()))]),
            ),
            "m": pa.array(some([("p", 1)], [], None), pa.map_(pa.string(), pa.int64())),
        }
    )


TABLE = _table()


@udtf(returnType="word string, size int")
class Words:
    """Some rows yield none; an argument has a default."""

    def eval(self, text: str, least: int = 0) -> Iterator[Any]:
        for word in (text or "").split(" "):
            if len(word) >= least:
                yield word, len(word)


@udtf(
    returnType="told string, t timestamp, d date, x decimal(10,2), a array<int>, m map<string,long>"
)
class Shows:
    """Shows what it is handed, and gives values of many types back."""

    def eval(self, *values: Any, **named: Any) -> Iterator[Any]:
        yield repr(values), named["t"], named["d"], named["x"], [1, None], {"ü": None}
        yield Row(told=repr(named), t=None, d=None, x=None, a=None, m=None)


@udtf(returnType="row string")
class OfRows:
    def eval(self, row: Row, suffix: str = "") -> Any:
        return [(f"{row['id']} {row!r}{suffix}",)]


def _lateral(table: Any) -> Any:
    return table.lateralJoin(Words(F.col("s").outer(), F.lit(2)))


def _in_sql(query: str, **classes: Any) -> Any:
    def build(frames: Frames) -> Any:
        frames["t"].createOrReplaceTempView("t")
        session = frames["t"].sparkSession
        for name, each in classes.items():
            session.udtf.register(name, each)
        return session.sql(query)

    return build


_CALLS = [
    lambda frames: _lateral(frames["t"]),
    _in_sql("SELECT id, word, size FROM t, LATERAL words(s)", words=Words),
    # Spark leaves out rows that yield none here, too.
    _in_sql(
        "SELECT id, word FROM t LEFT JOIN LATERAL words(s, least => n) WHERE id > 3", words=Words
    ),
    _in_sql(
        "SELECT v.word, count(*) FROM t, LATERAL words(s) w, "
        "LATERAL words(least => 1, text => w.word) v GROUP BY v.word",
        words=Words,
    ),
    _in_sql("SELECT id, w.* FROM t, LATERAL shows(s, r, m, t => t, d => d, x => x) w", shows=Shows),
    _in_sql("SELECT * FROM of_rows(TABLE(t), '!')", of_rows=OfRows),
    lambda frames: OfRows(frames["t"].where("n = 1").asTable()),
]


@pytest.mark.parametrize("arrow", ["true", "false"])
@pytest.mark.parametrize("build", _CALLS)
def test_rows_are_the_same(spark: Any, build: Any, arrow: str) -> None:
    with session_setting(spark, "spark.sql.execution.pythonUDTF.arrow.enabled", arrow):
        assert_same(spark, build, {"t": TABLE}, seed=1, runs=2)


# -- what an instance is for


@udtf(returnType="told string, n int")
class Counts:
    """Keeps something for as long as it lives, skips, and has a last word."""

    def __init__(self) -> None:
        self._seen: list[Any] = []

    def eval(self, id: int, last: int) -> Iterator[Any]:
        if id == last:
            raise SkipRestOfInputTableException("enough")
        self._seen.append(id)
        yield repr(self._seen[-2:]), len(self._seen)

    def terminate(self) -> Iterator[Any]:
        yield "end", len(self._seen)
        yield "end", None


@pytest.mark.parametrize("arrow", ["true", "false"])
@pytest.mark.parametrize("last", [-1, 5])
def test_an_instance_lives_for_a_batch(spark: Any, arrow: str, last: int) -> None:
    """For Spark, a partition of a micro-batch is one; what it says last is joined to the last."""
    build = _in_sql(f"SELECT id, w.* FROM t, LATERAL counts(id, {last}) w", counts=Counts)
    tables = {"t": TABLE.slice(0, 8)}
    with session_setting(spark, "spark.sql.execution.pythonUDTF.arrow.enabled", arrow):
        planned = plan_streaming(spark, build, tables)
        expected = ask_spark(spark, lambda f: build({"t": f["t"].coalesce(1)}), tables)
    driver = Driver(planned.query, {})
    driver.feed("t", tables["t"].to_batches()[0])
    assert_equal(driver.result(), expected, f"last {last}")
    driver.feed("t", tables["t"].to_batches()[0])
    assert driver.result().num_rows == 2 * expected.num_rows


@udtf
class Analyzed:
    """Says of itself what its columns are, and is told again what it said."""

    def __init__(self, result: AnalyzeResult) -> None:
        self._names = [field.name for field in result.schema]

    @staticmethod
    def analyze(value: AnalyzeArgument, names: AnalyzeArgument) -> AnalyzeResult:
        schema = StructType()
        for name in str(names.value).split(","):
            schema = schema.add(name, value.dataType)
        return AnalyzeResult(schema.add("names", StringType()))

    def eval(self, value: Any, names: str) -> Iterator[Any]:
        yield *[value] * (len(self._names) - 1), ".".join(self._names)


def test_a_class_may_analyze_its_arguments(spark: Any) -> None:
    for value in ("n", "r"):
        build = _in_sql(f"SELECT * FROM t, LATERAL analyzed({value}, 'a,ü')", analyzed=Analyzed)
        assert_same(spark, build, {"t": TABLE}, seed=2)


@arrow_udtf(returnType="id bigint, words int")
class InArrow:
    def eval(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
        words = pc.list_value_length(pc.split_pattern(rows["s"], " "))
        yield pa.table({"id": rows["id"], "words": words})


def test_arrow_classes_see_whole_batches(spark: Any) -> None:
    build = _in_sql("SELECT * FROM in_arrow(TABLE(t))", in_arrow=InArrow)
    assert_same(spark, build, {"t": TABLE.select(["id", "s"])}, runs=2)


# -- rows that are taken back, errors, refusals

_COUNTED = "(SELECT s, count(*) AS c FROM t GROUP BY s)"


def test_over_rows_that_are_taken_back(spark: Any) -> None:
    sure = Words.asDeterministic()
    query = f"SELECT c, word FROM {_COUNTED}, LATERAL words(s)"
    assert_same(spark, _in_sql(query, words=sure), {"t": TABLE}, seed=3, runs=2)
    assert_refused(
        spark,
        _in_sql(f"SELECT c, word FROM {_COUNTED}, LATERAL words2(s)", words2=Words2),
        {"t": TABLE},
        "words2 may yield other rows when its row is taken back",
    )


@udtf(returnType="word string")
class Words2:
    def eval(self, text: str) -> Iterator[Any]:
        yield (text,)


@udtf(returnType="a int")
class Raises:
    def eval(self, id: int) -> Iterator[Any]:
        yield (1 // (id - 3),)


@udtf(returnType="a int")
class TooMany:
    def eval(self, id: int) -> Iterator[Any]:
        yield 1, 2


@pytest.mark.parametrize("function", [Raises, TooMany])
def test_errors_are_the_same(spark: Any, function: Any) -> None:
    build = _in_sql("SELECT * FROM t, LATERAL fails(id)", fails=function)
    expected = ask_spark(spark, build, {"t": TABLE})
    planned = plan_streaming(spark, build, {"t": TABLE})
    with pytest.raises(EvaluationFailed, match="fails") as caught:
        Driver(planned.query, {}).feed("t", TABLE.to_batches()[0])
    assert expected == Failed("PYTHON_EXCEPTION")
    assert caught.value.condition == "PYTHON_EXCEPTION"


# -- partitions of a table: all rows of one, in order, to one instance


@udtf(returnType="first string, n int, seen string")
class Partition:
    def __init__(self) -> None:
        self._rows: list[Row] = []

    def eval(self, row: Row, most: int = 100) -> Iterator[Any]:
        self._rows.append(row)
        if len(self._rows) == most:
            yield "most", most, repr(row)
            raise SkipRestOfInputTableException("enough")

    def terminate(self) -> Iterator[Any]:
        yield self._rows[0].s, len(self._rows), repr([row.id for row in self._rows])


@arrow_udtf(returnType="n bigint, total bigint")
class PartitionInArrow:
    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []

    def eval(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
        self._parts.append(rows)
        yield from ()

    def terminate(self) -> Iterator[pa.Table]:
        rows = pa.Table.from_batches(self._parts)
        yield pa.table({"n": [len(rows)], "total": [pc.sum(rows["id"]).as_py()]})


_PARTITIONED = [
    "SELECT * FROM partition(TABLE(t) PARTITION BY s ORDER BY (n DESC NULLS LAST, id))",
    "SELECT * FROM partition(TABLE(t) PARTITION BY (length(s), n) ORDER BY id DESC)",
    "SELECT * FROM partition(TABLE(t) WITH SINGLE PARTITION ORDER BY id)",
    "SELECT * FROM partition(most => 3, row => TABLE(t) PARTITION BY n ORDER BY id)",
    "SELECT n, count(*) FROM partition(TABLE(SELECT s, n, max(id) AS id FROM t GROUP BY s, n) "
    "PARTITION BY n ORDER BY (s, id)) GROUP BY n",
    "SELECT * FROM in_arrow(TABLE(t) PARTITION BY s)",
    "SELECT * FROM partition(TABLE(t) PARTITION BY 7 ORDER BY id)",
    "SELECT * FROM partition(TABLE(SELECT * FROM t WHERE n = 1) PARTITION BY n ORDER BY id)",
    "SELECT * FROM partition(TABLE(t) PARTITION BY if(n = 1, double('nan'), -0.0D) ORDER BY id)",
]


@pytest.mark.parametrize("query", _PARTITIONED)
def test_partitions_are_seen_whole(spark: Any, query: str) -> None:
    build = _in_sql(query, partition=Partition, in_arrow=PartitionInArrow)
    assert_same(spark, build, {"t": TABLE.select(["id", "s", "n"])}, seed=1, runs=2)


def test_tables_that_the_user_partitioned_are_seen_row_by_row(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        return OfRows(frames["t"].repartition(3, "n").asTable())

    planned = plan_streaming(spark, build, {"t": TABLE}, "append")
    driver = Driver(planned.query, {})
    driver.feed("t", TABLE.to_batches()[0])
    assert_equal(driver.result(), ask_spark(spark, build, {"t": TABLE}), "repartitioned")


def test_partitions_in_rows_of_pickle(spark: Any) -> None:
    build = _in_sql(_PARTITIONED[0], partition=Partition)
    with session_setting(spark, "spark.sql.execution.pythonUDTF.arrow.enabled", "false"):
        assert_same(spark, build, {"t": TABLE}, seed=1)


@pytest.mark.parametrize("key", ["window(at, '10 seconds')", "unix_seconds(at) div 10"])
def test_partitions_by_event_time_are_shown_once(spark: Any, key: str) -> None:
    """In append mode, when the watermark has passed them."""

    def build(frames: Frames) -> Any:
        timed = frames["t"].withWatermark("at", "0 seconds")
        timed.withColumn("w", F.expr(key)).createOrReplaceTempView("timed")
        return _in_sql(
            "SELECT * FROM partition(TABLE(timed) PARTITION BY (w, s) ORDER BY id)",
            partition=Partition,
        )(frames)

    times = [EPOCH + dt.timedelta(seconds=second) for second in range(TABLE.num_rows)]
    table = TABLE.select(["id", "s"]).append_column("at", pa.array(times))
    planned = plan_streaming(spark, build, {"t": table}, "append")
    driver = Driver(planned.query, {}, tasks=2)
    for batch in table.combine_chunks().to_batches(max_chunksize=7):
        driver.feed("t", batch)
    before = driver.result().num_rows
    driver.finish()
    assert all(delta.weights is None for delta in driver.outputs)
    assert 0 < before < driver.result().num_rows
    assert_equal(driver.result(), ask_spark(spark, build, {"t": table}), "windows")


def test_partitions_without_event_time_are_never_final(spark: Any) -> None:
    build = _in_sql(_PARTITIONED[0], partition=Partition)
    refused = "append mode needs partition grouped by event time"
    assert_refused(spark, build, {"t": TABLE}, refused, "append")
