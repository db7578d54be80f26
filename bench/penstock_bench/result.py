"""`penstock bench result`: what `query.result()` costs when rows were changed again and again.

Two queries count keys. One sees each key once, the other a hundred times, so that its history is a
hundred times as long and its result is not. Both are asked in turns, once their results are quiet.
Then all history is trimmed that nobody needs, and the result must still be there, and be the same.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.stream.session import connect
from penstock_bench.driver_process import Session, start_driver
from penstock_bench.measure import busy_load, scratch
from penstock_bench.report import Check, Report, Say

_SECONDS: Final = 600.0
_KEYS: Final = pa.schema([("k", pa.int64())])


@dataclass(frozen=True, slots=True)
class ResultBenchSizes:
    """How much of everything; `quick` is for tests of the bench itself."""

    keys: int = 10_000
    updates: int = 100
    rows_per_append: int = 1_000
    rounds: int = 15


FULL: Final = ResultBenchSizes()
QUICK: Final = ResultBenchSizes(keys=200, updates=20, rows_per_append=20, rounds=3)


def run_bench(plan: ResultBenchSizes, say: Say, directory: Path | None = None) -> Report:
    report = Report("result", parameters={"plan": repr(plan), "load": busy_load(say)})
    with scratch("penstock-result-", directory) as place, connect(place / "log") as log:
        log.create_stream("once", _KEYS)
        log.create_stream("often", _KEYS)
        driver = start_driver(place / "log", "result", {"spark.master": "local[3]"})
        try:
            found: dict[str, Any] = driver.ask(partial(_measure, plan=plan), _SECONDS)
        finally:
            driver.close()
    once, often = (statistics.median(found["seconds"][name]) for name in ("once", "often"))
    detail = f"{often * 1000:.1f} over {once * 1000:.1f} ms, medians of {plan.rounds}"
    say(f"history of {found['entries']:,} entries; {detail}")
    gone = f"trimmed up to LSN {found['trimmed']:,} of {found['tail']:,}"
    share = found["trimmed"] / found["tail"]
    for check in (
        Check("long_history_over_short_one", often / once, 2.0, "at most", "x", detail),
        Check("history_trimmed", share, 0.5, "at least", "x", gone),
        Check("rows_lost_by_the_trim", found["lost"], 0, "at most", "rows", gone),
    ):
        report.judge(check, say)
    report.figures = found
    return report


# ---- in the Spark driver


def _measure(session: Session, *, plan: ResultBenchSizes) -> dict[str, Any]:
    import penstock

    queries = {}
    for name, times in (("once", 1), ("often", plan.updates)):
        source = session.log.stream(name)
        counts = source.df(session.spark).groupBy("k").count()
        queries[name] = penstock.start(
            counts, to=f"{name}-counts", name=name, workers=1, log=session.log,
            trim_consumed=name == "often", checkpoint_interval=1.0,
        )  # fmt: skip
        _append(source, plan, times)
        queries[name].processAllAvailable()
    time.sleep(8.0)  # until nothing is added any more, and images are there
    seconds: dict[str, list[float]] = {name: [] for name in queries}
    for _ in range(plan.rounds):
        for name, query in queries.items():
            began = time.perf_counter()
            rows = query.result().num_rows
            seconds[name].append(time.perf_counter() - began)
            assert rows == plan.keys, f"{rows} rows"
    entries = len(session.log.client.read(["s/often-counts"]))
    deadline = time.monotonic() + 180  # trims come once a minute
    while session.log.bounds().trim_point == 0 and time.monotonic() < deadline:
        for name, query in queries.items():  # checkpoints go on, and need no old changes any more
            _append(session.log.stream(name), plan, 1)
            query.processAllAvailable()
        time.sleep(5.0)
    result = queries["often"].result()
    counts = set(result.column("count").to_pylist())
    lost = plan.keys - result.num_rows + (len(counts) != 1)
    bounds = session.log.bounds()
    for query in queries.values():
        query.stop()
    return {
        "seconds": seconds,
        "entries": entries,
        "trimmed": bounds.trim_point,
        "tail": bounds.tail,
        "lost": lost,
    }


def _append(source: Any, plan: ResultBenchSizes, times: int) -> None:
    keys = np.arange(plan.keys)
    for _ in range(times):
        for first in range(0, plan.keys, plan.rows_per_append):
            piece = pa.array(keys[first : first + plan.rows_per_append])
            source.append(pa.record_batch([piece], schema=_KEYS))
