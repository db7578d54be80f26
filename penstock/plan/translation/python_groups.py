"""Python functions over groups: applyInPandas, applyInArrow, cogroups, applyInPandasWithState."""

from __future__ import annotations

from penstock.plan import nodes as n
from penstock.plan.exprs import Column
from penstock.plan.translation.python_functions import (
    function_of,
    positions_of,
    select_columns,
    split_keys,
)
from penstock.plan.translation.registry import Translation, translates
from penstock.plan.tree import Attribute, PlanTree, schema_of, user_schema

_Side = tuple[n.Node, tuple[Attribute, ...], tuple[Attribute, ...], tuple[int, ...]]


@translates("FlatMapGroupsInPandas", "FlatMapGroupsInArrow")
def translate_groups(translation: Translation, tree: PlanTree) -> n.Node:
    """Its child has the keys, then all columns of the data."""
    return _grouped_map(translation, tree, (len(tree.exprs_of("groupingAttributes")),))


@translates("FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow")
def translate_cogroups(translation: Translation, tree: PlanTree) -> n.Node:
    counts = (tree.int_of("leftGroupingLen"), tree.int_of("rightGroupingLen"))
    return _grouped_map(translation, tree, counts)


def _grouped_map(translation: Translation, tree: PlanTree, counts: tuple[int, ...]) -> n.Node:
    expr = tree.expr_of("functionExpr")
    kind, function = function_of(translation, expr, tree)
    sides = [
        _side(translation, tree, child, count)
        for child, count in zip(tree.children, counts, strict=True)
    ]
    by_side = [keys for _, _, keys, _ in sides]
    _check_keys(translation, tree, by_side)
    timed = (
        position
        for position, pair in enumerate(zip(*by_side, strict=True))
        if all(key.watermark_ms is not None for key in pair)
    )
    return n.GroupedMap(
        schema=schema_of(tree.output),
        inputs=tuple(node for node, _, _, _ in sides),
        keys=tuple(tuple(Column(a.column, a.type) for a in keys) for keys in by_side),
        function=function,
        kind=kind,
        name=str(expr.fields["name"]),
        input_schemas=tuple(user_schema(columns) for _, columns, _, _ in sides),
        output_schema=user_schema(tree.output),
        values=tuple(values for _, _, _, values in sides),
        time_key=next(timed, None),
        settings=expr.pairs_of("settings"),
    )


def _side(translation: Translation, tree: PlanTree, child: PlanTree, key_count: int) -> _Side:
    """An input: its node, the distinct columns, those that are the key, and where values are."""
    columns, keys = split_keys(child.output, key_count)
    node = select_columns(
        translation, tree, translation.node(child), positions_of(columns, child.output)
    )
    return node, columns, keys, tuple(positions_of(child.output[key_count:], columns))


def _check_keys(
    translation: Translation, tree: PlanTree, by_side: list[tuple[Attribute, ...]]
) -> None:
    if any(key.is_session for keys in by_side for key in keys):
        translation.refuse(
            tree,
            "a function over session windows, which merge as rows come",
            "use an aggregate function of yours: groupBy(session_window(...)).agg(pandas_udf)",
        )
    for pair in zip(*by_side, strict=True):
        if len({str(key.type) for key in pair}) > 1:
            names = " and ".join(f"{key.name} {key.type}" for key in pair)
            translation.refuse(tree, f"a cogroup by {names}", "cast them to one type")


@translates("FlatMapGroupsInPandasWithState")
def translate_groups_with_state(translation: Translation, tree: PlanTree) -> n.Node:
    """Its child has the columns of the data, and the keys among them."""
    expr = tree.expr_of("functionExpr")
    _, function = function_of(translation, expr, tree)
    data = tree.children[0].output
    columns = tuple({a.column: a for a in data}.values())
    by_name = {a.column: a for a in columns}
    keys = [by_name[key.column] for key in tree.exprs_of("groupingAttributes")]
    child = select_columns(translation, tree, translation.child(tree), positions_of(columns, data))
    times = [a.column for a in columns if a.watermark_ms is not None]
    timeout = str(tree.fields["timeout"])
    if timeout == "EventTimeTimeout" and not times:
        translation.refuse(
            tree, "EventTimeTimeout on rows without a watermark", "call withWatermark"
        )
    if not keys:
        translation.refuse(tree, "a function with state over rows without a key", "groupBy a key")
    return n.GroupedMapWithState(
        schema=schema_of(tree.output),
        child=child,
        keys=tuple(Column(a.column, a.type) for a in keys),
        function=function,
        name=str(expr.fields["name"]),
        state_type=str(tree.fields["stateType"]),
        timeout=timeout,
        input_schema=user_schema(columns),
        output_schema=user_schema(tree.output),
        values=tuple(positions_of(data, columns)),
        event_time=times[0] if times else None,
        settings=expr.pairs_of("settings"),
    )
