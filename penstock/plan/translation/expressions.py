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
from penstock.plan.refusals import IN_PYTHON, MICRO_BATCH, Refusals
from penstock.plan.supply import PRESENT
from penstock.plan.translation.remedies import remedy_of
from penstock.plan.tree import ExprTree, PlanTree
from penstock.plan.types import VARIANT

#: Says why a call cannot be evaluated, or None: the registry of functions.
JudgeCall: TypeAlias = Callable[[Call], str | None]
#: The column that will hold the value of a part of an expression.
ColumnOf: TypeAlias = Callable[[ExprTree], Column]

#: The column that will hold the value of a scalar subquery over these rows.
ColumnOfSubquery: TypeAlias = Callable[[PlanTree], Column]

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
_AGAIN: Final = "gives other values when a batch is processed again after a failure"
_BEFORE: Final = "compute it before the rows enter the log"
_NO_PARTITIONS: Final = "Spark's partitions, which do not exist here"
#: Expressions whose value is not a function of the row: why not, and what is one.
_UNREPEATABLE: Final = {
    "Rand": (f"rand() {_AGAIN}", f"{_BEFORE}, or take a hash: pmod(xxhash64(key), 1000) / 1000"),
    "Randn": (f"randn() {_AGAIN}", _BEFORE),
    "Uuid": (f"uuid() {_AGAIN}", f"{_BEFORE}, or take a digest: sha2(to_json(struct(*)), 256)"),
    "Shuffle": (f"shuffle() {_AGAIN}", _BEFORE),
    "monotonically_increasing_id": (
        f"monotonically_increasing_id() counts rows of {_NO_PARTITIONS}",
        "give rows a number before they enter the log, or number those of a key:"
        " row_number() over (partition by key order by time)",
    ),
    "SparkPartitionID": (
        f"spark_partition_id() names {_NO_PARTITIONS}",
        "leave it out, or make buckets by a hash: pmod(hash(key), 16)",
    ),
    "InputFileName": (
        "input_file_name() needs a file source",
        "add the name as a column when the files are written to a stream",
    ),
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
        "Sequence",
        "TimestampAddYMInterval",
    }
)


class ExprTranslator:
    """Translates the expressions of one query; refusals go to the query's list.

    After a refusal the answer has the right type all the same, so that the rest is looked at too.
    `where` is the text of the plan node whose expression it is.
    """

    def __init__(
        self, judge: JudgeCall, refusals: Refusals, column_of: ColumnOfSubquery | None = None
    ) -> None:
        self._judge = judge
        self._refusals = refusals
        self._column_of = column_of

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
            self._refusals.add(where, *unrepeatable)
            return Literal(pa.scalar(None, tree.arrow_type))
        if tree.kind not in _MONTHS_FUNCTIONS and _touches_months(tree):
            self._refusals.add(where, f"a year-month interval in {tree.kind}")
        return self._call(tree, args, where, IN_PYTHON)

    def _call(self, tree: ExprTree, args: tuple[Expr, ...], where: str, remedy: str) -> Call:
        call = Call(function_name(tree), args, tree.arrow_type, options(tree))
        problem = self._judge(call)
        if problem is not None:
            self._refusals.add(where, problem, remedy_of(problem, remedy))
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

    def _translate_present(self, tree: ExprTree, where: str) -> Expr:
        """current_timestamp() and the like (spark/present.py): what the log says, as that type."""
        if tree.arrow_type == PRESENT.type:
            return PRESENT
        zone = (("timeZoneId", tree.fields["timeZoneId"]), ("evalMode", "ANSI"))
        return Call("Cast", (PRESENT,), tree.arrow_type, zone)

    def _translate_subquery(self, tree: ExprTree, where: str) -> Expr:
        rows = tree.fields["plan"]
        if tree.children or not isinstance(rows, PlanTree) or self._column_of is None:
            self._refusals.add(where, "such a subquery", "join its table instead")
            return Literal(pa.scalar(None, tree.arrow_type))
        return self._column_of(rows)


#: Whatever is not a call of a function, by Catalyst's class name.
_SPECIAL: Final[dict[str, Callable[[ExprTranslator, ExprTree, str], Expr]]] = {
    "AttributeReference": ExprTranslator._translate_column,
    "NamedLambdaVariable": ExprTranslator._translate_column,
    "Literal": ExprTranslator._translate_literal,
    "LambdaFunction": ExprTranslator._translate_lambda,
    "CurrentBatchTimestamp": ExprTranslator._translate_present,
    "ScalarSubquery": ExprTranslator._translate_subquery,
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
