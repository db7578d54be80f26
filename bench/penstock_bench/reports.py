"""`penstock bench reports`: what it costs that queries tell how they stand.

Of a task: how often its meter and its counters are asked while it works on batches from a real log,
times what one call costs in a loop by itself; over the time in which it was busy. Reports
themselves, four a second, over the time of the clock. Of a log: how long appends take while a
scraper asks for `/metrics` of many queries each second, beside the same log without it, in turns.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa

import penstock
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import endpoint
from penstock.log.records import Kind, NewEntry, SetKey
from penstock.log.serving.directory import read_address, read_token
from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Literal
from penstock.plan.stages import cut
from penstock.protocol.names import control_tag, pulse_tag, query_key
from penstock.runtime.control import Pulse, encode_message
from penstock.runtime.meter import Meter
from penstock.runtime.outputs import result_schema
from penstock.runtime.progress import Rates, make_progress
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.spec import QuerySpec, Source
from penstock.runtime.taken import Taken
from penstock.runtime.task import Task
from penstock_bench.measure import busy_load, percentile, scratch
from penstock_bench.report import Check, Report, Say

_LONG: Final = pa.int64()
_SCHEMA: Final = pa.schema([("k", _LONG), ("v", _LONG)])
#: The share of a task's time that telling about it may cost; and how much slower appends may be.
SHARE_MAX: Final = 0.01
SLOWER_MAX: Final = 1.05
_REPORTS_PER_SECOND: Final = 4


@dataclass(frozen=True, slots=True)
class ReportSizes:
    """How much of everything; `quick` is for tests of the bench itself."""

    batches: int = 3_000
    #: Rows of a batch: few, so that what is done for each batch weighs most.
    rows: int = 100
    calls: int = 200_000
    queries: int = 50
    tasks: int = 10
    rounds: int = 6
    round_seconds: float = 4.0


FULL: Final = ReportSizes()
QUICK: Final = ReportSizes(60, 20, 2_000, 3, 2, 1, 0.3)


def run_bench(plan: ReportSizes, say: Say, directory: Path | None = None) -> Report:
    report = Report("reports", parameters={"plan": repr(plan), "load": busy_load(say)})
    with scratch("penstock-bench-reports-", directory) as root:
        _measure_tasks(plan, root / "tasks", report, say)
        _measure_scrapes(plan, root / "scraped", report, say)
    return report


# ---- tasks


def _spec(tasks: int = 1) -> QuerySpec:
    """Rows counted by key: two stages."""
    fields = [pa.field(f"{field.name}#{place}", field.type) for place, field in enumerate(_SCHEMA)]
    scan = n.Scan(schema=pa.schema(fields), stream="in", columns=tuple(_SCHEMA.names))
    key = Column(fields[0].name, _LONG)
    count = n.AggregateCall("Count", (Literal(pa.scalar(1, _LONG)),), _LONG)
    schema = pa.schema([(key.name, _LONG), ("c#9", _LONG)])
    root = n.Aggregate(schema=schema, child=scan, keys=(key,), calls=(count,))
    query = cut(root, "update", ("k", "c"))
    to_schema = result_schema(query.schema, changing=query.stages[-1].changing)
    return QuerySpec(
        name="q", version=1, fingerprint="bench", query=query, statics={},
        sources={"in": Source(_SCHEMA, Lsn(0))}, to="out", to_schema=to_schema,
        tasks=(tasks,) * len(query.stages),
    )  # fmt: skip


def _measure_tasks(plan: ReportSizes, directory: Path, report: Report, say: Say) -> None:
    with penstock.connect(directory) as log:
        spec = _spec()
        source = log.create_stream("in", _SCHEMA)
        log.create_stream("out", spec.to_schema)
        with _counted() as calls:
            busy, wall, report_ms = asyncio.run(_work(plan, directory, spec, source))
    costs = _costs(plan.calls)
    spent = sum(costs[name] * count for name, count in calls.items())
    report.figures["calls"] = dict(calls)
    report.figures["call, ns"] = {name: round(cost * 1e9) for name, cost in costs.items()}
    report.figures["busy, s"] = round(busy, 3)
    report.figures["wall, s"] = round(wall, 3)
    report.figures["one report, ms"] = round(report_ms, 3)
    detail = f"{plan.batches} batches of {plan.rows} rows, two tasks"
    report.judge(
        Check("meter_and_counters_over_busy_time", spent / busy, SHARE_MAX, "at most", "", detail),
        say,
    )
    share = report_ms / 1000 * _REPORTS_PER_SECOND
    report.judge(
        Check("reports_over_wall_time", share, SHARE_MAX, "at most", "", "of each task"), say
    )


async def _work(
    plan: ReportSizes, directory: Path, spec: QuerySpec, source: Any
) -> tuple[float, float, float]:
    """Seconds in which the tasks were busy, and of the clock; what one report takes, in ms."""
    async with await AsyncLog.connect(endpoint(directory), timeout=30) as log:
        tasks = [
            await Task.open(log, spec, one, await log.claim(one.producer)) for one in spec.task_ids
        ]
        running = [asyncio.ensure_future(task.run()) for task in tasks]
        began = time.perf_counter()
        values = pa.array(np.arange(plan.rows))
        batch = pa.record_batch([values, values], schema=_SCHEMA)
        for _ in range(plan.batches):
            await asyncio.to_thread(source.append, batch)
        while tasks[-1].core.stats.rows_in < plan.rows * plan.batches:
            await asyncio.sleep(0.01)
        busy = sum(float(task.meter.report()["busy_ms"] or 0) for task in tasks) / 1000
        wall = time.perf_counter() - began
        times = [_seconds(task.report) for task in tasks for _ in range(50)]
        for task in tasks:
            task.drain()
        await asyncio.wait(running, timeout=60)
    return busy, wall, percentile(times, 50.0) * 1000


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """How often what tells about a task is called."""
    calls: Counter[str] = Counter()
    kept: list[tuple[type, str, Any]] = []
    for owner, name in ((Meter, "_turn"), *((Taken, name) for name in _TAKEN)):
        original = getattr(owner, name)

        def count(*values: Any, _name: str = name, _call: Callable[..., Any] = original) -> Any:
            calls[_name] += 1
            return _call(*values)

        kept.append((owner, name, original))
        setattr(owner, name, count)
    try:
        yield calls
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)


_TAKEN: Final = ("came", "took", "heard", "settle")


def _costs(calls: int) -> dict[str, float]:
    """Seconds of one call each, the loop around it included."""
    meter, taken = Meter(time.perf_counter), Taken(_spec().inputs(0))
    now_ms = partial(int, time.time())

    def settle() -> None:
        taken.came(0, 1)
        taken.settle(now_ms)

    parts: dict[str, Callable[[], object]] = {
        "_turn": meter.begin,
        "came": lambda: taken.came(0, 1),
        "took": lambda: taken.took(0, 1),
        "heard": lambda: taken.heard("q.1/0/0", 1),
        "settle": settle,
    }
    return {name: _seconds(lambda call=call: _loop(call, calls)) / calls  # type: ignore[misc]
            for name, call in parts.items()}  # fmt: skip


def _loop(call: Callable[[], object], calls: int) -> None:
    for _ in range(calls):
        call()


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# ---- scrapes


def _measure_scrapes(plan: ReportSizes, directory: Path, report: Report, say: Say) -> None:
    with penstock.connect(directory) as log:
        stream = log.create_stream("in", _SCHEMA)
        _register(plan, log)
        address = read_address(directory)
        assert address is not None
        scrape = partial(_scrape, address.port, read_token(directory / "token"))
        sizes = len(scrape())
        times = sorted(_seconds(scrape) for _ in range(10))
        quiet, scraped = list[float](), list[float]()
        for _ in range(plan.rounds):
            quiet += _appends(stream, plan.round_seconds, None)
            scraped += _appends(stream, plan.round_seconds, scrape)
    p50 = {"quiet": percentile(quiet, 50.0), "scraped": percentile(scraped, 50.0)}
    p99 = {"quiet": percentile(quiet, 99.0), "scraped": percentile(scraped, 99.0)}
    report.figures["scrape, ms"] = round(times[len(times) // 2] * 1000, 2)
    report.figures["scrape, bytes"] = sizes
    report.figures["append p50, ms"] = {name: round(s * 1000, 3) for name, s in p50.items()}
    report.figures["append p99, ms"] = {name: round(s * 1000, 3) for name, s in p99.items()}
    ratio = p50["scraped"] / p50["quiet"]
    detail = f"{plan.queries} queries of {plan.tasks} tasks, a scrape each second"
    report.judge(
        Check("append_p50_scraped_over_quiet", ratio, SLOWER_MAX, "at most", "times", detail), say
    )


def _register(plan: ReportSizes, log: penstock.Log) -> None:
    """Queries that have told their last: to read and to tell, they are as those that run."""
    spec = _spec(plan.tasks // 2)
    told = {
        "worker": "0-abc", "instance": 1, "is_running": True, "rows_in": 10**9, "rows_out": 10**9,
        "state_rows": 10**6, "state_bytes": 10**8, "checkpoint_bytes": 10**8, "checkpoint_ms": 9.0,
        "inputs": {"source:in": {"rows": 10**9, "delay_ms": 3.0}},
    }  # fmt: skip
    progress = make_progress(
        spec, dict.fromkeys(spec.task_ids, told), id="an-id", run_id="a-run", number=0, now_ms=0,
        tail=0, lags={}, workers=1, rates=Rates(),
    )  # fmt: skip
    for number in range(plan.queries):
        name = f"q{number}"
        query = RegisteredQuery(
            name=name, id="an-id", version=1, plan="", mode="update", to="out", starts={"in": 0},
            tasks=list(spec.tasks), created_ms=0,
        )  # fmt: skip
        pulse = NewEntry(
            encode_message(Pulse({**progress, "name": name})),
            (control_tag(name), pulse_tag(name)), Kind.CONTROL,
        )  # fmt: skip
        log.client.append([pulse], sets=[SetKey(query_key(name), encode_query(query))])


def _scrape(port: int, token: str) -> bytes:
    request = Request(f"http://127.0.0.1:{port}/metrics")
    request.add_header("Authorization", f"Bearer {token}")
    with urlopen(request, timeout=30) as answer:
        text: bytes = answer.read()
    return text


def _appends(stream: Any, seconds: float, scrape: Callable[[], bytes] | None) -> list[float]:
    """Seconds of appends, one after the other, with a scrape each second if one is given."""
    stopped = threading.Event()

    def scrape_again() -> None:
        while scrape is not None:
            scrape()
            if stopped.wait(1.0):
                return

    scraper = threading.Thread(target=scrape_again)
    scraper.start()
    values = pa.array([1], _LONG)
    batch = pa.record_batch([values, values], schema=_SCHEMA)
    found, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        found.append(_seconds(lambda: stream.append(batch)))
    stopped.set()
    scraper.join()
    return found
