"""transformWithState: the same processor, run by batch Spark and here.

Batch Spark calls handleInputRows once per key with all its rows, and has no watermark: processors
are compared over rows in one batch. What several batches, time and restarts do is written out.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from harness.oracle import ask_spark, assert_same
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import IntegerType, StructField, StructType, TimestampType

from penstock.errors import EvaluationFailed, Unsupported
from penstock.ops.driver import Driver
from penstock.spark.frontend import Planned
from penstock.testing.oracle import (
    Failed,
    Frames,
    assert_equal,
    plan_streaming,
    streaming_frames,
)

pytestmark = pytest.mark.usefixtures("interpreted")

# The processors here are sent to Spark's workers, which cannot import a test.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def _workers(spark: Any) -> None:
    """Workers run this interpreter: it has pandas, Arrow and protobuf."""
    spark.sparkContext.pythonExec = sys.executable


def _rows(rows: int = 60, seed: int = 3) -> pa.Table:
    rng = random.Random(seed)
    return pa.table(
        {
            "k": pa.array([rng.choice(["a", "b", "ü", None]) for _ in range(rows)]),
            "g": pa.array([rng.choice([1, 2, None]) for _ in range(rows)], pa.int64()),
            "v": pa.array([rng.choice([None, *range(9)]) for _ in range(rows)], pa.int32()),
            "t": pa.array(
                [EPOCH + dt.timedelta(seconds=rng.randrange(10**9)) for _ in range(rows)],
                pa.timestamp("us", "UTC"),
            ),
            "r": pa.array(
                [{"x": rng.randrange(3), "y": [1, None]} for _ in range(rows)],
                pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int64()))]),
            ),
            "m": pa.array([[("p", 1)] for _ in range(rows)], pa.map_(pa.string(), pa.int64())),
        }
    )


TABLE = _rows()


def _run(planned: Planned, batches: list[pa.RecordBatch], **options: Any) -> pa.Table:
    driver = Driver(planned.query, planned.static_rows(), **options)
    for batch in batches:
        driver.feed(planned.query.streams[0], batch)
    driver.finish()
    return driver.result()


def _check(spark: Any, build: Callable[[Frames], Any], table: pa.Table = TABLE) -> None:
    """The same result as batch Spark over all rows at once, in one task and in three."""
    tables = {"t": table}
    expected = ask_spark(spark, build, tables)
    planned = plan_streaming(spark, build, tables)
    for tasks in (1, 3):
        try:
            actual: pa.Table | Failed = _run(planned, table.to_batches(), tasks=tasks)
        except EvaluationFailed as error:
            actual = Failed(error.condition)
        assert_equal(actual, expected, f"{tasks} tasks")


class Everything(StatefulProcessor):
    """Shows what it is handed, and what its state answers."""

    def init(self, handle: Any) -> None:
        kinds = "n int, t timestamp, d date, e decimal(9,2), s string, b binary, a array<int>"
        self.value = handle.getValueState("value", f"{kinds}, r struct<x:int,y:array<bigint>>")
        self.list = handle.getListState("list", "v int, m map<string,bigint>")
        self.map = handle.getMapState("map", "v int", "n bigint, s string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        rows = list(rows)
        told = [repr((key, sorted(map(repr, rows))))]
        told.append(repr((self.value.exists(), self.value.get(), self.list.exists())))
        told.append(repr((list(self.list.get()), self.map.exists(), list(self.map.keys()))))
        first = min(rows, key=repr)
        self.value.update((first.v, first.t, first.t.date(), None, "s", b"b", [1, None], (1, [2])))
        self.list.put([(7, {"a": 1})])
        self.list.appendValue((None, None))
        self.list.appendList([(len(rows), dict(first.m)), ("misfit", {})])
        for row in rows:
            old = self.map.getValue((row.v,))
            self.map.updateValue((row.v,), ((old.n if old else 0) + 1, "x"))
        told.append(repr((self.value.exists(), self.value.get(), list(self.list.get()))))
        told.append(repr(sorted(map(repr, self.map.iterator()))))
        told.append(
            repr((sorted(map(repr, self.map.keys())), sorted(map(repr, self.map.values()))))
        )
        told.append(repr((self.map.containsKey((1,)), self.map.containsKey((99,)))))
        self.map.removeKey((1,))
        self.map.removeKey((99,))
        told.append(repr((self.map.getValue((1,)), self.map.getValue((2,)), self.map.exists())))
        self.map.clear()
        self.value.clear()
        self.list.clear()
        told.append(repr((self.map.exists(), self.value.get(), list(self.list.get()))))
        told.append(repr((timerValues.getCurrentWatermarkInMs(),)))
        for text in told:
            yield Row(k=key[0], told=text)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("keys", "kind"), [(["k"], "string"), (["g", "k"], "bigint")])
def test_rows_and_state_are_the_same(spark: Any, keys: list[str], kind: str) -> None:
    def build(frames: Frames) -> Any:
        grouped = frames["t"].groupBy(*keys)
        return grouped.transformWithState(Everything(), f"k {kind}, told string", "Update", "None")

    _check(spark, build)


class Tally(StatefulProcessor):
    """Tells how often each value was seen so far, and in which order values first came."""

    def init(self, handle: Any) -> None:
        # A schema of Spark's own classes, as users may give it.
        self.order = handle.getListState("order", StructType([StructField("v", IntegerType())]))
        self.seen = handle.getMapState("seen", "v int", "n bigint, t timestamp")
        self.last = handle.getValueState("last", StructType([StructField("t", TimestampType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            known = self.seen.getValue((row.v,))
            if known is None:
                self.order.appendValue((row.v,))
            self.seen.updateValue((row.v,), ((known.n if known else 0) + 1, row.t))
            self.last.update((row.t,))
        order = [v for (v,) in self.order.get()]
        seen = [(v, n) for (v,), (n, _) in self.seen.iterator()]
        count = sum(n for _, n in seen)
        (last,) = self.last.get()
        yield Row(k=key[0], n=count, told=repr((order, sorted(map(repr, seen)), last)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_state_is_the_same_after_any_chunks_and_a_restart(spark: Any, seed: int) -> None:
    def build(frames: Frames) -> Any:
        told = (
            frames["t"]
            .groupBy("k")
            .transformWithState(Tally(), "k string, n bigint, told string", "Update", "None")
        )
        return told.groupBy("k").agg(F.max_by("told", "n").alias("told"))

    assert_same(spark, build, {"t": TABLE}, seed=seed)


class Summed(StatefulProcessor):
    """Counts and sums over DataFrames."""

    def init(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "n bigint, x double")
        self.seen = handle.getMapState("seen", "v double", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            n, x = self.sums.get() or (0, 0.0)
            self.sums.update((n + len(frame), x + frame["v"].fillna(0).sum()))
            for v, group in frame[frame["v"].notna()].groupby("v"):
                self.seen.updateValue((float(v),), (len(group),))
        n, x = self.sums.get()
        seen = sorted(self.seen.iterator())
        yield pd.DataFrame(
            {
                "seen": [repr(seen)],
                "n": [n],
                "k": [key[0]],
                "x": [x],
                "t": [pd.Timestamp(5 * 10**9)],
            }
        )
        yield pd.DataFrame({"seen": [], "n": [], "k": [], "x": [], "t": []})


def test_frames_and_state_are_the_same(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        return (
            frames["t"]
            .groupBy("k")
            .transformWithStateInPandas(
                Summed(), "k string, n bigint, x double, seen string, t timestamp", "Update", "None"
            )
        )

    _check(spark, build)


class Wrong(StatefulProcessor):
    """Fails in one of several ways."""

    def __init__(self, way: str) -> None:
        self.way = way

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.list = handle.getListState("list", "v int")
        self.value = handle.getValueState("value", "v int, w int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        match self.way:
            case "raises":
                raise KeyError("no such thing")
            case "empty list":
                self.list.put([])
            case "too few values":
                self.value.update((1,))
            case "timer without time":
                self.handle.registerTimer(1)
            case "late variable":
                self.handle.getValueState("late", "v int")
        yield Row(n=1)


@pytest.mark.parametrize(
    "way", ["raises", "empty list", "too few values", "timer without time", "late variable"]
)
def test_errors_are_the_same(spark: Any, way: str) -> None:
    def build(frames: Frames) -> Any:
        return frames["t"].groupBy("k").transformWithState(Wrong(way), "n int", "Update", "None")

    expected = ask_spark(spark, build, {"t": TABLE})
    planned = plan_streaming(spark, build, {"t": TABLE})
    with pytest.raises(EvaluationFailed, match="handleInputRows") as caught:
        _run(planned, TABLE.to_batches())

    assert expected == Failed("PYTHON_EXCEPTION")
    assert caught.value.condition == "PYTHON_EXCEPTION"


class Totals(StatefulProcessor):
    """Adds to a total that may begin with something."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n bigint")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.total.update((initialState.start,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total = (self.total.get() or (0,))[0] + sum(row.v or 0 for row in rows)
        self.total.update((total,))
        yield Row(k=key[0], total=total)


def test_state_may_begin_with_something(spark: Any) -> None:
    begin = spark.createDataFrame([("a", 1000), ("z", 5), ("b", 7)], "k string, start bigint")

    def build(frames: Frames) -> Any:
        return (
            frames["t"]
            .groupBy("k")
            .transformWithState(
                Totals(), "k string, total bigint", "Update", "None", begin.groupBy("k")
            )
        )

    _check(spark, build)


# -- what batches, time and restarts do


class Clocked(StatefulProcessor):
    """Registers what the rows say, and tells what expires."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n = (self.count.get() or (0,))[0] + 1
            self.count.update((n,))
            if row.at is not None:
                self.handle.registerTimer(row.at)
            if row.no is not None:
                self.handle.deleteTimer(row.no)
        yield Row(k=key[0], told=f"{n} rows, timers {list(self.handle.listTimers())}")

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        (n,) = self.count.get()
        told = f"{expiredTimerInfo.getExpiryTimeInMs()} after {n} rows"
        yield Row(k=key[0], told=told)
        if n == 3:
            self.handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() + 100)
            self.count.update((4,))


def _at(*rows: tuple[str, int, int | None, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"k": k, "t": EPOCH + dt.timedelta(milliseconds=ms), "at": at, "no": no}
            for k, ms, at, no in rows
        ],
        schema=pa.schema(
            [
                ("k", pa.string()),
                ("t", pa.timestamp("us", "UTC")),
                ("at", pa.int64()),
                ("no", pa.int64()),
            ]
        ),
    )


def _clocked(spark: Any, mode: str, **options: Any) -> Planned:
    def build(frames: Frames) -> Any:
        timed = frames["t"].withWatermark("t", "0 seconds")
        return timed.groupBy("k").transformWithState(
            Clocked(), "k string, told string", "Update", mode, **options
        )

    return plan_streaming(spark, build, {"t": pa.Table.from_batches([_at()])})


class _Steps:
    """A query that stops after every step, and goes on from the changes that its state had."""

    def __init__(self, planned: Planned, **options: Any) -> None:
        self._planned = planned
        self._options = options
        driver = Driver(planned.query, {}, **options)
        self.kept = driver.snapshot()
        self.snapshot = self.kept

    def feed(self, batch: pa.RecordBatch) -> list[tuple[object, ...]]:
        return self._do(lambda driver: driver.feed(self._planned.query.streams[0], batch))

    def finish(self) -> list[tuple[object, ...]]:
        return self._do(lambda driver: driver.finish())

    def wake(self) -> list[tuple[object, ...]]:
        return self._do(lambda driver: None)

    def _do(self, step: Callable[[Driver], None]) -> list[tuple[object, ...]]:
        driver = Driver(self._planned.query, {}, resume=self.kept, **self._options)
        step(driver)
        self.kept = self.kept.then(driver.take_changes())
        self.snapshot = driver.snapshot()
        return [tuple(row.values()) for row in driver.result().to_pylist()]


def test_event_time_timers_expire_when_the_watermark_reaches_them(spark: Any) -> None:
    steps = _Steps(_clocked(spark, "EventTime"))

    assert steps.feed(_at(("a", 1000, 5000, None), ("b", 1000, 3000, None))) == [
        ("a", "1 rows, timers [5000]"),
        ("b", "1 rows, timers [3000]"),
    ]
    assert steps.feed(_at(("a", 2999, 4000, None))) == [("a", "2 rows, timers [4000, 5000]")]
    assert steps.feed(_at(("c", 3000, None, None))) == [
        ("c", "1 rows, timers []"),
        ("b", "3000 after 1 rows"),
    ]
    late = _at(("a", 3000, 1, None))
    assert steps.feed(late) == []
    assert steps.feed(_at(("a", 4999, None, None))) == [
        ("a", "3 rows, timers [4000, 5000]"),
        ("a", "4000 after 3 rows"),
    ]
    # Only the next pass sees the timer that the handler registered.
    assert steps.finish() == [("a", "4100 after 4 rows"), ("a", "5000 after 4 rows")]


def test_a_deleted_timer_does_not_expire(spark: Any) -> None:
    steps = _Steps(_clocked(spark, "EventTime"))

    steps.feed(_at(("a", 1000, 5000, None), ("a", 1000, 6000, None)))

    assert steps.feed(_at(("a", 2000, None, 5000))) == [("a", "3 rows, timers [6000]")]
    assert steps.finish() == [("a", "6000 after 3 rows")]


def test_processing_time_timers_expire_when_time_is_told(spark: Any) -> None:
    now = [1000]
    steps = _Steps(_clocked(spark, "ProcessingTime"), now_ms=lambda: now[0])

    assert steps.feed(_at(("a", 0, 1500, None))) == [("a", "1 rows, timers [1500]")]
    now[0] = 1500

    assert steps.wake() == [("a", "1500 after 1 rows")]
    assert steps.finish() == []


class Forgetful(StatefulProcessor):
    """Keeps everything for a second."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n bigint", 1000)
        self.list = handle.getListState("list", "n bigint", 1000)
        self.map = handle.getMapState("map", "n bigint", "n bigint", 1000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        told = (self.value.get(), list(self.list.get()), list(self.map.iterator()))
        yield Row(k=key[0], told=repr((self.value.exists(), *told)))
        for row in rows:
            if row.at is not None:
                self.value.update((row.at,))
                self.list.appendValue((row.at,))
                self.map.updateValue((row.at,), (now,))


def test_what_has_a_time_to_live_is_forgotten(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        return (
            frames["t"]
            .groupBy("k")
            .transformWithState(Forgetful(), "k string, told string", "Update", "ProcessingTime")
        )

    planned = plan_streaming(spark, build, {"t": pa.Table.from_batches([_at()])})
    now = [0]
    steps = _Steps(planned, now_ms=lambda: now[0])

    def told(at: int | None) -> list[tuple[str, ...]]:
        return steps.feed(_at(("a", 0, at, None)))

    assert told(1) == [("a", "(False, None, [], [])")]
    now[0] = 600
    assert told(2) == [("a", "(True, (1,), [(1,)], [((1,), (0,))])")]
    now[0] = 999
    assert told(None) == [("a", "(True, (2,), [(1,), (2,)], [((1,), (0,)), ((2,), (600,))])")]
    now[0] = 1000
    assert told(None) == [("a", "(True, (2,), [(2,)], [((2,), (600,))])")]
    now[0] = 1600
    assert told(None) == [("a", "(False, None, [], [])")]
    now[0] = 5000
    steps.wake()
    (task,) = steps.snapshot.states[-1]
    assert task == ({},), "values that nobody is shown any more are deleted"


def test_a_result_must_not_be_older_than_the_watermark(spark: Any) -> None:
    class Old(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            yield Row(k=key[0], t=min(row.t for row in rows) - dt.timedelta(seconds=key[0] == "z"))

    def build(frames: Frames) -> Any:
        timed = frames["t"].withWatermark("t", "1 second").groupBy("k")
        made = timed.transformWithState(
            Old(), "k string, t timestamp", "Append", "EventTime", eventTimeColumnName="t"
        )
        return made.groupBy("t").count()

    planned = plan_streaming(spark, build, {"t": pa.Table.from_batches([_at()])}, "append")
    driver = Driver(planned.query, {})
    stream = planned.query.streams[0]
    driver.feed(stream, _at(("a", 3000, None, None), ("b", 3000, None, None)))
    driver.feed(stream, _at(("a", 4500, None, None)))
    assert driver.result().column("count").to_pylist() == [2]
    with pytest.raises(EvaluationFailed) as caught:
        driver.feed(stream, _at(("z", 4000, None, None)))
    assert caught.value.condition == "EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED"


# -- what is refused


class Undeclared(StatefulProcessor):
    """Wants what its time mode does not give."""

    def init(self, handle: Any) -> None:
        handle.getValueState("value", "n bigint", 1000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        return iter(())


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda df: _with(df.groupBy("k"), Undeclared(), "None"), "time to live needs timeMode"),
        (lambda df: _with(df.groupBy("k"), Clocked(), "EventTime"), "without a watermark"),
        (lambda df: _with(df.groupBy("k").count().groupBy("k"), Clocked(), "None"), "taken back"),
    ],
)
def test_what_cannot_run_is_refused(spark: Any, build: Callable[[Any], Any], reason: str) -> None:
    frames = streaming_frames(spark, {"t": TABLE})
    with pytest.raises(Unsupported, match=reason):
        plan_streaming(spark, lambda _: build(frames["t"]), {"t": TABLE})


def _with(grouped: Any, processor: StatefulProcessor, mode: str) -> Any:
    return grouped.transformWithState(processor, "k string, told string", "Update", mode)
