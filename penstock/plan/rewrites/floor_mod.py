"""CASE WHEN a % w < 0 THEN a % w + w ELSE a % w END is pmod(a, w): how Spark spells window().

One kernel instead of a branch over four; exact, because w is a positive constant.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Expr, Literal
from penstock.plan.exprs import replace as replace_expr
from penstock.plan.rewrites.aim import Aim


def floor_mod(root: n.Node, aim: Aim) -> n.Node:
    """The plan with every such CASE in a projection simplified."""
    return root.rebuild(_simplify_node)


def _simplify_node(node: n.Node) -> n.Node:
    match node:
        case n.Project():
            return replace(node, exprs=tuple(_simplify(expr) for expr in node.exprs))
        case n.Expand():
            return replace(
                node,
                projections=tuple(
                    tuple(_simplify(expr) for expr in exprs) for exprs in node.projections
                ),
            )
        case _:
            return node


def _simplify(expr: Expr) -> Expr:
    return replace_expr(expr, _as_pmod)


def _as_pmod(expr: Expr) -> Expr | None:
    match expr:
        case Call(
            "CaseWhen",
            (
                Call("LessThan", (Call("Remainder", (dividend, Literal() as width)) as rest, zero)),
                Call("Add", (rest_again, width_again)),
                otherwise,
            ),
        ) if (
            rest == rest_again == otherwise
            and width == width_again
            and isinstance(zero, Literal)
            and zero.value.as_py() == 0
            and _is_positive(width)
        ):
            return Call("Pmod", (_simplify(dividend), width), expr.type, rest.options)
        case _:
            return None


def _is_positive(width: Literal) -> bool:
    value = width.value.as_py()
    return isinstance(value, int) and value > 0
