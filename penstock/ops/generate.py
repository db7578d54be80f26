"""The operator of Generate: a row becomes one row per element of an array or map.

The columns of the row are repeated beside what was generated, and its weight with them. `outer`
keeps a row that generates nothing, once, with nulls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.ops.api import Delta
from penstock.ops.expressions import compile_expr
from penstock.ops.functions.alignment import as_array
from penstock.ops.functions.json_paths import tuple_of
from penstock.ops.functions.lists import Ints, Lists, lists_of, offsets_of, retype
from penstock.ops.stateless import Stateless
from penstock.plan import nodes as n
from penstock.plan.exprs import Expr, Literal

#: What a generator makes of its arguments' values: the lists' offsets, and one array per column.
Generated: TypeAlias = tuple[Ints, list[pa.Array]]
_Generator: TypeAlias = Callable[[tuple[Expr, ...], list[pa.Array]], Generated]


def _explode(args: tuple[Expr, ...], values: list[pa.Array]) -> Generated:
    lists = lists_of(values[0])
    is_map = pa.types.is_map(values[0].type)
    return lists.offsets, lists.elements.flatten() if is_map else [lists.elements]


def _pos_explode(args: tuple[Expr, ...], values: list[pa.Array]) -> Generated:
    lists = lists_of(values[0])
    offsets, columns = _explode(args, values)
    return offsets, [pa.array(lists.places, pa.int32()), *columns]


def _inline(args: tuple[Expr, ...], values: list[pa.Array]) -> Generated:
    """A column per field; the fields of a null struct are null."""
    lists = lists_of(values[0])
    return lists.offsets, lists.elements.flatten()


def _stack(args: tuple[Expr, ...], values: list[pa.Array]) -> Generated:
    """stack(n, a, b, ...): the values fill n rows from left to right, the last one with nulls."""
    assert isinstance(args[0], Literal)
    rows = args[0].value.as_py()
    count = len(values[0])
    cells = values[1:]
    width = -(-len(cells) // rows)
    order = np.arange(count * rows).reshape(rows, count).T.ravel()
    columns = []
    for column in range(width):
        parts = cells[column::width]
        parts += [pa.nulls(count, parts[0].type)] * (rows - len(parts))
        whole = pa.concat_arrays([retype(part, parts[0].type) for part in parts])
        columns.append(whole.take(pa.array(order)))
    return offsets_of(np.full(count, rows)), columns


def _json_tuple(args: tuple[Expr, ...], values: list[pa.Array]) -> Generated:
    """One row for each, even for null. Row by row, as Spark's reader has to be followed."""
    names = [value.to_pylist() for value in values[1:]]
    rows = [
        tuple_of(text, wanted) for text, *wanted in zip(values[0].to_pylist(), *names, strict=True)
    ]
    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(len(names))]
    return np.arange(len(rows) + 1), columns


def _replicate_rows(args: tuple[Expr, ...], values: list[pa.Array]) -> Generated:
    """How EXCEPT ALL and INTERSECT ALL show a row as often as was counted."""
    counts = np.maximum(values[0].fill_null(0).to_numpy(), 0)
    rows = pa.array(np.repeat(np.arange(len(counts)), counts))
    return offsets_of(counts), [value.take(rows) for value in values[1:]]


_GENERATORS: dict[str, _Generator] = {
    "Explode": _explode,
    "PosExplode": _pos_explode,
    "ReplicateRows": _replicate_rows,
    "Inline": _inline,
    "JsonTuple": _json_tuple,
    "Stack": _stack,
}


def judge_generator(kind: str) -> str | None:
    """Why the generator cannot be run, or None if it can."""
    return None if kind in _GENERATORS else f"no generator for {kind}"


def build_generate(node: n.Generate) -> Stateless:
    inputs = node.child.schema
    args = [compile_expr(arg, inputs) for arg in node.args]
    kept = [inputs.get_field_index(name) for name in node.kept]
    generator = _GENERATORS[node.generator]

    def generate(delta: Delta) -> list[Delta]:
        values = [as_array(arg(delta.batch), len(delta)) for arg in args]
        offsets, columns = generator(node.args, values)
        if node.outer:
            offsets, columns = _keep_empty(offsets, columns)
        rows = np.repeat(np.arange(len(delta)), np.diff(offsets))
        if not len(rows):
            return []
        repeated = [delta.batch.column(index).take(pa.array(rows)) for index in kept]
        weights = None if delta.weights is None else delta.weights[rows]
        batch = pa.RecordBatch.from_arrays([*repeated, *columns], schema=node.schema)
        return [Delta(batch, weights)]

    return Stateless(generate)


def _keep_empty(offsets: Ints, columns: list[pa.Array]) -> Generated:
    """A null element for every row that has none."""
    lengths = np.diff(offsets)
    padded = np.maximum(lengths, 1)
    places = np.full(int(padded.sum()), -1, np.int64)
    every = Lists(offsets, pa.nulls(int(offsets[-1])), np.ones(len(lengths), bool))
    new_offsets = offsets_of(padded)
    places[new_offsets[every.rows] + every.places] = np.arange(int(offsets[-1]))
    taken = pa.array(np.maximum(places, 0), mask=places < 0)
    return new_offsets, [column.take(taken) for column in columns]
