"""`penstock bench start`: how long people wait for a command, and for the first result of all.

Commands run as processes, as a shell starts them, against a log whose server runs. The quick start
is the program of the README: a new session of Spark, a new log, a windowed query, its first rows.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Final

import penstock
from penstock_bench.measure import busy_load
from penstock_bench.report import Check, Report, Say

#: Seconds until a command that looks something up has answered.
BAR_SECONDS: Final = 0.4
#: What people type most; rows need Arrow, the others do without.
COMMANDS: Final = (
    *("--version", "--help", "stream list --help", "stream list", "query list", "log status"),
    "stream read bids",
)

QUICK_START: Final = """
import json, sys, time
began = time.perf_counter()
laps = {}
def lap(name):
    laps[name] = round(time.perf_counter() - began, 2)
from datetime import UTC, datetime
import penstock
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[3]").getOrCreate()
lap("Spark is there")
log = penstock.connect(sys.argv[1])
bids = log.create_stream("bids", "auction long, price double, ts timestamp")
frame = bids.df(spark)
lap("the stream is a DataFrame")
hot = (
    frame.withWatermark("ts", "1 second").groupBy(F.window("ts", "10 seconds"), "auction")
    .agg(F.count("*").alias("bids"), F.max("price").alias("highest"))
)
query = penstock.start(hot, to="hot_items", mode="append")
lap("the query is started")
noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
bids.append([{"auction": n % 3, "price": n / 2, "ts": noon.replace(second=n)} for n in range(60)])
query.processAllAvailable()
assert log.stream("hot_items").read().num_rows == 15
lap("first result")
query.stop()
print(json.dumps(laps))
"""


@dataclass(frozen=True, slots=True)
class StartBenchSizes:
    """How often; `quick` is for tests of the bench itself."""

    rounds: int = 9
    quick_starts: int = 3


FULL: Final = StartBenchSizes()
QUICK: Final = StartBenchSizes(rounds=1, quick_starts=0)


def run_bench(plan: StartBenchSizes, say: Say) -> Report:
    report = Report("start", parameters={"plan": repr(plan), "load": busy_load(say)})
    with tempfile.TemporaryDirectory() as directory, penstock.connect(directory) as log:
        log.create_stream("bids", "auction long").append([{"auction": 1}])
        for command in COMMANDS:
            report.judge(_measure(command, directory, plan.rounds), say)
    starts = [_quick_start() for _ in range(plan.quick_starts)]
    if starts:
        report.figures["quick start, seconds until"] = {
            name: statistics.median(one[name] for one in starts) for name in starts[0]
        }
    return report


def _measure(command: str, directory: str, rounds: int) -> Check:
    where = [] if command.startswith("--") or "--help" in command else ["--dir", directory]
    program = [sys.executable, "-m", "penstock.cli.main", *command.split(), *where]
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run(program, check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    detail = f"median of {rounds}, {min(took):.3f} to {max(took):.3f}"
    name = f"penstock {command}"
    return Check(name, statistics.median(took), BAR_SECONDS, "at most", "s", detail)


def _quick_start() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        program = [sys.executable, "-c", QUICK_START, f"{directory}/log"]
        done = subprocess.run(program, check=True, capture_output=True, text=True, cwd=directory)
    laps: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return laps
