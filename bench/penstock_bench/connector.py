"""`penstock bench connector`: `format("penstock")` beside Spark's own sources and sinks, in one go.

Owns the phases and the bar. One session with the settings of `penstock.tuned`, one log, the same
rows in a stream and in parquet files; every round runs all queries in turn, so that a machine that
drifts favours nobody, and a first round only warms up.

throughput  all rows through a streaming query: from a stream, from files, from `rate`; into a
            stream, files, or `noop`. And in batch. MB are of the rows as Arrow, the same for all.
            A commit to the log is synced to disk, files of parquet are not.
triggers    about 100 rows each, while a producer appends to the source's stream all the time:
            penstock to penstock beside `rate-micro-batch` to `noop`, and the halves of it.

Law: a stream that was written to has what was read: as many rows, and where a query is stopped in
the middle, numbers that follow each other.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.stream.session import Log, connect
from penstock_bench.connector_queries import (
    NOOP,
    PARQUET,
    PARTS,
    PENSTOCK,
    RATE,
    RATE_MICRO_BATCH,
    Pair,
    Queries,
    Triggers,
)
from penstock_bench.driver_process import session_builder
from penstock_bench.load import BIDS, make_bids
from penstock_bench.measure import busy_load, next_second, now_us, percentile, scratch
from penstock_bench.report import Check, Report, Say

TRIGGER_BAR: Final = 2.0
#: What `rate-micro-batch` gives, so that all queries have the same columns.
_TICKS: Final = "timestamp timestamp, value long"
_FILES: Final = 8
_APPEND_ROWS: Final = 50_000
_QUERY_SECONDS: Final = 120.0

STREAMING: Final = (
    Pair(PENSTOCK, NOOP),
    Pair(PARQUET, NOOP),
    Pair(RATE, NOOP),
    Pair(PARQUET, PENSTOCK),
    Pair(PARQUET, PARQUET),
    Pair(PENSTOCK, PENSTOCK),
)
_CACHED: Final = "cached rows"
BATCH: Final = (
    Pair(PENSTOCK, NOOP),
    Pair(PARQUET, NOOP),
    Pair(_CACHED, PENSTOCK),
    Pair(_CACHED, PARQUET),
)
BASE: Final = Pair(RATE_MICRO_BATCH, NOOP)
BOTH: Final = Pair(PENSTOCK, PENSTOCK)
SMALL: Final = (BASE, Pair(PENSTOCK, NOOP), Pair(RATE_MICRO_BATCH, PENSTOCK), BOTH)


@dataclass(frozen=True, slots=True)
class ConnectorBenchSizes:
    """How much of everything; QUICK is for tests of the bench itself."""

    #: Rounds that count, after one that only warms up.
    rounds: int = 5
    warm_round: bool = True
    rows: int = 2_000_000
    trigger_rows: int = 100
    warm_triggers: int = 30
    triggers: int = 120
    #: Below the time of a trigger: there is always one more append, as with `rate-micro-batch`.
    append_ms: float = 15.0
    with_batches: bool = True


FULL: Final = ConnectorBenchSizes()
QUICK: Final = ConnectorBenchSizes(rounds=1, rows=20_000, warm_triggers=3, triggers=10)


@dataclass(slots=True)
class ConnectorFigures:
    """What was measured, one value for each round."""

    row_bytes: float = 0.0
    streaming: dict[Pair, list[float]] = field(default_factory=dict)
    batch: dict[Pair, list[float]] = field(default_factory=dict)
    small: dict[Pair, list[Triggers]] = field(default_factory=dict)
    rows_off: int = 0


def run_bench(*, directory: Path | None, plan: ConnectorBenchSizes, say: Say) -> Report:
    """About six minutes; needs Java."""
    busy = busy_load(say)
    with (
        scratch("penstock-bench-", directory) as root,
        contextlib.closing(connect(root / "log")) as log,
        _session() as spark,
    ):
        figures = Bench(Queries(spark, root / "log", root), log, root / "bids", plan, say).run()
    report = make_report(figures, plan)
    report.figures["load_average_before"] = busy
    report.figures["load_average_after"] = round(os.getloadavg()[0], 2)
    return report


@dataclass(slots=True)
class Bench:
    """One run over one log, and over files in a directory that is not there yet."""

    queries: Queries
    log: Log
    files: Path
    plan: ConnectorBenchSizes
    say: Say
    figures: ConnectorFigures = field(default_factory=ConnectorFigures)
    made: int = 0

    def run(self) -> ConnectorFigures:
        self._triggers()
        self._throughput()
        return self.figures

    # ---- triggers

    def _triggers(self) -> None:
        plan = self.plan
        with _feeding(self.log.create_stream("ticks", _TICKS), plan):
            for number in range(0 if plan.warm_round else 1, plan.rounds + 1):
                for pair in SMALL:
                    triggers = self._run_small(pair)
                    if number:
                        self.figures.small.setdefault(pair, []).append(triggers)
                self._say_round(number)

    def _run_small(self, pair: Pair) -> Triggers:
        plan = self.plan
        result = self._result(pair, _TICKS)
        triggers = self.queries.run_some(
            self.queries.read_small(pair.source, "ticks", plan.trigger_rows),
            pair.sink,
            result,
            warm=plan.warm_triggers,
            triggers=plan.triggers,
            seconds=_QUERY_SECONDS,
        )
        if result:
            self.figures.rows_off += count_rows_off(self.log.stream(result).read()["value"])
        return triggers

    def _say_round(self, number: int) -> None:
        if number:
            both, base = self.figures.small[BOTH][-1], self.figures.small[BASE][-1]
            self.say(
                f"triggers, round {number}: p50 {_p50(both):.0f} ms for {BOTH},"
                f" {_p50(base):.0f} ms for {BASE}"
            )

    # ---- throughput

    def _throughput(self) -> None:
        plan = self.plan
        schema = self._fill()
        cached = self.queries.load(PARQUET, str(self.files)).cache()
        cached.count()
        for number in range(0 if plan.warm_round else 1, plan.rounds + 1):
            for pair in STREAMING:
                rate = self._run_streaming(pair, schema)
                if number:
                    self.figures.streaming.setdefault(pair, []).append(rate)
            for pair in BATCH if plan.with_batches else ():
                rate = self._run_batch(pair, cached)
                if number:
                    self.figures.batch.setdefault(pair, []).append(rate)
            self.say(f"throughput, round {number} of {plan.rounds}")
        cached.unpersist()

    def _fill(self) -> Any:
        """The same rows in a stream and in files; the schema of the files, as Spark has it."""
        rows = self.plan.rows
        bids = make_bids(0, rows, start_us=next_second(now_us()), rate=100_000)
        self.figures.row_bytes = bids.nbytes / rows
        stream = self.log.create_stream("bids", BIDS)
        table = pa.Table.from_batches([bids]).cast(stream.schema)
        for first in range(0, rows, _APPEND_ROWS):
            stream.append(table.slice(first, _APPEND_ROWS))
        self.files.mkdir()
        share = -(-rows // _FILES)
        for number in range(_FILES):
            part = table.slice(number * share, share)
            pq.write_table(part, self.files / f"{number}.parquet")
        return self.queries.load(PARQUET, str(self.files)).schema

    def _run_streaming(self, pair: Pair, schema: Any) -> float:
        """Rows a second, by the time of the triggers that had rows."""
        plan = self.plan
        place = str(self.files) if pair.source == PARQUET else "bids"
        frame = self.queries.read_all(pair.source, place, schema, plan.rows)
        if pair.source == RATE:  # it has no end
            triggers = self.queries.run_some(
                frame, pair.sink, "", warm=1, triggers=2, seconds=_QUERY_SECONDS
            )
            return triggers.rows_per_s
        result = self._result(pair, BIDS)
        triggers = self.queries.run_all(frame, pair.sink, result, _QUERY_SECONDS)
        self.figures.rows_off += abs(triggers.rows - plan.rows)
        if result:
            self.figures.rows_off += abs(self.log.stream(result).read().num_rows - plan.rows)
        return triggers.rows_per_s

    def _run_batch(self, pair: Pair, cached: Any) -> float:
        place = str(self.files) if pair.source == PARQUET else "bids"
        frame = cached if pair.source == _CACHED else self.queries.load(pair.source, place)
        result = self._result(pair, BIDS)
        seconds = self.queries.save(frame, pair.sink, result)
        if result:
            written = self.log.stream(result).read().num_rows
            self.figures.rows_off += abs(written - self.plan.rows)
        return self.plan.rows / seconds

    def _result(self, pair: Pair, ddl: str) -> str:
        """A new stream, if the pair writes to one."""
        if pair.sink != PENSTOCK:
            return ""
        self.made += 1
        return self.log.create_stream(f"result-{self.made}", ddl).name


@contextlib.contextmanager
def _feeding(stream: Any, plan: ConnectorBenchSizes) -> Iterator[None]:
    """Rows are appended all the time, numbered on and on."""
    stop = threading.Event()
    failed: list[Exception] = []

    def feed() -> None:
        first, due = 0, time.monotonic()
        try:
            while not stop.wait(max(0.0, due - time.monotonic())):
                stream.append(_make_ticks(first, plan.trigger_rows, stream.schema))
                first += plan.trigger_rows
                due = max(due + plan.append_ms / 1_000, time.monotonic())
        except Exception as error:  # raised where the queries are
            failed.append(error)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


def _make_ticks(first: int, count: int, schema: pa.Schema) -> pa.Table:
    values = np.arange(first, first + count, dtype=np.int64)
    now = pa.array(np.full(count, now_us(), dtype=np.int64)).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"timestamp": now, "value": pa.array(values)}).cast(schema)


def count_rows_off(values: Any) -> int:
    """Of numbers that should follow each other: how many are missing, or there twice."""
    ordered = np.sort(values.to_numpy())
    return int(np.abs(np.diff(ordered) - 1).sum())


def make_report(figures: ConnectorFigures, plan: ConnectorBenchSizes) -> Report:
    """Figures of all, and the bar."""
    report = Report("connector", parameters=asdict(plan))
    ratios = [
        _p50(both) / _p50(base)
        for both, base in zip(figures.small[BOTH], figures.small[BASE], strict=True)
    ]
    detail = (
        f"median of {len(ratios)} rounds, {min(ratios):.2f} to {max(ratios):.2f};"
        f" p50 of a trigger, {BOTH} over {BASE}"
    )
    name = "trigger_p50_over_rate_micro_batch_to_noop"
    ratio = statistics.median(ratios)
    report.checks.append(Check(name, ratio, TRIGGER_BAR, "at most", "×", detail))
    detail = "of all streams that were written to: missing, or there twice"
    report.checks.append(Check("rows_off_balance", figures.rows_off, 0, "at most", "rows", detail))
    for pair, rounds in figures.small.items():
        report.figures[f"trigger, {pair}"] = _trigger_figures(rounds)
    for kind, rates in (("streaming", figures.streaming), ("batch", figures.batch)):
        for pair, values in rates.items():
            report.figures[f"{kind}, {pair}"] = _rate_figures(values, figures.row_bytes)
    return report


def _trigger_figures(rounds: list[Triggers]) -> dict[str, Any]:
    every = [value for triggers in rounds for value in triggers.milliseconds]
    return {
        "p50_ms": statistics.median(_p50(triggers) for triggers in rounds),
        "p50_ms_rounds": [_p50(triggers) for triggers in rounds],
        "p90_ms": percentile(every, 90),
        "triggers": len(every),
        "rows_per_trigger": round(sum(triggers.rows for triggers in rounds) / len(every), 1),
        "p50_ms_of_parts": {
            part: percentile([value for triggers in rounds for value in triggers.parts[part]], 50)
            for part in PARTS
        },
    }


def _rate_figures(rates: list[float], row_bytes: float) -> dict[str, Any]:
    middle = statistics.median(rates)
    return {
        "rows_per_s": round(middle),
        "mb_per_s": round(middle * row_bytes / 1e6, 1),
        "rows_per_s_min": round(min(rates)),
        "rows_per_s_max": round(max(rates)),
    }


def _p50(triggers: Triggers) -> float:
    return percentile(triggers.milliseconds, 50)


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    """One of our own, tuned; or one beside a session that is there, with its settings."""
    from pyspark.sql import SparkSession

    from penstock.connector.tuned import tuned

    existing = SparkSession.getActiveSession()
    # Sources and sinks run with the Python of the bench, whatever is first on the path.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # A query that is stopped complains.
    builder = session_builder("bench-connector").config("spark.log.level", "OFF")
    session = tuned(builder).getOrCreate() if existing is None else existing.newSession()
    try:
        yield session
    finally:
        if existing is None:
            session.stop()
