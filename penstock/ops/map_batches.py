"""mapInArrow and mapInPandas: the user's function from an iterator of batches to one.

It is called once per incoming batch, with an iterator of that one. As with Spark, it must not rely
on where batches end, nor on how often it is called. It sees rows, not that they are taken back:
plan/checks.py lets only append-only rows come here.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import EvaluationFailed
from penstock.ops.api import Delta, batch_of
from penstock.ops.python_eval import Udf, build_worker, fit, user_errors
from penstock.ops.stateless import Stateless
from penstock.plan import nodes as n

#: Spark's eval types: mapInPandas, mapInArrow.
MAP_KINDS: Final = frozenset({205, 207})


def build_map_batches(node: n.MapBatches) -> Stateless:
    """The operator; Spark hands the rows over as one column of structs, and gets one back."""
    whole = pa.struct(list(node.input_schema))
    udf = Udf((node.function,), pa.struct(list(node.output_schema)))
    inputs = pa.schema([("_0", whole)])
    worker = build_worker(node.kind, [udf], inputs, dict(node.settings))

    def apply(delta: Delta) -> list[Delta]:
        assert delta.weights is None
        rows = batch_of(delta.batch.columns, node.input_schema, len(delta))
        structs = rows.to_struct_array().cast(whole)
        with user_errors(node.name):
            results = worker(pa.RecordBatch.from_arrays([structs], schema=inputs))
        return [Delta(_rows(node, result)) for result in results if result.num_rows]

    return Stateless(apply)


def _rows(node: n.MapBatches, result: pa.RecordBatch) -> pa.RecordBatch:
    columns = returned_columns(node.name, node.output_schema, result)
    return batch_of(columns, node.schema, result.num_rows)


def returned_columns(name: str, declared: pa.Schema, result: pa.RecordBatch) -> list[pa.Array]:
    """The columns of the returned structs, by position; Spark ignores their names and any more."""
    columns = result.column(0).flatten()
    expected = list(declared)
    if len(columns) < len(expected):
        raise EvaluationFailed(
            "UNSUPPORTED_CALL", f"{name} returned {len(columns)} columns of {len(expected)}"
        )
    fitted = []
    for column, field in zip(columns, expected, strict=False):
        if not _can_read(column.type, field.type):
            raise EvaluationFailed("UNSUPPORTED_CALL", f"{name} returned {column.type} for {field}")
        fitted.append(fit(column, field.type))
    return fitted


def _can_read(given: pa.DataType, declared: pa.DataType) -> bool:
    """Whether Spark reads such a vector as a column of the declared type."""
    if pt.is_null(given):
        return True
    if pt.is_timestamp(declared):
        return bool(pt.is_timestamp(given) and given.unit == "us")
    if pt.is_string(declared):
        return bool(pt.is_string(given) or pt.is_large_string(given))
    if pt.is_binary(declared):
        return bool(pt.is_binary(given) or pt.is_large_binary(given))
    if pt.is_list(declared):
        return bool(pt.is_list(given)) and _can_read(given.value_type, declared.value_type)
    if pt.is_map(declared):
        return (
            bool(pt.is_map(given))
            and _can_read(given.key_type, declared.key_type)
            and _can_read(given.item_type, declared.item_type)
        )
    if pt.is_struct(declared):
        return (
            bool(pt.is_struct(given))
            and given.num_fields == declared.num_fields
            and all(
                _can_read(have.type, want.type)
                for have, want in zip(given.fields, declared.fields, strict=True)
            )
        )
    return bool(given == declared)
