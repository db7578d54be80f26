"""A user's program on a standalone cluster, which the test beside tells what to do, line by line.

    grow N    append rows while it is rescaled to N workers, and wait until each has an executor
    lose N    append rows while a machine is lost, and wait until the N that are left run all
    end       stop, and say whether the result is what batch Spark makes of the stream

It shares the log with its workers, by an address and a token file, and nothing else.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock
from penstock.testing.oracle import assert_equal

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = 120.0


def build(frame: Any) -> Any:
    timed = frame.withWatermark("ts", "1 second")
    return timed.groupBy(F.window("ts", "5 seconds"), "k").agg(F.count("*"), F.sum("n"))


class Feed:
    """Rows all the time, from a thread."""

    def __init__(self, stream: penstock.Stream) -> None:
        self._stream = stream
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for first in count(0, 50):
            rows = [
                {"k": n % 13, "n": n, "ts": T0 + timedelta(milliseconds=10 * n)}
                for n in range(first, first + 50)
            ]
            self._stream.append(rows)
            if self._enough.wait(0.05):
                return

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()


def wait(query: penstock.StreamingQuery, happened: Callable[[dict[str, Any]], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened(dict(query.lastProgress or {"members": {}, "tasks": {}})):
        if time.monotonic() > deadline or not query.isActive:
            sys.exit(f"in vain, with {query.lastProgress}, {query.exception()}")
        time.sleep(0.1)


def runs_on(progress: dict[str, Any], workers: int) -> bool:
    """So many workers, each on an executor of its own, run all tasks."""
    members, tasks = progress["members"], progress["tasks"]
    executors = {one["executor"] for one in members.values()}
    is_running = all(
        one.get("is_running") and one.get("worker") in members for one in tasks.values()
    )
    return len(members) == len(executors) == workers and bool(tasks) and is_running


def tasks_of(progress: Any) -> Any:
    """By stage."""
    return (progress or {}).get("layout", {}).get("tasks")


def main() -> None:
    master, target, token_file, java = sys.argv[1:]
    options = {
        "spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.executor.cores": "1",
        "spark.executor.memory": "512m", "spark.executor.extraJavaOptions": java,
    }  # fmt: skip
    builder = SparkSession.builder.master(master)
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    with penstock.connect(target, token_file=token_file) as log:
        stream = log.create_stream("numbers", "k long, n long, ts timestamp", lanes=6)
        frame = build(stream.df(spark))
        query = penstock.start(frame, to="sums", name="sums", workers=2, replicas=1, checkpoints="")
        feed = Feed(stream)
        wait(query, lambda progress: runs_on(progress, 2))
        print("ready", flush=True)
        for line in sys.stdin:
            what, _, number = line.strip().partition(" ")
            if what == "end":
                break
            if what == "grow":
                query.rescale(int(number))
                wait(query, lambda progress: tasks_of(progress) == [int(number)] * 2)  # noqa: B023
            wait(query, lambda progress: runs_on(progress, int(number)))  # noqa: B023
            print(f"{what} {number} tasks {tasks_of(query.lastProgress)}", flush=True)
        feed.stop()
        query.processAllAvailable()
        result = query.result()
        query.stop()
        if query.exception() is not None:
            sys.exit(f"it failed: {query.exception()}")
        from pyspark.sql.pandas.types import from_arrow_schema

        batch = spark.createDataFrame(stream.read(), from_arrow_schema(stream.schema))
        assert_equal(result, build(batch).toArrow(), "sums")
        print(f"equal {result.num_rows}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
