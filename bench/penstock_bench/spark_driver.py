"""A Spark driver in a process of its own, for Penstock's side of `penstock bench realtime`.

One session, which runs one query at a time as it is told through a pipe. It ends, and the JVM with
it, when the bench closes the pipe or dies.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock.runtime.spec import Settings
from penstock.stream.session import Log, connect
from penstock_bench.protocols.choosing import ProtocolName, with_protocol
from penstock_bench.queries import QUERIES

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
    #: Tasks that read each batch of a peer; None: what has the lowest latency.
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

    def __init__(self, directory: Path) -> None:
        self._ours, theirs = _context.Pipe()
        self._process = _context.Process(target=_serve, args=(directory, theirs))
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


class RealTime:
    """Penstock, with one worker."""

    def __init__(self, spark: Any, log: Log) -> None:
        self._spark = spark
        self._log = log
        self._query: Any = None

    def start(self, command: Start) -> None:
        from penstock.spark.start import start_query

        bids = self._log.stream(command.source).df(self._spark)
        protocol: ProtocolName = "marker" if command.exactly_once else "unsafe"
        self._query = start_query(
            QUERIES[command.query].build(bids),
            with_protocol(protocol, Settings()),
            to=command.result,
            name=command.result,
            mode="append",
            workers=1,
            log=self._log,
        )

    def stop(self) -> dict[str, Any]:
        if (failed := self._query.exception()) is not None:
            raise failed
        self._query.stop()
        return {}


def _serve(directory: Path, commands: Connection) -> None:
    # What the JVM prints must not mix with the report: it shares our standard output.
    os.dup2(2, 1)
    # Workers run the Python of the bench, whatever is first on the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = None
    try:
        spark = _session()
        engine = RealTime(spark, connect(directory))
        commands.send(Answer({}))
        _obey(engine, commands)
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the bench has ended, or the whole terminal was interrupted
    except Exception:
        commands.send(Answer({}, traceback.format_exc()))
    finally:
        if spark is not None:
            spark.stop()


def _obey(engine: RealTime, commands: Connection) -> None:
    while True:
        command = commands.recv()
        if isinstance(command, Start):
            engine.start(command)
            commands.send(Answer({}))
        else:
            commands.send(Answer(engine.stop()))


def _session() -> Any:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("penstock-bench-realtime")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
