"""The committed result of a query, read back from its stream as deltas.

Law: all of it, or Trimmed. Of a result that takes rows back, a part means nothing.
"""

from __future__ import annotations

from penstock.errors import Trimmed
from penstock.ops.api import Delta, batch_of
from penstock.protocol.markers import decode_marker
from penstock.runtime.spec import QuerySpec
from penstock.stream.session import Log


def result_deltas(log: Log, spec: QuerySpec) -> list[Delta]:
    """Everything that the query's result stream holds, under the plan's own column names."""
    _check_whole(log, spec)
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


def _check_whole(log: Log, spec: QuerySpec) -> None:
    """Of every task that writes the result, what stands begins before its first row.

    The counter of the first marker that stands tells how much it committed with and before itself.
    """
    bounds = log.bounds()
    if not bounds.trim_point:
        return
    for task in spec.task_ids:
        if task.stage != len(spec.tasks) - 1:
            continue
        start, end = bounds.trim_point, bounds.tail
        with log.client.tail([task.marker_tag], start=start, end=end) as reader:
            first = next((entry for batch in reader for entry in batch.entries), None)
        marker = None if first is None else decode_marker(first.payload)
        if marker is not None and marker.number > 0 and marker.rows_out > 0:
            raise Trimmed(
                f"the first rows of query {spec.name}'s result were trimmed with the log, below "
                f'LSN {start}: read what is left with log.stream("{spec.to}").read()'
            )
