"""The central assertion of tests/oracle: one DataFrame function, batch Spark and our operators.

`assert_same` runs it over the same rows by both, ours in random chunks, by some number of tasks,
stopped and resumed (penstock/testing/oracle.py). `assert_expressions` and `assert_fails` do it for
many expressions of one table, row by row. Where Spark fails, we must fail with the same condition;
`assert_refused` is for what cannot give what Spark gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pytest

from harness.answers import ANSWERS
from penstock.errors import Unsupported
from penstock.plan.nodes import Mode
from penstock.spark.frontend import plan
from penstock.testing.oracle import (
    Build,
    Failed,
    Frames,
    assert_equal,
    near,
    plain_rows,
    plan_streaming,
    run_ours,
    run_spark,
    show,
    streaming_frames,
)


def sql(query: str) -> Build:
    """A query over views of the frames' names."""

    def build(frames: Frames) -> Any:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        return next(iter(frames.values())).sparkSession.sql(query)

    return build


def ask_spark(
    spark: Any,
    build: Build,
    tables: Mapping[str, pa.Table],
    fetch: Callable[[Any], Any] = methodcaller("toArrow"),
    frame: Any = None,
) -> Any:
    """The result by batch Spark, or its error; remembered (answers.py). `frame` is the streaming
    DataFrame of the query, if there is one already."""
    from pyspark.errors import PySparkException

    if frame is None:
        try:
            frame = build(streaming_frames(spark, tables))
        except PySparkException:
            return run_spark(spark, build, tables, fetch)
    return ANSWERS.answer(spark, frame, tables, lambda: run_spark(spark, build, tables, fetch))


def arrow_as_from_a_source(frame: Any) -> pa.Table:
    """The rows of a DataFrame over rows of Python, read as those of a file or a stream are.

    Else Spark computes with them while it optimizes, before it has put a filter in front of what
    cannot be computed. (In return, an error of Java's own has no name of its own.)
    """
    rule = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    frame.sparkSession.conf.set("spark.sql.optimizer.excludedRules", rule)
    try:
        return frame.toArrow()
    finally:
        frame.sparkSession.conf.unset("spark.sql.optimizer.excludedRules")


def assert_same(
    spark: Any,
    build: Build,
    *tables: Mapping[str, pa.Table],
    seed: int = 0,
    runs: int = 1,
    mode: Mode = "update",
) -> None:
    """Fail unless our result equals batch Spark's, in every run; the seed counts up with runs.

    Tables of the same schemas share the plan, which depends on nothing else of theirs.
    """
    frame = build(streaming_frames(spark, tables[0]))
    planned = plan(frame, mode=mode)
    for rows in tables:
        expected = ask_spark(spark, build, rows, frame=frame)
        for run in range(seed, seed + runs):
            actual = run_ours(planned, rows, random.Random(run))
            assert_equal(actual, expected, f"seed {run}")


def assert_expressions(
    spark: Any, expressions: list[str], table: pa.Table, *, ansi: bool = True, seed: int = 0
) -> None:
    """Every SQL expression over the table's columns gives what Spark gives, row by row.

    All of them make one plan, which keeps this cheap; none may fail in Spark.
    """
    with session_setting(spark, "spark.sql.ansi.enabled", str(ansi).lower()):
        numbered = table.append_column("_row", pa.array(range(table.num_rows), pa.int64()))
        chosen = [f"{expression} AS c{index}" for index, expression in enumerate(expressions)]
        tables = {"t": numbered}

        def build(frames: Frames) -> Any:
            return frames["t"].selectExpr("_row", *chosen)

        frame = build(streaming_frames(spark, tables))
        expected = ask_spark(spark, build, tables, frame=frame)
        assert not isinstance(expected, Failed), f"Spark itself fails: {expected}"
        actual = run_ours(plan(frame), tables, random.Random(seed))
        assert not isinstance(actual, Failed), f"Spark does not fail: {actual}"
    actual, expected = (t.sort_by("_row") for t in (actual, expected))
    for index, expression in enumerate(expressions):
        ours, theirs = (t.column(f"c{index}") for t in (actual, expected))
        assert ours.type == theirs.type, f"{expression}: {ours.type} instead of {theirs.type}"
        if ours.equals(theirs):
            continue
        for row, (one, two) in enumerate(
            zip(
                plain_rows(pa.table([ours], ["x"])),
                plain_rows(pa.table([theirs], ["x"])),
                strict=True,
            )
        ):
            if not near(one, two):
                inputs = table.slice(row, 1).to_pylist()
                raise AssertionError(f"{expression}: {one} instead of {two} for {inputs}")


def assert_fails(
    spark: Any, expression: str, table: pa.Table, condition: str, *, ansi: bool = True
) -> None:
    """The expression fails in Spark with this error condition, and here with the same."""
    with session_setting(spark, "spark.sql.ansi.enabled", str(ansi).lower()):
        tables = {"t": table}

        def build(frames: Frames) -> Any:
            return frames["t"].selectExpr(f"{expression} AS c")

        # An error takes three times as long to reach Python by way of toArrow.
        expected = ask_spark(spark, build, tables, methodcaller("collect"))
        assert expected == Failed(condition), f"Spark: {expected}"
        actual = run_ours(plan_streaming(spark, build, tables), tables, random.Random(0))
        assert actual == expected, f"{expression}: {show(actual)} instead of {expected}"


def assert_refused(
    spark: Any, build: Build, tables: Mapping[str, pa.Table], reason: str, mode: Mode = "update"
) -> None:
    """The plan is refused before anything is run, for a reason like this one."""
    with pytest.raises(Unsupported, match=reason):
        plan_streaming(spark, build, tables, mode)


@contextmanager
def session_setting(spark: Any, name: str, value: str) -> Iterator[None]:
    """Inside, the session has this setting."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)
