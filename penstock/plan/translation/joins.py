"""Joins, and dropping duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, columns, conjuncts
from penstock.plan.time_bounds import find_time_bounds
from penstock.plan.translation.registry import Translation, translates
from penstock.plan.translation.rows import as_columns
from penstock.plan.tree import ExprTree, PlanTree, schema_of

_KINDS: Final[dict[str, n.JoinKind]] = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
    "ExistenceJoin": "existence",
}


@translates("Join")
def translate_join(translation: Translation, tree: PlanTree) -> n.Node:
    left, right = (translation.node(child) for child in tree.children)
    kind = _kind(translation, tree)
    condition = tree.fields["condition"]
    whole = translation.expr(condition, tree) if isinstance(condition, ExprTree) else None
    pairs, rest = _split_equalities(whole, left.schema, right.schema)
    left, left_keys = as_columns(left, tuple(pair.left for pair in pairs), "left")
    right, right_keys = as_columns(right, tuple(pair.right for pair in pairs), "right")
    join = n.Join(
        schema=schema_of(tree.output),
        left=left,
        right=right,
        kind=kind,
        left_keys=left_keys,
        right_keys=right_keys,
        null_safe=tuple(pair.null_safe for pair in pairs),
        condition=_and(rest),
    )
    left_times, right_times = (set(child.watermarks) for child in tree.children)
    return find_time_bounds(join, rest, left_times, right_times)


def _kind(translation: Translation, tree: PlanTree) -> n.JoinKind:
    spelled = str(tree.fields["joinType"]).partition("(")[0]
    if spelled not in _KINDS:
        translation.refuse(tree, f"a {spelled} join")
    return _KINDS.get(spelled, "inner")


@dataclass(frozen=True, slots=True)
class _Equality:
    left: Expr
    right: Expr
    null_safe: bool


def _split_equalities(
    condition: Expr | None, left: pa.Schema, right: pa.Schema
) -> tuple[list[_Equality], list[Expr]]:
    """Conjuncts that compare one side with the other, and those that say something else."""
    pairs: list[_Equality] = []
    rest: list[Expr] = []
    for part in conjuncts(condition) if condition is not None else ():
        equality = _as_equality(part, frozenset(left.names), frozenset(right.names))
        if equality is None:
            rest.append(part)
        else:
            pairs.append(equality)
    return pairs, rest


def _as_equality(part: Expr, lefts: frozenset[str], rights: frozenset[str]) -> _Equality | None:
    if not isinstance(part, Call) or part.function not in ("EqualTo", "EqualNullSafe"):
        return None
    null_safe = part.function == "EqualNullSafe"
    first, second = part.args
    of_first, of_second = columns(first), columns(second)
    if not of_first or not of_second:
        return None
    if of_first <= lefts and of_second <= rights:
        return _Equality(first, second, null_safe)
    if of_first <= rights and of_second <= lefts:
        return _Equality(second, first, null_safe)
    return None


def _and(parts: list[Expr]) -> Expr | None:
    if not parts:
        return None
    return reduce(lambda whole, part: Call("And", (whole, part), pa.bool_()), parts)


@translates("Deduplicate")
def translate_deduplicate(translation: Translation, tree: PlanTree) -> n.Node:
    child, keys = translation.child(tree), _keys(translation, tree)
    watermarks = tree.children[0].watermarks
    event_time = next((key.name for key in keys if key.name in watermarks), None)
    return n.Deduplicate(schema=child.schema, child=child, keys=keys, event_time=event_time)


@translates("DeduplicateWithinWatermark")
def translate_deduplicate_within(translation: Translation, tree: PlanTree) -> n.Node:
    child, keys = translation.child(tree), _keys(translation, tree)
    watermarks = tree.children[0].watermarks
    if not watermarks:
        translation.refuse(
            tree,
            "dropDuplicatesWithinWatermark on rows without a watermark",
            "call withWatermark before it",
        )
        return child
    column, delay_ms = next(iter(watermarks.items()))
    return n.Deduplicate(
        schema=child.schema, child=child, keys=keys, event_time=column, within_ms=delay_ms
    )


def _keys(translation: Translation, tree: PlanTree) -> tuple[Column, ...]:
    keys = translation.exprs(tree.exprs_of("keys"), tree)
    assert all(isinstance(key, Column) for key in keys), keys
    return tuple(key for key in keys if isinstance(key, Column))
