"""Each construct, planned and run by our operators, and compared with batch Spark.

Two passes over all constructs share their views: one over streaming DataFrames, one over batch
ones. Ours runs in random chunks, by some number of tasks, stopped and resumed (testing/oracle.py).
"""

from __future__ import annotations

import random
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from embedded_server import end_log
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

import penstock
from penstock.errors import Refused, Unsupported
from penstock.spark.frontend import plan
from penstock.testing.oracle import Failed, assert_equal, run_ours, show, streaming_frames
from survey.construct import Construct, Group, Habit
from survey.groups.habits import Desk
from survey.rows import STATICS, STREAMS

#: "runs" as in batch Spark, "refused" in words, "WRONG": another result, "fails": unclear.
Kind: TypeAlias = Literal["runs", "refused", "WRONG", "fails"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a construct."""

    group: str
    name: str
    kind: Kind
    #: Why, for all that do not run.
    reason: str = ""
    remedy: str = ""
    #: False for what only streams do, and for habits.
    is_compared: bool = False


def survey(spark: Any, groups: Mapping[str, Group]) -> list[Outcome]:
    """What became of each construct, in order."""
    constructs = [(group, one) for group, ones in groups.items() for one in ones]
    frames = _with_statics(spark, streaming_frames(spark, STREAMS))
    ours = {one.name: _run_ours(frames, one) for _, one in constructs if isinstance(one, Construct)}
    frames = _with_statics(spark, _batch_frames(spark, STREAMS))
    outcomes = []
    with (
        _desk(spark) if any(isinstance(one, Habit) for _, one in constructs) else _nothing() as desk
    ):
        for group, one in constructs:
            if isinstance(one, Habit):
                outcomes.append(_tried(group, one, desk))
            else:
                outcomes.append(_compared(group, one, ours[one.name], frames))
    return outcomes


def _with_statics(spark: Any, streams: Mapping[str, Any]) -> SimpleNamespace:
    """Frames by name, each a view, too."""
    frames = {**streams, **_batch_frames(spark, STATICS)}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    return SimpleNamespace(spark=spark, **frames)


def _batch_frames(spark: Any, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """In one partition, so that functions of the order of rows have one."""
    return {
        name: spark.createDataFrame(table, from_arrow_schema(table.schema)).coalesce(1)
        for name, table in tables.items()
    }


def _build(frames: Any, construct: Construct) -> Any:
    query = construct.query
    return frames.spark.sql(query) if isinstance(query, str) else query(frames)


def _run_ours(frames: Any, construct: Construct) -> pa.Table | Failed | Exception:
    """Our result; or why there is none."""
    try:
        planned = plan(_build(frames, construct), mode=construct.mode)
        return run_ours(planned, STREAMS, random.Random(zlib.crc32(construct.name.encode())))
    except Exception as error:
        return error


def _compared(
    group: str, construct: Construct, ours: pa.Table | Failed | Exception, frames: Any
) -> Outcome:
    name = construct.name
    if isinstance(ours, Exception):
        return _judged(group, name, ours)
    if isinstance(ours, Failed):
        return Outcome(group, name, "fails", ours.condition)
    if construct.unlike_batch and ours.num_rows:
        return Outcome(group, name, "runs", construct.unlike_batch)
    try:
        assert_equal(ours, _build(frames, construct).toArrow(), name)
    except AssertionError as difference:
        return Outcome(group, name, "WRONG", f"{difference}; ours: {show(ours)}")
    except Exception as error:
        return Outcome(group, name, "fails", f"batch Spark fails: {error}")
    return Outcome(group, name, "runs", is_compared=True)


def _tried(group: str, habit: Habit, desk: Desk) -> Outcome:
    try:
        habit.do(desk)
    except Exception as error:
        return _judged(group, habit.name, error)
    return Outcome(group, habit.name, "runs")


def _judged(group: str, name: str, error: Exception) -> Outcome:
    """A refusal in words, by us or by Spark's own analysis; all else is no answer."""
    if isinstance(error, Unsupported) and error.reasons:
        problems = "; ".join(reason.problem for reason in error.reasons)
        remedies = "; ".join(dict.fromkeys(reason.remedy for reason in error.reasons))
        return Outcome(group, name, "refused", problems, remedies)
    if isinstance(error, Refused):
        return Outcome(group, name, "refused", f"{type(error).__name__}: {error}")
    if isinstance(error, PySparkException) and error.getCondition() is not None:
        return Outcome(group, name, "refused", f"Spark: {str(error).splitlines()[0]}")
    return Outcome(group, name, "fails", f"{type(error).__name__}: {error}")


@contextmanager
def _desk(spark: Any) -> Iterator[Desk]:
    """A log in a directory of its own, which goes in the end."""
    # What a worker of Spark's still writes there is no matter.
    with tempfile.TemporaryDirectory(
        prefix="penstock-survey-", ignore_cleanup_errors=True
    ) as directory:
        path = Path(directory, "log")
        with penstock.connect(path) as log:
            yield Desk(spark, log, STREAMS["orders"].select(["id", "item", "price", "ts"]))
        end_log(path)


@contextmanager
def _nothing() -> Iterator[Any]:
    yield None
