"""Penstock's side of `penstock bench realtime`: one query at a time, in a driver process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.runtime.spec import Settings
from penstock.stream.session import Log
from penstock_bench.driver_process import DriverProcess
from penstock_bench.protocols.choosing import ProtocolName, with_protocol
from penstock_bench.queries import QUERIES

_STOP_SECONDS = 60.0


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


class Driver:
    """The process, as the bench holds it."""

    def __init__(self, directory: Path) -> None:
        self._process = DriverProcess(directory, RealTime, "bench-realtime")
        self.check = self._process.check
        self.close = self._process.close

    def start(self, command: Start) -> None:
        self._process.ask(command)

    def stop(self) -> dict[str, Any]:
        self._process.ask(Stop(), _STOP_SECONDS)
        return {}


class RealTime:
    """Penstock, with one worker."""

    def __init__(self, spark: Any, log: Log) -> None:
        self._spark = spark
        self._log = log
        self._query: Any = None

    def obey(self, command: object) -> None:
        if isinstance(command, Start):
            self._start(command)
        else:
            self._stop()

    def _start(self, command: Start) -> None:
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

    def _stop(self) -> None:
        if (failed := self._query.exception()) is not None:
            raise failed
        self._query.stop()

    def close(self) -> None:
        """The bench stops its queries itself."""
