"""Executors that Spark lets go in good time: tasks leave them first, their workers after that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from embedded_server import stop_server
from harness.java import brief_java

#: Two workers on three executors; then the executor of one of them is decommissioned.
SCRIPT = """
import sys
import time
import penstock
from pyspark.sql import SparkSession

directory, java = sys.argv[1:]
spark = (
    SparkSession.builder.master("local-cluster[3,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.decommission.enabled", "true")
    .config("spark.executor.extraJavaOptions", java)
    .getOrCreate()
)

def wait(happened):
    deadline = time.monotonic() + 120
    while not happened(query.lastProgress or {}):
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)

def has_copies(progress):
    standbys = [one.get("standbys", {}).values() for one in progress.get("tasks", {}).values()]
    return standbys and all(any(one.get("is_ready") for one in of) for of in standbys)

with penstock.connect(directory) as log:
    numbers = log.create_stream("numbers", "n long")
    numbers.append([{"n": n} for n in range(1000)])
    frame = numbers.df(spark).selectExpr("n % 7 AS k", "n").groupBy("k").sum("n")
    query = penstock.start(frame, to="sums", name="sums", workers=2, replicas=1)
    query.processAllAvailable()
    wait(has_copies)
    before = dict(query.lastProgress["members"])
    context = spark.sparkContext
    store = context._jsc.sc().statusStore()
    from penstock.spark.cores import executor_of
    stage = query._jobs._find_stage(query._jobs._groups[0])
    executor = executor_of(context, stage)
    victim = next(name for name, one in before.items() if one["slot"] == 0)
    jvm = context._jvm
    info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(
        "scaled in", jvm.scala.Option.apply(None)
    )
    context._jsc.sc().schedulerBackend().decommissionExecutor(executor, info, False, False)
    wait(lambda progress: victim not in progress["members"] and len(progress["members"]) == 2)
    moves = [one for one in query.lastProgress["moves"] if one["from"] == victim]
    numbers.append([{"n": n} for n in range(1000, 2000)])
    query.processAllAvailable()
    result = sorted(tuple(row.values()) for row in query.result().to_pylist())
    query.stop()
    assert query.exception() is None
    print("moves", *sorted({one["why"] for one in moves}))
    print("result", result)
spark.stop()
"""
EXPECTED = [(k, sum(n for n in range(2000) if n % 7 == k)) for k in range(7)]


#: Executors come when workers wait for a core, and go when they have none; then all come again.
ALLOCATED = """
import sys
import time
import penstock
from pyspark.sql import SparkSession

directory, java = sys.argv[1:]
builder = SparkSession.builder.master("local-cluster[3,1,1024]")
for name, value in {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.executor.extraJavaOptions": java,
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "4s",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
scheduler = spark.sparkContext._jsc.sc()

def executors():
    return scheduler.getExecutorMemoryStatus().size() - 1  # one is the driver

def wait(happened):
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline, (executors(), query.lastProgress)
        time.sleep(0.1)

with penstock.connect(directory) as log:
    numbers = log.create_stream("numbers", "n long")
    numbers.append([{"n": n} for n in range(1000)])
    frame = numbers.df(spark).selectExpr("n % 7 AS k", "n").groupBy("k").sum("n")
    query = penstock.start(frame, to="sums", name="sums", workers=1)
    query.processAllAvailable()
    seen = [executors()]
    for workers in (3, 0, 2):
        query.rescale(workers)
        wait(lambda: len((query.lastProgress or {"members": ""})["members"]) == workers)
        wait(lambda: executors() == workers)
        seen.append(executors())
    numbers.append([{"n": n} for n in range(1000, 2000)])
    query.processAllAvailable()
    result = sorted(tuple(row.values()) for row in query.result().to_pylist())
    query.stop()
    assert query.exception() is None
    print("executors", *seen)
    print("result", result)
spark.stop()
"""


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_with_dynamic_allocation_executors_come_and_go_with_workers(tmp_path: Path) -> None:
    said = run_script(ALLOCATED, tmp_path)
    assert said["executors"] == "1 3 0 2"
    assert said["result"] == str(EXPECTED)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_tasks_leave_an_executor_that_is_decommissioned_by_a_planned_move(tmp_path: Path) -> None:
    said = run_script(SCRIPT, tmp_path)
    assert said["result"] == str(EXPECTED)
    assert said["moves"] == "its executor is to go"


def run_script(text: str, tmp_path: Path) -> dict[str, str]:
    script = tmp_path / "pipeline.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "log"), brief_java()],
        capture_output=True,
        text=True,
        timeout=380,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
    )
    print(done.stdout, done.stderr, sep="\n-- stderr\n")
    assert done.returncode == 0
    stop_server(tmp_path / "log")
    lines = (one.partition(" ") for one in done.stdout.splitlines())
    return {name: value for name, _, value in lines}
