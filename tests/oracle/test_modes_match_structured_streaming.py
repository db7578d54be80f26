"""Output modes: batch by batch, a reader here sees what Structured Streaming would have written.

Both get the same chunks, Spark as one file per micro-batch. Time passes alike: a row is late by the
watermark that earlier batches made, and what the watermark closes is shown right after the
batch that moved it (Spark runs a batch without data for that).
"""

from __future__ import annotations

import datetime
import itertools
import os
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.ops.api import Delta
from penstock.ops.driver import Driver
from penstock.plan.nodes import Mode
from penstock.spark.frontend import plan

pytestmark = pytest.mark.usefixtures("interpreted")

_SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])
_DDL = "t timestamp, k string, v long"
_BEGIN = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
Row = tuple[object, ...]


def _batch(*rows: tuple[int, str, int]) -> pa.RecordBatch:
    """Rows of (second, key, value)."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    columns[0] = [_BEGIN + datetime.timedelta(seconds=second) for second in columns[0]]
    return pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=_SCHEMA)


def _random_batches(seed: int, *, lateness: int) -> list[pa.RecordBatch]:
    """Time moves on by some seconds a row; rows are up to `lateness` seconds behind it."""
    rng = random.Random(seed)
    now = 0
    batches = []
    for _ in range(4):
        rows = []
        for _ in range(rng.randint(1, 12)):
            now += rng.choice([0, 1, 1, 2, 5])
            rows.append((max(0, now - rng.randint(0, lateness)), rng.choice("abc"), len(rows)))
        batches.append(_batch(*rows))
    return batches


class _Streams:
    """A query over one directory, run by Structured Streaming and by our Driver."""

    def __init__(
        self,
        spark: Any,
        directory: Path,
        query: str,
        mode: Mode,
        prepare: Callable[[Any], Any] = lambda frame: frame,
    ) -> None:
        self._directory = directory
        self._mode = mode
        name = f"modes_{uuid.uuid4().hex}"
        frame = (
            spark.readStream.schema(_DDL).option("maxFilesPerTrigger", 1).parquet(str(directory))
        )
        prepare(frame.withWatermark("t", "5 seconds")).createOrReplaceTempView(name)
        result = spark.sql(query.format(t=name))
        planned = plan(result, mode=mode)
        (self._stream,) = planned.query.streams
        self.late: list[pa.RecordBatch] = []
        self._driver = Driver(planned.query, planned.static_rows(), on_late=self._note_late)
        self._shown = name + "_shown"
        self._query = result.writeStream.format("memory").outputMode(mode)
        self._running = self._query.queryName(self._shown).start()
        self._spark = spark
        self._seen: Counter[Row] = Counter()
        self._files = itertools.count()

    def _note_late(self, operator: str, rows: Delta) -> None:
        self.late.append(rows.batch)

    def close(self) -> None:
        self._running.stop()
        self._spark.catalog.dropTempView(self._shown)

    def feed(self, batch: pa.RecordBatch) -> tuple[list[Row], list[Row]]:
        """What each of the two shows of this batch: ours, Spark's."""
        self._driver.feed(self._stream, batch)
        ours = _rows(self._driver.read_new())

        part = self._directory / f".{next(self._files)}"
        pq.write_table(pa.Table.from_batches([batch]), part)
        os.replace(part, self._directory / f"{part.name[1:]}.parquet")
        self._running.processAllAvailable()
        written = _rows(self._spark.table(self._shown).toArrow())
        if self._mode == "complete":
            return ours, written
        everything = Counter(written)
        fresh, self._seen = everything - self._seen, everything
        return ours, list(fresh.elements())

    def late_groups(self) -> int:
        """Late rows so far, as Spark counts them: once per batch and group.

        An aggregation in Spark has grouped a batch's rows before it looks at their time.
        """
        keys = ("window", "k", "t")
        chosen = [
            batch.select([name for name in batch.schema.names if name.split("#")[0] in keys])
            for batch in self.late
        ]
        return sum(len(set(_rows(pa.Table.from_batches([batch])))) for batch in chosen)

    def kept(self) -> tuple[int, int]:
        """Rows of state: ours, Spark's."""
        operators = self._running.lastProgress["stateOperators"]
        return self._driver.rows_kept(), sum(o["numRowsTotal"] for o in operators)

    def late_in_spark(self) -> int:
        """Late rows so far by Spark's own counter."""
        return sum(
            operator["numRowsDroppedByWatermark"]
            for progress in self._running.recentProgress
            for operator in progress["stateOperators"]
        )


def _rows(table: pa.Table) -> list[Row]:
    columns = [[repr(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True))


@pytest.fixture
def streams(spark: Any, tmp_path: Path) -> Iterator[Any]:
    opened: list[_Streams] = []
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # a micro-batch costs less

    def start(query: str, mode: Mode, **named: Any) -> _Streams:
        opened.append(_Streams(spark, tmp_path, query, mode, **named))
        return opened[-1]

    yield start
    for running in opened:
        running.close()
    spark.conf.set("spark.sql.shuffle.partitions", partitions)


COUNTS = "SELECT k, count(*) AS n, sum(v) AS total FROM {t} GROUP BY k"
WINDOWS = "SELECT window(t, '10 seconds') AS w, k, count(*) AS n FROM {t} GROUP BY 1, k"
SLIDING = "SELECT window(t, '10 seconds', '5 seconds') AS w, sum(v) AS s FROM {t} GROUP BY 1"
FIRSTS = "SELECT DISTINCT t, k FROM {t}"
SORTED = "SELECT k, count(*) AS n, max(v) AS m FROM {t} GROUP BY k ORDER BY n DESC, k LIMIT 2"


def _within_watermark(frame: Any) -> Any:
    return frame.dropDuplicatesWithinWatermark(["k"])


@pytest.mark.parametrize(
    ("query", "mode", "prepare"),
    [
        pytest.param(FIRSTS, "append", None, id="first rows appended"),
        pytest.param("SELECT k, v FROM {t}", "append", _within_watermark, id="first for a while"),
        pytest.param(COUNTS, "update", None, id="counts updated"),
        pytest.param(COUNTS, "complete", None, id="counts completely"),
        pytest.param(WINDOWS, "append", None, id="windows appended"),
        pytest.param(WINDOWS, "update", None, id="windows updated"),
        pytest.param(SLIDING, "append", None, id="sliding windows appended"),
    ],
)
def test_every_batch_shows_forgets_and_drops_what_structured_streaming_does(
    streams: Any, query: str, mode: Mode, prepare: Callable[[Any], Any] | None
) -> None:
    running = streams(query, mode, **({} if prepare is None else {"prepare": prepare}))
    batches = _random_batches(1, lateness=14)
    for number, batch in enumerate(batches):
        ours, theirs = running.feed(batch)
        assert sorted(ours) == sorted(theirs), f"batch {number}"
        kept, kept_by_spark = running.kept()
        assert kept == kept_by_spark, f"batch {number}"
    assert running.late_groups() == running.late_in_spark()


def test_a_sorted_result_is_shown_in_order_after_every_batch(streams: Any) -> None:
    running = streams(SORTED, "complete")
    for number, batch in enumerate(_random_batches(2, lateness=0)[:3]):
        ours, theirs = running.feed(batch)
        assert ours == theirs, f"batch {number}"
        assert len(ours) <= 2


def test_late_rows_are_dropped_and_windows_shown_by_the_same_batches(streams: Any) -> None:
    """The watermark is 5 s behind: a batch's own rows move it only for the batches after."""
    running = streams(WINDOWS, "append")
    story = [
        (_batch((1, "a", 0), (12, "a", 0)), 0, 0),  # watermark 7 s
        (_batch((30, "a", 0), (3, "b", 0)), 3, 0),  # 3 s is in time, then 25 s: two windows close
        (_batch((8, "a", 0), (19, "b", 0), (26, "b", 0)), 0, 2),  # closed windows take no rows
        (_batch((21, "c", 0)), 0, 2),  # its window ends at 30 s and is open
        (_batch((36, "a", 0)), 2, 2),  # 31 s: [20, 30) closes, with b and c
    ]
    for number, (batch, shown, late) in enumerate(story):
        ours, theirs = running.feed(batch)
        assert sorted(ours) == sorted(theirs), f"batch {number}"
        assert len(ours) == shown
        assert running.late_groups() == running.late_in_spark() == late


def test_update_mode_does_not_repeat_a_row_that_is_as_it_was(streams: Any) -> None:
    """Spark writes the row of every key that a batch touches, changed or not; here only changes."""
    running = streams("SELECT k, max(v) AS m FROM {t} GROUP BY k", "update")
    running.feed(_batch((1, "a", 9), (1, "b", 1)))
    ours, theirs = running.feed(_batch((2, "a", 5), (2, "b", 5)))
    assert ours == [("'b'", "5")]
    assert sorted(theirs) == [("'a'", "9"), ("'b'", "5")]
