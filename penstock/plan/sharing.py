"""What a query computes more than once: found by form, so that one stage can do it for all.

Catalyst copies a DataFrame that is used twice, with new column ids: q5 counts bids per window, and
joins the counts with their own maximum. Two parts of a plan have one form if they differ in nothing
but the names of columns. Pure.

Law: parts of one form give the same rows, in columns that correspond by position. Whatever cannot
be compared (a user's function, rows that Spark computed) equals only itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Final, TypeAlias

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, Literal, conjuncts

#: Nested tuples; equal for parts of a plan that compute the same.
Form: TypeAlias = tuple[object, ...]
Keys: TypeAlias = tuple[Expr, ...]
#: Classes of ours, whose fields are all that they are.
_PLAN: Final = "penstock.plan."


def form_of(node: n.Node, keys: Keys | None) -> Form:
    """The form of a part and of the keys by which its rows are asked for."""
    names = {field.name for part in node.walk() for field in part.schema}
    return tuple(_Numbering(names).forms((node, keys)))


class _Numbering:
    """Columns by number, in the order in which they are met."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._numbers: dict[str, int] = {}

    def forms(self, values: tuple[object, ...]) -> Iterator[object]:
        return map(self.form, values)

    def form(self, value: object) -> object:
        match value:
            case str() if value in self._names:
                return ("column", self._numbers.setdefault(value, len(self._numbers)))
            case bool() | int() | float():
                return (type(value).__name__, repr(value))  # 1, 1.0 and True are equal in Python
            case pa.Schema():
                return tuple((self.form(f.name), str(f.type), f.nullable) for f in value)
            case pa.DataType():
                return str(value)  # with the names of fields, which its equality leaves out
            case pa.Scalar():
                return Literal(value)
            case Literal():
                return value
            case tuple():
                return tuple(self.forms(value))
            case _ if is_dataclass(value) and type(value).__module__.startswith(_PLAN):
                own = tuple(getattr(value, field.name) for field in fields(value))
                return (type(value).__name__, *self.forms(own))
            case None | str() | bytes() | Enum():
                return value
        return _Itself(value)


@dataclass(frozen=True, slots=True, eq=False)
class _Itself:
    """Equal only to the same object, whatever its own `==` says: it may be a user's object."""

    value: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def find_core(child: n.Node, keys: Keys) -> tuple[n.Node, Keys] | None:
    """The node below the projections, in which readers of it may differ, and the keys down there.

    None if one of them computes a key. Filters are passed only if they drop rows with nulls: to
    move others behind an exchange costs rows.
    """
    node = child
    while True:
        match node:
            case n.Project():
                below = [_source(node, key) for key in keys]
                if None in below:
                    return None
                keys = tuple(key for key in below if key is not None)
            case n.Filter() if not _is_null_check(node.condition):
                return None
            case n.Filter():
                pass
            case _:
                return node, keys
        node = node.child


def put_back(child: n.Node, core: n.Node, instead: n.Node) -> n.Node:
    """The projections and filters of `child` over another node than its core."""
    if child is core:
        return instead
    assert isinstance(child, n.Project | n.Filter)
    return child.with_children((put_back(child.child, core, instead),))


def _source(node: n.Project, key: Expr) -> Expr | None:
    if not isinstance(key, Column):
        return None
    expr = node.exprs[node.schema.get_field_index(key.name)]
    return expr if isinstance(expr, Column) else None


def _is_null_check(condition: Expr) -> bool:
    parts = conjuncts(condition)
    return all(isinstance(part, Call) and part.function == "IsNotNull" for part in parts)
