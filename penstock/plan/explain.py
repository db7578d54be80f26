"""A query in plain text: stages, the streams between them, keys, state, modes.

For `penstock plan explain`, `penstock.explain(df)` and golden tests: the same query prints the same
text every day, so Catalyst's column ids are left out where names tell columns apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from penstock.plain_text import plain
from penstock.plan import nodes as n
from penstock.plan.changes import is_append_only, is_static
from penstock.plan.closing import CLOSES
from penstock.plan.exprs import Call, Column, Expr, Lambda, Literal
from penstock.plan.stages import Query, Stage
from penstock.state.keys import VIRTUAL_NODES
from penstock.stream.ddl import type_to_ddl

_INFIX: Final = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "IntegralDivide": "div",
    "Remainder": "%",
    "And": "and",
    "Or": "or",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_LABEL_WIDTH: Final = 12


def explain(query: Query, tasks: Sequence[int] | None = None) -> str:
    """The query as text, one stage after the other, in the order in which rows pass them.

    With the tasks of each stage it also says which exchanges are left out, and why.
    """
    streams = ", ".join(query.streams) or "no stream"
    count = len(query.stages)
    head = f"{query.mode} mode, {count} stage{'s' * (count != 1)}, reads {streams}"
    parts = [head]
    for stage in query.stages:
        placed = [] if tasks is None else [_tasks(query, stage.id, tasks)]
        parts.append("\n".join([*_stage(stage), *placed]))
    if query.finish:
        parts.append("\n".join(["when the result is read:", *_finish(query)]))
    fields = ", ".join(f"{plain(field.name)} {_type(field.type)}" for field in query.schema)
    parts.append(f"result: {fields}")
    return "\n\n".join(parts) + "\n"


def explain_json(query: Query, tasks: Sequence[int] | None = None) -> dict[str, object]:
    """The query for tools: what the text says, by name."""
    return {
        "mode": query.mode,
        "streams": list(query.streams),
        "virtual_nodes": VIRTUAL_NODES,
        "columns": {field.name: _type(field.type) for field in query.schema},
        "stages": [
            {
                "id": stage.id,
                "keys": None if stage.keys is None else [_expr(key) for key in stage.keys],
                "changing": stage.changing,
                **({} if tasks is None else {"tasks": tasks[stage.id]}),
                "nodes": [line.strip() for node in [stage.root] for line in _node(node, 0)],
            }
            for stage in query.stages
        ],
        "finish": [line.strip() for line in _finish(query)],
    }


def describe_stage(stage: Stage) -> list[str]:
    """What a stage does to rows, a line for each step, in the order in which they pass."""
    steps = [_describe(node) for node in stage.root.walk() if not isinstance(node, n.StageInput)]
    return [f"{label} {text}".rstrip() for label, text in reversed(steps)]


def _tasks(query: Query, stage: int, tasks: Sequence[int]) -> str:
    count = tasks[stage]
    if count:
        return f"  runs as {count} task{'s' * (count != 1)}"
    home = stage
    while not tasks[home]:
        home = max(one.id for one in query.stages if home in _read_by(one))
    if tasks[home] == 1:
        return f"  runs in the task of stage {home}: each has one, so no row has to move"
    where = f"the {tasks[home]} tasks of stage {home}"
    return f"  runs in {where}: its stream is in lanes by the key, so no row has to move"


def _read_by(stage: Stage) -> set[int]:
    return {leaf.stage for leaf in stage.inputs if isinstance(leaf, n.StageInput)}


def _finish(query: Query) -> Iterator[str]:
    """The last thing first, as in a stage."""
    for node in reversed(query.finish):
        label, text = _describe(node)
        yield f"  {label:<{_LABEL_WIDTH}} {text}".rstrip()


def _stage(stage: Stage) -> Iterator[str]:
    kind = "changing" if stage.changing else "append-only"
    if stage.keys is None:
        yield f"stage {stage.id}: writes the result, {kind}"
    else:
        by = ", ".join(_expr(key) for key in stage.keys)
        placed = f"by {by}, {VIRTUAL_NODES} virtual nodes" if by else "all to one virtual node"
        yield f"stage {stage.id}: writes a keyed stream, {placed}, {kind}"
    yield from _node(stage.root, 1)


def _node(node: n.Node, depth: int) -> Iterator[str]:
    label, text = _describe(node)
    line = f"{'  ' * depth}{label:<{_LABEL_WIDTH}} {text}".rstrip()
    yield line
    state = _state(node)
    if state is not None:
        yield f"{'  ' * depth}{'':<{_LABEL_WIDTH}} keeps {state}"
    for child in node.children:
        yield from _node(child, depth + 1)


def _describe(node: n.Node) -> tuple[str, str]:
    match node:
        case n.Scan():
            return "scan", f"{node.stream} [{', '.join(map(plain, node.columns))}]"
        case n.StageInput():
            return "read", f"the keyed stream of stage {node.stage}"
        case n.Static():
            return "static", f"[{', '.join(_name(name) for name in node.schema.names)}]"
        case n.Project():
            return "project", _projection(node)
        case n.Filter():
            return "filter", _expr(node.condition)
        case n.Expand():
            return "expand", f"each row to {len(node.projections)} rows"
        case n.Generate():
            args = ", ".join(map(_expr, node.args))
            return "generate", f"{node.generator.lower()}({args}){' outer' * node.outer}"
        case n.Watermark():
            return "watermark", f"{_name(node.column)}, delay {node.delay_ms} ms"
        case n.PartialAggregate():
            return "fold", f"each batch to one row per {_names(node.keys) or 'task'}"
        case n.Aggregate():
            return "aggregate", _aggregate(node)
        case n.Join():
            return "join", _join(node)
        case n.Deduplicate():
            return "deduplicate", f"by {_names(node.keys)}"
        case n.Window():
            return "window", _over(node)
        case n.TopN():
            return "top-n", f"{node.function.lower()} <= {node.limit}: {_over(node)}"
        case n.PythonEval():
            return "python", ", ".join(call.name for call in node.calls)
        case n.MapBatches():
            return "map", node.name
        case n.TableFunction():
            return "udtf", f"{node.call.name}({', '.join(map(_expr, node.args))})"
        case n.GroupedMap():
            by = _names(node.keys[0]) or "everything"
            return "groups", f"{node.name} of {by}; emits {node.emit}"
        case n.GroupedMapWithState():
            return "groups", f"{node.name} of {_names(node.keys)}, {node.timeout}"
        case n.TransformWithState():
            return "processor", type(node.processor).__name__
        case n.Sort():
            return "sort", _order(node.order).strip()
        case n.Limit():
            rows = "all rows" if node.count is None else f"{node.count} rows"
            return "limit", f"{rows} after {node.offset}" if node.offset else rows
        case _:
            return type(node).__name__.lower(), ""


def _projection(node: n.Project) -> str:
    shown = []
    for expr, field in zip(node.exprs, node.schema, strict=True):
        same = isinstance(expr, Column) and _name(expr.name) == _name(field.name)
        shown.append(_expr(expr) if same else f"{_expr(expr)} as {_name(field.name)}")
    return ", ".join(shown)


def _aggregate(node: n.Aggregate) -> str:
    calls = []
    for call in node.calls:
        args = ", ".join(map(_expr, call.args))
        text = f"{_called(call)}({'distinct ' * call.distinct}{args})"
        calls.append(text + (f" where {_expr(call.filter)}" if call.filter is not None else ""))
    by = _names(node.keys) or "nothing"
    return f"by {by}: {', '.join(calls) or 'keys only'}; emits {node.emit}"


def _called(call: n.AggregateCall) -> str:
    python = call.option("python")
    return python.name if isinstance(python, n.PythonAggregate) else call.function.lower()


def _join(node: n.Join) -> str:
    pairs = zip(node.left_keys, node.right_keys, strict=True)
    on = [f"{_name(left.name)} = {_name(right.name)}" for left, right in pairs]
    if node.condition is not None:
        on.append(_expr(node.condition))
    return f"{node.kind} on {' and '.join(on) or 'everything'}; emits {node.emit}"


def _over(node: n.Window | n.TopN) -> str:
    calls = ", ".join(call.function.lower() for call in node.calls) or "rows"
    over = f"{calls} over {_names(node.partition) or 'everything'}{_order(node.order)}"
    return f"{over}; emits {node.emit}"


def _order(terms: tuple[n.Order, ...]) -> str:
    shown = [f"{_expr(term.expr)}{' desc' * term.descending}" for term in terms]
    return f" order by {', '.join(shown)}" if shown else ""


def _state(node: n.Node) -> str | None:
    """What the node's operator remembers, and until when."""
    match node:
        case n.Aggregate():
            what = "sessions of each key" if node.session is not None else "one row per key"
            if any(call.option("python") is not None for call in node.calls):
                what = "all rows of each key"
            if node.event_time is None:
                return f"{what}, forever"
            return f"{what}, until the watermark passes {_name(node.event_time)}"
        case n.Join() if is_static(node.left) or is_static(node.right):
            return None
        case n.Join():
            return f"left rows {_kept(node.left_time)}; right rows {_kept(node.right_time)}"
        case n.Deduplicate():
            if node.event_time is None:
                return "keys, forever"
            extra = f" + {node.within_ms} ms" if node.within_ms is not None else ""
            return f"keys, until the watermark passes {_name(node.event_time)}{extra}"
        case n.Window() | n.TopN():
            few = isinstance(node, n.TopN) and node.emit == "changes" and is_append_only(node.child)
            what = f"{'the best' if few else 'all'} rows of each partition"
            if node.event_time is None:
                return f"{what}, forever"
            return f"{what}, until the watermark passes {_name(node.event_time)}"
        case n.GroupedMap():
            what = "all rows of each group" + ", and its result" * (node.emit == "changes")
            if node.time_key is None:
                return f"{what}, forever"
            return f"{what}, until the watermark passes {_name(node.keys[0][node.time_key].name)}"
        case n.GroupedMapWithState():
            return "what the function keeps for each key"
        case n.TransformWithState():
            return "what the processor keeps"
        case _:
            return None


def _kept(time: n.EventTime | None) -> str:
    if time is None:
        return "forever"
    extra = f" + {time.keep_ms} ms" if time.keep_ms else ""
    return f"until the watermark passes {_name(time.column)}{extra}"


def _expr(expr: Expr) -> str:
    match expr:
        case Column():
            return _name(expr.name)
        case Literal():
            return _literal(expr.value)
        case Lambda():
            params = ", ".join(_name(param.name) for param in expr.params)
            return f"({params}) -> {_expr(expr.body)}"
        case Call():
            infix = _INFIX.get(expr.function)
            if infix is not None and len(expr.args) == 2:
                return f"({_expr(expr.args[0])} {infix} {_expr(expr.args[1])})"
            return f"{expr.function.lower()}({', '.join(map(_expr, expr.args))})"


def _literal(value: pa.Scalar) -> str:
    shown = value.as_py()
    if shown is None:
        return "null"
    if isinstance(shown, bool):
        return str(shown).lower()
    return repr(shown) if isinstance(shown, str) else str(shown)


def _names(columns: tuple[Column, ...]) -> str:
    return ", ".join(_name(column.name) for column in columns)


def _name(column: str) -> str:
    """A column without its id: another plan of the same query has another."""
    if column.endswith(CLOSES):
        return f"the end of {_name(column.removesuffix(CLOSES))}"
    return plain(column.rsplit("#", 1)[0])


def _type(kind: pa.DataType) -> str:
    return type_to_ddl(kind)
