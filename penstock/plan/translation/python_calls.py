"""Calls of the user's aggregate functions: from a group's columns to one value."""

from __future__ import annotations

from penstock.plan import nodes as n
from penstock.plan.translation.python_functions import function_of, named_arguments
from penstock.plan.translation.registry import Translation
from penstock.plan.tree import ExprTree, PlanTree


def translate_python_call(
    translation: Translation, tree: ExprTree, where: PlanTree
) -> n.AggregateCall:
    """An `AggregateExpression` of a PythonUDAF, not judged."""
    called, *filters = tree.children
    args, keywords = named_arguments(translation, called.children, where)
    kind, function = function_of(translation, called, where)
    python = n.PythonAggregate(
        function=function,
        kind=kind,
        name=str(called.fields["name"]),
        keywords=keywords,
        settings=called.pairs_of("settings"),
    )
    return n.AggregateCall(
        function=called.kind,
        args=args,
        type=called.arrow_type,
        filter=translation.expr(filters[0], where) if filters else None,
        distinct=bool(tree.fields["isDistinct"]),
        options=(("python", python),),
    )
