"""The registry of plan nodes: Catalyst's class name to the function that translates such nodes.

A function is given the query under translation and the node. It translates the node's children and
expressions through that query, and notes there what cannot run; then it answers with a node all the
same, so that the rest of the plan is looked at too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Expr
from penstock.plan.refusals import MICRO_BATCH, Refusals
from penstock.plan.supply import Subquery
from penstock.plan.translation.expressions import ColumnOf, ExprTranslator, JudgeCall
from penstock.plan.tree import ExprTree, PlanTree, schema_of


@dataclass(frozen=True, slots=True)
class Judges:
    """What the operators can do: each says why not, or None."""

    call: JudgeCall
    aggregate: Callable[[n.AggregateCall], str | None]
    window: Callable[[n.WindowCall], str | None]
    generator: Callable[[str], str | None]
    udf: Callable[[int], str | None]
    processor: Callable[[n.TransformWithState], str | None]


class Translation:
    """One query under translation."""

    def __init__(self, judges: Judges, refusals: Refusals) -> None:
        self.judges = judges
        #: What computes the rows of each static input, by id.
        self.statics: dict[int, Callable[[], pa.Table]] = {}
        #: By the column that holds its value.
        self.subqueries: dict[str, Subquery] = {}
        #: Streams of the log that have a column of their own under the name of the append time.
        self.own_times: set[str] = set()
        self._refusals = refusals
        self._exprs = ExprTranslator(judges.call, refusals, self._subquery)

    def node(self, tree: PlanTree) -> n.Node:
        """The IR of a plan node and of all below it."""
        for attribute in tree.output:
            if attribute.problem is not None:
                self.refuse(tree, f"column {attribute.name}: {attribute.problem}")
        return TRANSLATORS.get(tree.kind, _refuse_kind)(self, tree)

    def child(self, tree: PlanTree) -> n.Node:
        """The IR of the first child, which most nodes have alone."""
        return self.node(tree.children[0])

    def expr(self, tree: ExprTree, where: PlanTree) -> Expr:
        """The IR of an expression of the plan node `where`."""
        return self._exprs.translate(tree, where.text)

    def exprs(self, trees: Iterable[ExprTree], where: PlanTree) -> tuple[Expr, ...]:
        """The IR of several expressions of one plan node."""
        return tuple(self.expr(tree, where) for tree in trees)

    def expr_over(self, tree: ExprTree, where: PlanTree, kind: str, column_of: ColumnOf) -> Expr:
        """The expression with every part of this kind replaced by the column that will hold it."""
        return self._exprs.translate_over(tree, where.text, kind, column_of)

    def static(self, tree: PlanTree) -> n.Static:
        """The rows of a plan that reads no stream."""
        assert tree.rows is not None
        id = len(self.statics)
        self.statics[id] = tree.rows
        return n.Static(schema=schema_of(tree.output), id=id, empty=tree.is_streaming)

    def _subquery(self, tree: PlanTree) -> Column:
        (value,) = tree.output
        column = Column(value.column, value.type)
        if column.name not in self.subqueries:
            self.subqueries[column.name] = Subquery(column, self.static(tree))
        return column

    def order(self, terms: Iterable[ExprTree], where: PlanTree) -> tuple[n.Order, ...]:
        """The terms of an ORDER BY."""
        return tuple(
            n.Order(
                expr=self.expr(term.children[0], where),
                descending=term.text_of("direction").startswith("Desc"),
                nulls_first=term.text_of("nullOrdering").startswith("NullsFirst"),
            )
            for term in terms
        )

    def refuse(self, where: PlanTree, problem: str | None, remedy: str = MICRO_BATCH) -> None:
        """Note why this plan node cannot run; None, a judge's consent, is not noted."""
        if problem is not None:
            self._refusals.add(where.text, problem, remedy)


Translate: TypeAlias = Callable[[Translation, PlanTree], n.Node]
#: By Catalyst's class name.
TRANSLATORS: Final[dict[str, Translate]] = {}


def translates(*kinds: str) -> Callable[[Translate], Translate]:
    """Register the function that translates plan nodes of these kinds."""

    def register(translate: Translate) -> Translate:
        for kind in kinds:
            assert kind not in TRANSLATORS, f"{kind} is registered twice"
            TRANSLATORS[kind] = translate
        return translate

    return register


@translates(
    # They only say where rows should be, which our stages decide.
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    # It only saves work below a global limit.
    "LocalLimit",
)
def translate_nothing(translation: Translation, tree: PlanTree) -> n.Node:
    """A node that changes no result."""
    return translation.child(tree)


#: What to do instead of nodes for which there is no operator.
_REMEDIES: Final = {
    "AttachDistributedSequence": (
        "number rows by their place in the log: stream.df(spark, metadata=['_lsn'])"
    ),
    "CollectMetrics": (
        "leave observe() out, and compute its figures in a query of their own over the same "
        "streams: penstock.start(df.agg(...), to=...)"
    ),
    "Sample": "filter by a hash of the row: where('pmod(xxhash64(key), 100) < 5')",
    "Tail": "read the result with spark.read and limit it there",
}


def _refuse_kind(translation: Translation, tree: PlanTree) -> n.Node:
    problem, remedy = f"no operator for {tree.kind}", _REMEDIES.get(tree.kind, MICRO_BATCH)
    translation.refuse(tree, problem, remedy)
    for child in tree.children:  # what is wrong below is told too
        is_sorted = tree.kind == "Sample" and child.kind == "Sort"  # by randomSplit, not by users
        translation.node(child.children[0] if is_sorted else child)
    return n.Static(schema=schema_of(tree.output), id=-1, empty=True)
