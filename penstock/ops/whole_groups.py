"""Functions of all rows of a group that only Python can compute, and what they last gave.

The rows of a group are kept, and so is the result that was shown for it: when the group changes,
the function is called once, with all of its rows, and the difference to that result goes out. So a
function that answers otherwise when it is called again still takes back what it gave. A batch costs
the rows and results of all groups that it touches.

With finals nothing is shown before the watermark has passed a group: its function is called once.

Law: after any prefix of the input, the rows emitted so far, added up by weight, are what the
function gave when the groups last changed (emit = changes), or gives for those whose time has
passed (emit = finals). A group without rows gives nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from penstock.ops.aggregate import partition_positions
from penstock.ops.aggregate_calls import aggregate_rows, bind_calls
from penstock.ops.aggregates.api import Ints
from penstock.ops.api import Delta, OnLate, Operator, Weights
from penstock.ops.python_groups import MapFunction
from penstock.ops.regroup import Grouped, KeyedRows
from penstock.ops.windows import repeat_rows
from penstock.plan import nodes as n
from penstock.state.api import State
from penstock.state.equal_rows import add_up, group_rows
from penstock.state.keys import normalise_floats

#: From the rows of each input with their groups, and the groups that have any, in order, to the
#: rows of the results and whose they are.
Compute = Callable[[list[tuple[pa.RecordBatch, Ints]], Ints], tuple[pa.RecordBatch, Ints]]


class WholeGroups(Operator):
    """Keeps all rows of every group, of one input or several; `compute` gives the results."""

    def __init__(
        self,
        inputs: Sequence[n.Node],
        keys: Sequence[Sequence[str]],
        time_key: int | None,
        schema: pa.Schema,
        compute: Compute,
        state: State,
        on_late: OnLate,
        *,
        name: str,
        finals: bool,
    ) -> None:
        self._compute = compute
        self._finals = finals
        self._schema = schema
        self._key_at = [
            [child.schema.get_field_index(key) for key in own]
            for child, own in zip(inputs, keys, strict=True)
        ]
        self._sides = [
            KeyedRows(
                child,
                list(own),
                state.within(f"input{port}"),
                None if time_key is None else own[time_key],
                on_late,
                name,
            )
            for port, (child, own) in enumerate(zip(inputs, keys, strict=True))
        ]
        types = [inputs[0].schema.field(at).type for at in self._key_at[0]]
        fields = [pa.field(f"key{at}", kind) for at, kind in enumerate(types)]
        #: What was shown for each group: its key, then the rows.
        self._shown_schema = pa.schema([*fields, *schema])
        self._shown = state.row_set(
            "shown",
            self._shown_schema,
            list(range(len(types))),
            time_key,
            partition_positions(inputs[0], list(keys[0])),
        )

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        side = self._sides[port]
        delta = side.without_late(delta)
        if not len(delta):
            return []
        if self._finals:
            side.rows.insert(delta.batch, delta.weights)
            return []
        keys, own = side.group(delta.batch)
        found = [
            side.take_in(kept, own, delta) if each is side else kept
            for each in self._sides
            for kept in [Grouped(*each.rows.fetch(keys))]
        ]
        result, of = self._results(found)
        return self._show(keys, result, of)

    def _results(self, found: Sequence[Grouped]) -> tuple[pa.RecordBatch, Ints]:
        rows = [repeat_rows(each.rows, each.weights, each.groups) for each in found]
        called = np.unique(np.concatenate([groups for _, groups in rows]))
        return self._compute(rows, called)

    def _show(self, keys: list[pa.Array], result: pa.RecordBatch, of: Ints) -> list[Delta]:
        """Replace what was shown for these keys; the difference goes out."""
        whose = pa.array(of)
        columns = [*(key.take(whose) for key in keys), *result.columns]
        new = pa.RecordBatch.from_arrays(columns, schema=self._shown_schema)
        _, old, weights = self._shown.fetch(keys)
        signs = np.concatenate([-weights, np.ones(len(of), np.int64)])
        rows, changes = add_up(pa.concat_batches([old, new]), signs)
        if not rows.num_rows:
            return []
        self._shown.insert(rows, changes)
        columns = rows.columns[len(keys) :]
        return [_as_delta(pa.RecordBatch.from_arrays(columns, schema=self._schema), changes)]

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        bound_us = watermark_ms * 1000
        out = self._close(bound_us) if self._finals else []
        for side in self._sides:
            side.pass_time(watermark_ms)
        self._shown.evict(bound_us)
        return out

    def _close(self, bound_us: int) -> list[Delta]:
        """The results of the groups whose time has passed."""
        expired = [side.rows.expired(bound_us)[0] for side in self._sides]
        count = sum(rows.num_rows for rows in expired)
        if not count:
            return []
        by_input = [
            [normalise_floats(rows.column(at)) for at in key_at]
            for rows, key_at in zip(expired, self._key_at, strict=True)
        ]
        columns = [pa.concat_arrays(parts) for parts in zip(*by_input, strict=True)]
        first, _ = group_rows(columns, count)
        keys = [column.take(pa.array(first)) for column in columns]
        # Rows of a group in the order in which they came: all of them have its time.
        result, _ = self._results([Grouped(*side.rows.fetch(keys)) for side in self._sides])
        return [Delta(result)] if result.num_rows else []


def _as_delta(rows: pa.RecordBatch, weights: Weights) -> Delta:
    return Delta(rows, None if (weights == 1).all() else weights)


def build_grouped_map(node: n.GroupedMap, state: State, on_late: OnLate) -> WholeGroups:
    """applyInPandas and its kin."""
    function = MapFunction(node)
    return WholeGroups(
        node.inputs,
        [[key.name for key in keys] for keys in node.keys],
        node.time_key,
        node.schema,
        function.apply,
        state,
        on_late,
        name=node.name,
        finals=node.emit == "finals",
    )


def build_whole_aggregate(node: n.Aggregate, state: State, on_late: OnLate) -> WholeGroups:
    """Aggregation by functions of the user's. Without rows there is no result, as with Spark."""
    calls = bind_calls(node.calls, node.child.schema)
    names = [key.name for key in node.keys]
    key_at = [node.child.schema.get_field_index(name) for name in names]

    def compute(
        sides: list[tuple[pa.RecordBatch, Ints]], called: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        ((rows, groups),) = sides
        _, first, dense = np.unique(groups, return_index=True, return_inverse=True)
        values = aggregate_rows(calls, rows, None, dense, len(called))
        keys = [normalise_floats(rows.column(at)).take(pa.array(first)) for at in key_at]
        return pa.RecordBatch.from_arrays([*keys, *values], schema=node.schema), called

    return WholeGroups(
        [node.child],
        [names],
        None if node.event_time is None else names.index(node.event_time),
        node.schema,
        compute,
        state,
        on_late,
        name="aggregate",
        finals=node.emit == "finals",
    )
