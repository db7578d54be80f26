"""Python functions over groups: the same function, called by Spark's workers and here."""

from __future__ import annotations

import datetime as dt
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.oracle import ask_spark, assert_refused, assert_same, session_setting
from pyspark import cloudpickle
from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.errors import EvaluationFailed
from penstock.ops.driver import Driver
from penstock.testing.oracle import Failed, Frames, assert_equal, plan_streaming

# The functions here are sent to Spark's workers, which cannot import a test.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore:It is preferred to specify type hints"),
    pytest.mark.filterwarnings("ignore:In Python 3.6"),
]
EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def _workers(spark: Any) -> None:
    """Workers run this interpreter: it has pandas and Arrow."""
    spark.sparkContext.pythonExec = sys.executable


def _table(rows: int = 60, seed: int = 3) -> pa.Table:
    rng = random.Random(seed)

    def some(*values: object) -> list[object]:
        return [rng.choice(values) for _ in range(rows)]

    return pa.table(
        {
            "k": pa.array(some("a", "Ünï\U0001f600", "", None)),
            "f": pa.array(some(0.0, -0.0, float("nan"), 1.5, None), pa.float64()),
            "v": pa.array(some(None, *range(9)), pa.int32()),
            "t": pa.array(
                [EPOCH + dt.timedelta(seconds=rng.randrange(100)) for _ in range(rows)],
                pa.timestamp("us", "UTC"),
            ),
            "r": pa.array(
                some({"x": 1, "y": [1, None]}, {"x": None, "y": None}, None),
                pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int64()))]),
            ),
            "m": pa.array(some([("p", 1)], [], None), pa.map_(pa.string(), pa.int64())),
        }
    )


TABLE = _table()


def _describe(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """Shows the key, the types of all columns, and values in an order of their own."""
    return pd.DataFrame(
        {
            "key": [repr(key)],
            "types": [repr({name: str(kind) for name, kind in frame.dtypes.items()})],
            "rows": [repr(sorted(map(repr, frame.to_dict("records"))))],
        }
    )


_DESCRIBED = "key string, types string, rows string"


@pytest.mark.parametrize("keys", [["k"], ["f", "k"], []])
def test_a_function_is_handed_the_same_rows(spark: Any, keys: list[str]) -> None:
    def build(frames: Frames) -> Any:
        return frames["t"].groupBy(*keys).applyInPandas(_describe, _DESCRIBED)

    assert_same(spark, build, {"t": TABLE}, seed=1, runs=2)


def _spread(frame: pd.DataFrame) -> pd.DataFrame:
    """As many rows as there are distinct values, none for some groups, columns turned around."""
    if frame.v.sum() % 3 == 0:
        return pd.DataFrame()
    counts = frame.v.value_counts().sort_index()
    return pd.DataFrame({"n": counts.to_numpy(), "v": counts.index, "k": frame.k.iloc[0]})


def test_results_of_any_number_of_rows(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        grouped = frames["t"].groupBy("k", (F.col("v") % 2).alias("odd"))
        return grouped.applyInPandas(_spread, "k string, v double, n int").where("n > 0")

    assert_same(spark, build, {"t": TABLE}, seed=3, runs=3)


def _normalised(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    frame = pd.concat(list(frames))
    yield frame.assign(v=frame.v - frame.v.mean())[["k", "v"]]


def _in_arrow(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
    total = pc.sum(rows["v"]).as_py()
    return pa.table({"k": [key[0].as_py()], "n": [len(rows)], "total": pa.array([total])})


def _by_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    kept = [batch.select(["k", "t", "r", "m"]) for batch in batches]
    yield from pa.Table.from_batches(kept).to_batches()


def test_iterators_and_arrow(spark: Any) -> None:
    table = {"t": TABLE}
    assert_same(
        spark, lambda f: f["t"].groupBy("k").applyInPandas(_normalised, "k string, v double"), table
    )
    assert_same(
        spark,
        lambda f: f["t"].groupBy("k").applyInArrow(_in_arrow, "k string, n long, total long"),
        table,
        seed=1,
    )
    types = "k string, t timestamp, r struct<x:int,y:array<bigint>>, m map<string,bigint>"
    assert_same(spark, lambda f: f["t"].groupBy("k").applyInArrow(_by_batches, types), table)


def _first(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["n", "k"]).head(1)


def test_over_rows_that_are_taken_back_and_below_others(spark: Any) -> None:
    """Counts change, so the groups of equal counts change; and what is made of them, too."""

    def build(frames: Frames) -> Any:
        counts = frames["t"].groupBy("k", "v").agg(F.count("*").alias("n"))
        firsts = counts.groupBy("v").applyInPandas(_first, "k string, v int, n long")
        return firsts.groupBy("n").agg(F.count("*").alias("c"), F.max("v").alias("v"))

    assert_same(spark, build, {"t": TABLE}, seed=5, runs=3)


def test_over_rows_that_are_taken_back_until_no_group_is_left(spark: Any) -> None:
    """Of a key that comes again, and so is not single any more."""

    def build(frames: Frames) -> Any:
        counts = frames["t"].groupBy("k", "v").agg(F.count("*").alias("n"))
        return counts.where("n < 2").groupBy("v").applyInPandas(_first, "k string, v int, n long")

    twice = pa.concat_tables([TABLE.slice(0, 1)] * 2)
    assert_same(spark, build, {"t": twice}, {"t": TABLE}, runs=3)


def _both(key: Any, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    row = [repr(key), len(left), len(right), left.v.sum() + right.w.sum()]
    return pd.DataFrame([row], columns=["key", "left", "right", "total"])


def _both_in_arrow(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"left": [len(left)], "names": [",".join(right.column_names)]})


def test_cogroups(spark: Any) -> None:
    right = _table(30, seed=9).select(["k", "v"]).rename_columns(["k", "w"])
    right = right.filter(pc.fill_null(pc.not_equal(right["k"], "a"), False))
    tables = {"t": TABLE, "u": pa.concat_tables([right, pa.table({"k": ["z"], "w": [1]},
        schema=right.schema)])}  # fmt: skip

    def build(frames: Frames) -> Any:
        both = frames["t"].groupBy("k").cogroup(frames["u"].groupBy("k"))
        return both.applyInPandas(_both, "key string, left long, right long, total double")

    def build_arrow(frames: Frames) -> Any:
        both = frames["t"].groupBy("k").cogroup(frames["u"].groupBy("k"))
        return both.applyInArrow(_both_in_arrow, "left long, names string")

    assert_same(spark, build, tables, seed=2, runs=3)
    assert_same(spark, build_arrow, tables, seed=2, runs=2)


# -- aggregate functions


def _aggregates() -> list[Any]:
    @F.pandas_udf("double")  # type: ignore[call-overload]
    def mean(v: pd.Series) -> float:
        return v.mean()

    @F.pandas_udf("string")  # type: ignore[call-overload]
    def seen(v: pd.Series, r: pd.Series, t: pd.Series) -> str:
        shown = sorted(map(repr, r))
        return repr((str(v.dtype), v.count(), shown, str(t.dtype), t.max()))

    @F.pandas_udf("array<int>")  # type: ignore[call-overload]
    def values(v: pd.Series) -> np.ndarray:
        return np.sort(v.dropna().astype("int32"))

    @F.arrow_udf("decimal(20,2)")  # type: ignore[call-overload]
    def total(v: pa.Array) -> pa.Scalar:
        return pc.sum(v).cast(pa.decimal128(20, 2))

    @F.pandas_udf("long")  # type: ignore[call-overload]
    def count(parts: Iterator[pd.Series]) -> int:
        return sum(len(part) for part in parts)

    return (
        [
            mean("v").alias("mean"),
            (mean(F.col("v") + 1) * 2).alias("more"),
            seen("v", r="r", t="t").alias("seen"),
            values("v").alias("values"),
        ],
        [total("v").alias("total")],
        [count("v").alias("count")],
    )


@pytest.mark.parametrize("ansi", [True, False])
def test_aggregate_functions(spark: Any, ansi: bool) -> None:
    with session_setting(spark, "spark.sql.ansi.enabled", str(ansi).lower()):
        for calls in _aggregates():
            assert_same(
                spark, lambda f, c=calls: f["t"].groupBy("k").agg(*c), {"t": TABLE}, seed=4, runs=2
            )


def test_aggregate_functions_without_keys_and_over_changes(spark: Any) -> None:
    calls, _, _ = _aggregates()

    def build(frames: Frames) -> Any:
        lasts = frames["t"].groupBy("k").agg(F.max("v").alias("v"))
        return lasts.agg(calls[0])

    assert_same(spark, build, {"t": TABLE}, {"t": TABLE.slice(0, 0)}, seed=4, runs=2)
    of_rows = {"t": TABLE}, {"t": TABLE.slice(0, 0)}
    assert_same(spark, lambda f: f["t"].agg(*calls), *of_rows, seed=6)


def test_aggregate_functions_over_frames(spark: Any) -> None:

    @F.pandas_udf("double")  # type: ignore[call-overload]
    def mean(v: pd.Series) -> float:
        return v.sum()

    @F.arrow_udf("long")  # type: ignore[call-overload]
    def count(v: pa.Array) -> int:
        return len(v)

    def build(frames: Frames) -> Any:
        by = Window.partitionBy("k").orderBy("t", "v", "f")
        return frames["t"].select(
            "k", "t", "v",
            mean("v").over(by.rowsBetween(-2, 1)).alias("near"),
            mean("v").over(Window.partitionBy("k")).alias("all"),
            mean("v").over(by.rangeBetween(0, Window.unboundedFollowing)).alias("after"),
            mean("v").over(by.rowsBetween(Window.unboundedPreceding, 0)).alias("before"),
        )  # fmt: skip

    def build_arrow(frames: Frames) -> Any:
        by = Window.partitionBy("k").orderBy("t", "v", "f")
        return frames["t"].select("k", "t", "v", count("v").over(by.rowsBetween(1, 3)).alias("n"))

    assert_same(spark, build, {"t": TABLE}, seed=3, runs=2)
    assert_same(spark, build_arrow, {"t": TABLE}, seed=3)


# -- time


def _late(rows: pa.Table) -> list[pa.RecordBatch]:
    return rows.sort_by("t").combine_chunks().to_batches(max_chunksize=7)


def _sum(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {"start": [key[0]["start"]], "k": [key[1]], "n": [len(frame)], "v": [frame.v.sum()]}
    )


def _windowed(frames: Frames) -> Any:
    timed = frames["t"].withWatermark("t", "0 seconds")
    by = timed.groupBy(F.window("t", "20 seconds").alias("w"), "k")
    return by.applyInPandas(_sum, "start timestamp, k string, n long, v double")


def _udaf_windowed(frames: Frames) -> Any:
    calls, _, _ = _aggregates()
    timed = frames["t"].withWatermark("t", "0 seconds")
    return timed.groupBy(F.window("t", "20 seconds"), "k").agg(*calls)


def _udaf_sessions(frames: Frames) -> Any:
    calls, _, _ = _aggregates()
    timed = frames["t"].withWatermark("t", "0 seconds")
    return timed.groupBy(F.session_window("t", "2 seconds"), "k").agg(calls[0])


def _days(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"key": [repr(key)], "n": [len(frame)], "v": [frame.v.sum()]})


def _by_minute(frames: Frames) -> Any:
    """A key that is no window, but rises with one's time: what closes it, nobody is shown."""
    timed = frames["t"].withWatermark("t", "0 seconds")
    by = timed.groupBy("k", F.date_trunc("MINUTE", "t").alias("m"))
    return by.applyInPandas(_days, "key string, n long, v double")


def _cogrouped_by_minute(frames: Frames) -> Any:
    timed = frames["t"].withWatermark("t", "0 seconds").withColumn("m", F.date_trunc("MINUTE", "t"))
    both = timed.groupBy("m").cogroup(timed.where("v > 3").withColumnRenamed("v", "w").groupBy("m"))
    return both.applyInPandas(_both, "key string, left long, right long, total double")


@pytest.mark.parametrize(
    "build", [_windowed, _udaf_windowed, _udaf_sessions, _by_minute, _cogrouped_by_minute]
)
@pytest.mark.parametrize("mode", ["append", "update"])
def test_windows_are_shown_once_or_as_they_change(spark: Any, build: Any, mode: Any) -> None:
    table = TABLE.sort_by("t")
    expected = ask_spark(spark, build, {"t": table})
    planned = plan_streaming(spark, build, {"t": table}, mode)
    driver = Driver(planned.query, planned.static_rows(), tasks=2)
    for batch in _late(table):
        driver.feed(planned.query.streams[0], batch)
    before = driver.result().num_rows
    driver.finish()

    is_append = all(delta.weights is None for delta in driver.outputs)
    assert is_append == (mode == "append")
    assert 0 < before < driver.result().num_rows or mode == "update"
    assert_equal(driver.result(), expected, mode)


def test_what_cannot_be_right_is_refused(spark: Any) -> None:
    tables = {"t": TABLE}
    static = spark.createDataFrame([("a", 1)], "k string, w int")

    def grouped(frames: Frames) -> Any:
        return frames["t"].groupBy("k").applyInPandas(_describe, _DESCRIBED)

    def with_static(frames: Frames) -> Any:
        both = frames["t"].groupBy("k").cogroup(static.groupBy("k"))
        return both.applyInPandas(_both, "key string, left long, right long, total double")

    def other_types(frames: Frames) -> Any:
        both = frames["t"].groupBy("v").cogroup(frames["t"].groupBy("f"))
        return both.applyInArrow(_both_in_arrow, "left long, names string")

    assert_refused(
        spark, grouped, tables, "append mode needs _describe grouped by event time", "append"
    )
    assert_refused(spark, with_static, tables, "a cogroup of a stream and a static table")
    assert_refused(spark, other_types, tables, "cast them to one type")

    def other_keys(frames: Frames) -> Any:
        """What is over on one side may not be on the other: an hour has closed before its day."""
        timed = frames["t"].withWatermark("t", "0 seconds")
        hours = timed.groupBy(F.date_trunc("HOUR", "t").alias("m"))
        days = timed.groupBy(F.date_trunc("DAY", "t").alias("m"))
        return hours.cogroup(days).applyInArrow(_both_in_arrow, "left long, names string")

    reason = "append mode needs _both_in_arrow grouped by event time"
    assert_refused(spark, other_keys, tables, reason, "append")


def _raises(frame: pd.DataFrame) -> pd.DataFrame:
    raise KeyError("no such thing")


def _too_many(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"a": [1], "b": [2]})


@pytest.mark.parametrize("function", [_raises, _too_many])
def test_errors_are_the_same(spark: Any, function: Any) -> None:
    def build(frames: Frames) -> Any:
        return frames["t"].groupBy("k").applyInPandas(function, "a int")

    expected = ask_spark(spark, build, {"t": TABLE})
    planned = plan_streaming(spark, build, {"t": TABLE})
    driver = Driver(planned.query, planned.static_rows())
    with pytest.raises(EvaluationFailed, match=function.__name__) as caught:
        driver.feed(planned.query.streams[0], TABLE.to_batches()[0])

    assert expected == Failed("PYTHON_EXCEPTION")
    assert caught.value.condition == "PYTHON_EXCEPTION"


# -- what a function brings with it


def test_large_functions_and_broadcast_variables(spark: Any) -> None:
    large = random.Random(1).randbytes(3 << 20)
    names = spark.sparkContext.broadcast({"a": "alpha", "": "empty"})
    big = spark.sparkContext.broadcast(list(range(200_000)))

    def length(v):  # type: ignore[no-untyped-def]
        return len(large) + (v or 0)

    def named(k):  # type: ignore[no-untyped-def]
        return f"{names.value.get(k)} {len(big.value)}"

    def mapped(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"n": [len(large) + len(frame)], "k": [names.value.get("a")]})

    def build(frames: Frames) -> Any:
        udfs = (
            F.udf(length, "long", useArrow=False)("v").alias("l"),
            F.udf(named, useArrow=False)("k").alias("n"),
        )
        return frames["t"].select("k", "v", *udfs)

    def build_groups(frames: Frames) -> Any:
        return frames["t"].groupBy("k").applyInPandas(mapped, "n long, k string")

    tables = {"t": TABLE.select(["k", "v"])}
    assert_same(spark, build, tables)
    assert_same(spark, build_groups, tables)
    planned = plan_streaming(spark, build, tables)
    shipped = cloudpickle.loads(cloudpickle.dumps(planned.query))
    driver = Driver(shipped, {})
    driver.feed(shipped.streams[0], tables["t"].to_batches()[0])
    driver.finish()
    assert driver.result().num_rows == TABLE.num_rows

    names.destroy()
    assert_refused(spark, build, tables, "one of its broadcast variables was destroyed")
    big.destroy()
