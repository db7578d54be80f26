"""Why Spark's own optimizer failed on a plan, as a reason for people; the trace stays the cause.

Catalyst's rules have faults of their own: they end in a Java exception that names no part of the
query. Its trace does: the rule that ran, and the kinds of expressions that it was about. An error
that Spark means for its user (it has a condition, e.g. DIVIDE_BY_ZERO) is told in Spark's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from penstock.errors import Reason
from penstock.plan.refusals import Refusals

_FRAME: Final = re.compile(r"^\s+at (?:[\w.]+//?)?([\w.$]+)\.[\w$<>]+\(", re.MULTILINE)
#: A class under its packages, whose names are in lower case.
_PACKAGES: Final = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")
_EXECUTOR: Final = "org.apache.spark.sql.catalyst.rules.RuleExecutor"
_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."
#: Where every expression passes by: they say nothing.
_COMMON: Final = {"Alias", "AttributeReference", "AggregateExpression", "Literal"}
_CAUSE_MAX: Final = 200
_REMEDIES: Final = {
    "RewriteDistinctAggregates": (
        "Spark fails on it in batches, too. Take DISTINCT of one set of columns in an aggregation: "
        "for example array_join(sort_array(collect_set(x)), ',') in place of listagg(DISTINCT x, "
        "',') WITHIN GROUP (ORDER BY x)"
    )
}
_REMEDY: Final = (
    "say this part in another way, or put it into a query of its own; Spark is likely to fail on "
    "it in batches, too. Its trace is the __cause__ of this error"
)


class Failure(NamedTuple):
    """What a trace tells."""

    #: The class of the exception and its message, in one line.
    cause: str
    #: The rule that ran; None if none did.
    rule: str | None
    #: Kinds of expressions that it was about, the innermost first.
    kinds: tuple[str, ...]


def read_trace(trace: str) -> Failure:
    """What Java's trace of a failed optimizer tells. Pure."""
    head = re.split(r"\n\s+at ", trace, maxsplit=1)[0].strip()
    line = head.split("\n", 1)[0] if head else "no cause is known"
    # Of a failed cast, Java tells where both classes were loaded from.
    line = _PACKAGES.sub("", line.partition(" (")[0] if "cannot be cast" in line else line)
    rule: str | None = None
    kinds: dict[str, None] = {}
    below = None
    for match in _FRAME.finditer(trace):
        name = match[1]
        if name.startswith(_EXECUTOR):
            rule = below
            break
        below = _class_name(name)
        if name.startswith(_EXPRESSIONS):
            kinds[below] = None
    return Failure(line[:_CAUSE_MAX], rule, tuple(kind for kind in kinds if kind not in _COMMON))


def _class_name(name: str) -> str:
    """Without packages, and without what Scala puts behind a dollar."""
    return name.rpartition(".")[2].partition("$")[0]


def optimize(spark: Any, analyzed: Any, refusals: Refusals) -> Any:
    """What the session's optimizer makes of the plan; it is refused if the optimizer breaks."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return spark._jsparkSession.sessionState().optimizer().execute(analyzed)
    except (Py4JJavaError, PySparkException) as error:
        reason = _why_failed(error, analyzed)
        if reason is None:
            raise
        refusals.add(reason.node, reason.problem, reason.remedy)
        refusals.check(error)
        raise


def _why_failed(error: Any, plan: Any) -> Reason | None:
    """Why the optimizer failed on this plan; None if Spark tells its user so itself."""
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException):
        # SQL states that begin with XX are internal errors, Spark's as everybody's.
        if error.getCondition() is not None and not (error.getSqlState() or "").startswith("XX"):
            return None
        trace = str(getattr(error, "_stackTrace", None) or error)
    else:
        trace = str(error).partition("\n: ")[2]  # behind the call that py4j made
    failure = read_trace(trace)
    where = f", in its rule {failure.rule}" if failure.rule else ""
    return Reason(
        _find(plan, failure.kinds) or "the query",
        f"Spark's own optimizer fails on it{where} ({failure.cause})",
        _REMEDIES.get(failure.rule or "", _REMEDY),
    )


def _find(plan: Any, kinds: tuple[str, ...]) -> str | None:
    """The first expression of the plan that is of one of these kinds, as Spark prints it."""
    texts: dict[str, str] = {}
    for node in _walk(plan):
        for expression in _seq(node.expressions()):
            for parent, child in _pairs(expression):
                kind = str(child.nodeName())
                if kind in kinds and kind not in texts:
                    # Whether it is distinct, and of which rows, is said by what is around it.
                    around = parent.nodeName() == "AggregateExpression"
                    texts[kind] = str((parent if around else child).sql())
    return next((texts[kind] for kind in kinds if kind in texts), None)


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in _seq(node.children()):
        yield from _walk(child)


def _pairs(expression: Any, parent: Any = None) -> Iterator[tuple[Any, Any]]:
    yield expression if parent is None else parent, expression
    for child in _seq(expression.children()):
        yield from _pairs(child, expression)


def _seq(values: Any) -> list[Any]:
    return [values.apply(index) for index in range(values.length())]
