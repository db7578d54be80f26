"""A projection on a filter over fields of structs: as one after the other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from engine_samples import LONG, scan

from penstock.ops.api import Delta
from penstock.ops.narrow import build_narrow
from penstock.ops.stateless import build_filter, build_project
from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, Literal

INNER = pa.struct([("a", LONG), ("b", pa.string())])
ROWS = pa.schema([("kind", LONG), ("inner", INNER), ("other", INNER)])
VALUES = [
    {"kind": 1, "inner": {"a": 1, "b": "x"}, "other": None},
    {"kind": 2, "inner": None, "other": {"a": 5, "b": "p"}},
    {"kind": 1, "inner": {"a": None, "b": "y"}, "other": {"a": 6, "b": None}},
    {"kind": None, "inner": {"a": 4, "b": "z"}, "other": {"a": 7, "b": "q"}},
    {"kind": 1, "inner": {"a": 5, "b": None}, "other": {"a": 8, "b": "r"}},
]
CHILD = scan("s", ROWS)
KIND, WHOLE, OTHER = (Column(field.name, field.type) for field in CHILD.schema)


def part(struct: Column, ordinal: int) -> Call:
    kind = struct.type.field(ordinal).type
    return Call("GetStructField", (struct,), kind, (("ordinal", ordinal), ("name", None)))


def is_there(expr: Expr) -> Call:
    return Call("IsNotNull", (expr,), pa.bool_())


IS_FIRST = Call("EqualTo", (KIND, Literal(pa.scalar(1))), pa.bool_())
CONDITIONS = {
    "a field": is_there(part(WHOLE, 0)),
    "a column, then a field": Call("And", (IS_FIRST, is_there(part(WHOLE, 0))), pa.bool_()),
    "a field, then a column": Call("And", (is_there(part(OTHER, 1)), IS_FIRST), pa.bool_()),
    "nothing passes": Call("And", (IS_FIRST, Call("IsNull", (KIND,), pa.bool_())), pa.bool_()),
    "a struct": is_there(WHOLE),
}
PROJECTIONS = {
    "fields": (part(WHOLE, 1), part(OTHER, 0)),
    "a field and its struct": (part(WHOLE, 1), WHOLE, part(OTHER, 0)),
    "a column": (KIND, part(OTHER, 1)),
}


def some_rows() -> pa.RecordBatch:
    """The values; under a null struct there are some that nobody must see."""
    columns = []
    for name in ROWS.names:
        values = [row[name] for row in VALUES]
        if name == "kind":
            columns.append(pa.array(values, LONG))
            continue
        under = [{"a": 99, "b": "hidden"} if value is None else value for value in values]
        mask = pa.array([value is None for value in values])
        parts = pa.array(under, INNER).flatten()
        columns.append(pa.StructArray.from_arrays(parts, fields=list(INNER), mask=mask))
    return pa.RecordBatch.from_arrays(columns, schema=CHILD.schema)


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
@pytest.mark.parametrize("exprs", PROJECTIONS.values(), ids=PROJECTIONS)
def test_it_gives_what_the_filter_and_the_projection_give(
    condition: Expr, exprs: tuple[Expr, ...]
) -> None:
    below = n.Filter(schema=CHILD.schema, child=CHILD, condition=condition)
    schema = pa.schema([(f"c{place}", expr.type) for place, expr in enumerate(exprs)])
    node = n.Project(schema=schema, child=below, exprs=exprs)
    both = build_narrow(node, below)
    assert both is not None
    rows = some_rows()

    for start in range(3):  # of slices, fields are slices too
        delta = Delta(rows.slice(start), np.arange(1, len(rows) + 1 - start))
        passed = [part for part in build_filter(below).on_batch(0, delta) if len(part)]
        expected = [row for part in passed for row in build_project(node).on_batch(0, part)]
        given = both.on_batch(0, delta)

        assert [part.batch.to_pylist() for part in given] == [
            part.batch.to_pylist() for part in expected
        ]
        assert [part.batch.schema for part in given] == [part.batch.schema for part in expected]
        assert [part.all_weights().tolist() for part in given] == [
            part.all_weights().tolist() for part in expected
        ]


def test_where_no_field_is_read_there_is_nothing_to_take_out() -> None:
    below = n.Filter(schema=CHILD.schema, child=CHILD, condition=is_there(WHOLE))
    node = n.Project(schema=pa.schema([("c", LONG)]), child=below, exprs=(KIND,))

    assert build_narrow(node, below) is None
