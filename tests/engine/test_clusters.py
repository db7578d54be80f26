"""The same query on clusters: executors of their own, in this machine's only Spark.

Each runs in a process of its own, since a process has one Spark: a script as a user writes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from embedded_server import is_dead, stop_server
from harness.java import brief_java
from harness.server_process import free_port
from harness.waiting import wait_until

#: Two stages, two workers; prints what came out, and the processes that the workers ran in.
SCRIPT = """
import sys
import time
import penstock
from penstock.runtime.control import Hello, decode_message
from pyspark.sql import SparkSession

master, directory, java = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.executor.extraJavaOptions", java)
    .getOrCreate()
)
with penstock.connect(directory) as log:
    numbers = log.create_stream("numbers", "n long")
    numbers.append([{"n": n} for n in range(1000)])
    frame = numbers.df(spark).selectExpr("n % 7 AS k", "n").groupBy("k").sum("n")
    query = penstock.start(frame, to="sums", name="sums", workers=2)
    query.processAllAvailable()
    numbers.append([{"n": n} for n in range(1000, 2000)])
    query.processAllAvailable()
    result = sorted(tuple(row.values()) for row in query.result().to_pylist())
    for _ in range(600):
        cores = query.lastProgress["cores"]
        if cores["held"] == 2:
            break
        time.sleep(0.1)
    query.stop()
    assert query.exception() is None
    entries = log.client.read(["ctl/sums"], start=0)
    said = [decode_message(entry.payload) for entry in entries]
    print("result", result)
    print("cores", cores["held"], cores["total"], cores["left"])
    print("workers", *(message.pid for message in said if isinstance(message, Hello)))
spark.stop()
"""
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}
EXPECTED = [(k, sum(n for n in range(2000) if n % 7 == k)) for k in range(7)]


def run_script(master: str, directory: Path) -> dict[str, str]:
    script = directory.parent / "pipeline.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), master, str(directory), brief_java()],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, **LOOPBACK, "PYSPARK_PYTHON": sys.executable},
    )
    print(done.stdout, done.stderr, sep="\n-- stderr\n")  # pytest shows it if anything is wrong
    assert done.returncode == 0
    stop_server(directory)
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return {name: value for name, _, value in lines}


def check(said: dict[str, str]) -> None:
    assert said["result"] == str(EXPECTED)
    assert said["cores"] == "2 2 0"
    pids = {int(pid) for pid in said["workers"].split()}
    assert len(pids) == 2, "a worker was started twice"
    wait_until(lambda: all(map(is_dead, pids)), "a worker lives on after its query was stopped")


def test_a_query_runs_on_executors_of_a_local_cluster(tmp_path: Path) -> None:
    check(run_script("local-cluster[2,1,1024]", tmp_path / "log"))


@pytest.mark.soak
def test_a_query_runs_on_a_standalone_cluster_of_the_pip_package(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as master:
        check(run_script(master, tmp_path / "log"))


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[str]:
    """A master and one worker with two cores, as PySpark's package brings them."""
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        master_class = "org.apache.spark.deploy.master.Master"
        options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
        stack.enter_context(spark_class(directory, [master_class, *options]))
        worker_class = "org.apache.spark.deploy.worker.Worker"
        options = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "2", "--memory", "2g"]
        options += ["--work-dir", str(directory / "work"), master]
        stack.enter_context(spark_class(directory, [worker_class, *options]))
        wait_for_worker(page, directory)
        yield master


@contextmanager
def spark_class(directory: Path, arguments: list[str]) -> Iterator[None]:
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    output = open(directory / f"{arguments[0]}.log", "wb")  # noqa: SIM115
    environment = {**os.environ, **LOOPBACK, "SPARK_HOME": str(home)}
    process = subprocess.Popen(
        [str(home / "bin" / "spark-class"), *arguments],
        stdout=output,
        stderr=output,
        env=environment,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
        output.close()


def wait_for_worker(page: int, directory: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=2) as answer:
                if b'"ALIVE"' in answer.read().partition(b'"workers"')[2]:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    said = "\n".join(path.read_text()[-2000:] for path in directory.glob("*.log"))
    pytest.fail(f"the standalone cluster did not start:\n{said}")
