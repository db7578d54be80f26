"""Window functions of the neutral tree: row_number, rank, lag, aggregates over frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pt

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, Literal
from penstock.plan.translate_expr import options
from penstock.plan.tree import ExprTree, PlanTree

_DAY_US: Final = 86_400_000_000
#: Their arguments repeat the window's order.
_RANKS: Final = frozenset({"Rank", "DenseRank", "PercentRank"})

if TYPE_CHECKING:
    from penstock.plan.translate import _Translator


def translate_window(
    translator: _Translator, tree: PlanTree, child: n.Node
) -> tuple[n.Window | n.TopN, tuple[Expr, ...]]:
    """`Window`: the child's columns and the functions; and the node's output over them."""
    found = _Found(list(child.schema), [])
    expressions = translator.list_of(tree, "windowExpressions")
    outputs = tree.output[-len(expressions) :]
    shown: list[Expr] = list(n.columns_of(child.schema))
    for expression, output in zip(expressions, outputs, strict=True):
        is_plain = expression.children[0].kind == "WindowExpression"
        name = output.column if is_plain else None
        column_of = partial(_column_of, translator, tree, found, name)
        shown.append(translator.over(expression, tree, "WindowExpression", column_of))
    schema, calls = pa.schema(found.fields), tuple(found.calls)
    partition = _partition(translator, tree)
    order = translate_order(translator, translator.list_of(tree, "orderSpec"), tree)
    child = _as_top_n(child, partition, order)
    if isinstance(child, n.TopN) and (child.partition, child.order) == (partition, order):
        # Spark puts its cut right below the ranks that it reads; here they are one operator.
        return replace(child, schema=schema, calls=calls), tuple(shown)
    window = n.Window(
        schema=schema,
        child=child,
        partition=partition,
        order=order,
        calls=calls,
        event_time=_event_time(partition, tree),
    )
    return window, tuple(shown)


def _as_top_n(child: n.Node, partition: tuple[Column, ...], order: tuple[n.Order, ...]) -> n.Node:
    """Without a partition, Spark writes its cut as a limit of the sorted rows."""
    match child:
        case n.Limit(count=int(limit), offset=0, child=n.Sort(order=terms, child=rows)) if (
            not partition and terms == order
        ):
            return n.TopN(
                schema=child.schema,
                child=rows,
                partition=(),
                order=order,
                function="RowNumber",
                limit=limit,
            )
        case _:
            return child


@dataclass(frozen=True, slots=True)
class _Found:
    """The columns of a Window so far, and the functions among them."""

    fields: list[pa.Field]
    calls: list[n.WindowCall]


def _column_of(
    translator: _Translator, where: PlanTree, found: _Found, name: str | None, function: ExprTree
) -> Column:
    """The column of a window function; unnamed if it is only part of an output column."""
    call = _call(translator, function, where)
    column = Column(name or f"window#call{len(found.calls)}", call.type)
    found.calls.append(call)
    found.fields.append(pa.field(column.name, call.type))
    return column


def translate_window_limit(translator: _Translator, tree: PlanTree, child: n.Node) -> n.Node:
    """`WindowGroupLimit`: Spark's own cut below `rank <= n`."""
    function = tree.fields["rankLikeFunction"]
    limit = tree.fields["limit"]
    assert isinstance(function, ExprTree) and isinstance(limit, int)
    partition = _partition(translator, tree)
    return n.TopN(
        schema=child.schema,
        child=child,
        partition=partition,
        order=translate_order(translator, translator.list_of(tree, "orderSpec"), tree),
        function=function.kind,
        limit=limit,
        event_time=_event_time(partition, tree),
    )


def _event_time(partition: tuple[Column, ...], tree: PlanTree) -> str | None:
    """The partition column that carries event time, if any."""
    timed = {a.column for a in tree.children[0].output if a.watermark_ms is not None}
    return next((key.name for key in partition if key.name in timed), None)


def _partition(translator: _Translator, tree: PlanTree) -> tuple[Column, ...]:
    keys = []
    for expression in translator.list_of(tree, "partitionSpec"):
        expr = translator.expr(expression, tree)
        if isinstance(expr, Call) and expr.function == "NormalizeNaNAndZero":
            (expr,) = expr.args  # as every grouping does by itself
        if isinstance(expr, Column):
            keys.append(expr)
        elif not isinstance(expr, Literal):  # a constant does not partition
            translator.refusals.add(
                tree.text,
                "a window partitioned by an expression",
                "name the expression with withColumn and partition by that column",
            )
    return tuple(keys)


def translate_order(
    translator: _Translator, terms: tuple[ExprTree, ...], where: PlanTree
) -> tuple[n.Order, ...]:
    """The terms of an ORDER BY."""
    return tuple(_term(translator, term, where) for term in terms)


def _term(translator: _Translator, term: ExprTree, where: PlanTree) -> n.Order:
    return n.Order(
        expr=translator.expr(term.children[0], where),
        descending=str(term.fields["direction"]).startswith("Desc"),
        nulls_first=str(term.fields["nullOrdering"]).startswith("NullsFirst"),
    )


def _call(translator: _Translator, tree: ExprTree, where: PlanTree) -> n.WindowCall:
    function, spec = tree.children
    frame = spec.children[-1]
    is_range = str(frame.fields["frameType"]).startswith("Range")
    bounds = frame.children
    by = None
    if is_range and any(bound.kind == "Literal" for bound in bounds):
        (by,) = (_term(translator, t, where) for t in spec.children if t.kind == "SortOrder")
    lower, upper = (_bound(translator, bound, by, where) for bound in bounds)
    aggregate = None
    args: tuple[Expr, ...] = ()
    if function.kind == "AggregateExpression":
        aggregate = translator.build_aggregate_call(function, where)
        function = function.children[0]
    elif function.kind not in _RANKS:
        args = tuple(translator.expr(child, where) for child in function.children)
    call = n.WindowCall(
        function=function.kind,
        args=args,
        type=function.type if function.type is not None else pa.null(),
        frame="range" if is_range else "rows",
        lower=lower,
        upper=upper,
        range_by=by,
        options=options(function),
        aggregate=aggregate,
    )
    problem = translator.judges.window(call)
    if problem is not None:
        translator.refusals.add(where.text, problem)
    return call


def _bound(
    translator: _Translator, tree: ExprTree, by: n.Order | None, where: PlanTree
) -> int | float | None:
    """An offset from the current row, of a range from its value; None is unbounded."""
    if tree.kind.startswith("Unbounded"):
        return None
    if tree.kind.startswith("CurrentRow"):
        return 0
    value = tree.fields.get("value")
    offset = None
    if isinstance(value, pa.Scalar):
        offset = _row_offset(value) if by is None else _range_offset(value, by.expr.type)
    if offset is None:
        translator.refusals.add(
            where.text,
            "a window frame with such an offset",
            "use whole numbers, or for ranges by time intervals shorter than a day",
        )
    return offset


def _row_offset(value: pa.Scalar) -> int | None:
    offset = value.as_py()
    return offset if isinstance(offset, int) else None


def _range_offset(value: pa.Scalar, by: pa.DataType) -> int | float | None:
    """The offset in units of the order's values; None if sums of the two are not plain sums."""
    if pt.is_integer(by) or pt.is_floating(by):
        return value.as_py() if value.type == by else None
    if pt.is_date32(by) and pt.is_int32(value.type):
        return int(value.as_py())
    if not pt.is_duration(value.type):
        return None
    micros = int(value.cast(pa.int64()).as_py())
    if pt.is_date32(by):
        days, rest = divmod(micros, _DAY_US)
        return None if rest else days
    # A day is as long as the session's time zone has it.
    return micros if pt.is_timestamp(by) and abs(micros) < _DAY_US else None
