"""Spark's optimized plan, as a neutral tree, to the IR. Refuses what cannot run, all at once.

One method per kind of plan node, named after it. Spark's quirks live here and in translate_expr.py;
from the IR on, nothing remembers Spark. What a node needs beyond its own fields it asks from its
children's output attributes: which columns carry event time, which are sessions.

Law: translate either returns a plan whose every node has an operator, or raises Unsupported with
every reason found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, Literal, columns
from penstock.plan.refusals import MICRO_BATCH, Refusals
from penstock.plan.time_bounds import find_time_bounds
from penstock.plan.translate_expr import TRANSPARENT, ExprTranslator, Judge, function_name, options
from penstock.plan.translate_python import (
    translate_map_batches,
    translate_output_time,
    translate_python_eval,
    translate_with_state,
)
from penstock.plan.translate_window import (
    translate_order,
    translate_window,
    translate_window_limit,
)
from penstock.plan.tree import Attribute, ExprTree, PlanTree, schema_of

#: Nodes that only say where rows should be, which our stages decide.
_PASS_THROUGH = frozenset(
    {"RepartitionByExpression", "Repartition", "RebalancePartitions", "ResolvedHint"}
)
_JOIN_KINDS: dict[str, n.JoinKind] = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
}
_EXPR_ID = re.compile(r"ExprId\((\d+)")


#: Options of `format("penstock")` that only Spark's own engine can follow.
_NOT_HERE: Final = {
    "streams": "read each stream by itself, and union them",
    "metadata": "put what you need into the rows before they enter the log",
    "startingPosition": "give start= to penstock.start",
    "endingPosition": "a query without an end has none: leave it out",
}


@dataclass(frozen=True, slots=True)
class Judges:
    """What the operators can do: each says why not, or None."""

    call: Judge
    aggregate: Callable[[n.AggregateCall], str | None]
    window: Callable[[n.WindowCall], str | None]
    generator: Callable[[str], str | None]
    udf: Callable[[int], str | None]
    processor: Callable[[n.TransformWithState], str | None]


@dataclass(slots=True)
class Translated:
    """The IR of a query, and the rows of its static inputs by id."""

    root: n.Node
    #: The names that the user gave to the columns of the result.
    names: tuple[str, ...]
    statics: dict[int, Callable[[], pa.Table]] = field(default_factory=dict)


def translate(tree: PlanTree, judges: Judges, refusals: Refusals) -> Translated:
    """The IR of the plan; reasons against it go to `refusals`, the caller checks them."""
    translator = _Translator(judges, refusals)
    root = translator.node(tree)
    names = tuple(attribute.name for attribute in tree.output)
    return Translated(root, names, translator.statics)


class _Translator:
    def __init__(self, judges: Judges, refusals: Refusals) -> None:
        self.judges = judges
        self.refusals = refusals
        self.exprs = ExprTranslator(judges.call, refusals)
        self.statics: dict[int, Callable[[], pa.Table]] = {}

    def node(self, tree: PlanTree) -> n.Node:
        for attribute in tree.output:
            if attribute.problem is not None:
                self.refusals.add(tree.text, f"column {attribute.name}: {attribute.problem}")
        if tree.kind in _PASS_THROUGH:
            return self.node(tree.children[0])
        method = getattr(self, f"_{_snake(tree.kind)}", None)
        if method is not None:
            node: n.Node = method(tree)
            return node
        self.refusals.add(tree.text, f"no operator for {tree.kind}", _remedy(tree.kind))
        for child in tree.children:  # so that what is wrong below is heard too
            self.node(child)
        return n.Static(schema=schema_of(tree.output), id=-1, empty=True)

    def expr(self, tree: ExprTree, where: PlanTree) -> Expr:
        return self.exprs.translate(tree, where.text)

    def list_of(self, where: PlanTree, name: str) -> tuple[ExprTree, ...]:
        return _trees(where.fields[name])

    # -- leaves

    def _streaming_relation(self, tree: PlanTree) -> n.Node:
        chosen = tree.fields.get("options", ())
        assert isinstance(chosen, tuple)
        pairs = tuple((str(pair[0]), str(pair[1])) for pair in chosen if isinstance(pair, tuple))
        named = {name.lower(): value for name, value in pairs}
        for option, remedy in _NOT_HERE.items():
            if option.lower() in named:
                self.refusals.add(tree.text, f"option {option} of the source", remedy)
        stream = named.get("stream") or named.get("path") or str(tree.fields["sourceName"])
        return n.Scan(
            schema=schema_of(tree.output),
            stream=stream,
            columns=tuple(attribute.name for attribute in tree.output),
            options=pairs,
        )

    _streaming_relation_v2 = _streaming_relation

    def _static(self, tree: PlanTree) -> n.Node:
        assert tree.rows is not None
        id = len(self.statics)
        self.statics[id] = tree.rows
        return n.Static(schema=schema_of(tree.output), id=id, empty=tree.is_streaming)

    _local_relation = _static

    # -- without state

    def _project(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        exprs = tuple(self.expr(e, tree) for e in self.list_of(tree, "projectList"))
        return project(child, exprs, schema_of(tree.output))

    def _filter(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        condition = tree.fields["condition"]
        assert isinstance(condition, ExprTree)
        return n.Filter(schema=child.schema, child=child, condition=self.expr(condition, tree))

    def _expand(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        projections = tree.fields["projections"]
        assert isinstance(projections, tuple)
        return n.Expand(
            schema=schema_of(tree.output),
            child=child,
            projections=tuple(
                tuple(self.expr(e, tree) for e in _trees(projection)) for projection in projections
            ),
        )

    def _union(self, tree: PlanTree) -> n.Node:
        inputs = tuple(self.node(child) for child in tree.children)
        return n.Union(schema=schema_of(tree.output), inputs=inputs)

    def _generate(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        generator = tree.fields["generator"]
        assert isinstance(generator, ExprTree)
        problem = self.judges.generator(generator.kind)
        if problem is not None:
            self.refusals.add(tree.text, problem)
        generated = {_column_name(e) for e in self.list_of(tree, "generatorOutput")}
        kept = tuple(a.column for a in tree.output if a.column not in generated)
        return n.Generate(
            schema=schema_of(tree.output),
            child=child,
            generator=generator.kind,
            args=tuple(self.expr(e, tree) for e in generator.children),
            outer=bool(tree.fields["outer"]),
            kept=kept,
        )

    def _event_time_watermark(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        column = tree.fields["eventTime"]
        delay = tree.fields["delay_ms"]
        assert isinstance(column, ExprTree) and isinstance(delay, int)
        return n.Watermark(
            schema=child.schema, child=child, column=_column_name(column), delay_ms=delay
        )

    # -- Python functions

    def _arrow_eval_python(self, tree: PlanTree) -> n.Node:
        return translate_python_eval(self, tree, self.node(tree.children[0]))

    _batch_eval_python = _arrow_eval_python

    def _map_in_arrow(self, tree: PlanTree) -> n.Node:
        return translate_map_batches(self, tree, self.node(tree.children[0]))

    _map_in_pandas = _map_in_arrow

    def _transform_with_state_in_py_spark(self, tree: PlanTree) -> n.Node:
        return translate_with_state(self, tree, self.node(tree.children[0]))

    def _update_event_time_watermark_column(self, tree: PlanTree) -> n.Node:
        return translate_output_time(self, tree, self.node(tree.children[0]))

    # -- with state

    def _aggregate(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        keys: list[Column] = []
        for position, key in enumerate(self.list_of(tree, "groupingExpressions")):
            expr = self.expr(key, tree)
            if not isinstance(expr, Column):
                expr, child = _append_column(child, f"group#key{position}", expr)
            if expr not in keys:
                keys.append(expr)
        calls: dict[n.AggregateCall, str] = {}

        def column_of(expression: ExprTree) -> Column:
            call = self.aggregate_call(expression, tree)
            return Column(
                calls.setdefault(call, f"{call.function}#{_result_id(expression)}"), call.type
            )

        results = tuple(
            self.over(e, tree, "AggregateExpression", column_of)
            for e in self.list_of(tree, "aggregateExpressions")
        )
        if not keys and not calls:  # there is one row, of which nothing is asked
            one = Literal(pa.scalar(1, pa.int32()))
            calls[n.AggregateCall("Count", (one,), pa.int64())] = "Count#rows"
        attributes = {a.column: a for a in tree.children[0].output}
        timed = [k.name for k in keys if _watermark_of(attributes.get(k.name)) is not None]
        sessions = [k.name for k in keys if k.name in attributes and attributes[k.name].is_session]
        fields = [pa.field(key.name, key.type) for key in keys]
        fields += [pa.field(name, call.type) for call, name in calls.items()]
        aggregate = n.Aggregate(
            schema=pa.schema(fields),
            child=child,
            keys=tuple(keys),
            calls=tuple(calls),
            # Of several, that of the sessions: only they tell when a session closes.
            event_time=next((name for name in (*sessions, *timed) if name in timed), None),
            session=sessions[0] if sessions else None,
        )
        return project(aggregate, results, schema_of(tree.output))

    def over(
        self, tree: ExprTree, where: PlanTree, kind: str, column_of: Callable[[ExprTree], Column]
    ) -> Expr:
        """The expression with every part of this kind replaced by the column that will hold it."""
        if tree.kind == kind:
            return column_of(tree)
        if tree.kind in TRANSPARENT:
            return self.over(tree.children[0], where, kind, column_of)
        if not any(part.kind == kind for part in tree.walk()):
            return self.expr(tree, where)
        if tree.kind == "LambdaFunction":
            self.refusals.add(where.text, "an aggregate inside a lambda")
        args = tuple(self.over(child, where, kind, column_of) for child in tree.children)
        arrow_type = tree.type if tree.type is not None else pa.null()
        call = Call(function_name(tree), args, arrow_type, options(tree))
        problem = self.judges.call(call)
        if problem is not None:
            self.refusals.add(where.text, problem)
        return call

    def aggregate_call(self, tree: ExprTree, where: PlanTree) -> n.AggregateCall:
        call = self.build_aggregate_call(tree, where)
        problem = self.judges.aggregate(call)
        if problem is not None:
            self.refusals.add(where.text, problem)
        return call

    def build_aggregate_call(self, tree: ExprTree, where: PlanTree) -> n.AggregateCall:
        """The call, not judged: a window function is judged as such."""
        function, *filters = tree.children
        terms = tuple(child for child in function.children if child.kind == "SortOrder")
        args = tuple(self.expr(child, where) for child in function.children if child not in terms)
        orders = translate_order(self, terms, where)  # WITHIN GROUP (ORDER BY ...)
        chosen: tuple[tuple[str, object], ...] = options(function)
        if orders:
            chosen += (("orders", tuple((o.descending, o.nulls_first) for o in orders)),)
        return n.AggregateCall(
            function=function.kind,
            args=args + tuple(order.expr for order in orders),
            type=function.type if function.type is not None else pa.null(),
            filter=self.expr(filters[0], where) if filters else None,
            distinct=bool(tree.fields["isDistinct"]),
            options=chosen,
        )

    def _join(self, tree: PlanTree) -> n.Node:
        left, right = (self.node(child) for child in tree.children)
        spelled = str(tree.fields["joinType"])
        kind = _JOIN_KINDS.get(spelled)
        if kind is None:
            self.refusals.add(tree.text, f"a {spelled} join")
            kind = "inner"
        condition = tree.fields["condition"]
        parts: list[Expr] = []
        if isinstance(condition, ExprTree):
            parts = _conjuncts(self.expr(condition, tree))
        pairs, rest = _split_equalities(parts, left.schema, right.schema)
        left, left_keys = _as_columns(left, [pair.left for pair in pairs], "left")
        right, right_keys = _as_columns(right, [pair.right for pair in pairs], "right")
        joined = n.Join(
            schema=schema_of(tree.output),
            left=left,
            right=right,
            kind=kind,
            left_keys=left_keys,
            right_keys=right_keys,
            null_safe=tuple(pair.null_safe for pair in pairs),
            condition=_and(rest),
        )
        timed = [
            {a.column for a in child.output if a.watermark_ms is not None}
            for child in tree.children
        ]
        return find_time_bounds(joined, rest, timed[0], timed[1])

    def _deduplicate(self, tree: PlanTree) -> n.Node:
        return self._first_of_each(tree, within=False)

    def _deduplicate_within_watermark(self, tree: PlanTree) -> n.Node:
        return self._first_of_each(tree, within=True)

    def _first_of_each(self, tree: PlanTree, *, within: bool) -> n.Node:
        child = self.node(tree.children[0])
        keys = tuple(_column(self.expr(e, tree)) for e in self.list_of(tree, "keys"))
        watermarks = {
            a.column: a.watermark_ms for a in tree.children[0].output if a.watermark_ms is not None
        }
        if within:
            if not watermarks:
                self.refusals.add(
                    tree.text,
                    "dropDuplicatesWithinWatermark on rows without a watermark",
                    "call withWatermark before it",
                )
                return child
            column, delay = next(iter(watermarks.items()))
            return n.Deduplicate(
                schema=child.schema, child=child, keys=keys, event_time=column, within_ms=delay
            )
        timed = [key.name for key in keys if key.name in watermarks]
        return n.Deduplicate(
            schema=child.schema, child=child, keys=keys, event_time=timed[0] if timed else None
        )

    def _window(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        window, exprs = translate_window(self, tree, child)
        return project(window, exprs, schema_of(tree.output))

    def _window_group_limit(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        return translate_window_limit(self, tree, child)

    # -- of the whole result

    def _sort(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        if not tree.fields["global"]:
            self.refusals.add(
                tree.text,
                "sortWithinPartitions: Spark's partitions do not exist here",
                "leave it out",
            )
        order = translate_order(self, self.list_of(tree, "order"), tree)
        return n.Sort(schema=child.schema, child=child, order=order)

    def _global_limit(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        return n.Limit(schema=child.schema, child=child, count=self._number(tree, "limitExpr"))

    def _local_limit(self, tree: PlanTree) -> n.Node:
        """Only saves work below a global limit, which comes to the same without it."""
        return self.node(tree.children[0])

    def _offset(self, tree: PlanTree) -> n.Node:
        child = self.node(tree.children[0])
        offset = self._number(tree, "offsetExpr")
        return n.Limit(schema=child.schema, child=child, count=None, offset=offset)

    def _number(self, tree: PlanTree, name: str) -> int:
        expr = tree.fields[name]
        assert isinstance(expr, ExprTree)
        number = literal_int(self.expr(expr, tree))
        assert number is not None, "Spark has checked that it is a constant"
        return number


# -- free functions


@dataclass(frozen=True, slots=True)
class _Equality:
    left: Expr
    right: Expr
    null_safe: bool


def _split_equalities(
    parts: list[Expr], left: pa.Schema, right: pa.Schema
) -> tuple[list[_Equality], list[Expr]]:
    """Conjuncts that compare one side with the other, and those that say something else."""
    lefts, rights = frozenset(left.names), frozenset(right.names)
    pairs: list[_Equality] = []
    rest: list[Expr] = []
    for part in parts:
        if isinstance(part, Call) and part.function in ("EqualTo", "EqualNullSafe"):
            one, two = part.args
            safe = part.function == "EqualNullSafe"
            of_one, of_two = columns(one), columns(two)
            if of_one and of_two and of_one <= lefts and of_two <= rights:
                pairs.append(_Equality(one, two, safe))
                continue
            if of_one and of_two and of_one <= rights and of_two <= lefts:
                pairs.append(_Equality(two, one, safe))
                continue
        rest.append(part)
    return pairs, rest


def _conjuncts(expr: Expr) -> list[Expr]:
    if isinstance(expr, Call) and expr.function == "And":
        return [part for arg in expr.args for part in _conjuncts(arg)]
    return [expr]


def _and(parts: list[Expr]) -> Expr | None:
    whole: Expr | None = None
    for part in parts:
        whole = part if whole is None else Call("And", (whole, part), pa.bool_())
    return whole


def project(child: n.Node, exprs: tuple[Expr, ...], schema: pa.Schema) -> n.Node:
    """A projection, unless it changes nothing."""
    same = len(exprs) == len(child.schema) and all(
        isinstance(expr, Column) and expr.name == have.name == want.name
        for expr, have, want in zip(exprs, child.schema, schema, strict=True)
    )
    return child if same else n.Project(schema=schema, child=child, exprs=exprs)


def _append_column(child: n.Node, name: str, expr: Expr) -> tuple[Column, n.Node]:
    schema = child.schema.append(pa.field(name, expr.type))
    exprs: tuple[Expr, ...] = (*n.columns_of(child.schema), expr)
    return Column(name, expr.type), n.Project(schema=schema, child=child, exprs=exprs)


def _as_columns(child: n.Node, keys: list[Expr], side: str) -> tuple[n.Node, tuple[Column, ...]]:
    """The child with a column for every key that is an expression, and the keys as columns."""
    found: list[Column] = []
    for position, key in enumerate(keys):
        if not isinstance(key, Column):
            key, child = _append_column(child, f"{side}#key{position}", key)
        found.append(key)
    return child, tuple(found)


def _trees(value: object) -> tuple[ExprTree, ...]:
    assert isinstance(value, tuple)
    assert all(isinstance(item, ExprTree) for item in value), value
    return value


def _column(expr: Expr) -> Column:
    assert isinstance(expr, Column), expr
    return expr


def _column_name(tree: ExprTree) -> str:
    return f"{tree.text_of('name')}#{tree.text_of('id')}"


def _watermark_of(attribute: Attribute | None) -> int | None:
    return attribute.watermark_ms if attribute is not None else None


def _result_id(tree: ExprTree) -> str:
    match = _EXPR_ID.match(str(tree.fields["resultId"]))
    assert match is not None
    return match[1]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _remedy(kind: str) -> str:
    if kind == "Tail":
        return "read the result with spark.read and limit it there"
    if kind == "Sample":
        return "filter by a hash of the row: where(abs(hash(...)) % 100 < 5)"
    return MICRO_BATCH


def literal_int(expr: Expr) -> int | None:
    """The value of an integer constant, or None."""
    if isinstance(expr, Literal):
        value = expr.value.as_py()
        return value if isinstance(value, int) else None
    return None
