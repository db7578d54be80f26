"""Window functions of the neutral tree: row_number, rank, lag, aggregates over frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Expr, Literal
from penstock.plan.translate_expr import options
from penstock.plan.tree import ExprTree, PlanTree

if TYPE_CHECKING:
    from penstock.plan.translate import _Translator


def translate_window(translator: _Translator, tree: PlanTree, child: n.Node) -> n.Node:
    """`Window`: the child's columns, then the functions."""
    calls = tuple(
        _call(translator, expression, tree)
        for expression in translator.list_of(tree, "windowExpressions")
    )
    have = set(child.schema.names)
    fields = list(child.schema)
    fields += [pa.field(a.column, a.type) for a in tree.output if a.column not in have]
    return n.Window(
        schema=pa.schema(fields),
        child=child,
        partition=_partition(translator, tree),
        order=_order(translator, tree),
        calls=calls,
    )


def translate_window_limit(translator: _Translator, tree: PlanTree, child: n.Node) -> n.Node:
    """`WindowGroupLimit`: Spark's own cut below `rank <= n`."""
    function = tree.fields["rankLikeFunction"]
    limit = tree.fields["limit"]
    assert isinstance(function, ExprTree) and isinstance(limit, int)
    return n.TopN(
        schema=child.schema,
        child=child,
        partition=_partition(translator, tree),
        order=_order(translator, tree),
        function=function.kind,
        limit=limit,
    )


def _partition(translator: _Translator, tree: PlanTree) -> tuple[Column, ...]:
    keys = []
    for expression in translator.list_of(tree, "partitionSpec"):
        expr = translator.expr(expression, tree)
        if isinstance(expr, Column):
            keys.append(expr)
        elif not isinstance(expr, Literal):  # a constant does not partition
            translator.refusals.add(
                tree.text,
                "a window partitioned by an expression",
                "name the expression with withColumn and partition by that column",
            )
    return tuple(keys)


def _order(translator: _Translator, tree: PlanTree) -> tuple[n.Order, ...]:
    return tuple(_term(translator, term, tree) for term in translator.list_of(tree, "orderSpec"))


def _term(translator: _Translator, term: ExprTree, where: PlanTree) -> n.Order:
    return n.Order(
        expr=translator.expr(term.children[0], where),
        descending=str(term.fields["direction"]).startswith("Desc"),
        nulls_first=str(term.fields["nullOrdering"]).startswith("NullsFirst"),
    )


def _call(translator: _Translator, tree: ExprTree, where: PlanTree) -> n.WindowCall:
    expression = tree.children[0] if tree.kind == "Alias" else tree
    function, spec = expression.children
    frame = spec.children[-1]
    lower, upper = (_bound(translator, child, where) for child in frame.children)
    aggregate = None
    args: tuple[Expr, ...] = ()
    if function.kind == "AggregateExpression":
        aggregate = translator.aggregate_call(function, where)
        function = function.children[0]
    else:
        args = tuple(translator.expr(child, where) for child in function.children)
    frame_type = str(frame.fields.get("frameType", "RowFrame"))
    call = n.WindowCall(
        function=function.kind,
        args=args,
        type=function.type if function.type is not None else pa.null(),
        frame="range" if frame_type.startswith("Range") else "rows",
        lower=lower,
        upper=upper,
        options=options(function),
        aggregate=aggregate,
    )
    problem = translator.judges.window(call)
    if problem is not None:
        translator.refusals.add(where.text, problem)
    return call


def _bound(translator: _Translator, tree: ExprTree, where: PlanTree) -> int | None:
    """An offset from the current row; None is unbounded."""
    if tree.kind.startswith("Unbounded"):
        return None
    if tree.kind.startswith("CurrentRow"):
        return 0
    value = tree.fields.get("value")
    if isinstance(value, pa.Scalar) and isinstance(value.as_py(), int):
        return int(value.as_py())
    translator.refusals.add(
        where.text,
        "a window frame whose bound is not a whole number",
        "use ROWS BETWEEN with whole numbers",
    )
    return None
