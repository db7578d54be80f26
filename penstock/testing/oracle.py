"""One DataFrame function, run by batch Spark and by our operators, and the results compared.

A query is built twice, over batch DataFrames and over streaming ones of the same schemas. Spark
runs the first. The Driver runs the second over the same rows: in random chunks, by some number of
tasks or all stages in one, stopped and resumed at a random point with another number of tasks, from
a snapshot or from the changes that were followed. Results are compared as multisets. A failure is a
result, too: it is told by Spark's error condition.
"""

from __future__ import annotations

import itertools
import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import methodcaller
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.errors import EvaluationFailed
from penstock.ops.driver import Driver
from penstock.plan.nodes import Mode
from penstock.spark.frontend import Planned, plan

Frames = Mapping[str, Any]
Build = Callable[[Frames], Any]
#: Sums of floating point numbers depend on the order of addition, in Spark as here.
_RELATIVE = 1e-9


@dataclass(frozen=True, slots=True)
class Failed:
    """A run that ended with an error, by Spark's name of it."""

    condition: str


def run_spark(
    spark: Any,
    build: Build,
    tables: Mapping[str, pa.Table],
    fetch: Callable[[Any], Any] = methodcaller("toArrow"),
) -> Any:
    """The result by batch Spark, as `fetch` gets it from the DataFrame, or its error."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    # With its schema said: without, Spark takes a timestamp without zone for one with.
    frames = {
        name: spark.createDataFrame(table, from_arrow_schema(table.schema))
        for name, table in tables.items()
    }
    try:
        return fetch(build(frames))
    except PySparkException as error:
        condition = error.getCondition()
        if condition is None:
            raise
        return Failed(condition.split(".")[0])


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    """Streaming DataFrames must name a directory that exists. It goes with the process."""
    return tempfile.TemporaryDirectory(prefix="penstock-testing-")


def streaming_frames(spark: Any, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """A streaming DataFrame per table, to be planned but never started."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return {
        name: _streaming_frame(spark, name, from_arrow_schema(table.schema))
        for name, table in tables.items()
    }


@lru_cache(maxsize=64)
def _streaming_frame(spark: Any, name: str, schema: Any) -> Any:
    """The same for every query over such a table: to make one takes Spark as long as to plan."""
    path = Path(_directory().name, name)
    path.mkdir(exist_ok=True)
    reader = spark.readStream.schema(schema).format("parquet")
    return reader.option("stream", name).load(str(path))


def plan_streaming(
    spark: Any, build: Build, tables: Mapping[str, pa.Table], mode: Mode = "update"
) -> Planned:
    """The query as we would run it."""
    return plan(build(streaming_frames(spark, tables)), mode=mode)


def run_ours(
    planned: Planned, tables: Mapping[str, pa.Table], rng: random.Random
) -> pa.Table | Failed:
    """The result by our operators: random chunks, tasks, and a restart in between."""
    feeds = [(name, batch) for name, table in tables.items() for batch in chunks(table, rng)]
    feeds = _interleave(feeds, rng)
    statics = planned.static_rows()
    tasks = rng.choice([1, 1, 2, 3])
    is_joined = tasks == 1 and rng.random() < 0.5
    restart = rng.randrange(len(feeds) + 1)
    try:
        driver = Driver(planned.query, statics, tasks=tasks, joined=is_joined)
        followed = driver.take_changes()
        for position, (stream, batch) in enumerate(feeds):
            if position == restart:
                outputs = driver.outputs
                resume = driver.snapshot() if rng.random() < 0.5 else followed
                tasks = 1 if is_joined else rng.choice([tasks, 1, 2, 3])
                resume = followed = resume.spread(tasks)
                driver = Driver(
                    planned.query, statics, tasks=tasks, joined=is_joined, resume=resume
                )
                driver.outputs[:0] = outputs
            driver.feed(stream, batch)
            followed = followed.then(driver.take_changes())
        driver.finish()
        return driver.result()
    except EvaluationFailed as error:
        return Failed(error.condition)


def chunks(table: pa.Table, rng: random.Random) -> list[pa.RecordBatch]:
    """The table in order, cut at random places; some pieces are empty."""
    count = table.num_rows
    whole = table.combine_chunks()
    batch = whole.to_batches()[0] if count else pa.RecordBatch.from_pylist([], schema=table.schema)
    cuts = sorted(rng.randint(0, count) for _ in range(rng.randint(0, 6)))
    bounds = [0, *cuts, count]
    return [batch.slice(a, b - a) for a, b in itertools.pairwise(bounds)]


def _interleave(
    feeds: list[tuple[str, pa.RecordBatch]], rng: random.Random
) -> list[tuple[str, pa.RecordBatch]]:
    """A random merge that keeps the order within each stream."""
    queues: dict[str, list[pa.RecordBatch]] = {}
    for stream, batch in feeds:
        queues.setdefault(stream, []).append(batch)
    merged = []
    while queues:
        stream = rng.choice(sorted(queues))
        merged.append((stream, queues[stream].pop(0)))
        if not queues[stream]:
            del queues[stream]
    return merged


def assert_equal(actual: pa.Table | Failed, expected: pa.Table | Failed, note: str) -> None:
    """Compare results as multisets of rows; floating point numbers nearly."""
    if isinstance(actual, Failed) or isinstance(expected, Failed):
        assert actual == expected, f"{note}: {show(actual)} instead of {show(expected)}"
        return
    assert actual.column_names == expected.column_names, note
    if _same_columns(actual, expected):
        return  # in order already, as large results of row by row queries are
    if _same_columns(_in_order(actual), _in_order(expected)):
        return
    ours, theirs = plain_rows(actual), plain_rows(expected)
    if Counter(ours) == Counter(theirs):
        return
    ours.sort(key=repr)
    theirs.sort(key=repr)
    if len(ours) == len(theirs) and all(map(near, ours, theirs)):
        return
    missing = Counter(theirs) - Counter(ours)
    extra = Counter(ours) - Counter(theirs)
    raise AssertionError(
        f"{note}: {len(ours)} rows instead of {len(theirs)};"
        f" missing {list(missing.elements())[:5]}, extra {list(extra.elements())[:5]}"
    )


def _same_columns(one: pa.Table, two: pa.Table) -> bool:
    return all(map(pa.ChunkedArray.equals, one.columns, two.columns))


def _in_order(table: pa.Table) -> pa.Table:
    """The rows sorted by the columns that Arrow can sort by, if there are any."""
    numbered = table.rename_columns([str(place) for place in range(table.num_columns)])
    keys = [field.name for field in numbered.schema if _can_sort_by(field.type)]
    return numbered.sort_by([(key, "ascending") for key in keys]) if keys else numbered


def _can_sort_by(type: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_timestamp, pa.types.is_floating)
    return any(is_kind(type) for is_kind in kinds)


def show(outcome: pa.Table | Failed) -> str:
    return str(outcome) if isinstance(outcome, Failed) else f"{outcome.num_rows} rows"


def plain_rows(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _plain(value: object) -> object:
    """A value that can be hashed, and is equal to another exactly if Spark shows them alike."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _plain(item)) for key, item in value.items())
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value


def near(one: object, two: object) -> bool:
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(near, one, two))
    if isinstance(one, float) and isinstance(two, float):
        return one == two or math.isclose(one, two, rel_tol=_RELATIVE)
    return one == two
