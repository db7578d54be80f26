"""Run a pipeline over lists of rows, and compare it with batch Spark: `penstock.testing`.

A pipeline is a function from DataFrames to a DataFrame, the same one that a program calls with its
streams. Spark plans it; operators, state and time are those of a real query. There is no log, no
worker and no second process, so a test takes about as long as its planning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from penstock.errors import BadRequest
from penstock.ops.driver import Driver
from penstock.plan.nodes import Mode
from penstock.stream.rows import to_batches
from penstock.stream.schema import normalise
from penstock.testing.oracle import assert_equal, plan_streaming, run_ours, run_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

#: Gets each input under its name: `def hot(bids, auctions): ...`.
Pipeline: TypeAlias = Callable[..., "DataFrame"]
#: Rows (dicts, Rows, pandas) with their schema as DDL, or an Arrow table, which has one.
Input: TypeAlias = tuple[Any, str] | pa.Table


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    inputs: Mapping[str, Input],
    mode: Mode = "update",
    batch_rows: int = 1,
    end: bool = True,
) -> list[Row]:
    """The rows that a pipeline makes of its inputs, as a real-time query would.

    The result is what stands after the last row: rows that were taken back are gone. A row equals
    the tuple of its values; timestamps are datetimes in UTC, structs are Rows. The same inputs
    give the same rows in the same order.

    Args:
        spark: Any classic session; only its planner is used.
        pipeline: A function that takes one streaming DataFrame per input, by name, and returns one.
        inputs: By name, a pair of rows (dicts, Rows or a pandas DataFrame) and their schema in
            Spark's DDL, or an Arrow table.
        mode: append, update or complete, as in `penstock.start`.
        batch_rows: How many rows are taken in at once. Inputs take turns, one batch each. The
            watermark moves between batches: with 1, a row is late exactly if the rows before
            it have moved the watermark past it.
        end: Whether all inputs end after their last row, which closes every window.

    Raises:
        Unsupported: The pipeline cannot run; it lists every reason.
        BadRow: A row does not fit its schema.
        EvaluationFailed: The pipeline fails on its rows, as it would in batch Spark.
    """
    if batch_rows < 1:
        raise BadRequest(f"batch_rows={batch_rows}: at least 1")
    tables = _tables(inputs)
    planned = plan_streaming(spark, lambda frames: pipeline(**frames), tables, mode)
    driver = Driver(planned.query, planned.static_rows())
    for name, batch in _in_turns(tables, batch_rows):
        driver.feed(name, batch)
    if end:
        driver.finish()
    return _rows(driver.result())


def assert_matches_batch(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    inputs: Mapping[str, Input],
    mode: Mode = "update",
    runs: int = 3,
    seed: int = 0,
) -> None:
    """Fail unless the pipeline gives what batch Spark gives over the same rows.

    Each run cuts the inputs into other batches, lets another number of tasks work on them, and
    stops and resumes somewhere in the middle. Results are compared as multisets of rows, floating
    point numbers up to rounding. If Spark fails, the pipeline must fail with the same error
    condition. Batch Spark knows no late rows: with such rows the results differ.

    Args:
        spark: A classic session.
        pipeline: As for `run`.
        inputs: As for `run`.
        mode: As for `run`.
        runs: How many runs.
        seed: Of the first run; the next ones count up. A failure names the seed of its run.

    Raises:
        AssertionError: The results differ; it shows rows that are missing or too many.
    """
    tables = _tables(inputs)

    def build(frames: Mapping[str, DataFrame]) -> DataFrame:
        return pipeline(**frames)

    expected = run_spark(spark, build, tables)
    planned = plan_streaming(spark, build, tables, mode)
    for number in range(seed, seed + runs):
        actual = run_ours(planned, tables, random.Random(number))
        assert_equal(actual, expected, f"seed={number}")


def _tables(inputs: Mapping[str, Input]) -> dict[str, pa.Table]:
    return {name: _table(name, given) for name, given in inputs.items()}


def _table(name: str, given: Input) -> pa.Table:
    if isinstance(given, pa.Table):
        schema = normalise(given.schema)
        return pa.Table.from_batches(to_batches(given, schema), schema)
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str)):
        raise BadRequest(
            f"input {name} is a pair of rows and their schema as DDL, such as "
            f'([{{"id": 1}}], "id long"), or an Arrow table; got {type(given).__name__}'
        )
    rows, ddl = given
    schema = normalise(ddl)
    return pa.Table.from_batches(to_batches(rows, schema), schema)


def _in_turns(
    tables: Mapping[str, pa.Table], batch_rows: int
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """One batch of each table, then the next of each, until all are empty."""
    longest = max((table.num_rows for table in tables.values()), default=0)
    whole = {name: table.combine_chunks().to_batches() for name, table in tables.items()}
    for first in range(0, longest, batch_rows):
        for name, parts in whole.items():
            if parts and first < parts[0].num_rows:
                yield name, parts[0].slice(first, batch_rows)


def _rows(table: pa.Table) -> list[Row]:
    """Rows as a Python test compares them: by name, or as tuples."""
    from pyspark.sql import Row

    make = Row(*table.column_names)
    columns = [[_value(scalar) for scalar in column] for column in table.columns]
    return [make(*values) for values in zip(*columns, strict=True)]


def _value(scalar: pa.Scalar) -> Any:
    from pyspark.sql import Row

    if not scalar.is_valid:
        return None
    match scalar:
        case pa.StructScalar():
            return Row(**{name: _value(inner) for name, inner in scalar.items()})
        case pa.MapScalar():
            return {_value(pair[0]): _value(pair[1]) for pair in scalar.values}
        case pa.ListScalar():
            return [_value(inner) for inner in scalar.values]
        case _:
            return scalar.as_py()
