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
from penstock.plan.types import VARIANT

#: Says why a call cannot be evaluated, or None: the registry of functions.
JudgeCall: TypeAlias = Callable[[Call], str | None]
#: The column that will hold the value of a part of an expression.
ColumnOf: TypeAlias = Callable[[ExprTree], Column]

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
    """Translates the expressions of one query; refusals go to the query's list.

    After a refusal the answer has the right type all the same, so that the rest is looked at too.
    `where` is the text of the plan node whose expression it is.
    """

    def __init__(self, judge: JudgeCall, refusals: Refusals) -> None:
        self._judge = judge
        self._refusals = refusals

    def translate(self, tree: ExprTree, where: str) -> Expr:
        """The IR of an expression."""
        if tree.problem is not None:
            self._refusals.add(where, f"{tree.text or tree.kind}: {tree.problem}")
        return _SPECIAL.get(tree.kind, ExprTranslator._translate_call)(self, tree, where)

    def translate_over(self, tree: ExprTree, where: str, kind: str, column_of: ColumnOf) -> Expr:
        """The expression with every part of this kind replaced by the column that will hold it."""
        if tree.kind == kind:
            return column_of(tree)
        if tree.kind in TRANSPARENT:
            return self.translate_over(tree.children[0], where, kind, column_of)
        if not any(part.kind == kind for part in tree.walk()):
            return self.translate(tree, where)
        if tree.kind == "LambdaFunction":
            self._refusals.add(where, "an aggregate inside a lambda")
        args = tuple(self.translate_over(c, where, kind, column_of) for c in tree.children)
        return self._call(tree, args, where, MICRO_BATCH)

    def _translate_call(self, tree: ExprTree, where: str) -> Expr:
        args = tuple(self.translate(child, where) for child in tree.children)
        unrepeatable = _UNREPEATABLE.get(tree.kind)
        if unrepeatable is not None:
            self._refusals.add(where, unrepeatable, "compute it before the rows enter the log")
            return Literal(pa.scalar(None, tree.arrow_type))
        if tree.kind not in _MONTHS_FUNCTIONS and _touches_months(tree):
            self._refusals.add(where, f"a year-month interval in {tree.kind}")
        return self._call(tree, args, where, f"rewrite that expression, or {MICRO_BATCH}")

    def _call(self, tree: ExprTree, args: tuple[Expr, ...], where: str, remedy: str) -> Call:
        call = Call(function_name(tree), args, tree.arrow_type, options(tree))
        problem = self._judge(call)
        if problem is not None:
            self._refusals.add(where, problem, remedy)
        return call

    def _translate_column(self, tree: ExprTree, where: str) -> Column:
        assert tree.type is not None or tree.problem is not None
        return Column(tree.column, tree.arrow_type)

    def _translate_literal(self, tree: ExprTree, where: str) -> Expr:
        value = tree.fields["value"]
        return Literal(value if isinstance(value, pa.Scalar) else pa.scalar(None))

    def _translate_lambda(self, tree: ExprTree, where: str) -> Expr:
        body, *params = tree.children
        variables = tuple(self._translate_column(param, where) for param in params)
        return Lambda(variables, self.translate(body, where))

    def _translate_inner(self, tree: ExprTree, where: str) -> Expr:
        return self.translate(tree.children[0], where)


#: Whatever is not a call of a function, by Catalyst's class name.
_SPECIAL: Final[dict[str, Callable[[ExprTranslator, ExprTree, str], Expr]]] = {
    "AttributeReference": ExprTranslator._translate_column,
    "NamedLambdaVariable": ExprTranslator._translate_column,
    "Literal": ExprTranslator._translate_literal,
    "LambdaFunction": ExprTranslator._translate_lambda,
    **dict.fromkeys(TRANSPARENT, ExprTranslator._translate_inner),
}


def _touches_months(tree: ExprTree) -> bool:
    return tree.is_months or any(child.is_months for child in tree.children)


def function_name(tree: ExprTree) -> str:
    """Catalyst's class name; for a call of a Java method the class and the method."""
    if tree.kind == "Cast" and tree.children[0].type == VARIANT:
        return "CastOfVariant"
    if tree.kind == "StaticInvoke":
        owner = str(tree.fields["staticObject"]).rsplit(".", 1)[-1]
        return f"{owner}.{tree.text_of('functionName')}"
    if tree.kind == "Invoke":
        target = str(tree.fields.get("target", ""))
        owner = "to_json" if target.startswith("StructsToJsonEvaluator(") else "Invoke"
        return f"{owner}.{tree.text_of('functionName')}"
    return tree.kind


def options(tree: ExprTree) -> tuple[tuple[str, Option], ...]:
    """The settings frozen into the node; the evaluation mode always under `evalMode`."""
    chosen: list[tuple[str, Option]] = []
    for key, value in tree.fields.items():
        if key == "evalContext":
            mode = _EVAL_CONTEXT.match(str(value))
            chosen.append(("evalMode", mode[1] if mode is not None else str(value)))
        elif _is_option(value):
            chosen.append((key, value))
    return tuple(chosen)


def _is_option(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_option(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | bytes | pa.Scalar)
