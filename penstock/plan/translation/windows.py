"""Window functions of the neutral tree: row_number, rank, lag, aggregates over frames."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, Literal
from penstock.plan.translation.aggregates import translate_call
from penstock.plan.translation.expressions import options
from penstock.plan.translation.registry import Translation, translates
from penstock.plan.translation.rows import project
from penstock.plan.tree import ExprTree, PlanTree, schema_of

_DAY_US: Final = 86_400_000_000
#: Their arguments repeat the window's order.
_RANKS: Final = frozenset({"Rank", "DenseRank", "PercentRank"})


@translates("Window")
def translate_window(translation: Translation, tree: PlanTree) -> n.Node:
    """The child's columns and the functions, then the node's output over them."""
    child = translation.child(tree)
    columns = _WindowColumns(list(child.schema), [])
    expressions = tree.exprs_of("windowExpressions")
    outputs = tree.output[-len(expressions) :]
    results: list[Expr] = list(n.columns_of(child.schema))
    for expression, output in zip(expressions, outputs, strict=True):
        is_plain = expression.children[0].kind == "WindowExpression"
        name = output.column if is_plain else None
        column_of = partial(_column_of, translation, tree, columns, name)
        results.append(translation.expr_over(expression, tree, "WindowExpression", column_of))
    partition = _partition(translation, tree)
    window = n.Window(
        schema=pa.schema(columns.fields),
        child=child,
        partition=partition,
        order=translation.order(tree.exprs_of("orderSpec"), tree),
        calls=tuple(columns.calls),
        event_time=_event_time(partition, tree),
    )
    return project(window, tuple(results), schema_of(tree.output))


@dataclass(frozen=True, slots=True)
class _WindowColumns:
    """The columns of a Window so far, and the functions among them."""

    fields: list[pa.Field]
    calls: list[n.WindowCall]


def _column_of(
    translation: Translation,
    where: PlanTree,
    columns: _WindowColumns,
    name: str | None,
    function: ExprTree,
) -> Column:
    """The column of a window function; unnamed if it is only part of an output column."""
    call = _call(translation, function, where)
    column = Column(name or f"window#call{len(columns.calls)}", call.type)
    columns.calls.append(call)
    columns.fields.append(pa.field(column.name, call.type))
    return column


@translates("WindowGroupLimit")
def translate_window_limit(translation: Translation, tree: PlanTree) -> n.Node:
    """Spark's own cut below `rank <= n`."""
    child = translation.child(tree)
    partition = _partition(translation, tree)
    return n.TopN(
        schema=child.schema,
        child=child,
        partition=partition,
        order=translation.order(tree.exprs_of("orderSpec"), tree),
        function=tree.expr_of("rankLikeFunction").kind,
        limit=tree.int_of("limit"),
        event_time=_event_time(partition, tree),
    )


def _event_time(partition: tuple[Column, ...], tree: PlanTree) -> str | None:
    """The partition column that carries event time, if any."""
    watermarks = tree.children[0].watermarks
    return next((key.name for key in partition if key.name in watermarks), None)


def _partition(translation: Translation, tree: PlanTree) -> tuple[Column, ...]:
    keys = []
    for expr in translation.exprs(tree.exprs_of("partitionSpec"), tree):
        if isinstance(expr, Call) and expr.function == "NormalizeNaNAndZero":
            (expr,) = expr.args  # as every grouping does by itself
        if isinstance(expr, Column):
            keys.append(expr)
        elif not isinstance(expr, Literal):  # a constant does not partition
            translation.refuse(
                tree,
                "a window partitioned by an expression",
                "name the expression with withColumn and partition by that column",
            )
    return tuple(keys)


def _call(translation: Translation, tree: ExprTree, where: PlanTree) -> n.WindowCall:
    function, spec = tree.children
    frame = spec.children[-1]
    is_range = frame.text_of("frameType").startswith("Range")
    range_by = None
    if is_range and any(bound.kind == "Literal" for bound in frame.children):
        terms = [child for child in spec.children if child.kind == "SortOrder"]
        (range_by,) = translation.order(terms, where)
    lower, upper = (_bound(translation, bound, range_by, where) for bound in frame.children)
    aggregate = None
    args: tuple[Expr, ...] = ()
    if function.kind == "AggregateExpression":
        aggregate = translate_call(translation, function, where)
        function = function.children[0]
    elif function.kind not in _RANKS:
        args = translation.exprs(function.children, where)
    call = n.WindowCall(
        function=function.kind,
        args=args,
        type=function.arrow_type,
        frame="range" if is_range else "rows",
        lower=lower,
        upper=upper,
        range_by=range_by,
        options=options(function),
        aggregate=aggregate,
    )
    translation.refuse(where, translation.judges.window(call))
    return call


def _bound(
    translation: Translation, tree: ExprTree, range_by: n.Order | None, where: PlanTree
) -> int | float | None:
    """An offset from the current row, of a range from its value; None is unbounded."""
    if tree.kind.startswith("Unbounded"):
        return None
    if tree.kind.startswith("CurrentRow"):
        return 0
    value = tree.fields.get("value")
    offset = None
    if isinstance(value, pa.Scalar):
        offset = (
            _row_offset(value) if range_by is None else _range_offset(value, range_by.expr.type)
        )
    if offset is None:
        translation.refuse(
            where,
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
