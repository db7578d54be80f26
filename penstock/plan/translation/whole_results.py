"""Sorting and limits, which only a whole result can show (plan/finish.py)."""

from __future__ import annotations

from penstock.plan import nodes as n
from penstock.plan.exprs import Literal
from penstock.plan.translation.registry import Translation, translates
from penstock.plan.tree import PlanTree


@translates("Sort")
def translate_sort(translation: Translation, tree: PlanTree) -> n.Node:
    child = translation.child(tree)
    if not tree.fields["global"]:
        problem = "sortWithinPartitions: Spark's partitions do not exist here"
        translation.refuse(tree, problem, "leave it out")
        return child
    order = translation.order(tree.exprs_of("order"), tree)
    return n.Sort(schema=child.schema, child=child, order=order)


@translates("GlobalLimit")
def translate_limit(translation: Translation, tree: PlanTree) -> n.Node:
    child = translation.child(tree)
    count = _number(translation, tree, "limitExpr")
    return n.Limit(schema=child.schema, child=child, count=count)


@translates("Offset")
def translate_offset(translation: Translation, tree: PlanTree) -> n.Node:
    child = translation.child(tree)
    offset = _number(translation, tree, "offsetExpr")
    return n.Limit(schema=child.schema, child=child, count=None, offset=offset)


def _number(translation: Translation, tree: PlanTree, field: str) -> int:
    expr = translation.expr(tree.expr_of(field), tree)
    value = expr.value.as_py() if isinstance(expr, Literal) else None
    assert isinstance(value, int), "Spark has checked that it is a constant"
    return value
