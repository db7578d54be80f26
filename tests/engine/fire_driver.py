"""The driver under fire: a program that starts, or goes on with, all queries; a test kills it.

Run as a process of its own. It prints one JSON object per line: {"event": "running"} once every
query was started, and an answer to each command that it reads from its input:

    flush    all queries have processed all that was in the log
    verify   the same, then stop, and compare every result with batch Spark over the rows of the
             events [0, n), which are made again from their numbers
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fire_queries as fire
import pyarrow as pa
from harness.java import brief_java
from harness.rooms import state_memory
from penstock_bench.nexmark.generator import Generator

import penstock
from penstock.testing.oracle import assert_equal, run_spark


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def make_session(master: str) -> Any:
    from pyspark.sql import SparkSession

    java = brief_java()
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.executor.memory": "512m",
    }
    builder = SparkSession.builder.master(master).appName("penstock-fire")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return penstock.tuned(builder).getOrCreate()


def start_all(spark: Any, log: Any, options: argparse.Namespace) -> dict[str, Any]:
    frames = {name: log.stream(name).df(spark) for name in fire.STREAMS}
    return {
        name: penstock.start(
            fire.ALL[name].build_streaming(frames),
            to=f"{name}-result",
            name=name,
            mode=fire.ALL[name].mode,
            workers=options.workers,
            log=log,
            checkpoints=str(options.checkpoints),
            checkpoint_interval=2.0,
            # Of so small a bound nearly all of the state is on disk.
            state_memory=state_memory() or fire.ALL[name].state_memory,
            replicas=1 if name in ("q5", "words", "nbq8", "nbq8_large") else 0,
        )
        for name in options.queries.split(",")
    }


def watch(queries: dict[str, Any]) -> None:
    """Say it when a query stops by itself: it never should. And how large its state was at most."""
    told: set[str] = set()
    largest = dict.fromkeys(queries, 0)
    while True:
        time.sleep(0.1)
        for name, query in queries.items():
            states = (query.lastProgress or {}).get("stateOperators", [])
            size = sum(state["memoryUsedBytes"] for state in states)
            if size > 1.1 * largest[name]:
                largest[name] = size
                say(event="state", query=name, bytes=size)
            error = query.exception()
            if error is not None and name not in told:
                told.add(name)
                say(event="failed", query=name, error=str(error))


def verify(spark: Any, queries: dict[str, Any], events: int) -> None:
    """Says per query how many rows its result has, or what is wrong with it."""
    results = {}
    for name, query in queries.items():
        query.processAllAvailable()
        results[name] = query.result()
    for query in queries.values():
        query.stop()
    rows = fire.make_rows(Generator(fire.parameters_of(queries)), 0, events)
    tables = {name: pa.Table.from_batches([batch]) for name, batch in rows.items()}
    outcome: dict[str, object] = {}
    for name, actual in results.items():
        expected = run_spark(spark, fire.ALL[name].build, tables)
        try:
            assert_equal(actual, expected, name)
            outcome[name] = actual.num_rows
        except AssertionError as error:
            outcome[name] = str(error)
    say(event="verified", outcome=outcome)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--queries", default=",".join(fire.QUERIES))
    options = parser.parse_args()
    began = time.monotonic()
    log = penstock.connect(options.log, token_file=options.token_file, timeout=120)
    spark = make_session(options.master)
    say(event="session", app=spark.sparkContext.applicationId)
    queries = start_all(spark, log, options)
    threading.Thread(target=watch, args=(queries,), daemon=True).start()
    say(event="running", seconds=round(time.monotonic() - began, 1))
    for line in sys.stdin:
        command = json.loads(line)
        match command["command"]:
            case "flush":
                for query in queries.values():
                    query.processAllAvailable()
                say(event="flushed")
            case "verify":
                verify(spark, queries, command["events"])
    spark.stop()


if __name__ == "__main__":
    main()
