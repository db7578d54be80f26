"""A Spark driver in a process of its own, for `penstock bench realtime`.

Settings of the JVM can be given only when it starts, so each engine has its driver: one session,
which runs one query at a time as it is told through a pipe. It ends, and the JVM with it, when the
bench closes the pipe or dies.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from penstock.bench.load import BIDS
from penstock.bench.queries import QUERIES
from penstock.stream.session import Log, connect

_START_SECONDS = 90.0
_STOP_SECONDS = 60.0
_context = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Start:
    """Run a query from a stream of bids into a result stream."""

    query: str
    source: str
    result: str
    exactly_once: bool = True
    #: Tasks that read each micro-batch; None: what has the lowest latency.
    readers: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the query that runs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a command: figures of the engine, or what went wrong."""

    figures: dict[str, Any]
    error: str | None = None


class Driver:
    """The process, as the bench holds it."""

    def __init__(self, directory: Path, *, settings: Mapping[str, str], real_time: bool) -> None:
        self._ours, theirs = _context.Pipe()
        self._process = _context.Process(
            target=_serve, args=(directory, dict(settings), real_time, theirs)
        )
        self._process.start()
        theirs.close()
        self._answer(_START_SECONDS)

    def start(self, command: Start) -> None:
        self._ours.send(command)
        self._answer(_START_SECONDS)

    def stop(self) -> dict[str, Any]:
        self._ours.send(Stop())
        return self._answer(_STOP_SECONDS)

    def check(self) -> None:
        """Raise if the process has died."""
        if not self._process.is_alive():
            raise RuntimeError("the Spark driver died; what it said last is above")

    def _answer(self, timeout: float) -> dict[str, Any]:
        if not self._ours.poll(timeout):
            raise RuntimeError(f"the Spark driver did not answer within {timeout:g} s")
        try:
            answer: Answer = self._ours.recv()
        except EOFError:
            raise RuntimeError("the Spark driver died; what it said last is above") from None
        if answer.error is not None:
            raise RuntimeError(f"the Spark driver failed:\n{answer.error}")
        return answer.figures

    def close(self) -> None:
        """End the process and its JVM. Idempotent."""
        self._ours.close()
        self._process.join(20)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Engine(Protocol):
    """How one engine starts and stops a query."""

    def start(self, command: Start) -> None: ...

    def stop(self) -> dict[str, Any]: ...


class RealTime:
    """Penstock, with one worker."""

    def __init__(self, spark: Any, log: Log, _: str) -> None:
        self._spark = spark
        self._log = log
        self._query: Any = None

    def start(self, command: Start) -> None:
        from penstock.spark.start import start

        bids = self._log.stream(command.source).df(self._spark)
        self._query = start(
            QUERIES[command.query].build(bids),
            to=command.result,
            name=command.result,
            mode="append",
            workers=1,
            log=self._log,
            exactly_once=command.exactly_once,
        )

    def stop(self) -> dict[str, Any]:
        if (failed := self._query.exception()) is not None:
            raise failed
        self._query.stop()
        return {}


class MicroBatch:
    """Spark itself, at the settings of the session."""

    def __init__(self, spark: Any, log: Log, directory: str) -> None:
        self._spark = spark
        self._log = log
        self._directory = directory
        self._query: Any = None
        self._readers: int | None = None

    def start(self, command: Start) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        from penstock.bench.micro_batch import read_stream, write_stream

        self._readers = command.readers
        bids = read_stream(
            self._spark, self._directory, command.source, BIDS, readers=command.readers
        )
        frame = QUERIES[command.query].build(bids)
        self._log.create_stream(command.result, to_arrow_schema(frame.schema, timezone="UTC"))
        checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=self._directory)
        self._query = write_stream(frame, self._directory, command.result, checkpoint)

    def stop(self) -> dict[str, Any]:
        if (failed := self._query.exception()) is not None:
            raise failed
        triggers = [
            float(progress["durationMs"]["triggerExecution"])
            for progress in self._query.recentProgress
            if progress["numInputRows"]
        ]
        self._query.stop()
        # Only the kind of batches whose latency is measured says something.
        if self._readers is not None or not triggers:
            return {}
        return {"trigger_ms_p50": statistics.median(triggers)}


def _serve(
    directory: Path, settings: dict[str, str], real_time: bool, commands: Connection
) -> None:
    # What the JVM prints must not mix with the report: it shares our standard output.
    os.dup2(2, 1)
    # Workers run the Python of the bench, whatever is first on the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = None
    try:
        spark = _session(settings)
        engine = (RealTime if real_time else MicroBatch)(spark, connect(directory), str(directory))
        commands.send(Answer({}))
        _obey(engine, commands)
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the bench has ended, or the whole terminal was interrupted
    except Exception:
        commands.send(Answer({}, traceback.format_exc()))
    finally:
        if spark is not None:
            spark.stop()


def _obey(engine: Engine, commands: Connection) -> None:
    while True:
        command = commands.recv()
        if isinstance(command, Start):
            engine.start(command)
            commands.send(Answer({}))
        else:
            commands.send(Answer(engine.stop()))


def _session(settings: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("penstock-bench-realtime")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
