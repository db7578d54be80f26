"""Python UDTFs: an instance of the user's class yields rows for each row, by pyspark's own worker.

As in python_eval.py, it is pyspark.worker.read_udtf that makes what a Spark task would call. It
answers every row with one batch, and once more when the class has `terminate`. Spark joins the
n-th answer to the n-th row, and what is left over to the last row; so it is done here.

Spark makes an instance for every partition of a micro-batch, and so do we for every batch: what it
keeps in `self` lasts for a batch, and `terminate` is called at its end. As with Spark, it must not
rely on where batches end. Over TABLE(t) by partitions there is one for each partition, with all of
its rows (python_groups.py, whose group it is).

Only plain pickled classes (kind 300) are done by hand, because there the JVM does half of the
conversion (java_values.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.ops.api import Delta, batch_of
from penstock.ops.expressions import compile_expr
from penstock.ops.functions.alignment import as_array
from penstock.ops.functions.lists import Ints
from penstock.ops.java_values import from_python, stored_type
from penstock.ops.ordering import Ordering, sort_rows
from penstock.ops.python_eval import (
    exactly,
    fit,
    python_rows,
    user_errors,
    with_zone,
    zone_of,
)
from penstock.ops.stateless import Stateless
from penstock.plan import nodes as n

#: Spark's eval types: pickled, Arrow-optimised, Arrow.
_PICKLED: Final = 300
TABLE_KINDS: Final = frozenset({_PICKLED, 301, 302})
#: From a task's number and partitions, each in batches, to the results.
PartitionRunner = Callable[[int, Iterator[Iterator[pa.RecordBatch]]], Iterator[pa.RecordBatch]]


def build_table_function(node: n.TableFunction) -> Stateless:
    """The operator: the kept columns of a row, repeated beside what it yields."""
    call = node.call
    args = [compile_expr(arg, node.child.schema) for arg in node.args]
    inputs = pa.schema([(f"_{at}", arg.type) for at, arg in enumerate(node.args)])
    zoned = inputs if call.kind == _PICKLED else with_zone(inputs, zone_of(dict(call.settings)))
    kept = [node.child.schema.get_field_index(name) for name in node.kept]
    fields = list(node.schema)[len(kept) :]

    def apply(delta: Delta) -> list[Delta]:
        count = len(delta)
        if not count:
            return []
        values = [as_array(arg(delta.batch), count) for arg in args]
        arrays = [exactly(v, f.type) for v, f in zip(values, zoned, strict=True)]
        with user_errors(call.name):
            columns, sizes = _call(call, batch_of(arrays, zoned, count), pa.struct(fields))
        whose = np.minimum(np.arange(len(sizes)), count - 1)
        rows = np.repeat(whose, sizes)
        if not len(rows):
            return []
        repeated = [delta.batch.column(at).take(pa.array(rows)) for at in kept]
        fitted = [fit(column, field.type) for column, field in zip(columns, fields, strict=True)]
        weights = None if delta.weights is None else delta.weights[rows]
        return [Delta(batch_of([*repeated, *fitted], node.schema, len(rows)), weights)]

    return Stateless(apply)


def run_partitions(node: n.GroupedMap, call: n.TableCall) -> PartitionRunner:
    """What answers the rows of partitions, one after the other, with what the class yields."""
    schema = node.inputs[0].schema
    ordering = Ordering(node.order, schema)
    result = pa.struct(list(node.output_schema))

    def run(task: int, partitions: Iterator[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        for rows in (rows for partition in partitions for rows in partition):
            by = ordering.keys(rows)
            sorted_rows = rows.take(pa.array(sort_rows(by, rows.num_rows)))
            given = sorted_rows.select([schema.names[at] for at in node.values[0]])
            columns, _ = _call(call, given, result)
            structs = pa.StructArray.from_arrays(columns, node.output_schema.names)
            yield pa.RecordBatch.from_arrays([structs], ["_0"])

    return run


def _call(
    call: n.TableCall, given: pa.RecordBatch, result: pa.StructType
) -> tuple[list[pa.Array], Ints]:
    """All yielded rows as columns, and how many there are of each answer."""
    run = _read_class(call, given.schema)
    if call.kind != _PICKLED:
        answers = list(run(0, iter([given])))
        sizes = np.array([answer.num_rows for answer in answers], np.int64)
        structs = pa.concat_arrays([answer.column(0) for answer in answers])
        return structs.flatten(), sizes
    yielded = list(run(0, python_rows(given, dict(call.settings))))
    convert = from_python(result)
    # Row by row, as the JVM reads them.
    rows = [convert(row) for answer in yielded for row in answer]
    structs = pa.array(rows, stored_type(result)).cast(result)
    return structs.flatten(), np.array([len(answer) for answer in yielded], np.int64)


def _read_class(call: n.TableCall, inputs: pa.Schema) -> Any:
    """What pyspark's worker makes of a new instance: from a task's number and its input."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.worker import RunnerConf, read_udtf

    named = list(enumerate(call.keywords))
    info = SimpleNamespace(
        handler=call.handler,
        name=call.name,
        return_type=call.result_type,
        pickled_analyze_result=call.analyzed,
        partition_child_indexes=list(call.partition_fields),
        args=[at for at, keyword in named if keyword is None],
        kwargs={keyword: at for at, keyword in named if keyword is not None},
    )
    run, _, _, _ = read_udtf(
        # Reads the class, and what was analyzed, which here are those themselves.
        SimpleNamespace(_read_with_length=lambda command: command, loads=lambda told: told),
        info,
        call.kind,
        RunnerConf(dict(call.settings)),
        SimpleNamespace(input_type=from_arrow_schema(inputs), table_arg_offsets=list(call.tables)),
    )
    return run
