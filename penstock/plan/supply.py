"""Columns that expressions ask for and no stream lists: when a row was appended, and the values of
scalar subqueries.

The translation names them; this finds them a way from where they are known to where they are used.
The append time is a column of the scan (stream/metadata.py), and each row brings it along as far as
it is one row of one stream: not through an aggregation, or a join of streams. The value of a
subquery is a static table of one row, joined to the rows that ask for it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Final

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.changes import is_static
from penstock.plan.exprs import Call, Column, Expr, Lambda, Literal, columns
from penstock.plan.refusals import Refusals

#: The time at which the log took a row's entry; the name of it in a stream's metadata.
TIME: Final = "_time"
PRESENT: Final = Column("_time#appended", pa.timestamp("us", tz="UTC"))
#: They show all columns that they are given, then their own.
_SHOW_ALL: Final = (n.Filter, n.Deduplicate, n.PythonEval, n.Window, n.TopN, n.Sort)


@dataclass(frozen=True, slots=True)
class Subquery:
    """A scalar subquery: its column, and the static table of one row that holds its value."""

    column: Column
    table: n.Static


def supply(
    root: n.Node,
    subqueries: Mapping[str, Subquery],
    without: Collection[str],
    refusals: Refusals,
) -> n.Node:
    """The plan with every such column brought to where it is asked for.

    `without`: streams whose rows have no append time here, since a column of theirs has its name.
    """
    return root.rebuild(_Supplier(subqueries, without, refusals).supply)


class _Supplier:
    def __init__(
        self, subqueries: Mapping[str, Subquery], without: Collection[str], refusals: Refusals
    ) -> None:
        self._subqueries = subqueries
        self._without = without
        self._refusals = refusals

    def supply(self, node: n.Node) -> n.Node:
        """The node over children that have what its own expressions ask for."""
        asked = {name for expr in _exprs_of(node) for name in columns(expr)}
        wanted = [self._subqueries[name] for name in sorted(asked & set(self._subqueries))]
        if not wanted and PRESENT.name not in asked:
            return node
        port = _stream_port(node)
        child = node.children[port]
        for subquery in wanted:
            child = _join_value(child, subquery)
        if PRESENT.name in asked and isinstance(node, n.Join) and not _shows_stream(node):
            self._refuse(node, node)
        elif PRESENT.name in asked:
            child = self._with_present(child, node)
        children = list(node.children)
        children[port] = child
        made = node.with_children(tuple(children))
        if not isinstance(node, _SHOW_ALL):
            return made
        own = list(node.schema)[len(node.children[port].schema) :]
        made = replace(made, schema=pa.schema([*child.schema, *own]))
        return n.Project(schema=node.schema, child=made, exprs=n.columns_of(node.schema))

    def _with_present(self, node: n.Node, asks: n.Node) -> n.Node:
        """The node with the append time of its rows as one more column, the last."""
        schema = node.schema.append(pa.field(PRESENT.name, PRESENT.type))
        if PRESENT.name in node.schema.names:
            return node
        match node:
            case n.Scan():
                if node.stream in self._without:
                    self._refusals.add(
                        node.stream,
                        "current_timestamp() and the like: a column of the stream is called _time",
                        "give that column another name",
                    )
                return replace(node, schema=schema, columns=(*node.columns, TIME))
            case n.Project():
                child = self._with_present(node.child, asks)
                return replace(node, schema=schema, child=child, exprs=(*node.exprs, PRESENT))
            case n.Filter() | n.Watermark():
                child = self._with_present(node.child, asks)
                return replace(node, schema=child.schema, child=child)
            case n.Expand():
                child = self._with_present(node.child, asks)
                rows = tuple((*exprs, PRESENT) for exprs in node.projections)
                return replace(node, schema=schema, child=child, projections=rows)
            case n.Generate():
                kept = len(node.kept)
                schema = node.schema.insert(kept, pa.field(PRESENT.name, PRESENT.type))
                child = self._with_present(node.child, asks)
                kept_names = (*node.kept, PRESENT.name)
                return _last(replace(node, schema=schema, child=child, kept=kept_names))
            case n.PythonEval():
                child = self._with_present(node.child, asks)
                calls = list(node.schema)[len(node.child.schema) :]
                schema = pa.schema([*child.schema, *calls])
                return _last(replace(node, schema=schema, child=child))
            case n.Union() if not any(is_static(child) for child in node.inputs):
                inputs = tuple(self._with_present(child, asks) for child in node.inputs)
                return replace(node, schema=schema, inputs=tuple(_last(one) for one in inputs))
            case n.Join() if _shows_stream(node):
                port = _stream_port(node)
                children = list(node.children)
                children[port] = self._with_present(children[port], asks)
                return replace(node.with_children(tuple(children)), schema=schema)
        self._refuse(node, asks)
        return n.Project(
            schema=schema,
            child=node,
            exprs=(*n.columns_of(node.schema), Literal(pa.scalar(None, PRESENT.type))),
        )

    def _refuse(self, node: n.Node, asks: n.Node) -> None:
        name = type(node).__name__
        self._refusals.add(
            type(asks).__name__,
            "current_timestamp() and the like are the time at which the log took a row, and what "
            f"comes out of {'an' if name[0] in 'AEIOU' else 'a'} {name} is no row of one stream",
            "compute it before: df.withColumn('seen', current_timestamp()), and take max(seen) "
            "along; when a result was committed is told by Stream.df(spark, metadata=['_time'])",
        )


def _shows_stream(node: n.Join) -> bool:
    """Whether this joins a stream and a table, and every row that it shows is one of the stream."""
    if is_static(node.left) == is_static(node.right):
        return False
    if _stream_port(node) == 0:
        return node.kind in ("inner", "left", "semi", "anti", "existence")
    return node.kind in ("inner", "right")


def _stream_port(node: n.Node) -> int:
    """The child whose rows bring such a column: the first one that a stream feeds."""
    return next((port for port, child in enumerate(node.children) if not is_static(child)), 0)


def _last(node: n.Node) -> n.Node:
    """The node with the append time as the last of its columns, as unions have it."""
    shown = [field for field in node.schema if field.name != PRESENT.name]
    schema = pa.schema([*shown, pa.field(PRESENT.name, PRESENT.type)])
    if schema.names == node.schema.names:
        return node
    return n.Project(schema=schema, child=node, exprs=n.columns_of(schema))


def _join_value(child: n.Node, subquery: Subquery) -> n.Node:
    column = subquery.column
    if column.name in child.schema.names:
        return child
    schema = child.schema.append(pa.field(column.name, column.type))
    return n.Join(
        schema=schema, left=child, right=subquery.table, kind="inner",
        left_keys=(), right_keys=(), null_safe=(),
    )  # fmt: skip


def _exprs_of(value: object) -> Iterator[Expr]:
    """All expressions of a node itself, wherever in its fields they are."""
    for field in fields(value) if is_dataclass(value) else ():
        yield from _exprs_in(getattr(value, field.name))


def _exprs_in(value: object) -> Iterator[Expr]:
    match value:
        case n.Node():
            return
        case Column() | Literal() | Call() | Lambda():
            yield value
        case tuple():
            for item in value:
                yield from _exprs_in(item)
        case n.UdfCall() | n.AggregateCall() | n.Order() | n.WindowCall():
            yield from _exprs_of(value)
