"""Python functions over the rows of groups, and over frames: Spark's own worker, group by group.

As in python_eval.py, pyspark.worker.read_udfs makes what a Spark task would call. It takes groups
one after the other, and has answered one before it asks for the next: that tells whose an answer
is.

A group is handed over as one batch. As with Spark, a function that takes an iterator must not rely
on where batches end, and sees the rows in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.ops.aggregates.api import Ints
from penstock.ops.api import batch_of
from penstock.ops.map_batches import returned_columns
from penstock.ops.python_eval import (
    Udf,
    exactly,
    fit,
    read_functions,
    user_errors,
    with_zone,
    zone_of,
)
from penstock.ops.table_functions import run_partitions
from penstock.plan import nodes as n
from penstock.plan.closing import CLOSES

#: Spark's eval types of grouped maps: pandas, pandas iterator, Arrow, Arrow iterator; of cogroups.
GROUP_KINDS: Final = frozenset({201, 216, 209, 215, 206, 210})
_COGROUP_KINDS: Final = frozenset({206, 210})
#: Those that are handed rows as one column of structs.
_IN_STRUCTS: Final = frozenset({209, 215})
#: Of aggregates: pandas, pandas iterator, Arrow, Arrow iterator.
AGGREGATE_KINDS: Final = frozenset({202, 217, 252, 254})
#: What Spark takes those for when they are window functions.
_OVER_FRAMES: Final = {202: 203, 252: 253}
#: Of applyInPandasWithState.
STATE_KIND: Final = 208


class MapFunction:
    """The function of a GroupedMap."""

    def __init__(self, node: n.GroupedMap) -> None:
        self._node = node
        zone = zone_of(dict(node.settings))
        self._zoned = [with_zone(schema, zone) for schema in node.input_schemas]
        offsets: list[int] = []
        for keys, values, child in zip(node.keys, node.values, node.inputs, strict=True):
            shown = [key.name for key in keys if not key.name.endswith(CLOSES)]
            key_at = [child.schema.get_field_index(name) for name in shown]
            offsets += [1 + len(key_at) + len(values), len(key_at), *key_at, *values]
        self._run: Any
        if isinstance(node.function, n.TableCall):
            self._run = run_partitions(node, node.function)
            return
        udf = Udf((node.function,), pa.struct(list(node.output_schema)), tuple(offsets))
        self._run = read_functions(node.kind, [udf], self._zoned[0], dict(node.settings))

    def apply(
        self, sides: Sequence[tuple[pa.RecordBatch, Ints]], called: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """The results of the groups to be called, and whose each row is.

        Every side has its rows, and the group of each.
        """
        cut = [
            _cut(self._in_zone(rows, zoned), groups, called)
            for (rows, groups), zoned in zip(sides, self._zoned, strict=True)
        ]
        feed = _Feed(zip(*cut, strict=True), self._hand_over)
        parts: list[list[pa.Array]] = []
        owners: list[Ints] = []
        declared = self._node.output_schema
        with user_errors(self._node.name):
            for batch in self._run(0, feed):
                parts.append(returned_columns(self._node.name, declared, batch))
                owners.append(np.full(batch.num_rows, called[feed.place]))
        if not parts:
            nothing = pa.RecordBatch.from_pylist([], schema=self._node.schema)
            return nothing, np.zeros(0, np.int64)
        columns = [pa.concat_arrays(pieces) for pieces in zip(*parts, strict=True)]
        of = np.concatenate(owners)
        return batch_of(columns, self._node.schema, len(of)), of

    def _in_zone(self, rows: pa.RecordBatch, zoned: pa.Schema) -> pa.RecordBatch:
        arrays = [exactly(c, f.type) for c, f in zip(rows.columns, zoned, strict=True)]
        return batch_of(arrays, zoned, rows.num_rows)

    def _hand_over(self, group: tuple[pa.RecordBatch, ...]) -> Any:
        kind = self._node.kind
        if kind in _COGROUP_KINDS:
            return tuple([side] for side in group)
        (rows,) = group
        if kind in _IN_STRUCTS:
            rows = pa.RecordBatch.from_arrays([rows.to_struct_array()], ["_0"])
        return iter([rows])


class AggregateFunction:
    """The function of a PythonAggregate, over the columns of its arguments."""

    def __init__(self, call: n.AggregateCall) -> None:
        self._type = call.type
        self._python = python_of(call)
        self._inputs, udf = _columns_of(call, first=0)
        settings = dict(self._python.settings)
        self._run = read_functions(self._python.kind, [udf], self._inputs, settings)

    def values(self, args: list[pa.Array], groups: Ints, count: int) -> pa.Array:
        """One value per group; every group has rows."""
        arrays = [exactly(c, f.type) for c, f in zip(args, self._inputs, strict=True)]
        rows = batch_of(arrays, self._inputs, len(groups))
        feed = _Feed(_cut(rows, groups, np.arange(count)), lambda group: iter([group]))
        with user_errors(self._python.name):
            answers = [batch.column(0) for batch in self._run(0, feed)]
        return fit(pa.concat_arrays(answers), self._type) if answers else pa.nulls(0, self._type)


class WindowFunction:
    """The function of a PythonAggregate, over the frame of every row of sorted partitions."""

    def __init__(self, call: n.AggregateCall, *, is_bounded: bool) -> None:
        self._type = call.type
        self._is_bounded = is_bounded
        self._python = python_of(call)
        self._inputs, udf = _columns_of(call, first=2 if is_bounded else 0)
        settings = dict(self._python.settings)
        settings["window_bound_types"] = "bounded" if is_bounded else "unbounded"
        kind = _OVER_FRAMES[self._python.kind]
        self._run = read_functions(kind, [udf], self._inputs, settings)

    def evaluate(self, args: list[pa.Array], starts: Ints, begins: Ints, ends: Ints) -> pa.Array:
        """One value per row: `starts` tell partitions apart, frames are relative to them."""
        columns = args
        if self._is_bounded:
            bounds = (begins, np.maximum(begins, ends))
            columns = [*(pa.array(bound.astype(np.int32)) for bound in bounds), *args]
        arrays = [exactly(c, f.type) for c, f in zip(columns, self._inputs, strict=True)]
        rows = batch_of(arrays, self._inputs, len(starts))
        firsts, groups = np.unique(starts, return_inverse=True)
        feed = _Feed(_cut(rows, groups, np.arange(len(firsts))), lambda group: iter([group]))
        with user_errors(self._python.name):
            answers = [batch.column(0) for batch in self._run(0, feed)]
        return fit(pa.concat_arrays(answers), self._type) if answers else pa.nulls(0, self._type)


def python_of(call: n.AggregateCall) -> n.PythonAggregate:
    """The user's function behind a call."""
    python = call.option("python")
    assert isinstance(python, n.PythonAggregate)
    return python


def judge_over_frames(call: n.AggregateCall) -> str | None:
    """Why a call cannot be a window function, or None if it can."""
    python = call.option("python")
    if isinstance(python, n.PythonAggregate) and python.kind not in _OVER_FRAMES:
        return f"{python.name} takes an iterator, which frames are not cut into"
    return None


def _columns_of(call: n.AggregateCall, *, first: int) -> tuple[pa.Schema, Udf]:
    """The columns that the worker is handed, those of the frame's bounds first; and the function.

    Spark's worker reads the bounds from the first two arguments.
    """
    python = python_of(call)
    bounds = [pa.field(f"_{at}", pa.int32()) for at in range(first)]
    fields = [pa.field(f"_{first + at}", arg.type) for at, arg in enumerate(call.args)]
    named = [(keyword, first + at) for at, keyword in enumerate(python.keywords)]
    udf = Udf(
        (python.function,),
        call.type,
        (*range(first), *(at for keyword, at in named if keyword is None)),
        tuple((keyword, at) for keyword, at in named if keyword is not None),
    )
    schema = with_zone(pa.schema([*bounds, *fields]), zone_of(dict(python.settings)))
    return schema, udf


class _Feed:
    """Groups, one after the other; `place` is that of the one that was handed over last."""

    def __init__(self, groups: Any, hand_over: Any) -> None:
        self._groups = iter(groups)
        self._hand_over = hand_over
        self.place = -1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        group = next(self._groups)
        self.place += 1
        return self._hand_over(group)


def _cut(rows: pa.RecordBatch, groups: Ints, called: Ints) -> list[pa.RecordBatch]:
    """The rows of each group to be called, in the order in which they are."""
    if (groups[1:] < groups[:-1]).any():
        order = groups.argsort(kind="stable")
        rows, groups = rows.take(pa.array(order)), groups[order]
    begins, ends = groups.searchsorted(called), groups.searchsorted(called, "right")
    return [
        rows.slice(begin, end - begin)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
