"""What a reader of a query's result sees, by output mode.

append    the new rows
update    the rows that are new or different since the last look: insertions of the net change
complete  the whole result, sorted and limited as the query says

Law: a look shows the same whether the rows since the last one came in one batch or in many; what is
taken back within it never shows. Unlike Spark, update mode shows no row that is as it was before.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.ops.api import Delta, Weights
from penstock.ops.finishing import finish
from penstock.plan.stages import Query
from penstock.state.memory_row_set import MemoryRowSet


def read_new(query: Query, new: list[Delta], everything: list[Delta]) -> pa.Table:
    """What this query's mode shows of the output `new`, the last part of `everything`."""
    if query.mode == "complete":
        return read_result(query, everything)
    rows, weights = _add_up(query, new)
    if query.mode == "append":
        assert (weights > 0).all(), "append mode takes nothing back"
    return _named(query, _repeat(rows, np.maximum(weights, 0)))


def read_result(query: Query, everything: list[Delta]) -> pa.Table:
    """The whole result: rows that were taken back are gone."""
    rows, weights = _add_up(query, everything)
    assert (weights > 0).all(), "more rows were taken back than given"
    return _named(query, finish(_repeat(rows, weights), query.finish))


def _add_up(query: Query, deltas: list[Delta]) -> tuple[pa.RecordBatch, Weights]:
    """The net change: every row once, with the sum of its weights."""
    schema = query.stages[-1].root.schema
    if all(delta.weights is None for delta in deltas):
        whole = pa.Table.from_batches([delta.batch for delta in deltas], schema).combine_chunks()
        parts = whole.to_batches()
        rows = parts[0] if parts else pa.RecordBatch.from_pylist([], schema=schema)
        return rows, np.ones(rows.num_rows, np.int64)
    summed = MemoryRowSet(schema, (), None, ())
    for delta in deltas:
        summed.insert(delta.batch, delta.weights)
    return summed.rows()


def _repeat(rows: pa.RecordBatch, weights: Weights) -> pa.RecordBatch:
    if (weights == 1).all():
        return rows
    return rows.take(pa.array(np.repeat(np.arange(len(weights)), weights)))


def _named(query: Query, rows: pa.RecordBatch) -> pa.Table:
    """The rows under the user's names."""
    table = pa.Table.from_batches([rows])
    return pa.Table.from_arrays(table.columns, schema=query.schema) if table.columns else table
