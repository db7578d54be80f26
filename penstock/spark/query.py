"""A running query, under the names of Spark's StreamingQuery.

Owns the run as a user holds it: the coordinator's thread and the workers' Spark jobs live and end
together here. `stop` is graceful: workers commit what they have worked on; started again under the
same name, the query goes on from there.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, Final

import pyarrow as pa

from penstock.errors import BadRequest, PenstockError, QueryFailed
from penstock.ops.kept_in_memory import told_in_memory
from penstock.ops.sink import read_result
from penstock.plain_text import plain
from penstock.plan.explain import explain
from penstock.protocol.names import parse_task
from penstock.runtime.coordinator_thread import CoordinatorThread
from penstock.runtime.results import result_deltas
from penstock.runtime.spec import QuerySpec, rescaled_tasks
from penstock.spark.cores import check_workers
from penstock.spark.jobs import WorkerJobs
from penstock.spark.notebook import show_card
from penstock.spark.progress import QueryProgress
from penstock.spark.queries import Narrator, Queries
from penstock.stream.session import Log
from penstock.stream.stream import Stream
from penstock.ui.card import query_card
from penstock.ui.place import page_of_query

logger = logging.getLogger(__name__)

#: How long Spark's tasks may take to end after their workers said goodbye.
JOB_SECONDS: Final = 5.0
#: How soon listeners hear of a report, which comes once a second.
LISTEN_SECONDS: Final = 0.25
_SUSPENDED: Final = (
    "Suspended: it holds no worker and takes nothing in; query.rescale(1) or more brings it back "
    "with its state"
)


class StreamingQuery:
    """A query that runs; from `penstock.start`."""

    def __init__(
        self,
        log: Log,
        spec: QuerySpec,
        coordinator: CoordinatorThread,
        jobs: WorkerJobs,
        id: str,
        queries: Queries,
    ) -> None:
        self._log = log
        self._spec = spec
        self._coordinator = coordinator
        self._jobs = jobs
        self._id = id
        self._queries = queries
        self._watcher = threading.Thread(
            target=self._watch, name=f"penstock-watch-{spec.name}", daemon=True
        )
        atexit.register(self.stop)
        queries.began(self)  # a listener may stop it at once
        self._watcher.start()

    def _watch(self) -> None:
        """Tell listeners of reports. When the run is over, for whatever reason, its jobs are."""
        narrator = Narrator(self, self._queries)
        while not self._coordinator.ended.wait(LISTEN_SECONDS):
            narrator.tell()
        self._jobs.stop(JOB_SECONDS)
        atexit.unregister(self.stop)
        narrator.tell()
        self._queries.ended(self)

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def id(self) -> str:
        """The same over all runs of the query."""
        return self._id

    @property
    def stream(self) -> Stream:
        """The stream that takes the result."""
        return self._log.stream(self._spec.to)

    @property
    def ui(self) -> str | None:
        """Where the page of its log (`penstock ui`) shows it; None if none is served."""
        return page_of_query(self._log.target, self.name)

    @property
    def runId(self) -> str:
        """New with every start."""
        return self._coordinator.run_id

    @property
    def isActive(self) -> bool:
        return not self._coordinator.ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """As Spark's: a message for people, whether data is there and being worked on.

        And `cores`: how many of Spark's the query wants and holds, and what is left for others.
        """
        last: Mapping[str, Any] = self.lastProgress or {}
        if not self.isActive:
            message = "Stopped" if self.exception() is None else "Terminated with an error"
            return {"message": message, "isDataAvailable": False, "isTriggerActive": False}
        sources = last.get("sources", ())
        lag = sum(source.get("lag", {}).get("records", 0) for source in sources)
        if self._coordinator.is_suspended:
            return {"message": _SUSPENDED, "isDataAvailable": lag > 0, "isTriggerActive": False}
        running = [task.get("is_running") for task in last.get("tasks", {}).values()]
        cores = last.get("cores", {})
        if "waiting" in cores:
            message = f"Waiting for cores: {cores['waiting']}"
        elif not running or not all(running):
            message = "Starting: waiting for workers"
        else:
            message = "Processing new data" if lag else "Waiting for data to arrive"
        return {
            "message": message,
            "isDataAvailable": lag > 0,
            "isTriggerActive": bool(running) and all(running),
            **({"cores": cores} if cores else {}),
        }

    @property
    def lastProgress(self) -> QueryProgress | None:
        """The newest progress report; one a second is made. None before the first.

        A dictionary with attributes as Spark's StreamingQueryProgress has them.
        """
        recent = self._coordinator.recent
        return QueryProgress(recent[-1]) if recent else None

    @property
    def recentProgress(self) -> list[QueryProgress]:
        """The last hundred reports, oldest first."""
        return [QueryProgress(report) for report in list(self._coordinator.recent)]

    def processAllAvailable(self) -> None:
        """Wait until all that is in the sources now is processed, committed and visible."""
        flushed: Future[None] | None = None
        while not self._coordinator.is_over:
            if self._coordinator.is_suspended:
                if flushed is not None:
                    flushed.cancel()
                raise QueryFailed(
                    f"query {self.name} is suspended and processes nothing: bring it back with "
                    "query.rescale(1) or more"
                )
            flushed = flushed or self._coordinator.flush()
            try:
                flushed.result(timeout=0.1)
                return
            except TimeoutError:
                pass
            except (CancelledError, PenstockError):
                flushed = None  # the coordinator ends, or it is asked once more
                self._coordinator.ended.wait(0.1)
        if flushed is not None:
            flushed.cancel()
        self._coordinator.ended.wait()
        self._raise()
        raise QueryFailed(f"query {self.name} was stopped: start it again to process more")

    def move(self, task: str, worker: int | str) -> None:
        """Let another worker run a task, e.g. `query.move("hot.1/0/1", 0)`, without a restart.

        The worker, named by its number or by its name, first becomes a standby of the task; then
        the task commits what it has and goes on there. `lastProgress["moves"]` tells of it. Needs
        a query that was started with `replicas`.
        """
        self._ask(lambda: self._coordinator.move(parse_task(task), str(worker)))

    def rescale(self, workers: int) -> None:
        """Run with so many workers from now on, without a restart.

        Workers are started first. Then all tasks commit what they have, at one position, and other
        tasks go on from there with their state; workers that are left over leave after that.
        `lastProgress["layout"]` tells of it, and `lastProgress["rescaling"]` until then. Returns
        when it was asked for.

        With 0 workers it is suspended: all commit what they have and leave, and hold no core. It
        stays registered, and goes on with its state when it is rescaled again. Until then
        `processAllAvailable`, `balance` and `move` raise, and `awaitTermination` waits on.
        """
        if type(workers) is not int or workers < 0:
            raise BadRequest(
                f"workers={workers!r}: give a whole number, at least 1, or 0 to suspend the query"
            )
        if workers:
            check_workers(self._jobs.spark_context, workers)
            tasks = rescaled_tasks(self._coordinator.spec, workers)
            if tasks == self._coordinator.spec.tasks:
                logger.info("query=%s keeps its tasks with workers=%d", self.name, workers)
            if workers > sum(tasks):
                logger.warning(
                    "query=%s has %d tasks for %d workers: the others hold a core each and do "
                    "nothing", self.name, sum(tasks), workers,
                )  # fmt: skip
        self._ask(lambda: self._coordinator.rescale(workers))

    def balance(self) -> None:
        """Let virtual nodes that get many rows go to tasks of their stage that have less to do.

        As many tasks as before go on, with other virtual nodes and their state; it pauses them as
        `rescale` does. `lastProgress["balance"]` tells what moved, why, and how long it took; or
        why nothing did. Returns when it was asked for.
        """
        self._ask(self._coordinator.balance)

    def _ask(self, ask: Callable[[], Future[None]]) -> None:
        """Until the coordinator has heard it; what has ended hears nothing."""
        asked: Future[None] | None = None
        while not self._coordinator.ended.is_set():
            asked = asked or ask()
            try:
                return asked.result(timeout=0.1)
            except TimeoutError:
                pass
            except CancelledError:
                break
        self._coordinator.ended.wait()
        self._raise()
        raise QueryFailed(f"query {self.name} was stopped: start it again first")

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end, or so many seconds: then whether it ended. Raises what stopped it."""
        ended = self._coordinator.ended.wait(timeout)
        if ended:
            self._watcher.join()
            self._raise()
        return None if timeout is None else ended

    def stop(self) -> None:
        """Commit what was worked on and end; everything committed stays. Idempotent."""
        self._coordinator.finish()
        self._coordinator.ended.wait()
        if self._watcher.is_alive() and threading.current_thread() is not self._watcher:
            self._watcher.join()

    def exception(self) -> PenstockError | None:
        """What stopped the query, if it stopped by itself."""
        return self._coordinator.error if not self.isActive else None

    def explain(self) -> None:
        """Print how the query runs."""
        text = explain(self._spec.query, self._coordinator.spec.tasks)
        if self._coordinator.is_suspended and self.isActive:
            text += f"\n{_SUSPENDED}\n"
        if self._spec.settings.state_memory is not None:
            text += f"\n{told_in_memory(self._spec.query)}\n"
        sys.stdout.write(plain(text, lines=True))

    def result(self) -> pa.Table:
        """The committed result now: rows that were taken back are gone, in the plan's own order."""
        return read_result(self._spec.query, result_deltas(self._log, self._spec))

    def _raise(self) -> None:
        error = self.exception()
        if error is not None:
            raise error

    def _repr_html_(self) -> str:
        """In a notebook: a small card, as of now."""
        progress = self.lastProgress
        error = self.exception()
        state = "running" if self.isActive else "stopped" if error is None else "failed"
        known = {"name": self.name, "to": self._spec.to, "state": state, "progress": progress}
        return query_card(known, self.status["message"], self.ui)

    def _ipython_display_(self) -> None:
        """The same, kept up to date while the notebook and the query run."""
        show_card(self)

    def __repr__(self) -> str:
        state = "active" if self.isActive else "stopped"
        return f"<StreamingQuery {self.name} {state}>"
