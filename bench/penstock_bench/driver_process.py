"""A Spark driver in a process of its own: one session, told what to do through a pipe.

A command is a function of the `Session` there. The process ends, and the JVM with it, when the
bench closes the pipe or dies.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, QueryFailed
from penstock.runtime.spec import Settings
from penstock.stream.session import Log, connect
from penstock_bench.child import ANSWER_SECONDS, Child
from penstock_bench.protocols.choosing import ProtocolName, with_protocol


@dataclass(slots=True)
class Session:
    """What the driver has: Spark, a log, and the query that runs."""

    spark: Any
    log: Log
    query: Any = None

    def run(
        self,
        frame: Any,
        protocol: ProtocolName,
        *,
        to: str,
        mode: Any = "append",
        workers: int = 1,
        commit_interval_ms: int = 0,
        joins_stages: bool = True,
    ) -> None:
        """Start a query of Penstock, under the name of its result."""
        from penstock.spark.start import start_query

        chosen = Settings(commit_interval_ms=commit_interval_ms, joins_stages=joins_stages)
        settings = with_protocol(protocol, chosen)
        self.query = start_query(
            frame, settings, to=to, name=to, mode=mode, workers=workers, log=self.log
        )

    def check(self) -> None:
        """Raise what the query failed with, if it did."""
        if (failed := self.query.exception()) is not None:
            raise failed

    def stop(self) -> None:
        """End the query that runs."""
        self.check()
        self.query.stop()

    def close(self) -> None:
        if self.query is not None:
            with contextlib.suppress(PenstockError):
                self.query.stop()


def start_driver(target: Path, name: str, settings: Mapping[str, str] = {}) -> Child:
    """The driver of a bench whose log is there; it is asked for functions of its `Session`."""
    # No daemon: it has processes of its own.
    driver = Child("the Spark driver", _serve, target, name, settings, daemon=False)
    try:
        driver.answer(ANSWER_SECONDS)
    except BaseException:
        driver.close()
        raise
    return driver


def _serve(target: Path, name: str, settings: Mapping[str, str], commands: Connection) -> None:
    # An interrupt at the terminal is for the bench, which ends us in order; the JVM would only die.
    os.setpgid(0, 0)
    # What the JVM prints must not mix with the result: it shares our standard output.
    os.dup2(2, 1)
    # Workers run the Python of the bench, whatever is first on the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    try:
        with contextlib.ExitStack() as stack:
            builder = session_builder(name).config(map=dict(settings))
            spark = builder.config("spark.log.level", "ERROR").getOrCreate()
            stack.callback(spark.stop)
            session = stack.enter_context(contextlib.closing(Session(spark, connect(target))))
            commands.send(None)
            while True:
                commands.send(_obey(session, commands.recv()))
    except (EOFError, OSError):
        pass  # the bench has ended
    except Exception:
        commands.send(_failed())


def _obey(session: Session, command: Callable[[Session], object]) -> object:
    try:
        return command(session)
    except PenstockError as error:
        return error
    except Exception:
        return _failed()


def _failed() -> QueryFailed:
    return QueryFailed(f"the Spark driver failed:\n{traceback.format_exc()}")


def session_builder(name: str, master: str = "local[2]") -> Any:
    """What all sessions of benchmarks have in common."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(master)
        .appName(f"penstock-{name}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
