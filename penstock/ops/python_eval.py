"""Python, pandas and Arrow functions over rows: Spark's own worker, without its socket.

What a function is handed, and what becomes of its answer, differs with the kind of function in many
small ways. For every kind that Spark feeds with Arrow batches, the code of pyspark's worker is the
only exact description, so it is what runs here: pyspark.worker.read_udfs makes the function from
batches to batches that a Spark task would call. Only plain pickled functions (kind 100) are done by
hand, because there the JVM does half of the conversion (java_values.py).

A function sees one batch at a time, of any size; as with Spark, it must not rely on where batches
end. After a failure rows are processed again: a function that is not deterministic is called again.
A row that is taken back is evaluated again too, and must then give what it gave (plan/checks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import EvaluationFailed, PenstockError
from penstock.ops.api import Delta, batch_of
from penstock.ops.expressions import compile_expr
from penstock.ops.functions.alignment import as_array
from penstock.ops.java_values import from_python, stored_type
from penstock.ops.stateless import Stateless
from penstock.plan import nodes as n
from penstock.plan.exprs import Expr

#: Spark's eval types: pickled, Arrow-optimised, pandas, pandas iterator, Arrow, Arrow iterator.
PICKLED: Final = 100
EVAL_KINDS: Final = frozenset({PICKLED, 101, 200, 204, 250, 251})
#: Spark's condition for anything that goes wrong inside a user's function.
PYTHON_EXCEPTION: Final = "PYTHON_EXCEPTION"
#: From a batch of arguments to batches of results.
Worker = Callable[[pa.RecordBatch], list[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Udf:
    """A function as pyspark's worker takes it: arguments are positions in the batch."""

    #: Called one after the other, each with what the one before returned.
    functions: tuple[Callable[..., object], ...]
    type: pa.DataType
    args: tuple[int, ...] = ()
    kwargs: tuple[tuple[str, int], ...] = ()


def build_python_eval(node: n.PythonEval) -> Stateless:
    """The operator: the child's columns, then one per call."""
    positions: dict[Expr, int] = {}
    udfs = [_bind(call, positions) for call in node.calls]
    args = [compile_expr(expr, node.child.schema) for expr in positions]
    inputs = pa.schema([(f"_{i}", expr.type) for i, expr in enumerate(positions)])
    kind = node.calls[0].kind
    worker = build_worker(kind, udfs, inputs, dict(node.settings))
    names = ", ".join(call.name for call in node.calls)
    types = [call.type for call in node.calls]

    def evaluate(delta: Delta) -> list[Delta]:
        count = len(delta)
        given = batch_of([as_array(arg(delta.batch), count) for arg in args], inputs, count)
        with user_errors(names):
            results = worker(given)
        columns = [
            fit(pa.concat_arrays([batch.column(i) for batch in results]), kind)
            for i, kind in enumerate(types)
        ]
        rows = pa.RecordBatch.from_arrays([*delta.batch.columns, *columns], schema=node.schema)
        return [Delta(rows, delta.weights)]

    return Stateless(evaluate)


def _bind(call: n.UdfCall, positions: dict[Expr, int]) -> Udf:
    """The call over columns of one batch, equal arguments sharing a column."""
    functions = [call.function]
    inner = call
    while len(inner.args) == 1 and isinstance(inner.args[0], n.UdfCall):
        inner = inner.args[0]
        functions.insert(0, inner.function)
    args: list[int] = []
    kwargs: list[tuple[str, int]] = []
    for arg, keyword in zip(inner.args, inner.keywords, strict=True):
        assert not isinstance(arg, n.UdfCall), (
            "Spark evaluates such arguments in a node of their own"
        )
        position = positions.setdefault(arg, len(positions))
        if keyword is None:
            args.append(position)
        else:
            kwargs.append((keyword, position))
    return Udf(tuple(functions), call.type, tuple(args), tuple(kwargs))


def build_worker(
    kind: int, udfs: Sequence[Udf], inputs: pa.Schema, settings: Mapping[str, str]
) -> Worker:
    """What a Spark task would run for these functions."""
    zoned = inputs if kind == PICKLED else with_zone(inputs, zone_of(settings))
    run = read_functions(kind, udfs, zoned, settings)
    if kind == PICKLED:
        return _build_row_worker(run, udfs, settings)

    def work(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        arrays = [exactly(c, f.type) for c, f in zip(batch.columns, zoned, strict=True)]
        return list(run(0, iter([batch_of(arrays, zoned, batch.num_rows)])))

    return work


def read_functions(
    kind: int, udfs: Sequence[Udf], inputs: pa.Schema, settings: Mapping[str, str]
) -> Any:
    """What pyspark's worker makes of these functions: from a task's number and its input."""
    from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
    from pyspark.worker import RunnerConf, read_udfs

    run, _, _, _ = read_udfs(
        # Reads the "command" of a function, which here is the function itself.
        SimpleNamespace(_read_with_length=lambda command: command),
        [
            SimpleNamespace(
                udfs=[(function, from_arrow_type(udf.type)) for function in udf.functions],
                args=list(udf.args),
                kwargs=dict(udf.kwargs),
                result_id=None,
            )
            for udf in udfs
        ],
        kind,
        RunnerConf(dict(settings)),
        SimpleNamespace(input_type=from_arrow_schema(inputs)),
    )
    return run


def _build_row_worker(run: Any, udfs: Sequence[Udf], settings: Mapping[str, str]) -> Worker:
    """Pickled functions: row by row, in the types that the pickled form of a value has."""
    types = [udf.type for udf in udfs]
    stored = [stored_type(kind) for kind in types]
    from_pickled = [from_python(kind) for kind in types]

    def work(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        answers = list(run(0, python_rows(batch, settings)))
        columns = [answers] if len(types) == 1 else zip(*answers, strict=True)
        arrays = [
            pa.array([convert(value) for value in column], inner).cast(kind)
            for column, convert, inner, kind in zip(
                columns, from_pickled, stored, types, strict=True
            )
        ]
        return [pa.RecordBatch.from_arrays(arrays, [f"_{i}" for i in range(len(arrays))])]

    return work


def python_rows(batch: pa.RecordBatch, settings: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """The rows as a pickled function is handed them."""
    from pyspark.sql.conversion import ArrowTableToRowsConversion
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.worker import RunnerConf

    conf = RunnerConf(dict(settings))
    lists = []
    for column, field in zip(batch.columns, from_arrow_schema(batch.schema), strict=True):
        convert = ArrowTableToRowsConversion._create_converter(
            field.dataType, none_on_identity=True, binary_as_bytes=conf.binary_as_bytes
        )
        values = ArrowTableToRowsConversion._to_pylist(column)
        lists.append(values if convert is None else [convert(value) for value in values])
    return zip(*lists, strict=True) if lists else iter([()] * batch.num_rows)


def fit(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in the type of the plan, which may differ in what Arrow calls nested fields."""
    return column if column.type == kind else column.cast(kind)


def exactly(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in this very type: Arrow calls lists equal whose elements have other names."""
    return column if column.type == kind and not pt.is_nested(kind) else column.cast(kind)


def zone_of(settings: Mapping[str, str]) -> str:
    """The session's time zone when the query was planned."""
    return settings.get("spark.sql.session.timeZone", "UTC")


@contextmanager
def user_errors(name: str) -> Iterator[None]:
    """Inside, what a user's function raises becomes Spark's condition, with its cause."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        said = f"{name}: {type(error).__name__}: {error}"
        raise EvaluationFailed(PYTHON_EXCEPTION, said) from error


def with_zone(schema: pa.Schema, zone: str) -> pa.Schema:
    """The schema as Spark hands it to Python: timestamps in the session's time zone."""
    return pa.schema([field.with_type(_type_with_zone(field.type, zone)) for field in schema])


def _type_with_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    if pt.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", tz=zone)
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_with_zone(kind.value_type, zone)))
    if pt.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_type_with_zone(kind.key_type, zone)),
            kind.item_field.with_type(_type_with_zone(kind.item_type, zone)),
        )
    if pt.is_struct(kind):
        return pa.struct([f.with_type(_type_with_zone(f.type, zone)) for f in kind.fields])
    return kind
