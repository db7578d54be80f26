"""Python functions of the neutral tree: UDFs, mapInArrow and mapInPandas, transformWithState."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Expr
from penstock.plan.tree import Attribute, ExprTree, PlanTree, schema_of, user_schema

if TYPE_CHECKING:
    from penstock.plan.translate import _Translator

_TIME_MODES: Final[dict[str, n.TimeMode]] = {
    "NoTime": "none",
    "ProcessingTime": "processingtime",
    "EventTime": "eventtime",
}


def translate_python_eval(translator: _Translator, tree: PlanTree, child: n.Node) -> n.Node:
    """`BatchEvalPython` and `ArrowEvalPython`: the child's columns, then the functions' results."""
    udfs = translator.list_of(tree, "udfs")
    return n.PythonEval(
        schema=schema_of(tree.output),
        child=child,
        calls=tuple(_call(translator, udf, tree) for udf in udfs),
        settings=_settings(udfs[0]),
    )


def _call(translator: _Translator, tree: ExprTree, where: PlanTree) -> n.UdfCall:
    args: list[Expr | n.UdfCall] = []
    keywords: list[str | None] = []
    for child in tree.children:
        keyword = None
        if child.kind == "NamedArgumentExpression":
            keyword = str(child.fields["key"])
            child = child.children[0]
        keywords.append(keyword)
        if child.kind == "PythonUDF":
            args.append(_call(translator, child, where))
        else:
            args.append(translator.expr(child, where))
    kind, function = _function(translator, tree, where)
    return n.UdfCall(
        function=function,
        kind=kind,
        args=tuple(args),
        type=tree.type if tree.type is not None else pa.null(),
        name=str(tree.fields["name"]),
        keywords=tuple(keywords),
        deterministic=bool(tree.fields["udfDeterministic"]),
    )


def _function(
    translator: _Translator, tree: ExprTree, where: PlanTree
) -> tuple[int, Callable[..., object]]:
    kind, function = tree.fields["evalType"], tree.fields["func"]
    assert isinstance(kind, int)
    problem = translator.judges.udf(kind)
    if problem is not None:
        translator.refusals.add(where.text, problem)
    if not callable(function):
        translator.refusals.add(
            where.text,
            f"{tree.fields['name']}: a function with a broadcast variable, or larger than 1 MiB",
            "let the function read what it needs when it is first called",
        )
        return kind, _refused
    return kind, function


def _refused(*args: object) -> object:
    """Stands for a function that could not be read, so that the rest is looked at too."""
    raise AssertionError("a refused query runs")


def translate_map_batches(translator: _Translator, tree: PlanTree, child: n.Node) -> n.Node:
    """`MapInArrow` and `MapInPandas`."""
    expr = tree.fields["functionExpr"]
    assert isinstance(expr, ExprTree)
    kind, function = _function(translator, expr, tree)
    if tree.fields["isBarrier"]:
        translator.refusals.add(tree.text, "barrier=True: tasks do not start together here")
    return n.MapBatches(
        schema=schema_of(tree.output),
        child=child,
        function=function,
        kind=kind,
        name=str(expr.fields["name"]),
        input_schema=user_schema(tree.children[0].output),
        output_schema=user_schema(tree.output),
        settings=_settings(expr),
    )


def translate_with_state(translator: _Translator, tree: PlanTree, child: n.Node) -> n.Node:
    """`TransformWithStateInPySpark`: its child has the keys, then all columns of the data."""
    expr = tree.fields["functionExpr"]
    assert isinstance(expr, ExprTree)
    kind, function = _function(translator, expr, tree)
    helper = getattr(function, "__self__", None)
    processor: object = getattr(helper, "_stateful_processor", None)
    time_mode = _TIME_MODES[str(tree.fields["timeMode"])]
    key_count = tree.fields["groupingAttributesLen"]
    assert isinstance(key_count, int)
    data, keys = _split_keys(tree.children[0].output, key_count)
    times = [a.column for a in data if a.watermark_ms is not None]
    if time_mode == "eventtime" and not times:
        translator.refusals.add(
            tree.text, "timeMode eventTime on rows without a watermark", "call withWatermark"
        )
    node = n.TransformWithState(
        schema=schema_of(tree.output),
        child=_select(translator, tree, child, _positions(data, tree.children[0].output)),
        processor=processor,
        kind=kind,
        keys=tuple(Column(a.column, a.type) for a in keys),
        time_mode=time_mode,
        input_schema=user_schema(data),
        output_schema=user_schema(tree.output),
        event_time=times[0] if times else None,
        initial=_initial(translator, tree),
        settings=_settings(expr),
    )
    problem = translator.judges.processor(node) if processor is not None else None
    if problem is not None:
        translator.refusals.add(tree.text, problem)
    return node


def _initial(translator: _Translator, tree: PlanTree) -> n.Static | None:
    if not tree.fields["hasInitialState"]:
        return None
    initial = translator.node(tree.children[1])
    if isinstance(initial, n.Static):
        return initial
    translator.refusals.add(tree.text, "an initial state that is a stream")
    return None


def translate_output_time(translator: _Translator, tree: PlanTree, child: n.Node) -> n.Node:
    """`UpdateEventTimeWatermarkColumn`: the eventTimeColumnName of a transformWithState below."""
    column = tree.fields["eventTime"]
    assert isinstance(column, ExprTree)
    if not isinstance(child, n.TransformWithState):
        translator.refusals.add(tree.text, "a new event time column on anything but a processor")
        return child
    return replace(child, output_time=f"{column.fields['name']}#{column.fields['id']}")


def _split_keys(
    output: tuple[Attribute, ...], key_count: int
) -> tuple[tuple[Attribute, ...], tuple[Attribute, ...]]:
    """The distinct columns as the processor sees them, and those that are the key."""
    keys, data = output[:key_count], output[key_count:]
    of_data = {a.column for a in data}
    whole = [a for a in keys if a.column not in of_data] + list(data)
    return tuple({a.column: a for a in whole}.values()), keys


def _positions(chosen: tuple[Attribute, ...], output: tuple[Attribute, ...]) -> list[int]:
    names = [a.column for a in output]
    return [names.index(a.column) for a in chosen]


def _select(translator: _Translator, tree: PlanTree, node: n.Node, positions: list[int]) -> n.Node:
    """The node's columns at these positions; each name once, though Spark lists keys twice."""
    schema = pa.schema([node.schema.field(i) for i in positions])
    match node:
        case n.Project():
            exprs = tuple(node.exprs[i] for i in positions)
            return n.Project(schema=schema, child=node.child, exprs=exprs)
        case n.Union():
            inputs = tuple(_select(translator, tree, each, positions) for each in node.inputs)
            return n.Union(schema=schema, inputs=inputs)
        case n.Filter():
            child = _select(translator, tree, node.child, positions)
            return n.Filter(schema=schema, child=child, condition=node.condition)
        case _:
            if len(set(node.schema.names)) < len(node.schema):
                translator.refusals.add(tree.text, "grouping by a column that the plan has twice")
            return n.Project(schema=schema, child=node, exprs=n.columns_of(schema))


def _settings(tree: ExprTree) -> tuple[tuple[str, str], ...]:
    found = tree.fields["settings"]
    assert isinstance(found, tuple)
    return tuple((str(pair[0]), str(pair[1])) for pair in found if isinstance(pair, tuple))
