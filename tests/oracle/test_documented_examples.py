"""Examples of Spark's own documentation, over a stream: unchanged but for the source and the sink.

They are read from the installed pyspark, its example programs and its docstrings, and run as they
are: what they call `lines`, `df` or a table is a stream of ours. What an example has no value for,
because it is only shown, is what batch Spark makes of it over the same rows. Where an example of
Spark's cannot run in Spark either, `_MENDED` says what was mended.
"""

from __future__ import annotations

import ast
import datetime as dt
import doctest
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from harness.oracle import ask_spark, assert_same
from pyspark.sql import functions as F
from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.udtf import UDTFRegistration

from penstock.ops.driver import Driver
from penstock.testing.oracle import Frames, assert_equal, plan_streaming

pytestmark = pytest.mark.usefixtures("interpreted")
_EXAMPLES = Path(pyspark.__file__).parent / "examples/src/main/python/sql"
#: Names that an example program has for the world around it: they are given.
_GIVEN = {"spark", "lines", "query", "host", "port"}
_MENDED = {
    # A third argument came later.
    "def handleInputRows(self, key, rows)": "def handleInputRows(self, key, rows, timerValues)",
    # The columns are `id` and `temperature`; a key is a tuple.
    'df.groupBy("value")': 'df.groupBy("id")',
    "Row(id=key, ": "Row(id=key[0], ",
    # A setting of Spark's own engine, for the whole session.
    'spark.conf.set("spark.sql.streaming.stateStore.providerClass",': "str.format(",
}


@pytest.fixture(autouse=True)
def _workers(spark: Any) -> None:
    """Workers run this interpreter: it has pandas, Arrow and protobuf."""
    spark.sparkContext.pythonExec = sys.executable


def _program(name: str, **given: Any) -> dict[str, Any]:
    """The names that a streaming program makes, without its session, source, sink and usage."""
    tree = ast.parse((_EXAMPLES / "streaming" / name).read_text("utf-8"))
    body: list[ast.stmt] = []
    for statement in tree.body:
        body += statement.body if isinstance(statement, ast.If) else [statement]
    tree.body = [statement for statement in body if not _is_given(statement)]
    names = {"__name__": "__main__", **given}
    exec(compile(tree, name, "exec"), names)
    return names


def _is_given(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id in _GIVEN
    return isinstance(statement, ast.If) or "awaitTermination" in ast.unparse(statement)


def _docstring(documented: Any, **given: Any) -> Any:
    """What the last example of a docstring gives."""
    names = {"__name__": "__main__", "pd": pd, **given}
    for example in doctest.DocTestParser().get_examples(documented.__doc__):
        source = example.source
        for written, mended in _MENDED.items():
            source = source.replace(written, mended)
        tree = ast.parse(source)
        if isinstance(tree.body[-1], ast.Expr):
            result = ast.Name("result", ast.Store())
            tree.body[-1] = ast.Assign([result], tree.body[-1].value)
        exec(compile(ast.fix_missing_locations(tree), "docstring", "exec"), names)
    return names["result"]


def _lines(*rows: tuple[int, str]) -> pa.Table:
    """What Spark's socket source gives: lines, and when they came."""
    begin = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    times = [begin + dt.timedelta(seconds=second) for second, _ in rows]
    return pa.table(
        {
            "value": pa.array([line for _, line in rows]),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


LINES = _lines((0, "a b"), (3, "b"), (8, "a ü"), (12, "b"), (40, "a a"), (49, "a"))


# -- session windows


def test_structured_sessionization(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        return _program("structured_sessionization.py", lines=frames["t"])["windowedCounts"]

    assert_same(spark, build, {"t": LINES}, seed=1, runs=2)


def test_docstring_of_session_window(spark: Any) -> None:
    """The example itself makes `df` of one row, which is shown here as a stream would give it."""
    made = SimpleNamespace(createDataFrame=lambda rows, names: None)

    def build(frames: Frames) -> Any:
        made.createDataFrame = lambda rows, names: frames["t"].toDF(*names)
        shown: list[Any] = []
        show = type(frames["t"]).show
        try:
            type(frames["t"]).show = lambda frame, **_: shown.append(frame)
            _docstring(F.session_window, spark=made)
        finally:
            type(frames["t"]).show = show
        return shown[0]

    table = {"t": pa.table({"dt": ["2016-03-11 09:00:07"], "v": pa.array([1], pa.int64())})}
    assert_same(spark, build, table)


# -- applyInPandasWithState


def test_structured_network_wordcount_session_window(spark: Any) -> None:
    """Sessions by processing time: one is shown when its word was not seen for 10 seconds."""
    planned = plan_streaming(
        spark,
        lambda frames: _program(
            "structured_network_wordcount_session_window.py", lines=frames["t"]
        )["sessions"],
        {"t": LINES},
    )
    now = [0]
    driver = Driver(planned.query, {}, tasks=2, now_ms=lambda: now[0])
    shown = []
    for row in range(LINES.num_rows):
        now[0] = int(LINES["timestamp"][row].as_py().timestamp() * 1000)
        driver.feed("t", LINES.slice(row, 1).to_batches()[0])
        shown += [(row, *each.values()) for each in driver.read_new().to_pylist()]
        driver = Driver(planned.query, {}, tasks=2, now_ms=lambda: now[0], resume=driver.snapshot())
    at = LINES["timestamp"].to_pylist()
    assert sorted(shown) == [
        (4, "b", 3, at[0], at[3]),
        (4, "ü", 1, at[2], at[2]),
    ]


def test_docstring_of_apply_in_pandas_with_state(spark: Any) -> None:
    table = pa.table({"id": pa.array([1, 2, 1], pa.int64()), "v": [1.0, 2.0, 3.0]})

    def build(frames: Frames) -> Any:
        # The class has another name by now.
        given = {"df": frames["t"], "GroupStateImpl": GroupState}
        return _docstring(PandasGroupedOpsMixin.applyInPandasWithState, **given)

    planned = plan_streaming(spark, build, {"t": table})
    driver = Driver(planned.query, {}, tasks=2)
    driver.feed("t", table.to_batches()[0])
    assert sorted(tuple(row.values()) for row in driver.read_new().to_pylist()) == [
        (1, "2"),
        (2, "1"),
    ]


# -- transformWithState

_READINGS = pa.table(
    {"id": ["0", "0", "1", "1", "1"], "temperature": pa.array([123, 23, 33, 188, 88], pa.int64())}
)


@pytest.mark.parametrize("method", ["transformWithState", "transformWithStateInPandas"])
def test_docstrings_of_transform_with_state(spark: Any, method: str) -> None:
    def build(frames: Frames) -> Any:
        return _docstring(getattr(PandasGroupedOpsMixin, method), df=frames["t"])

    expected = ask_spark(spark, build, {"t": _READINGS})
    planned = plan_streaming(spark, build, {"t": _READINGS})
    driver = Driver(planned.query, {}, tasks=2)
    driver.feed("t", _READINGS.to_batches()[0])
    assert_equal(driver.result(), expected, method)
    assert sorted(driver.result().to_pydict()["count"]) == [2, 3]


# -- UDTFs


def _queries_of(function: str, session: Any) -> list[str]:
    """The SQL of an example of UDTFs, whose classes are registered by then."""
    names: dict[str, Any] = {"__name__": "__main__"}
    tree = ast.parse((_EXAMPLES / "udtf.py").read_text("utf-8"))
    is_import = (ast.Import, ast.ImportFrom)
    tree.body = [
        each
        for each in tree.body
        if isinstance(each, is_import) or getattr(each, "name", None) == function
    ]
    exec(compile(tree, "udtf.py", "exec"), names)
    said: list[str] = []
    shown = SimpleNamespace(show=lambda: None)

    def sql(query: str) -> Any:
        said.append(query)
        return shown

    names[function](SimpleNamespace(udtf=session.udtf, sql=sql, table=lambda name: shown))
    return said


def _udtf(function: str, source: str, at: int = -1) -> Callable[[Frames], Any]:
    """A query of an example, with `t` in place of the source."""

    def build(frames: Frames) -> Any:
        frames["t"].createOrReplaceTempView("t")
        session = frames["t"].sparkSession
        query = _queries_of(function, session)[at]
        assert source in query
        return session.sql(query.replace(source, "t"))

    return build


TEXTS = pa.table({"text": ["Hello World", "Apache Spark"]})
IDS = pa.table({"id": pa.array(range(10), pa.int64())})


def test_examples_of_udtfs(spark: Any) -> None:
    texts = "VALUES ('Hello World'), ('Apache Spark') t(text)"
    assert_same(spark, _udtf("python_udtf_registration", texts), {"t": TEXTS}, runs=2)
    table_argument = _udtf("python_udtf_table_argument", "range(10)")
    assert_same(spark, table_argument, {"t": IDS}, seed=1, runs=2)


def test_example_of_terminate(spark: Any) -> None:
    build = _udtf("python_udtf_terminate_example", "range(0, 10, 1, 1)", at=0)
    planned = plan_streaming(spark, build, {"t": IDS})
    driver = Driver(planned.query, {})
    driver.feed("t", IDS.to_batches()[0])
    assert driver.result().to_pylist() == [{"id": 9, "cnt": 10}]


def test_examples_of_udtfs_with_partitions(spark: Any) -> None:
    rows = [("abc", 2), ("abc", 4), ("def", 6), ("def", 8)]
    table = pa.table({"a": [a for a, _ in rows], "b": pa.array([b for _, b in rows], pa.int32())})
    # The last statement drops the table; of the three before it, only the order is Spark's.
    for at in (-4, -3, -2):
        build = _udtf("python_udtf_table_argument_with_partitioning", "values_table", at)
        assert_same(spark, build, {"t": table}, seed=at + 4, mode="complete")


def test_docstring_of_udtf_registration(spark: Any) -> None:
    numbers = "VALUES (0, 1), (1, 2) t(x, y)"

    def build(frames: Frames) -> Any:
        frames["t"].createOrReplaceTempView("t")
        session = frames["t"].sparkSession

        def sql(query: str) -> Any:
            frame = session.sql(query.replace(numbers, "t"))
            return SimpleNamespace(collect=lambda: frame)

        given = SimpleNamespace(udtf=session.udtf, sql=sql)
        return _docstring(UDTFRegistration.register, spark=given)

    table = pa.table({"x": pa.array([0, 1], pa.int32()), "y": pa.array([1, 2], pa.int32())})
    assert_same(spark, build, {"t": table})
