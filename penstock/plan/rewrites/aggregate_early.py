"""Aggregate before the exchange, where that is sure to pay.

A stage's task folds each batch to one row per key, a row of buffers, and the owner of the key folds
those. That pays when a batch has far fewer keys than rows, which a plan shows only where keys are
nothing but windows, or where there are none: then a thousand rows become a few, and the one virtual
node that owns a window is not flooded.

Only functions whose buffers may be regrouped freely take part: folding floating point sums per
batch would make the result depend on how rows were cut into batches, and folding the first or last
row per task on which task was faster.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.changes import is_append_only
from penstock.plan.rewrites.aim import Aim, BufferColumns
from penstock.plan.row_order import depends_on_order


def aggregate_early(root: n.Node, aim: Aim) -> n.Node:
    """The plan with a PartialAggregate below every Aggregate where it pays."""
    return root.rebuild(partial(_split, buffers=aim.buffers))


def _split(node: n.Node, *, buffers: BufferColumns) -> n.Node:
    if not isinstance(node, n.Aggregate) or not _pays(node):
        return node
    fields = [pa.field(key.name, key.type) for key in node.keys]
    for index, call in enumerate(node.calls):
        columns = buffers(call)
        if columns is None:
            return node
        fields += [pa.field(f"{index}.{name}", kind) for name, kind in columns.items()]
    early = n.PartialAggregate(
        schema=pa.schema(fields), child=node.child, keys=node.keys, calls=node.calls
    )
    return replace(node, child=early, merges=True)


def _pays(node: n.Aggregate) -> bool:
    if node.session is not None or not node.calls or not is_append_only(node.child):
        return False
    if node.event_time is not None:
        return False  # late rows are told by the aggregation, as the rows that they were
    if depends_on_order(node):
        return False
    return all(_is_window(key.type) for key in node.keys)


def _is_window(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and [kind.field(i).name for i in range(kind.num_fields)] == [
        "start",
        "end",
    ]
