"""The committed result of a query, read back from its stream as deltas."""

from __future__ import annotations

from penstock.ops.api import Delta, batch_of
from penstock.runtime.spec import QuerySpec
from penstock.stream.session import Log


def result_deltas(log: Log, spec: QuerySpec) -> list[Delta]:
    """Everything that the query's result stream holds, under the plan's own column names."""
    last = spec.query.stages[-1]
    schema = last.root.schema
    deltas = []
    for batch in log.stream(spec.to).read().to_batches():
        columns = batch.columns
        weights = None
        if last.changing:
            weights = columns[-1].to_numpy(zero_copy_only=False)
            columns = columns[:-1]
        cast = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        deltas.append(Delta(batch_of(cast, schema, batch.num_rows), weights))
    return deltas
