"""The queries of `penstock bench connector`: sources and sinks by name, run in one session.

Owns how a query is run and what of its progress counts. Law: a trigger counts if it had rows; its
time is Spark's own `triggerExecution`, the same for every source and sink.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PENSTOCK: Final = "penstock"
PARQUET: Final = "parquet"
RATE: Final = "rate"
RATE_MICRO_BATCH: Final = "rate-micro-batch"
NOOP: Final = "noop"
#: Parts of a trigger, as Spark names them.
PARTS: Final = (
    *("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets"),
)
TRIGGER: Final = "triggerExecution"
_POLL_SECONDS: Final = 0.05
_PROGRESS_KEPT: Final = 10_000
#: What `rate` gives, as rows of the same columns as those of the streams and files.
_BIDS_OF_RATE: Final = (
    "value % 1000 AS auction",
    "value % 100000 AS bidder",
    "value % 997 AS price",
    "element_at(array('apple', 'google', 'baidu', 'facebook'), int(value % 4) + 1) AS channel",
    "timestamp AS ts",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A query: all rows of a source into a sink."""

    source: str
    sink: str

    def __str__(self) -> str:
        return f"{self.source} to {self.sink}"


@dataclass(frozen=True, slots=True)
class Triggers:
    """What a query said of its triggers, of those that had rows."""

    rows: int
    #: Milliseconds of each, and of its parts.
    milliseconds: list[float]
    parts: dict[str, list[float]]

    @property
    def rows_per_s(self) -> float:
        return self.rows * 1_000 / sum(self.milliseconds)


class Queries:
    """Sources and sinks over one log and one directory of files."""

    def __init__(self, spark: Any, log: Path, scratch: Path) -> None:
        self._spark = spark
        self._log = str(log)
        self._scratch = scratch
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(_PROGRESS_KEPT))
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    # ---- a stream of batches

    def read_all(self, source: str, place: str, schema: Any, rows: int) -> Any:
        """All rows of a stream or a directory as a streaming frame; `rate`: so many a second."""
        reader = self._spark.readStream.format(source)
        if source == PENSTOCK:
            return reader.options(log=self._log, stream=place).load()
        if source == PARQUET:
            return reader.schema(schema).load(place)
        return reader.option("rowsPerSecond", rows).load().selectExpr(*_BIDS_OF_RATE)

    def read_small(self, source: str, stream: str, rows: int) -> Any:
        """Triggers of so many rows, one task each."""
        reader = self._spark.readStream.format(source)
        if source == PENSTOCK:
            latest = {"startingPosition": "latest", "partitions": 1, "maxRowsPerTrigger": rows}
            return reader.options(log=self._log, stream=stream, **latest).load()
        return reader.options(rowsPerBatch=rows, numPartitions=1).load()

    def run_all(self, frame: Any, sink: str, place: str, seconds: float) -> Triggers:
        """Until all that is there was processed."""
        with tempfile.TemporaryDirectory(dir=self._scratch, ignore_cleanup_errors=True) as own:
            query = self._write(frame, sink, place, own).trigger(availableNow=True).start()
            try:
                if not query.awaitTermination(seconds):
                    raise RuntimeError(f"{place or sink}: not done after {seconds:g} s")
            finally:
                query.stop()
            return count_triggers(query.recentProgress)

    def run_some(
        self, frame: Any, sink: str, place: str, *, warm: int, triggers: int, seconds: float
    ) -> Triggers:
        """So many triggers after the first ones, then an end."""
        with tempfile.TemporaryDirectory(dir=self._scratch, ignore_cleanup_errors=True) as own:
            query = self._write(frame, sink, place, own).start()
            try:
                _wait_triggers(query, warm + triggers, seconds)
                progress = query.recentProgress
            finally:
                query.stop()
            with_rows = [report for report in progress if report["numInputRows"]]
            return count_triggers(with_rows[warm : warm + triggers])

    def _write(self, frame: Any, sink: str, place: str, own: str) -> Any:
        writer = frame.writeStream.format(sink).option("checkpointLocation", f"{own}/checkpoint")
        if sink == PENSTOCK:
            return writer.options(log=self._log, stream=place)
        return writer.option("path", f"{own}/files") if sink == PARQUET else writer

    # ---- batches

    def load(self, source: str, place: str) -> Any:
        reader = self._spark.read.format(source)
        if source == PENSTOCK:
            return reader.options(log=self._log, stream=place).load()
        return reader.load(place)

    def save(self, frame: Any, sink: str, place: str) -> float:
        """Seconds."""
        files = tempfile.mkdtemp(dir=self._scratch)
        writer = frame.write.format(sink).mode("append")
        if sink == PENSTOCK:
            writer = writer.options(log=self._log, stream=place)
        started = time.perf_counter()
        writer.save(files) if sink == PARQUET else writer.save()
        took = time.perf_counter() - started
        shutil.rmtree(files, ignore_errors=True)
        return took


def count_triggers(progress: list[Any]) -> Triggers:
    """Of Spark's reports, those with rows."""
    with_rows = [report for report in progress if report["numInputRows"]]
    durations = [report["durationMs"] for report in with_rows]
    return Triggers(
        rows=sum(report["numInputRows"] for report in with_rows),
        milliseconds=[float(report[TRIGGER]) for report in durations],
        parts={part: [float(report.get(part, 0)) for report in durations] for part in PARTS},
    )


def _wait_triggers(query: Any, triggers: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        if (failed := query.exception()) is not None:
            raise failed
        # Batches are numbered from 0, so this is at least as many; those with rows are counted.
        last = query.lastProgress
        if last is not None and last["batchId"] + 1 >= triggers:
            count = sum(1 for report in query.recentProgress if report["numInputRows"])
            if count >= triggers:
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"fewer than {triggers} triggers with rows in {seconds:g} s")
        time.sleep(_POLL_SECONDS)
