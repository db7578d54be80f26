"""`penstock.queries(spark)`: the queries that this driver runs, under the names of `spark.streams`.

Owns the list of them, who waits for the first to end, and listeners. A listener is an object with
the methods of Spark's StreamingQueryListener, and gets Spark's own events. As in Spark,
`onQueryStarted` is called before `penstock.start` returns. All else comes on one thread, in order,
so a listener that takes its time holds up the others and no query; one that raises is logged.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from penstock.connector.classic import check_session
from penstock.errors import BadRequest
from penstock.spark.progress import QueryProgress

if TYPE_CHECKING:
    from penstock.spark.query import StreamingQuery

logger = logging.getLogger(__name__)

#: Between two words that a query is idle, as Spark's noDataProgressEventInterval.
IDLE_SECONDS: Final = 10.0
_METHODS: Final = ("onQueryStarted", "onQueryProgress", "onQueryTerminated")
#: By Spark application: a driver may have one after the other.
_QUERIES: Final[dict[str, Queries]] = {}
_LOCK: Final = threading.Lock()


def queries(spark: Any) -> Queries:
    """The queries that this driver runs on a Spark, as `spark.streams` has Spark's own.

        for query in penstock.queries(spark).active:
            print(query.name, query.status["message"])
        penstock.queries(spark).get("hot-items").stop()
        penstock.queries(spark).awaitAnyTermination()

    Queries of other drivers are not among them: `penstock query list` shows all of a log.
    """
    check_session(spark)
    with _LOCK:
        return _QUERIES.setdefault(spark.sparkContext.applicationId, Queries())


class Queries:
    """Queries that run, who waits for them, who listens to them; from `penstock.queries`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: By run: one that is started again under its name may still meet its predecessor.
        self._active: dict[str, StreamingQuery] = {}
        self._terminated: list[StreamingQuery] = []
        self._listeners: list[Any] = []
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._is_told = False

    @property
    def active(self) -> list[StreamingQuery]:
        """Those that run, in the order in which they were started."""
        with self._changed:
            return [query for query in self._active.values() if query.isActive]

    def get(self, id: str) -> StreamingQuery | None:
        """The one that runs under this name or id; None if there is none."""
        found = [query for query in self.active if str(id) in (query.id, query.name)]
        return found[-1] if found else None

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until one has ended since `resetTerminated`, or so many seconds: then whether.

        Raises what stopped it, if it stopped by itself.
        """
        with self._changed:
            ended = self._changed.wait_for(lambda: bool(self._terminated), timeout)
            terminated = list(self._terminated)
        for query in terminated:
            error = query.exception()
            if error is not None:
                raise error
        return None if timeout is None else ended

    def resetTerminated(self) -> None:
        """Forget those that have ended: `awaitAnyTermination` waits for the next."""
        with self._changed:
            self._terminated.clear()

    def addListener(self, listener: Any) -> None:
        """Tell a listener of all queries from now on.

        It is a `pyspark.sql.streaming.StreamingQueryListener`, as Spark's own engine takes it, or
        any object with its methods. `onQueryProgress` comes with every report that has new rows,
        once a second at most; `onQueryIdle` while there are none, every ten seconds.
        """
        missing = [name for name in _METHODS if not callable(getattr(listener, name, None))]
        if missing:
            raise BadRequest(
                f"a listener needs {', '.join(missing)}: make it a subclass of "
                "pyspark.sql.streaming.StreamingQueryListener"
            )
        with self._changed:
            if listener not in self._listeners:
                self._listeners.append(listener)
            if not self._is_told:
                self._is_told = True
                threading.Thread(
                    target=self._tell_all, name="penstock-listeners", daemon=True
                ).start()

    def removeListener(self, listener: Any) -> None:
        """Tell it nothing any more."""
        with self._changed:
            if listener in self._listeners:
                self._listeners.remove(listener)

    # -- for the queries themselves

    def began(self, query: StreamingQuery) -> None:
        """It runs: all listeners have heard of it when this returns."""
        with self._changed:
            self._active[query.runId] = query
        event = QueryStartedEvent(*_ids(query), query.name, _now(), set())
        self._tell("onQueryStarted", event)

    def ended(self, query: StreamingQuery) -> None:
        error = query.exception()
        self.post(
            "onQueryTerminated",
            QueryTerminatedEvent(*_ids(query), None if error is None else str(error), None),
        )
        with self._changed:
            self._active.pop(query.runId, None)
            self._terminated.append(query)
            self._changed.notify_all()

    def post(self, method: str, event: Any) -> None:
        """Let listeners hear of it, soon."""
        if self._listeners:
            self._events.put((method, event))

    def _tell_all(self) -> None:
        while True:
            self._tell(*self._events.get())

    def _tell(self, method: str, event: Any) -> None:
        with self._changed:
            listeners = list(self._listeners)
        for listener in listeners:
            told: Callable[[Any], None] | None = getattr(listener, method, None)
            try:
                if told is not None:  # onQueryIdle is newer than the others
                    told(event)
            except Exception:
                logger.exception("listener=%r failed in %s", listener, method)

    def __repr__(self) -> str:
        return f"<Queries {', '.join(query.name for query in self.active) or 'none active'}>"


class Narrator:
    """Makes events of a query's reports: progress if rows came in, else now and then idle."""

    def __init__(self, query: StreamingQuery, queries: Queries) -> None:
        self._query = query
        self._queries = queries
        self._next_report = 0
        self._said_idle = 0.0

    def tell(self) -> None:
        """Of the reports that are new."""
        for report in self._query.recentProgress:
            if report["batchId"] >= self._next_report:
                self._next_report = report["batchId"] + 1
                self._tell_one(report)

    def _tell_one(self, report: QueryProgress) -> None:
        if report["numInputRows"]:
            self._queries.post("onQueryProgress", QueryProgressEvent(report))
            self._said_idle = 0.0
        elif time.monotonic() - self._said_idle >= IDLE_SECONDS:
            self._said_idle = time.monotonic()
            event = QueryIdleEvent(report.id, report.runId, report["timestamp"])
            self._queries.post("onQueryIdle", event)


def _ids(query: StreamingQuery) -> tuple[uuid.UUID, uuid.UUID]:
    return uuid.UUID(query.id), uuid.UUID(query.runId)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
