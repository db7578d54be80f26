"""What a complete-mode sink does with a whole result before it shows it: sort, limit, project.

Law: rows that the query's order leaves equal are ordered by all of their columns, and rows to be
limited without any order likewise, so that a result does not depend on how its rows came.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.ops import stateless
from penstock.ops.api import Delta
from penstock.ops.ordering import Ordering
from penstock.plan import nodes as n


def finish(batch: pa.RecordBatch, nodes: tuple[n.Node, ...]) -> pa.RecordBatch:
    """The rows after all nodes, which are applied in the order given."""
    in_order = False
    for node in nodes:
        match node:
            case n.Sort():
                batch = _sort(batch, node.order)
                in_order = True
            case n.Limit():
                batch = batch if in_order else _sort(batch, ())
                batch = batch.slice(node.offset, node.count)
                in_order = True
            case n.Project():
                batch = _apply(stateless.build_project(node).on_batch, batch, node.schema)
            case n.Filter():
                batch = _apply(stateless.build_filter(node).on_batch, batch, node.schema)
            case _:
                raise AssertionError(f"{type(node).__name__} is not for a sink")
    return batch


def _sort(batch: pa.RecordBatch, order: tuple[n.Order, ...]) -> pa.RecordBatch:
    places, _ = Ordering(order, batch.schema).sort(batch, [])
    return batch.take(pa.array(places))


def _apply(
    operator: Callable[[int, Delta], list[Delta]], batch: pa.RecordBatch, schema: pa.Schema
) -> pa.RecordBatch:
    batches = [delta.batch for delta in operator(0, Delta(batch))]
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)
