"""applyInPandasWithState: the same function, run by Structured Streaming and here.

Both get the same chunks, Spark as one file per micro-batch; what each shows of every batch is
compared. Spark has no answer of batch queries for it. Spark 4.3's worker cannot read the schema of
a state with arrays or maps (KeyError: 'elementType'), so those are compared with what they must be.
"""

from __future__ import annotations

import datetime as dt
import decimal
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from penstock.errors import EvaluationFailed, Unsupported
from penstock.ops.driver import Driver
from penstock.spark.frontend import plan

pytestmark = pytest.mark.usefixtures("interpreted")
# The functions here are sent to Spark's workers, which cannot import a test.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])


def _batch(*rows: tuple[int, str | None, int | None]) -> pa.RecordBatch:
    """Rows of (second, key, value)."""
    return pa.RecordBatch.from_pylist(
        [{"t": BEGIN + dt.timedelta(seconds=s), "k": k, "v": v} for s, k, v in rows], SCHEMA
    )


#: Keys come, pause until they time out, and come again; one row is late.
BATCHES = [
    _batch((0, "a", 1), (1, "ü", 2), (2, "a", None)),
    _batch((4, None, 5), (12, "a", 3)),
    _batch((1, "ü", 100), (40, "b", 1)),
    _batch((41, "b", 7), (43, "ü", 1), (44, "a", 1)),
    _batch((95, "c", 0)),
    _batch((96, "c", 1), (97, None, 2)),
    _batch((200, "z", 1)),
]


def _session(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """The session example of Spark's documentation, by event time."""
    if state.hasTimedOut:
        count, start, end = state.get
        state.remove()
        row = [repr(key), count, (end - start) / 1000, True]
        yield pd.DataFrame([row], columns=["id", "count", "duration", "closed"])
        return
    start, end, count = float("inf"), 0.0, 0
    for frame in frames:
        millis = frame["t"].astype("int64") // (10**3 if frame["t"].dt.unit == "us" else 10**6)
        start, end = min(start, millis.min()), max(end, millis.max())
        count += len(frame)
    if state.exists:
        old_count, old_start, old_end = state.get
        count, start, end = count + old_count, min(start, old_start), max(end, old_end)
    state.update((count, int(start), int(end)))
    timeout = int(end) + 10_000
    if timeout > state.getCurrentWatermarkMs():
        state.setTimeoutTimestamp(timeout)
    row = [repr(key), count, (end - start) / 1000, False]
    yield pd.DataFrame([row], columns=["id", "count", "duration", "closed"])


_SESSION = "id string, count long, duration double, closed boolean"


def _kinds(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Shows what it is handed; keeps values of many types, and lets them go."""
    frame = pd.concat(list(frames))
    told = [repr(key), repr(dict(frame.dtypes.astype(str))), repr(state.getOption)]
    told.append(repr((state.exists, state.hasTimedOut, state.getCurrentWatermarkMs())))
    total = int(frame.v.sum())
    if total > 5:
        state.remove()
    elif total != 1:
        when = frame.t.max()
        exact = decimal.Decimal(total) / 4
        state.update((total, "ü", when, (total, None), when.date(), exact, b"\0", None))
    yield pd.DataFrame()
    yield pd.DataFrame({"told": told})


_KEPT = (
    "n long, s string, t timestamp, r struct<x:long,y:string>, d date, x decimal(10,2), b binary,"
    " gone boolean"
)
#: A row that the watermark sees, and the function does not.
_TICK = "tick"


def _leaves_alone(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Time-outs that are set, left, cleared by another value, or that nothing follows."""
    if state.hasTimedOut:
        if key[0] == "d":
            state.update((9,))
        yield pd.DataFrame({"told": [f"{key} timed out with {state.getOption}"]})
        return
    total = int(pd.concat(list(frames)).v.sum())
    if total < 100:
        state.update((total,))
    if total < 50:
        state.setTimeoutTimestamp(BEGIN + dt.timedelta(seconds=20))
    if total == 7:
        state.remove()
    yield pd.DataFrame({"told": [f"{key} {total} {state.getOption}"]})


_LEFT_ALONE = [
    _batch((0, "a", 1), (0, "b", 1), (0, "c", 1), (0, "d", 1), (0, "e", 1)),
    _batch((3, "b", 100), (3, "c", 50)),
    _batch((4, "f", 100), (4, "e", 7)),
    # From here on Spark would call for the same time-outs in every trigger.
    _batch((40, "z", 60)),
]


class Both:
    """A query over one directory, run by Structured Streaming and by our Driver."""

    def __init__(self, spark: Any, directory: Path, build: Any, mode: str, tasks: int) -> None:
        files = spark.readStream.schema("t timestamp, k string, v long")
        frame = files.option("maxFilesPerTrigger", 1).parquet(str(directory))
        timed = frame.withWatermark("t", "5 seconds")
        # With the event time in the condition, Spark does not filter before the watermark.
        result = build(timed.where(f"k is null or k <> '{_TICK}' or t is null"))
        self._spark, self._directory, self._count = spark, directory, 0
        self._tasks = tasks
        self._planned = plan(result, mode="append" if mode == "append" else "update")
        self._driver = Driver(self._planned.query, {}, tasks=tasks)
        self._shown = f"group_state_{mode}_{directory.name.replace('-', '_')}"
        writer = result.writeStream.format("memory").outputMode(mode).queryName(self._shown)
        self._running = writer.start()
        self._seen: list[str] = []

    def feed(self, batch: pa.RecordBatch) -> tuple[list[str], list[str]]:
        """What each of the two shows of this batch: ours, Spark's."""
        stream = self._planned.query.streams[0]
        self._driver.feed(stream, batch)
        # The watermark is that of the task that is behind: the others see the time, too.
        largest = pc.max(batch.column("t")).as_py()
        for _ in range(self._tasks - 1):
            self._driver.feed(stream, _batch(((largest - BEGIN).seconds, _TICK, None)))
        ours = _rows(self._driver.read_new())
        self._count += 1
        part = self._directory / f".{self._count}"
        pq.write_table(pa.Table.from_batches([batch]), part)
        os.replace(part, self._directory / f"{self._count}.parquet")
        self._running.processAllAvailable()
        written = _rows(self._spark.table(self._shown).toArrow())
        fresh = list(written)
        for row in self._seen:
            fresh.remove(row)
        self._seen = written
        return ours, fresh

    def restart(self, tasks: int) -> None:
        """Ours goes on from a snapshot, as other instances would, and in that many tasks."""
        snapshot = self._driver.snapshot()
        if tasks != self._tasks:
            snapshot, self._tasks = snapshot.spread(tasks), tasks
        self._driver = Driver(self._planned.query, {}, tasks=self._tasks, resume=snapshot)

    def close(self) -> None:
        self._running.stop()


def _rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.fixture
def settings(spark: Any) -> Iterator[None]:
    spark.sparkContext.pythonExec = sys.executable
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # a micro-batch costs less
    yield
    spark.conf.set("spark.sql.shuffle.partitions", partitions)


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    ("function", "batches", "output", "kept", "timeout", "mode"),
    [
        (
            _leaves_alone,
            _LEFT_ALONE,
            "told string",
            "n long",
            GroupStateTimeout.EventTimeTimeout,
            "update",
        ),
        (
            _session,
            BATCHES,
            _SESSION,
            "n long, s long, e long",
            GroupStateTimeout.EventTimeTimeout,
            "append",
        ),
        (_kinds, BATCHES, "told string", _KEPT, GroupStateTimeout.NoTimeout, "update"),
    ],
)
def test_every_batch_shows_the_same(
    spark: Any,
    tmp_path: Path,
    function: Any,
    batches: list[pa.RecordBatch],
    output: str,
    kept: str,
    timeout: str,
    mode: str,
) -> None:
    def build(frame: Any) -> Any:
        return frame.groupBy("k").applyInPandasWithState(function, output, kept, mode, timeout)

    both = Both(spark, tmp_path, build, mode, tasks=2)
    try:
        for number, batch in enumerate(batches):
            if number in (2, 4, 5):
                both.restart(tasks=3 if number == 4 else 2)
            ours, theirs = both.feed(batch)
            assert ours == theirs, f"batch {number}"
    finally:
        both.close()


def _count(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        (n,) = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [-n]})
        return
    n = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
    state.update((n,))
    state.setTimeoutDuration(1000)
    yield pd.DataFrame({"k": [key[0]], "n": [n]})


def _plan(
    spark: Any,
    function: Any,
    timeout: str = GroupStateTimeout.NoTimeout,
    kept: str = "n long",
) -> Any:
    from penstock.testing.oracle import plan_streaming

    def build(frames: Any) -> Any:
        by = frames["t"].groupBy("k")
        return by.applyInPandasWithState(function, "k string, n long", kept, "update", timeout)

    return plan_streaming(spark, build, {"t": pa.Table.from_batches([BATCHES[0]])})


def test_processing_time_out(spark: Any) -> None:
    """Once, strictly after the time; new rows move it."""
    now = [10_000]
    planned = _plan(spark, _count, GroupStateTimeout.ProcessingTimeTimeout)
    driver = Driver(planned.query, {}, now_ms=lambda: now[0])
    stream = planned.query.streams[0]

    def shown(*rows: tuple[int, str | None, int | None], at: int) -> list[tuple[str, int]]:
        now[0] = at
        driver.feed(stream, _batch(*rows))
        return [(row["k"], row["n"]) for row in driver.read_new().to_pylist()]

    assert shown((0, "a", 1), (0, "b", 1), at=10_000) == [("a", 1), ("b", 1)]
    assert shown((0, "a", 1), at=10_500) == [("a", 2)]
    assert shown((0, "c", 1), at=11_000) == [("c", 1)]
    assert shown((0, "c", 1), at=11_001) == [("c", 2), ("b", -1)]
    assert shown((0, "b", 1), at=11_500) == [("b", 1)]
    assert shown((0, "b", 1), at=11_501) == [("b", 2), ("a", -2)]


def _keeps_nested(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    old = state.getOption
    n = sum(map(len, frames))
    state.update(([n, None], {"ü": {"x": n}}, [(n, "y")]))
    yield pd.DataFrame({"k": [repr(old)], "n": [n]})


def test_arrays_and_maps_are_kept(spark: Any) -> None:
    """As rows of structs: what a list of tuples is when Spark has read it back."""
    kept = "a array<int>, m map<string,map<string,long>>, r array<struct<x:int,y:string>>"
    planned = _plan(spark, _keeps_nested, kept=kept)
    driver = Driver(planned.query, {}, tasks=2)
    driver.feed(planned.query.streams[0], _batch((0, "a", 1)))
    driver = Driver(planned.query, {}, tasks=2, resume=driver.snapshot())
    driver.feed(planned.query.streams[0], _batch((0, "a", 1), (1, "a", 1)))
    driver.feed(planned.query.streams[0], _batch((0, "a", 1)))
    assert [row["k"] for row in driver.read_new().to_pylist()] == [
        "([1, None], {'ü': {'x': 1}}, [Row(x=1, y='y')])",
        "([2, None], {'ü': {'x': 2}}, [Row(x=2, y='y')])",
    ]


def _raises(key: Any, frames: Any, state: GroupState) -> Iterator[pd.DataFrame]:
    state.setTimeoutTimestamp(1)
    yield pd.DataFrame()


def _no_iterable(key: Any, frames: Any, state: GroupState) -> Any:
    return pd.DataFrame({"k": ["a"], "n": [1]})


@pytest.mark.parametrize("function", [_raises, _no_iterable])
def test_what_goes_wrong_in_the_function_stops_the_query(spark: Any, function: Any) -> None:
    planned = _plan(spark, function)
    with pytest.raises(EvaluationFailed, match=function.__name__) as caught:
        Driver(planned.query, {}).feed(planned.query.streams[0], BATCHES[0])
    assert caught.value.condition == "PYTHON_EXCEPTION"


def test_event_time_needs_a_watermark(spark: Any) -> None:
    with pytest.raises(Unsupported, match="call withWatermark"):
        _plan(spark, _session, GroupStateTimeout.EventTimeTimeout)
