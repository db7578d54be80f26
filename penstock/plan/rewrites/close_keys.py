"""Keys that are made of event time close: append mode for groupBy(date_trunc('hour', ts)).

Such a key gets a second one beside it, which nobody sees: the time at which it closes (closing.py).
That is a function of the first, so groups stay what they are, and it is an event time as every
operator knows it. Only in append mode: elsewhere rows count however late they come.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.closing import CLOSES, Step, closing_steps, field_steps
from penstock.plan.exprs import Call, Column, Expr, Literal, columns
from penstock.plan.exprs import replace as replace_expr
from penstock.plan.open_times import is_open
from penstock.plan.rewrites.aim import Aim

#: What hands a column on as it is. A watermark of another column does not: time is its own then.
_HANDS_ON: Final = (
    n.Aggregate,
    n.Deduplicate,
    n.Filter,
    n.Generate,
    n.Join,
    n.PythonEval,
)
#: How the event time is called that keys were traced back to.
_EVENT_TIME: Final = "#event_time"
_NOTHING: Final = Literal(pa.scalar(None))
_TIME: Final = pa.timestamp("us", tz="UTC")


def close_keys(root: n.Node, aim: Aim) -> n.Node:
    """The plan with a closing time for every operator over groups that has such a key."""
    return root.rebuild(_close) if aim.mode == "append" else root


def _close(node: n.Node) -> n.Node:
    match node:
        case n.Aggregate(event_time=None, session=None):
            closing = _closing(node.child, node.keys)
            if closing is None:
                return node
            child, key = closing
            fields = list(node.schema)
            fields.insert(len(node.keys), pa.field(key.name, key.type))
            made: n.Node = replace(
                node, schema=pa.schema(fields), child=child, keys=(*node.keys, key),
                event_time=key.name,
            )  # fmt: skip
        case n.Window(event_time=None) | n.TopN(event_time=None):
            closing = _closing(node.child, node.partition)
            if closing is None:
                return node
            child, key = closing
            own = list(node.schema)[len(node.child.schema) :]
            made = replace(
                node, schema=pa.schema([*child.schema, *own]), child=child,
                partition=(*node.partition, key), event_time=key.name,
            )  # fmt: skip
        case n.GroupedMap(time_key=None):
            return _close_groups(node)
        case _:
            return node
    return n.Project(schema=node.schema, child=made, exprs=n.columns_of(node.schema))


def _close_groups(node: n.GroupedMap) -> n.GroupedMap:
    """All inputs have to close a key at the same time: it is one group."""
    closings = [_closing(child, own) for child, own in zip(node.inputs, node.keys, strict=True)]
    found = [closing for closing in closings if closing is not None]
    ways = [_way(child, own) for (child, _), own in zip(found, node.keys, strict=False)]
    if len(found) < len(closings) or any(way != ways[0] for way in ways):
        return node
    ends = [end for _, end in found]
    seen = zip(node.input_schemas, ends, strict=True)
    return replace(
        node, inputs=tuple(child for child, _ in found), time_key=len(node.keys[0]),
        keys=tuple((*own, end) for own, end in zip(node.keys, ends, strict=True)),
        input_schemas=tuple(schema.append(pa.field(end.name, end.type)) for schema, end in seen),
    )  # fmt: skip


def _way(child: n.Project, keys: tuple[Column, ...]) -> object:
    """How the last column of the child is made of keys: of which ones, and by which steps."""
    end = child.exprs[-1]
    assert isinstance(end, Call)
    return [keys.index(key) for key in end.args], end.options


def _closing(child: n.Node, keys: tuple[Column, ...]) -> tuple[n.Project, Column] | None:
    """The child with the time at which a key closes as a column more, and that column."""
    traced = [_trace(key, child) for key in keys]
    for key, made in zip(keys, traced, strict=True):
        steps = None if made is None else closing_steps(made, _is_time)
        if steps:
            return _with_end(child, (key,), steps)
    found = field_steps([made or _NOTHING for made in traced], _is_time)
    if found is None:
        return None
    places, steps = found
    return _with_end(child, tuple(keys[place] for place in places), steps)


def _with_end(
    child: n.Node, keys: tuple[Column, ...], steps: tuple[Step, ...]
) -> tuple[n.Project, Column]:
    closes = Column(f"{keys[0].name}{CLOSES}", _TIME)
    schema = child.schema.append(pa.field(closes.name, closes.type))
    end = Call("ClosesAt", keys, _TIME, (("steps", steps),))
    exprs: tuple[Expr, ...] = (*n.columns_of(child.schema), end)
    return n.Project(schema=schema, child=child, exprs=exprs), closes


def _is_time(column: Column) -> bool:
    return column.name == _EVENT_TIME


def _trace(expr: Expr, node: n.Node) -> Expr | None:
    """What a key is made of, over the event time further down; None if that is not all."""
    names = columns(expr)
    if len(names) != 1:
        return None
    (name,) = names
    match node:
        case n.Watermark(column=column) if column == name:
            kind = node.schema.field(name).type
            return _over(expr, Column(_EVENT_TIME, kind))
        case n.Project():
            return _trace(_over(expr, _made(node, node.exprs, name)), node.child)
        case n.Expand():
            made = [_made(node, exprs, name) for exprs in node.projections]
            is_same = all(one == made[0] for one in made)
            return _trace(_over(expr, made[0]), node.child) if is_same else None
        case n.Union():
            each = [_made(node, n.columns_of(child.schema), name) for child in node.inputs]
            pairs = zip(each, node.inputs, strict=True)
            found = [_trace(_over(expr, column), child) for column, child in pairs]
            return found[0] if all(one == found[0] for one in found) else None
        case n.Aggregate() if name not in _closed_by(node):
            return None
        case n.Join() if is_open(name, node):
            return None
        case _ if isinstance(node, _HANDS_ON):
            below = [child for child in node.children if name in child.schema.names]
            return _trace(expr, below[0]) if len(below) == 1 else None
    return None


def _closed_by(node: n.Aggregate) -> frozenset[str]:
    """The keys by which its groups close: another one's time may be over when a group is shown."""
    time, child = node.event_time, node.child
    if time is None:
        return frozenset()
    if time.endswith(CLOSES) and isinstance(child, n.Project):
        return frozenset(columns(_made(child, child.exprs, time)))
    return frozenset({time})


def _made(node: n.Node, exprs: tuple[Expr, ...], name: str) -> Expr:
    made: Expr = exprs[node.schema.get_field_index(name)]
    return made


def _over(expr: Expr, made: Expr) -> Expr:
    """The expression over what its one column is made of."""
    return replace_expr(expr, lambda part: made if isinstance(part, Column) else None)
