"""`penstock bench scale`: what more tasks on one source bring, and what they cost.

One stream in lanes, a watermark, a pandas function that takes 20 µs of processor time for each row,
then counts per window. The function runs where the source is read, so the tasks that share the
source share its work. A backlog is appended to a query that runs and is warm; the time is until all
of it is processed, committed and visible. Tasks take turns in rounds, so that a machine that drifts
favours nobody. Bytes are those of source entries that all tasks together were sent.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.stream.session import connect
from penstock_bench.driver_process import Session, start_driver
from penstock_bench.load import BIDS, make_bids
from penstock_bench.measure import busy_load, scratch
from penstock_bench.report import Check, Report, Say

ROW_SECONDS: Final = 20e-6
_ENTRY_ROWS: Final = 250
_RATE: Final = 20_000
_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class ScaleBenchSizes:
    """How much of everything; `quick` is for tests of the bench itself."""

    rows: int = 150_000
    rounds: int = 3
    tasks: tuple[int, ...] = (1, 2, 4, 8)


FULL: Final = ScaleBenchSizes()
QUICK: Final = ScaleBenchSizes(rows=5_000, rounds=1, tasks=(1, 2))


@dataclass(slots=True)
class _Figures:
    rows_per_s: list[float]
    bytes_over_stream: list[float]
    commits: list[int]


def run_bench(plan: ScaleBenchSizes, say: Say, directory: Path | None = None) -> Report:
    report = Report("scale", parameters={"plan": repr(plan), "load": busy_load(say)})
    found: dict[int, _Figures] = defaultdict(lambda: _Figures([], [], []))
    with scratch("penstock-scale-", directory) as place, connect(place / "log") as log:
        cores = max(plan.tasks) + 1
        driver = start_driver(place / "log", "scale", {"spark.master": f"local[{cores}]"})
        try:
            for number in range(plan.rounds):
                for tasks in plan.tasks:
                    name = f"bids-{number}-{tasks}"
                    log.create_stream(name, BIDS)
                    measured = driver.ask(
                        partial(_measure, stream=name, tasks=tasks, rows=plan.rows), _SECONDS
                    )
                    _keep(found[tasks], measured, say)
        finally:
            driver.close()
    _judge(report, found, say)
    return report


def _keep(figures: _Figures, measured: dict[str, Any], say: Say) -> None:
    figures.rows_per_s.append(measured["rows_per_s"])
    figures.bytes_over_stream.append(measured["source_bytes"] / measured["stream_bytes"])
    figures.commits.append(measured["commits"])
    say(
        f"{measured['tasks']} tasks: {measured['rows_per_s']:,.0f} rows/s, "
        f"{figures.bytes_over_stream[-1]:.3f} of the stream read, {measured['commits']} commits"
    )


def _judge(report: Report, found: dict[int, _Figures], say: Say) -> None:
    medians = {tasks: statistics.median(one.rows_per_s) for tasks, one in found.items()}
    if 1 in medians and 2 in medians:
        detail = f"{medians[2]:,.0f} over {medians[1]:,.0f} rows/s, medians of the rounds"
        value = medians[2] / medians[1]
        report.judge(Check("two_tasks_over_one", value, 1.7, "at least", "x", detail), say)
    for tasks, one in found.items():
        name = f"bytes_read_over_stream_{tasks}_tasks"
        report.judge(Check(name, max(one.bytes_over_stream), 1.05, "at most", "x"), say)
    report.figures = {
        f"{tasks} tasks": {
            "rows_per_s": [round(rate) for rate in one.rows_per_s],
            "bytes_over_stream": [round(ratio, 4) for ratio in one.bytes_over_stream],
            "commits": one.commits,
        }
        for tasks, one in found.items()
    }


# ---- in the Spark driver


def _measure(session: Session, *, stream: str, tasks: int, rows: int) -> dict[str, Any]:
    from pyspark.sql import functions as F
    from pyspark.sql.pandas import functions as pandas_functions

    def spin(prices: Any) -> Any:
        """Processor time, not the clock's: tasks that share a core take longer."""
        until = time.thread_time() + ROW_SECONDS * len(prices)
        while time.thread_time() < until:
            pass
        return prices

    series = importlib.import_module("pandas").Series
    spin.__annotations__ = {"prices": series, "return": series}  # types, as Spark wants them
    pandas_udf: Any = pandas_functions.pandas_udf
    source = session.log.stream(stream)
    bids = source.df(session.spark).withWatermark("ts", "1 second")
    costly = bids.withColumn("cost", pandas_udf(spin, "long")("price"))
    windows = costly.groupBy(F.window("ts", "1 second"), (F.col("auction") % 8).alias("k"))
    session.run(windows.agg(F.sum("cost"), F.count("*")), "marker", to=f"{stream}-result",
                mode="update", workers=tasks)  # fmt: skip
    query = session.query
    start_us = time.time_ns() // 1000
    warm = _ENTRY_ROWS * 4 * tasks
    _append(source, 0, warm, start_us)
    query.processAllAvailable()
    started = time.monotonic()
    _append(source, warm, rows, start_us)
    query.processAllAvailable()
    seconds = time.monotonic() - started
    read = sum(len(entry.payload) for entry in session.log.client.read([f"s/{stream}"]))
    reports = _last_reports(query, warm + rows)
    session.stop()
    reading = [one["source_bytes"] for one in reports.values() if one["source_bytes"]]
    assert len(reading) == tasks, f"{len(reading)} tasks read the source, not {tasks}"
    return {
        "tasks": tasks,
        "rows_per_s": rows / seconds,
        "stream_bytes": read,
        "source_bytes": sum(reading),
        "commits": sum(one["commits_ever"] + 1 for one in reports.values()),
    }


def _append(source: Any, first: int, rows: int, start_us: int) -> None:
    made = [
        make_bids(at, min(_ENTRY_ROWS, first + rows - at), start_us=start_us, rate=_RATE)
        for at in range(first, first + rows, _ENTRY_ROWS)
    ]
    for at in range(0, len(made), 40):
        source.append([pa.Table.from_batches([batch]) for batch in made[at : at + 40]])


def _last_reports(query: Any, rows: int) -> dict[str, dict[str, Any]]:
    """What the tasks say of themselves once they have said that they have read all rows."""
    deadline = time.monotonic() + 30.0
    while True:
        progress = query.lastProgress or {"tasks": {}, "numInputRowsTotal": 0}
        if progress["numInputRowsTotal"] >= rows or time.monotonic() > deadline:
            tasks: dict[str, dict[str, Any]] = progress["tasks"]
            return tasks
        time.sleep(0.1)
