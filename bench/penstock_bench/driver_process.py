"""A Spark driver in a process of its own: one session, told what to do through a pipe.

It ends, and the JVM with it, when the bench closes the pipe or dies.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.errors import PenstockError, QueryFailed, Unavailable
from penstock.stream.session import Log, connect

_START_SECONDS: Final = 120.0
_DIED: Final = "the Spark driver died; what it said last is above"
_context = multiprocessing.get_context("spawn")


class Engine(Protocol):
    """What is done with a command, inside the driver."""

    def __init__(self, spark: Any, log: Log) -> None: ...

    def obey(self, command: object) -> object:
        """Do it; what is returned or raised goes back to the bench."""

    def close(self) -> None:
        """End what still runs."""


@dataclass(frozen=True, slots=True)
class _Failed:
    error: PenstockError | str


class DriverProcess:
    """The process, as the bench holds it."""

    def __init__(
        self, target: Path, engine: type[Engine], name: str, settings: Mapping[str, str] = {}
    ) -> None:
        self._ours, theirs = _context.Pipe()
        args = (target, engine, name, settings, theirs)
        self._process = _context.Process(target=_serve, args=args)
        self._process.start()
        theirs.close()
        self._answer(_START_SECONDS)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, command: object, timeout: float = _START_SECONDS) -> Any:
        """Have it done; raises what went wrong there."""
        try:
            self._ours.send(command)
        except OSError:
            raise Unavailable(_DIED) from None
        return self._answer(timeout)

    def check(self) -> None:
        """Raise if the process has died."""
        if not self._process.is_alive():
            raise Unavailable(_DIED)

    def _answer(self, timeout: float) -> Any:
        if not self._ours.poll(timeout):
            raise Unavailable(f"the Spark driver did not answer within {timeout:g} s")
        try:
            answer = self._ours.recv()
        except (EOFError, OSError):
            raise Unavailable(_DIED) from None
        if isinstance(answer, _Failed):
            if isinstance(answer.error, PenstockError):
                raise answer.error
            raise QueryFailed(f"the Spark driver failed:\n{answer.error}")
        return answer

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


def _serve(
    target: Path,
    engine_type: type[Engine],
    name: str,
    settings: Mapping[str, str],
    commands: Connection,
) -> None:
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
            engine = engine_type(spark, connect(target))
            stack.callback(engine.close)
            commands.send(None)
            while True:
                commands.send(_obey(engine, commands.recv()))
    except (EOFError, OSError):
        pass  # the bench has ended
    except Exception:
        commands.send(_Failed(traceback.format_exc()))


def _obey(engine: Engine, command: object) -> object:
    try:
        return engine.obey(command)
    except PenstockError as error:
        return _Failed(error)
    except Exception:
        return _Failed(traceback.format_exc())


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
