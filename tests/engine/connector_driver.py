"""Micro-batch queries under fire: a program that starts, or goes on with, two of them.

Run as a process of its own, which a test kills. Both read the stream `in`, shuffle it, and write:

    plain   through the sink, one stream: `out`
    three   through foreach_batch_writer, three streams with one commit: `left`, `right`, `both`

It prints one JSON object per line: {"event": "running"} once both were started, {"event": "failed"}
when one stopped by itself (it is started again at once, as a user's own loop would), and an answer
to each command that it reads from its input:

    flush    both have processed all that was in the log
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.java import brief_java

import penstock

IN = "id long NOT NULL, k long NOT NULL, v long NOT NULL"
OUT = "id long NOT NULL, k long NOT NULL, w long NOT NULL"
PART = "batch long NOT NULL, id long NOT NULL, w long NOT NULL"
STREAMS = {"in": IN, "out": OUT, "left": PART, "right": PART, "both": PART}
THREE = ("left", "right", "both")
#: Rows that make their task slow, so that Spark starts it a second time beside the first.
SLOW_EVERY = 1500
SLOW_MS = 400
TASKS = 3
ROWS_PER_TRIGGER = 1000
FLUSH_SECONDS = 200.0


def is_kept(id: Any) -> Any:
    """Whether a row of `in` has one in `out`, as in `transform`; also for whole columns."""
    return id % 7 != 3


def make_w(id: Any, v: Any) -> Any:
    return 3 * v + id % 5


def transform(frame: Any) -> Any:
    """Stateless, with a shuffle."""
    # In the tasks behind the shuffle. What it gives is no row's business: null is not in a list.
    slow = f"(id % {SLOW_EVERY} != 0 or reflect('java.lang.Thread', 'sleep', {SLOW_MS}L) != '')"
    shuffled = frame.where("id % 7 != 3").repartition(TASKS, "k").where(slow)
    return shuffled.selectExpr("id", "k", "3 * v + id % 5 AS w")


def make_three(frame: Any, batch: int) -> dict[str, Any]:
    rows = transform(frame).selectExpr(f"{batch}L AS batch", "id", "w")
    return {
        "left": rows.where("id % 2 = 0"),
        "right": rows.where("id % 2 = 1"),
        "both": rows.selectExpr("batch", "id", "-w AS w"),
    }


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def make_session(master: str) -> Any:
    from pyspark.sql import SparkSession

    java = brief_java()
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.executor.memory": "512m",
        # Whatever is lost is tried again, as often as it is lost.
        "spark.task.maxFailures": "1000",
        "spark.stage.maxConsecutiveAttempts": "1000",
        "spark.deploy.maxExecutorRetries": "-1",
        # A slow task gets a second attempt, also with three tasks a stage.
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.2",
    }
    builder = SparkSession.builder.master(master).appName("penstock-connector-fire")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Queries:
    """Both, started again whenever one stops by itself."""

    def __init__(self, spark: Any, options: argparse.Namespace) -> None:
        self._spark = spark
        self._where = {"log": options.log, "tokenFile": str(options.token_file)}
        self._log = penstock.connect(options.log, token_file=options.token_file)
        self._checkpoints: Path = options.checkpoints
        starts: dict[str, Callable[[], Any]] = {"plain": self._plain, "three": self._three}
        self._starts = {name: starts[name] for name in options.queries.split(",")}
        self.running = {name: start() for name, start in self._starts.items()}

    def _source(self) -> Any:
        reader = self._spark.readStream.format("penstock").options(**self._where)
        reader = reader.option("stream", "in").option("maxRowsPerTrigger", ROWS_PER_TRIGGER)
        return reader.load()

    def _checkpoint(self, name: str) -> str:
        return str(self._checkpoints / name)

    def _plain(self) -> Any:
        writer = transform(self._source()).writeStream.format("penstock").options(**self._where)
        writer = writer.option("stream", "out").option(
            "checkpointLocation", self._checkpoint("plain")
        )
        return writer.start()

    def _three(self) -> Any:
        write = penstock.foreach_batch_writer(make_three, log=self._log)
        writer = self._source().writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", self._checkpoint("three")).start()

    def watch(self) -> None:
        """Never returns."""
        penstock.register(self._spark)  # in this thread, which starts queries, too
        while True:
            time.sleep(0.05)
            for name, query in list(self.running.items()):
                if not query.isActive:
                    say(event="failed", query=name, error=str(query.exception()))
                    self._start_again(name)

    def _start_again(self, name: str) -> None:
        """Returns when it was started, which fails while the log is away."""
        while True:
            try:
                self.running[name] = self._starts[name]()
                return
            except Exception as error:
                say(event="failed", query=name, error=str(error))
                time.sleep(0.5)

    def flush(self) -> None:
        """Until both have processed everything, however often they are started again meanwhile."""
        deadline = time.monotonic() + FLUSH_SECONDS
        for name in self._starts:
            while time.monotonic() < deadline:
                query = self.running[name]
                try:
                    query.processAllAvailable()
                except Exception as error:
                    say(event="note", query=name, error=str(error)[:200])
                    time.sleep(0.2)
                    continue
                if query.isActive:
                    break
            else:
                raise AssertionError(f"{name} has not processed everything in {FLUSH_SECONDS} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--queries", default="plain,three")
    options = parser.parse_args()
    began = time.monotonic()
    spark = make_session(options.master)
    say(event="session", app=spark.sparkContext.applicationId)
    queries = Queries(spark, options)
    threading.Thread(target=queries.watch, daemon=True).start()
    say(event="running", seconds=round(time.monotonic() - began, 1))
    for line in sys.stdin:
        if json.loads(line)["command"] == "flush":
            queries.flush()
            say(event="flushed")
    spark.stop()


if __name__ == "__main__":
    main()
