"""Fields of structs taken out before rows are left out: a filter and the projection above it.

To leave out rows of a struct costs Arrow a call for each of its fields, read or not. A source is
often one wide struct, of which a query reads a few fields. So where a projection stands on a filter
and they read fields of structs, both work on columns of these fields, which cost nothing to take.

Law: it gives what the filter, and then the projection, give.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from penstock.ops.api import Delta, batch_of
from penstock.ops.expressions import compile_projection
from penstock.ops.stateless import Stateless, compile_filter
from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, children, columns, walk


def build_narrow(node: n.Project, below: n.Filter) -> Stateless | None:
    """The projection of what passes the filter below it; None if no field is read of a struct."""
    exprs = (*node.exprs, below.condition)
    whole = frozenset(name for expr in exprs for name in _read_whole(expr))
    fields = list(dict.fromkeys(part for expr in exprs for part in _fields(expr, whole)))
    if not fields:
        return None
    schema = below.child.schema
    kept = [place for place, name in enumerate(schema.names) if name in whole]
    at = [(schema.get_field_index(_struct(part).name), part.option("ordinal")) for part in fields]
    narrow = pa.schema([*map(schema.field, kept), *(_field(part) for part in fields)])
    keep = compile_filter(_narrowed(below.condition, whole), narrow)
    project = compile_projection(
        tuple(_narrowed(expr, whole) for expr in node.exprs), narrow, node.schema
    )

    def apply(delta: Delta) -> list[Delta]:
        batch = delta.batch
        # Null where the struct is, unlike the fields themselves.
        structs = {place: batch.column(place).flatten() for place in dict(at)}
        taken = [structs[place][ordinal] for place, ordinal in at]
        rows = batch_of([*map(batch.column, kept), *taken], narrow, len(delta))
        passed = keep(Delta(rows, delta.weights))
        return [Delta(project(part.batch), part.weights) for part in passed if len(part)]

    return Stateless(apply)


def _is_field(expr: Expr) -> bool:
    return (
        isinstance(expr, Call)
        and expr.function == "GetStructField"
        and isinstance(expr.args[0], Column)
    )


def _struct(part: Call) -> Column:
    (struct,) = part.args
    assert isinstance(struct, Column)
    return struct


def _field(part: Call) -> pa.Field:
    """The column of a field."""
    return pa.field(f"{_struct(part).name}.{part.option('ordinal')}", part.type)


def _read_whole(expr: Expr) -> Iterator[str]:
    """Columns of which more is read than fields; all that a function of the user's own reads."""
    match expr:
        case Column():
            yield expr.name
        case Call() if not _is_field(expr):
            for child in children(expr):
                yield from _read_whole(child)
        case Call():
            pass
        case _:
            yield from columns(expr)


def _fields(expr: Expr, whole: frozenset[str]) -> list[Call]:
    """The fields that are read of structs which are not read as a whole."""
    return [
        part
        for part in walk(expr)
        if isinstance(part, Call) and _is_field(part) and _struct(part).name not in whole
    ]


def _narrowed(expr: Expr, whole: frozenset[str]) -> Expr:
    """The expression over the columns of fields."""
    if not isinstance(expr, Call):
        return expr
    if _is_field(expr) and _struct(expr).name not in whole:
        field = _field(expr)
        return Column(field.name, field.type)
    return replace(expr, args=tuple(_narrowed(arg, whole) for arg in expr.args))
