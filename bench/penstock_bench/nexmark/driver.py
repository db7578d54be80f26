"""What the Spark driver of `penstock nexmark` is told: run measured queries, ask batch Spark.

One session (driver_process.py) for all queries of a bench, one query at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import PenstockError, Unavailable
from penstock.log.client.client import AsyncLog
from penstock.plan import nodes as n
from penstock.protocol.markers import decode_marker
from penstock.runtime.spec import Settings
from penstock.stream.session import Log
from penstock_bench.driver_process import DriverProcess
from penstock_bench.nexmark.figures import Position
from penstock_bench.nexmark.timed import APPEND, LAT_TS, timed
from penstock_bench.protocols.choosing import ProtocolName, with_protocol

#: From the start of a query until all of its tasks run.
_RUNNING_SECONDS: Final = 60.0
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "4",
    # What pyarrow reads as it was written; the default is a form of twelve bytes.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

#: What the windows of a query take the time of, in append mode: they close, or are forgotten.
_WATERMARKED: Final = {
    "q5": ("bid",),
    "q7": ("bid",),
    "q8": ("person", "auction"),
    "q11": ("bid",),
    "nbq5": ("bid",),
    "nbq8": ("person", "auction"),
    "nbqx": ("auction", "bid"),
}


@dataclass(frozen=True, slots=True)
class StartQuery:
    """Run a timed query from a stream of events into a result stream."""

    query: str
    mode: str
    source: str
    result: str
    workers: int
    protocol: ProtocolName
    commit_interval_ms: int
    watermark_ms: int


@dataclass(frozen=True, slots=True)
class Look:
    """Say where the query stands: `Position`."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until all that is in the source is processed and visible, or so long: say whether."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StopQuery:
    """End the query that runs."""


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Run a plain query by batch Spark, from parquet files by kind, into parquet files."""

    query: str
    events: Path
    result: Path


def start_driver(target: Path) -> DriverProcess:
    """The driver of a bench whose log is there."""
    return DriverProcess(target, _Engine, "nexmark", _SETTINGS)


class _Engine:
    """What is done with a command, inside the driver."""

    def __init__(self, spark: Any, log: Log) -> None:
        self._spark = spark
        self._log = log
        self._query: Any = None

    def obey(self, command: object) -> object:
        match command:
            case StartQuery():
                self._start(command)
            case Look():
                return self._look()
            case Settle():
                return self._settle(command.seconds)
            case StopQuery():
                self._stop()
            case RunBatch():
                self._run_batch(command)
            case _:
                raise AssertionError(f"no command: {command!r}")
        return None

    def _start(self, command: StartQuery) -> None:
        from penstock.spark.start import start_query
        from penstock_bench.nexmark.queries import split_events

        events = self._log.stream(command.source).df(self._spark)
        frames = dict(zip(("person", "auction", "bid"), split_events(events), strict=True))
        if command.mode == APPEND:
            for kind in _WATERMARKED.get(command.query, ()):
                late = f"{command.watermark_ms} milliseconds"
                frames[kind] = frames[kind].withWatermark("dateTime", late)
        side = self._side(command.query)
        frame = timed(
            command.query,
            frames["person"],
            frames["auction"],
            frames["bid"],
            side,
            mode=command.mode,
        )
        settings = Settings(commit_interval_ms=command.commit_interval_ms)
        self._query = start_query(
            frame,
            with_protocol(command.protocol, settings),
            to=command.result,
            name=command.result,
            mode=command.mode,  # type: ignore[arg-type]  # the CLI offers the three of them
            workers=command.workers,
            log=self._log,
        )
        self._wait_running()

    def _wait_running(self) -> None:
        deadline = time.monotonic() + _RUNNING_SECONDS
        while not self._query.status["isTriggerActive"]:
            self._query.awaitTermination(0.02)
            if time.monotonic() > deadline:
                raise Unavailable(f"the query did not run within {_RUNNING_SECONDS:g} s")

    def _side(self, query: str) -> Any:
        from penstock_bench.nexmark.model import side_input
        from penstock_bench.nexmark.queries import QUERIES

        is_wanted = QUERIES[query].takes_side_input
        return self._spark.createDataFrame(side_input()) if is_wanted else None

    def _look(self) -> Position | None:
        """By what its tasks reported, and by their markers, which are newer; None: not known."""
        if (failed := self._query.exception()) is not None:
            raise failed
        spec = self._query._spec
        reads = [any(isinstance(x, n.Scan) for x in stage.inputs) for stage in spec.query.stages]
        tasks = spec.task_ids

        async def newest(log: AsyncLog) -> list[Any]:
            return [await log.read_last(task.marker_tag) for task in tasks]

        entries = self._log.client.run(newest)
        last_markers = [
            None if entry is None else decode_marker(entry.payload) for entry in entries
        ]
        told = (self._query.lastProgress or {}).get("sources", [])
        told_lsn = min((source["endOffset"] or 0 for source in told), default=0)
        marked = [
            -1 if marker is None else int(marker.position)
            for task, marker in zip(tasks, last_markers, strict=True)
            if reads[task.stage]
        ]
        markers = sum(0 if marker is None else marker.number + 1 for marker in last_markers)
        lsn = max(told_lsn, min(marked))
        return Position(time.time_ns() // 1_000, lsn, markers) if lsn > 0 else None

    def _settle(self, seconds: float) -> bool:
        settled = threading.Event()

        def wait() -> None:
            with contextlib.suppress(PenstockError):  # the query was stopped before, or failed
                self._query.processAllAvailable()
                settled.set()

        threading.Thread(target=wait, name="settle", daemon=True).start()
        deadline = time.monotonic() + seconds
        while not settled.wait(0.1) and time.monotonic() < deadline:
            if (failed := self._query.exception()) is not None:
                raise failed
        return settled.is_set()

    def _stop(self) -> None:
        if (failed := self._query.exception()) is not None:
            raise failed
        self._query.stop()

    def close(self) -> None:
        """End the query that runs, if any."""
        if self._query is not None:
            with contextlib.suppress(PenstockError):
                self._query.stop()

    def _run_batch(self, command: RunBatch) -> None:
        from penstock_bench.nexmark.queries import QUERIES

        kinds = ("person", "auction", "bid")
        frames = [self._spark.read.parquet(str(command.events / kind)) for kind in kinds]
        side = self._side(command.query)
        result = QUERIES[command.query].build(*frames, *(() if side is None else (side,)))
        assert LAT_TS not in result.columns
        result.write.parquet(str(command.result))
