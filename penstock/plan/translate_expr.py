"""Expressions of the neutral tree to expressions of the IR.

Catalyst has resolved names, types and casts, so nearly everything is a Call under Catalyst's own
name. What is special is listed here; what no function answers for is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import pyarrow as pa

from penstock.plan.exprs import Call, Column, Expr, Lambda, Literal, Option
from penstock.plan.refusals import MICRO_BATCH, Refusals
from penstock.plan.tree import ExprTree

#: Says why a call cannot be evaluated, or None: the registry of functions.
Judge: TypeAlias = Callable[[Call], str | None]

#: Notes to Spark's own optimizer and code generator; the value passes through.
TRANSPARENT: Final = frozenset(
    {
        "Alias",
        "KnownFloatingPointNormalized",
        "KnownNotContainsNull",
        "KnownNotNull",
        "KnownNullable",
        "PromotePrecision",
        "TempResolvedColumn",
        "UpCast",
    }
)
_EVAL_CONTEXT: Final = re.compile(r"NumericEvalContext\((\w+),")
#: Expressions whose value is not a function of the row.
_UNREPEATABLE: Final = {
    "Rand": "rand() gives other values when a batch is processed again after a failure",
    "Randn": "randn() gives other values when a batch is processed again after a failure",
    "Uuid": "uuid() gives other values when a batch is processed again after a failure",
    "Shuffle": "shuffle() gives other values when a batch is processed again after a failure",
    "MonotonicallyIncreasingID": "monotonically_increasing_id() counts rows of Spark's partitions",
    "SparkPartitionID": "spark_partition_id() names Spark's partitions, which do not exist here",
    "InputFileName": "input_file_name() needs a file source",
}


#: What may be done with a year-month interval, which is an int32 to every function: elsewhere it
#: would be taken for a number.
_MONTHS_FUNCTIONS: Final = frozenset(
    {
        "CaseWhen",
        "Coalesce",
        "DateAddYMInterval",
        "DivideYMInterval",
        "EqualNullSafe",
        "EqualTo",
        "ExtractANSIIntervalMonths",
        "ExtractANSIIntervalYears",
        "GreaterThan",
        "GreaterThanOrEqual",
        "If",
        "IsNotNull",
        "IsNull",
        "LessThan",
        "LessThanOrEqual",
        "MakeYMInterval",
        "MultiplyYMInterval",
        "TimestampAddYMInterval",
    }
)


class ExprTranslator:
    """Translates the expressions of one query; refusals go to the query's list."""

    def __init__(self, judge: Judge, refusals: Refusals) -> None:
        self._judge = judge
        self._refusals = refusals

    def translate(self, tree: ExprTree, where: str) -> Expr:
        """The IR of an expression of the plan node that prints as `where`.

        After a refusal the answer is a null of the right type, so that the rest is looked at too.
        """
        if tree.problem is not None:
            self._refusals.add(where, f"{tree.text or tree.kind}: {tree.problem}")
        match tree.kind:
            case "AttributeReference" | "NamedLambdaVariable":
                return _column(tree)
            case "Literal":
                return self._literal(tree, where)
            case "LambdaFunction":
                body, *params = tree.children
                return Lambda(
                    tuple(_column(param) for param in params), self.translate(body, where)
                )
            case kind if kind in TRANSPARENT:
                return self.translate(tree.children[0], where)
            case _:
                return self._call(tree, where)

    def _literal(self, tree: ExprTree, where: str) -> Expr:
        value = tree.fields["value"]
        if not isinstance(value, pa.Scalar):
            return Literal(pa.scalar(None))
        return Literal(value)

    def _call(self, tree: ExprTree, where: str) -> Expr:
        args = tuple(self.translate(child, where) for child in tree.children)
        arrow_type = tree.type if tree.type is not None else pa.null()
        unrepeatable = _UNREPEATABLE.get(tree.kind)
        if unrepeatable is not None:
            self._refusals.add(where, unrepeatable, "compute it before the rows enter the log")
            return Literal(pa.scalar(None, arrow_type))
        if tree.kind not in _MONTHS_FUNCTIONS and _touches_months(tree):
            self._refusals.add(where, f"a year-month interval in {tree.kind}")
        call = Call(function_name(tree), args, arrow_type, options(tree))
        problem = self._judge(call)
        if problem is not None:
            self._refusals.add(where, problem, f"rewrite that expression, or {MICRO_BATCH}")
        return call


def _touches_months(tree: ExprTree) -> bool:
    return tree.is_months or any(child.is_months for child in tree.children)


def function_name(tree: ExprTree) -> str:
    """Catalyst's class name; for a call of a Java method the class and the method."""
    if tree.kind == "StaticInvoke":
        owner = str(tree.fields["staticObject"]).rsplit(".", 1)[-1]
        return f"{owner}.{tree.text_of('functionName')}"
    if tree.kind == "Invoke":
        return f"Invoke.{tree.text_of('functionName')}"
    return tree.kind


def options(tree: ExprTree) -> tuple[tuple[str, Option], ...]:
    """The settings frozen into the node; the evaluation mode always under `evalMode`."""
    found: list[tuple[str, Option]] = []
    for key, value in tree.fields.items():
        if key == "evalContext":
            mode = _EVAL_CONTEXT.match(str(value))
            found.append(("evalMode", mode[1] if mode is not None else str(value)))
        elif _is_option(value):
            found.append((key, value))
    return tuple(found)


def _is_option(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_option(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | bytes | pa.Scalar)


def _column(tree: ExprTree) -> Column:
    assert tree.type is not None or tree.problem is not None
    name = f"{tree.text_of('name')}#{tree.text_of('id')}"
    return Column(name, tree.type if tree.type is not None else pa.null())
