"""Several distinct aggregates at once, as they were written.

Catalyst turns `count(distinct a), count(distinct b), max(c)` into one copy of each row per distinct
argument (Expand, told apart by gid), an aggregation that leaves one row per distinct value, and a
second one over those, where `first` picks the results of the ordinary aggregates. Here that would
keep every distinct value a second time and compute whole groups anew with each batch; an Aggregate
counts distinct values by itself.

Law: the aggregate has the same keys, columns and rows as the outer one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, Literal
from penstock.plan.exprs import replace as replace_expr
from penstock.plan.rewrites.aim import Aim

#: How Catalyst names the column that tells copies apart; grouping sets have another one.
_GID: Final = "gid#"


def collapse_distinct(root: n.Node, aim: Aim) -> n.Node:
    """The plan with every such pair of aggregates as one."""
    return root.rebuild(_collapse_node)


def _collapse_node(node: n.Node) -> n.Node:
    if isinstance(node, n.Aggregate) and node.session is None:
        return _collapse(node) or node
    return node


@dataclass(frozen=True, slots=True)
class _Pair:
    """What stands below the outer aggregate."""

    inner: n.Aggregate
    expand: n.Expand
    #: The outer aggregate's input columns, as columns of the inner one.
    names: dict[str, str]


def _collapse(outer: n.Aggregate) -> n.Aggregate | None:
    pair = _find_pair(outer.child)
    if pair is None:
        return None
    below = set(pair.expand.child.schema.names)
    if any(pair.names.get(key.name) != key.name or key.name not in below for key in outer.keys):
        return None
    calls = [_restore(call, outer, pair) for call in outer.calls]
    if any(call is None for call in calls):
        return None
    return replace(
        outer, child=pair.expand.child, calls=tuple(call for call in calls if call is not None)
    )


def _find_pair(child: n.Node) -> _Pair | None:
    names = {name: name for name in child.schema.names}
    if isinstance(child, n.Project):
        names = {
            name: expr.name
            for name, expr in zip(child.schema.names, child.exprs, strict=True)
            if isinstance(expr, Column)
        }
        child = child.child
    if isinstance(child, n.Aggregate) and isinstance(child.child, n.Expand):
        return _Pair(child, child.child, names)
    return None


def _restore(call: n.AggregateCall, outer: n.Aggregate, pair: _Pair) -> n.AggregateCall | None:
    """The call as the user wrote it, over the columns below the Expand."""
    copy = _copy_of(call.filter, pair)
    if copy is None or call.distinct or any(copy[key.name] != key for key in outer.keys):
        return None
    args = [pair.names.get(arg.name) if isinstance(arg, Column) else None for arg in call.args]
    counted = {key.name for key in outer.keys} | set(args)
    if any(not isinstance(copy[k.name], Literal) for k in pair.inner.keys if k.name not in counted):
        return None  # the inner aggregation tells more rows apart than the user did
    results = pair.inner.schema.names[len(pair.inner.keys) :]
    if call.function == "First" and len(args) == 1 and args[0] in results:
        plain: n.AggregateCall = pair.inner.calls[results.index(args[0])]
        chosen = None if plain.filter is None else _over(plain.filter, copy)
        plain_args = tuple(_over(arg, copy) for arg in plain.args)
        return replace(plain, args=plain_args, filter=chosen)
    keys = {key.name for key in pair.inner.keys}
    if not all(arg in keys for arg in args):
        return None
    exprs = tuple(copy[arg] for arg in args if arg is not None)
    return replace(call, args=exprs, filter=None, distinct=True)


def _copy_of(condition: Expr | None, pair: _Pair) -> dict[str, Expr] | None:
    """The projection of the Expand whose gid the condition asks for, by output column."""
    match condition:
        case Call("EqualTo", (Column(name=name), Literal() as wanted)):
            gid = pair.names.get(name, "")
        case _:
            return None
    if not gid.startswith(_GID):
        return None
    for projection in pair.expand.projections:
        copy = dict(zip(pair.expand.schema.names, projection, strict=True))
        if gid in copy and copy[gid] == wanted:
            return copy
    return None


def _over(expr: Expr, copy: dict[str, Expr]) -> Expr:
    def below(part: Expr) -> Expr | None:
        return copy.get(part.name) if isinstance(part, Column) else None

    return replace_expr(expr, below)
