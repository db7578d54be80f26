"""When rows became visible: one tail of a result stream, for every variant the same.

Owns the moment: the wall clock when the tail hands a batch to its reader, as any reader of the
stream would see it. What the rows say is computed after the load has ended, not beside it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import NotFound
from penstock.stream.session import Log
from penstock.stream.stream import Stream
from penstock_bench.measure import now_us
from penstock_bench.queries import BenchQuery

#: A tail without rows for so long looks whether it is still wanted; longer than a window.
_LOOK_SECONDS: Final = 2.0
_APPEAR_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """Rows of a result, and when they were seen."""

    visible_us: int
    rows: pa.RecordBatch
    #: What these rows and all before them add up to.
    events_so_far: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of the result rows of a span of event time."""

    #: Milliseconds, one per row.
    values: list[float]
    #: What the rows add up to; equals what was sent unless something was lost or repeated.
    events: int


class Arrivals:
    """A tail in a thread, from the start of the stream until `stop`."""

    def __init__(self, log: Log, result: str, query: BenchQuery) -> None:
        self._query = query
        self._stream = appeared(log, result)
        self._found: list[Arrival] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._error: Exception | None = None
        threading.Thread(target=self._follow, name=f"arrivals-{result}", daemon=True).start()

    def _follow(self) -> None:
        position: Any = "earliest"
        try:
            while not self._stopped:
                with self._stream.tail(position, timeout=_LOOK_SECONDS) as tail:
                    for rows in tail:
                        self._take(now_us(), rows)
                    position = tail.position
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _take(self, visible_us: int, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        before = self._found[-1].events_so_far if self._found else 0
        events = before + count_events(rows, self._query)
        with self._changed:
            self._found.append(Arrival(visible_us, rows, events))
            self._changed.notify_all()

    def wait_events(self, events: int, deadline: float) -> int | None:
        """When all rows first added up to so many events; None at the deadline (monotonic)."""
        looked = 0
        with self._changed:
            while True:
                while looked < len(self._found):
                    if self._found[looked].events_so_far >= events:
                        return self._found[looked].visible_us
                    looked += 1
                if self._error is not None:
                    raise self._error
                if not self._changed.wait(deadline - time.monotonic()):
                    return None

    def found(self) -> list[Arrival]:
        with self._changed:
            return list(self._found)

    def stop(self) -> None:
        """It ends soon; nobody needs to wait for it."""
        self._stopped = True


def appeared(log: Log, name: str) -> Stream:
    """A stream that the query makes when it starts."""
    deadline = time.monotonic() + _APPEAR_SECONDS
    while True:
        try:
            return log.stream(name)
        except NotFound:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def times_of(rows: pa.RecordBatch, query: BenchQuery) -> Any:
    return rows.column(query.time_column).cast(pa.int64()).to_numpy(zero_copy_only=False)


def count_events(rows: pa.RecordBatch, query: BenchQuery) -> int:
    if query.count_column is None:
        return int(rows.num_rows)
    return int(pc.sum(rows.column(query.count_column)).as_py())


def latencies(arrivals: list[Arrival], query: BenchQuery, from_us: int, to_us: int) -> Latencies:
    """Of the rows that belong to the events of [from, to)."""
    values: list[Any] = []
    events = 0
    # A window belongs to the events before its end.
    shift = 0 if query.count_column is None else 1
    for arrival in arrivals:
        times = times_of(arrival.rows, query)
        wanted = (times - shift >= from_us) & (times - shift < to_us)
        if wanted.any():
            values.append((arrival.visible_us - times[wanted]) / 1_000)
            events += count_events(arrival.rows.filter(pa.array(wanted)), query)
    return Latencies(np.concatenate(values).tolist() if values else [], events)
