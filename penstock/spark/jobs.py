"""Workers as Spark jobs: one job of one long-lived Spark task per worker, kept running.

One job each, not one job of many tasks: in local mode a lost task fails its whole job, and anywhere
a job ends after a number of lost tasks that no long life stays below. Spark restarts a lost task
itself where it can; when the job fails after all, it is submitted again here. What a job that was
cancelled still writes is fenced by the log.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.runtime.spec import QuerySpec
from penstock.runtime.worker import Address, run_worker

logger = logging.getLogger(__name__)

#: Waits before a failed job is submitted again, in seconds; the last one repeats.
BACKOFF_SECONDS: Final = (0.05, 0.2, 1.0, 3.0)
#: Failures in a row, each soon after its start, after which Spark cannot run the query.
FAILURES_MAX: Final = 4
#: A job that lived so long was a running worker.
LONG_SECONDS: Final = 20.0


class WorkerJobs:
    """The Spark jobs of one run of a query."""

    def __init__(
        self,
        spark: Any,
        address: Address,
        spec: QuerySpec,
        *,
        workers: int,
        run_id: str,
        is_over: Callable[[], bool],
        on_lost: Callable[[int], None],
        on_hopeless: Callable[[str], None],
    ) -> None:
        self._sc = spark.sparkContext
        self._group = f"penstock-{spec.name}-{run_id}"
        self._name = spec.name
        self._is_over = is_over
        self._on_lost = on_lost
        self._on_hopeless = on_hopeless
        self._stopping = threading.Event()
        choose_python(self._sc)
        self._launch = self._sc.broadcast((address, spec))
        self._threads = [self._make_thread(slot) for slot in range(workers)]

    def _make_thread(self, slot: int) -> threading.Thread:
        from pyspark import InheritableThread

        return InheritableThread(
            target=self._keep, args=(slot,), name=f"penstock-job-{slot}", daemon=True
        )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _keep(self, slot: int) -> None:
        """Run a worker's job, again whenever it fails, until stopped."""
        self._sc.setJobGroup(
            self._group, f"penstock query {self._name}, worker {slot}", interruptOnCancel=False
        )
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            error: Exception | None = None
            try:
                self._run_once(slot)
            except Exception as raised:
                error = raised
            if self._is_over():
                return
            lived = time.monotonic() - began
            failures = 1 if lived > LONG_SECONDS else failures + 1
            logger.warning("query=%s worker=%d lost: %s", self._name, slot, _first_line(error))
            self._on_lost(slot)
            if failures > FAILURES_MAX:
                self._on_hopeless(
                    f"Spark could not run worker {slot}, {failures} times in a row: {error}"
                )
                return
            self._stopping.wait(BACKOFF_SECONDS[min(failures - 1, len(BACKOFF_SECONDS) - 1)])

    def _run_once(self, slot: int) -> None:
        launch = self._launch

        def work(slots: Iterator[int]) -> Iterator[int]:
            address, spec = launch.value
            for one in slots:
                run_worker(address, spec, one)
            return iter(())

        self._sc.parallelize([slot], 1).mapPartitions(work).collect()

    def stop(self, timeout: float) -> None:
        """Cancel what still runs after so many seconds, and wait for the threads."""
        self._stopping.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._sc.cancelJobGroup(self._group)
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join(5.0)
        self._launch.unpersist()


def _first_line(error: Exception | None) -> str:
    if error is None:
        return "it left by itself"
    return str(error).strip().split("\n", 1)[0][:300]


def choose_python(sc: Any) -> None:
    """Let a Spark of this machine run workers with the Python that runs the driver.

    Spark would take whatever `python3` is first on the path, which may not know Penstock. Who sets
    PYSPARK_PYTHON, or has a cluster, has chosen.
    """
    chosen = os.environ.get("PYSPARK_PYTHON") or sc.getConf().get("spark.pyspark.python")
    if not chosen and sc.master.startswith("local"):
        sc.pythonExec = sys.executable
