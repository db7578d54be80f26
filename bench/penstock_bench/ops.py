"""`penstock bench ops`: the operators on one core, beside the same work in batch Spark.

Every scenario is a plain DataFrame, planned by Catalyst, cut into stages and run here one stage
after the other: payloads are decoded before each stage and encoded after it, as in the real thing.
Spark runs the same DataFrame in batch over cached rows, `local[1]`, warm, into its noop sink. Rates
are medians over rounds; the spread is printed beside them.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.ops.api import Delta
from penstock.ops.payloads import decode_delta, encode_delta
from penstock.ops.pipeline import Pipeline
from penstock.plan import nodes as n
from penstock.plan.stages import Query
from penstock.spark.frontend import Planned, plan
from penstock.spark.session import local_session
from penstock.state.memory import MemoryState
from penstock_bench import group_functions
from penstock_bench.child import Child
from penstock_bench.measure import resident_bytes
from penstock_bench.report import Check, Report, Say

Frames = Mapping[str, Any]
BATCH_SIZES = (100, 1_000, 10_000)
#: The batch size at which the bars are measured.
BAR_SIZE = 1_000
_KEYS = 100_000
_FILL_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class OpsBenchSizes:
    """How much of everything; `quick` is for tests of the bench itself."""

    rows: int = 400_000
    rounds: int = 5
    memory_keys: int = 1_000_000


FULL = OpsBenchSizes()
QUICK = OpsBenchSizes(rows=20_000, rounds=2, memory_keys=20_000)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A DataFrame over the streams `events`, `others` and `readings`."""

    name: str
    build: Callable[[Frames], Any]
    streams: tuple[str, ...] = ("events",)
    mode: n.Mode = "update"
    bar: float | None = None
    #: Whether all rows pass once before the clock starts, so that every key exists already.
    warm: bool = False


def _project_filter(frames: Frames) -> Any:
    return (
        frames["events"]
        .where("value % 10 < 5 AND price > 1000")
        .selectExpr("key", "price * 2 AS price2", "value + key AS total")
    )


def _count_max(frames: Frames) -> Any:
    return frames["events"].groupBy("key").agg(F.count("*"), F.max("value"))


def _tumbling(frames: Frames) -> Any:
    events = frames["events"].withWatermark("ts", "1 second")
    return events.groupBy(F.window("ts", "1 second"), (F.col("key") % 100).alias("k")).count()


def _sliding(frames: Frames) -> Any:
    events = frames["events"].withWatermark("ts", "1 second")
    window = F.window("ts", "10 seconds", "2 seconds")
    return events.groupBy(window, (F.col("key") % 100).alias("k")).count()


def _window_join(frames: Frames) -> Any:
    window = F.window("ts", "1 second").alias("window")
    left = frames["events"].withWatermark("ts", "1 second").select("key", "value", window)
    right = frames["others"].withWatermark("ts", "1 second").select("key", "price", window)
    return left.join(right, ["key", "window"])


def _interval_join(frames: Frames) -> Any:
    left = frames["events"].withWatermark("ts", "1 second").select("key", "value", "ts")
    right = frames["others"].withWatermark("ts", "1 second")
    right = right.selectExpr("key AS key2", "price", "ts AS ts2")
    near = "ts2 BETWEEN ts - INTERVAL 1 SECOND AND ts + INTERVAL 1 SECOND"
    return left.join(right, F.expr(f"key = key2 AND {near}"))


def _distinct(frames: Frames) -> Any:
    return frames["events"].select("key").distinct()


def _top_n(frames: Frames) -> Any:
    order = Window.partitionBy("k").orderBy(F.desc("price"), "ts")
    events = frames["events"].selectExpr("key % 1000 AS k", "price", "ts")
    return events.withColumn("rank", F.row_number().over(order)).where("rank <= 3")


_READING = "id BIGINT, price DOUBLE, name STRING, open BOOLEAN, at TIMESTAMP"


def _from_json(frames: Frames) -> Any:
    return frames["readings"].select(F.from_json("text", _READING).alias("v")).select("v.*")


SCENARIOS = (
    Scenario("project and filter", _project_filter, mode="append", bar=3e6),
    Scenario("keyed count and max, 100,000 keys", _count_max, bar=1e6, warm=True),
    Scenario("tumbling window count", _tumbling, mode="append"),
    Scenario("sliding window count, 5 windows a row", _sliding, mode="append"),
    Scenario("windowed join", _window_join, ("events", "others"), "append", bar=5e5),
    Scenario("interval join", _interval_join, ("events", "others"), "append"),
    Scenario("distinct keys", _distinct, mode="append"),
    Scenario("top 3 of 1,000 keys", _top_n),
    Scenario("from_json, five fields", _from_json, ("readings",), "append", bar=1e6),
)


def run_bench(plan: OpsBenchSizes, say: Say) -> Report:
    """All scenarios, ours and Spark's."""
    report = Report("ops", parameters={"plan": repr(plan), "virtual_nodes_in_one_task": True})
    tables = {name: make_rows(seed, plan.rows) for seed, name in enumerate(("events", "others"))}
    tables["readings"] = pa.table({"text": make_texts(tables["events"])})
    with local_session("penstock-bench") as spark, tempfile.TemporaryDirectory() as nowhere:
        batch_frames = {name: _cached(spark, table) for name, table in tables.items()}
        for scenario in SCENARIOS:
            planned = _plan(spark, scenario, tables, Path(nowhere))
            rates = _measure_ours(planned, tables, plan, scenario, report)
            theirs = _measure_spark(scenario.build(batch_frames), scenario, plan)
            report.figures[f"{scenario.name}, Spark batch local[1], rows/s"] = _spread(theirs)
            say(
                f"{scenario.name}: {rates[BAR_SIZE]:,.0f} rows/s at {BAR_SIZE:,} rows a batch,"
                f" Spark batch {statistics.median(theirs):,.0f}"
            )
            if scenario.bar is not None:
                detail = f"batches of {BAR_SIZE:,} rows, decode and encode included"
                rate = rates[BAR_SIZE]
                report.checks.append(
                    Check(scenario.name, rate, scenario.bar, "at least", "rows/s", detail)
                )
        _measure_groups(spark, tables["events"], plan, Path(nowhere), report, say)
        keyed = _plan(spark, SCENARIOS[1], tables, Path(nowhere))
    per_million = measure_memory(keyed.query, plan.memory_keys)
    report.figures["peak memory per million keys, MiB"] = round(per_million / 2**20, 1)
    say(f"peak memory per million keys: {per_million / 2**20:,.0f} MiB")
    return report


def make_rows(seed: int, rows: int) -> pa.Table:
    """Rows in order of time, 10,000 a second, keys drawn evenly."""
    rng = np.random.default_rng(seed)
    times = pa.array(np.arange(rows, dtype=np.int64) * 100)
    return pa.table(
        {
            "key": rng.integers(0, _KEYS, rows),
            "value": rng.integers(0, 1_000, rows),
            "price": rng.integers(0, 1_000_000, rows),
            "ts": times.cast(pa.timestamp("us", tz="UTC")),
        }
    )


def make_texts(rows: pa.Table) -> pa.Array:
    """The same rows as a producer would write them: flat JSON objects of five fields."""
    columns = (rows.column(name).to_pylist() for name in ("key", "value", "price", "ts"))
    return pa.array(
        [
            f'{{"id":{key},"price":{price / 100},"name":"user-{value}",'
            f'"open":{"true" if value % 2 else "false"},"at":"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"}}'
            for key, value, price, moment in zip(*columns, strict=True)
        ]
    )


def _cached(spark: Any, table: pa.Table) -> Any:
    frame = spark.createDataFrame(table).coalesce(1).cache()
    frame.count()
    return frame


def _plan(
    spark: Any, scenario: Scenario, tables: Mapping[str, pa.Table], directory: Path
) -> Planned:
    frames = {}
    for name in scenario.streams:
        path = directory / name
        path.mkdir(exist_ok=True)
        reader = spark.readStream.format("parquet").option("stream", name)
        frames[name] = reader.schema(from_arrow_schema(tables[name].schema)).load(str(path))
    return plan(scenario.build(frames), mode=scenario.mode)


def _measure_spark(frame: Any, scenario: Scenario, plan: OpsBenchSizes) -> list[float]:
    """Rows a second, per round, after a warm-up."""
    rates = []
    for _ in range(plan.rounds + 1):
        started = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        rates.append(plan.rows * len(scenario.streams) / (time.perf_counter() - started))
    return rates[1:]


def _measure_ours(
    planned: Planned,
    tables: Mapping[str, pa.Table],
    plan: OpsBenchSizes,
    scenario: Scenario,
    report: Report,
) -> dict[int, float]:
    rates: dict[int, float] = {}
    for size in BATCH_SIZES:
        seconds = []
        for _ in range(plan.rounds):
            runner = StageRunner(planned.query, planned.static_rows())
            payloads = runner.encode(tables, size)
            if scenario.warm:
                runner.run(payloads)
            started = time.perf_counter()
            rows = runner.run(payloads)
            seconds.append(rows / (time.perf_counter() - started))
        rates[size] = statistics.median(seconds)
        report.figures[f"{scenario.name}, {size} rows a batch, rows/s"] = _spread(seconds)
    return rates


def _measure_groups(
    spark: Any, events: pa.Table, plan: OpsBenchSizes, directory: Path, report: Report, say: Say
) -> None:
    groups = plan.rows // 200
    rows = events.slice(0, groups * group_functions.ROWS_OF_A_GROUP)
    # Its workers are of this interpreter, which has pandas.
    spark.sparkContext.pythonExec = sys.executable
    scenario = Scenario(group_functions.NAME, group_functions.build(groups))
    planned = _plan(spark, scenario, {"events": rows}, directory)
    frame = scenario.build({"events": _cached(spark, rows)})

    def ours(size: int) -> float:
        runner = StageRunner(planned.query, planned.static_rows())
        payloads = runner.encode({"events": rows}, size)
        return group_functions.timed(lambda: runner.run(payloads))

    def theirs() -> float:
        return group_functions.timed(frame.write.format("noop").mode("overwrite").save)

    costs = group_functions.measure(rows, groups, BAR_SIZE, plan.rounds, ours, theirs)
    group_functions.judge(costs, report, say)


def _spread(rates: list[float]) -> dict[str, int]:
    return {
        "median": round(statistics.median(rates)),
        "lowest": round(min(rates)),
        "highest": round(max(rates)),
    }


class StageRunner:
    """All stages of a query in one task each; between them only bytes."""

    def __init__(self, query: Query, statics: Mapping[int, pa.Table]) -> None:
        self._query = query
        self._pipelines = [Pipeline(s.root, MemoryState(), statics) for s in query.stages]
        self._inputs = [stage.inputs for stage in query.stages]
        self._readers: dict[int, list[tuple[int, int]]] = {s.id: [] for s in query.stages}
        for stage, inputs in zip(query.stages, self._inputs, strict=True):
            for position, leaf in enumerate(inputs):
                if not isinstance(leaf, n.Scan):
                    self._readers[leaf.stage].append((stage.id, position))

    def encode(
        self, tables: Mapping[str, pa.Table], size: int
    ) -> dict[tuple[int, int], list[bytes]]:
        """The payloads of every scan, in batches of this many rows."""
        payloads = {}
        for stage, inputs in enumerate(self._inputs):
            for position, leaf in enumerate(inputs):
                if isinstance(leaf, n.Scan):
                    chosen = tables[leaf.stream].select(list(leaf.columns)).combine_chunks()
                    whole = chosen.to_batches()[0]
                    batches = [
                        pa.RecordBatch.from_arrays(
                            whole.slice(start, size).columns, schema=leaf.schema
                        )
                        for start in range(0, whole.num_rows, size)
                    ]
                    payloads[stage, position] = [
                        encode_delta(Delta(batch), changing=False) for batch in batches
                    ]
        return payloads

    def run(self, payloads: Mapping[tuple[int, int], list[bytes]]) -> int:
        """Everything once through; returns how many rows came in."""
        rows = 0
        for batches in zip(*payloads.values(), strict=True):
            for (stage, position), payload in zip(payloads, batches, strict=True):
                leaf = self._inputs[stage][position]
                delta = decode_delta(payload, leaf.schema, changing=False)
                rows += len(delta)
                self._deliver(stage, self._pipelines[stage].push(position, delta))
            self._tell_time()
        return rows

    def _deliver(self, stage: int, deltas: list[Delta]) -> None:
        described = self._query.stages[stage]
        for delta in deltas:
            payload = encode_delta(delta, changing=described.changing)
            for reader, position in self._readers[stage]:
                part = decode_delta(payload, described.root.schema, changing=described.changing)
                self._deliver(reader, self._pipelines[reader].push(position, part))

    def _tell_time(self) -> None:
        for stage, inputs in enumerate(self._inputs):
            marks = {
                position: None
                if isinstance(leaf, n.Scan)
                else self._pipelines[leaf.stage].watermark_ms
                for position, leaf in enumerate(inputs)
            }
            self._deliver(stage, self._pipelines[stage].advance(marks))


def measure_memory(query: Query, keys: int) -> float:
    """Peak memory that a million keys add to a process of its own, in bytes."""
    with contextlib.closing(Child("the operators", _fill, query, keys)) as child:
        used: int = child.answer(_FILL_SECONDS)
    return used * 1_000_000 / keys


def _fill(query: Query, keys: int, answer: Any) -> None:
    runner = StageRunner(query, {})
    _, before = resident_bytes(os.getpid())
    size = 10_000
    for start in range(0, keys, size):
        count = min(size, keys - start)
        ids = np.arange(start, start + count, dtype=np.int64)
        times = pa.array(ids).cast(pa.timestamp("us", tz="UTC"))
        rows = pa.table({"key": ids * 7919, "value": ids % 1000, "price": ids, "ts": times})
        runner.run(runner.encode({"events": rows}, size))
    _, peak = resident_bytes(os.getpid())
    answer.send(peak - before)
