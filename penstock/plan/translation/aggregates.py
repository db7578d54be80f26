"""Aggregations, and the calls of aggregate functions."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Literal
from penstock.plan.refusals import IN_PYTHON
from penstock.plan.translation.expressions import options
from penstock.plan.translation.python_calls import translate_python_call
from penstock.plan.translation.registry import Translation, translates
from penstock.plan.translation.remedies import remedy_of
from penstock.plan.translation.rows import as_columns, project
from penstock.plan.tree import ExprTree, PlanTree, schema_of

_EXPR_ID: Final = re.compile(r"ExprId\((\d+)")
#: Of no keys and no calls there is one row, about which nothing is asked.
_COUNT_ROWS: Final = n.AggregateCall("Count", (Literal(pa.scalar(1, pa.int32())),), pa.int64())


@translates("Aggregate")
def translate_aggregate(translation: Translation, tree: PlanTree) -> n.Node:
    child = translation.child(tree)
    grouping = translation.exprs(tree.exprs_of("groupingExpressions"), tree)
    child, columns = as_columns(child, grouping, "group")
    keys = tuple(dict.fromkeys(columns))
    calls: dict[n.AggregateCall, str] = {}
    column_of = partial(_column_of, translation, tree, calls)
    results = tuple(
        translation.expr_over(expr, tree, "AggregateExpression", column_of)
        for expr in tree.exprs_of("aggregateExpressions")
    )
    if not keys and not calls:
        calls[_COUNT_ROWS] = "Count#rows"
    fields = [pa.field(key.name, key.type) for key in keys]
    fields += [pa.field(name, call.type) for call, name in calls.items()]
    event_time, session = _times_of(keys, tree.children[0])
    aggregate = n.Aggregate(
        schema=pa.schema(fields),
        child=child,
        keys=keys,
        calls=tuple(calls),
        event_time=event_time,
        session=session,
    )
    return project(aggregate, results, schema_of(tree.output))


def _times_of(keys: tuple[Column, ...], child: PlanTree) -> tuple[str | None, str | None]:
    """The key that carries event time, and the key that is a session; None where there is none."""
    attributes = {attribute.column: attribute for attribute in child.output}
    of_keys = [attributes[key.name] for key in keys if key.name in attributes]
    timed = [a.column for a in of_keys if a.watermark_ms is not None]
    sessions = [a.column for a in of_keys if a.is_session]
    # Of several event times that of the session: only it tells when a session closes.
    event_time = next((name for name in (*sessions, *timed) if name in timed), None)
    return event_time, sessions[0] if sessions else None


def _column_of(
    translation: Translation,
    where: PlanTree,
    calls: dict[n.AggregateCall, str],
    tree: ExprTree,
) -> Column:
    """The column of an aggregate call, which is added to the calls if it is not among them."""
    call = translate_call(translation, tree, where)
    problem = translation.judges.aggregate(call)
    translation.refuse(where, problem, remedy_of(problem, IN_PYTHON))
    result = _EXPR_ID.match(tree.text_of("resultId"))
    assert result is not None
    return Column(calls.setdefault(call, f"{call.function}#{result[1]}"), call.type)


def translate_call(translation: Translation, tree: ExprTree, where: PlanTree) -> n.AggregateCall:
    """An `AggregateExpression`, not judged: a window function is judged as such."""
    function, *filters = tree.children
    if function.kind == "PythonUDAF":
        return translate_python_call(translation, tree, where)
    terms = [child for child in function.children if child.kind == "SortOrder"]
    rest = [child for child in function.children if child.kind != "SortOrder"]
    args = translation.exprs(rest, where)
    orders = translation.order(terms, where)  # WITHIN GROUP (ORDER BY ...)
    chosen: tuple[tuple[str, object], ...] = options(function)
    if orders:
        chosen += (("orders", tuple((o.descending, o.nulls_first) for o in orders)),)
    return n.AggregateCall(
        function=function.kind,
        args=args + tuple(order.expr for order in orders),
        type=function.arrow_type,
        filter=translation.expr(filters[0], where) if filters else None,
        distinct=bool(tree.fields["isDistinct"]),
        options=chosen,
    )
