"""Python functions of the neutral tree: UDFs, mapInArrow and mapInPandas, transformWithState."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any, Final

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Expr
from penstock.plan.translation.registry import Translation, translates
from penstock.plan.tree import Attribute, ExprTree, PlanTree, schema_of, user_schema

_TIME_MODES: Final[dict[str, n.TimeMode]] = {
    "NoTime": "none",
    "ProcessingTime": "processingtime",
    "EventTime": "eventtime",
}


@translates("ArrowEvalPython", "BatchEvalPython")
def translate_python_eval(translation: Translation, tree: PlanTree) -> n.Node:
    """The child's columns, then the functions' results."""
    child = translation.child(tree)
    udfs = tree.exprs_of("udfs")
    return n.PythonEval(
        schema=schema_of(tree.output),
        child=child,
        calls=tuple(_call(translation, udf, tree) for udf in udfs),
        settings=udfs[0].pairs_of("settings"),
    )


def _call(translation: Translation, tree: ExprTree, where: PlanTree) -> n.UdfCall:
    args: list[Expr | n.UdfCall] = []
    keywords: list[str | None] = []
    for child in tree.children:
        keyword = None
        if child.kind == "NamedArgumentExpression":
            keyword = str(child.fields["key"])
            child = child.children[0]
        keywords.append(keyword)
        if child.kind == "PythonUDF":
            args.append(_call(translation, child, where))
        else:
            args.append(translation.expr(child, where))
    kind, function = function_of(translation, tree, where)
    return n.UdfCall(
        function=function,
        kind=kind,
        args=tuple(args),
        type=tree.arrow_type,
        name=str(tree.fields["name"]),
        keywords=tuple(keywords),
        deterministic=bool(tree.fields["udfDeterministic"]),
    )


def named_arguments(
    translation: Translation, trees: Sequence[ExprTree], where: PlanTree
) -> tuple[tuple[Expr, ...], tuple[str | None, ...]]:
    """The arguments of a call, and the name of each that has one."""
    args: list[Expr] = []
    keywords: list[str | None] = []
    for tree in trees:
        is_named = tree.kind == "NamedArgumentExpression"
        keywords.append(str(tree.fields["key"]) if is_named else None)
        args.append(translation.expr(tree.children[0] if is_named else tree, where))
    return tuple(args), tuple(keywords)


def function_of(
    translation: Translation, tree: ExprTree, where: PlanTree
) -> tuple[int, Callable[..., object]]:
    kind, function = tree.fields["evalType"], tree.fields["func"]
    assert isinstance(kind, int)
    translation.refuse(where, translation.judges.udf(kind))
    if not callable(function):
        translation.refuse(
            where,
            f"{tree.fields['name']}: one of its broadcast variables was destroyed",
            "destroy it when the query runs, or after",
        )
        return kind, _refused
    return kind, function


def _refused(*args: object) -> object:
    """Stands for a function that could not be read, so that the rest is looked at too."""
    raise AssertionError("a refused query runs")


@translates("MapInArrow", "MapInPandas")
def translate_map_batches(translation: Translation, tree: PlanTree) -> n.Node:
    child = translation.child(tree)
    expr = tree.expr_of("functionExpr")
    kind, function = function_of(translation, expr, tree)
    if tree.fields["isBarrier"]:
        translation.refuse(tree, "barrier=True: tasks do not start together here")
    return n.MapBatches(
        schema=schema_of(tree.output),
        child=child,
        function=function,
        kind=kind,
        name=str(expr.fields["name"]),
        input_schema=user_schema(tree.children[0].output),
        output_schema=user_schema(tree.output),
        settings=expr.pairs_of("settings"),
    )


@translates("TransformWithStateInPySpark")
def translate_with_state(translation: Translation, tree: PlanTree) -> n.Node:
    """Its child has the keys, then all columns of the data."""
    child = translation.child(tree)
    expr = tree.expr_of("functionExpr")
    kind, function = function_of(translation, expr, tree)
    processor = _processor_of(function)
    time_mode = _TIME_MODES[str(tree.fields["timeMode"])]
    data, keys = split_keys(tree.children[0].output, tree.int_of("groupingAttributesLen"))
    times = [a.column for a in data if a.watermark_ms is not None]
    if time_mode == "eventtime" and not times:
        translation.refuse(
            tree, "timeMode eventTime on rows without a watermark", "call withWatermark"
        )
    node = n.TransformWithState(
        schema=schema_of(tree.output),
        child=select_columns(translation, tree, child, positions_of(data, tree.children[0].output)),
        processor=processor,
        kind=kind,
        keys=tuple(Column(a.column, a.type) for a in keys),
        time_mode=time_mode,
        input_schema=user_schema(data),
        output_schema=user_schema(tree.output),
        event_time=times[0] if times else None,
        initial=_initial(translation, tree),
        settings=expr.pairs_of("settings"),
    )
    if processor is not None:
        translation.refuse(tree, translation.judges.processor(node))
    return node


def _processor_of(function: Callable[..., object]) -> object | None:
    """The user's StatefulProcessor; None if the function was refused.

    PySpark hands a method of its own helper to Spark, and the helper holds the processor.
    """
    helper: Any = function.__self__ if isinstance(function, MethodType) else None
    return None if helper is None else helper._stateful_processor


def _initial(translation: Translation, tree: PlanTree) -> n.Static | None:
    if not tree.fields["hasInitialState"]:
        return None
    initial = translation.node(tree.children[1])
    if isinstance(initial, n.Static):
        return initial
    translation.refuse(tree, "an initial state that is a stream")
    return None


@translates("UpdateEventTimeWatermarkColumn")
def translate_output_time(translation: Translation, tree: PlanTree) -> n.Node:
    """The eventTimeColumnName of a transformWithState below."""
    child = translation.child(tree)
    if not isinstance(child, n.TransformWithState):
        translation.refuse(tree, "a new event time column on anything but a processor")
        return child
    return replace(child, output_time=tree.expr_of("eventTime").column)


def split_keys(
    output: tuple[Attribute, ...], key_count: int
) -> tuple[tuple[Attribute, ...], tuple[Attribute, ...]]:
    """The distinct columns as the processor sees them, and those that are the key."""
    keys, data = output[:key_count], output[key_count:]
    of_data = {a.column for a in data}
    whole = [a for a in keys if a.column not in of_data] + list(data)
    return tuple({a.column: a for a in whole}.values()), keys


def positions_of(chosen: tuple[Attribute, ...], output: tuple[Attribute, ...]) -> list[int]:
    names = [a.column for a in output]
    return [names.index(a.column) for a in chosen]


def select_columns(
    translation: Translation, tree: PlanTree, node: n.Node, positions: list[int]
) -> n.Node:
    """The node's columns at these positions; each name once, though Spark lists keys twice."""
    schema = pa.schema([node.schema.field(i) for i in positions])
    match node:
        case n.Project():
            exprs = tuple(node.exprs[i] for i in positions)
            return n.Project(schema=schema, child=node.child, exprs=exprs)
        case n.Union():
            inputs = tuple(
                select_columns(translation, tree, each, positions) for each in node.inputs
            )
            return n.Union(schema=schema, inputs=inputs)
        case n.Filter():
            child = select_columns(translation, tree, node.child, positions)
            return n.Filter(schema=schema, child=child, condition=node.condition)
        case _:
            if len(set(node.schema.names)) < len(node.schema):
                translation.refuse(tree, "grouping by a column that the plan has twice")
            return n.Project(schema=schema, child=node, exprs=n.columns_of(schema))
