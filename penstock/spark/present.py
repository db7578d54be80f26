"""current_timestamp() and its kin, kept out of the optimizer's hands.

Catalyst replaces them by the time of planning, which is right for a batch. In what reads a stream
each becomes Spark's own CurrentBatchTimestamp instead. The optimizer folds none of those and moves
none across a join or an aggregation: where the user wrote it, the translation finds it. What reads
no stream keeps the time of planning. The session's user, zone and the like are constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.plan.refusals import Refusals

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"
#: Those that know their time zone, and those that have none.
_ZONED: Final = frozenset({"CurrentDate", "LocalTimestamp"})
_INSTANTS: Final = frozenset({"CurrentTimestamp", "Now"})
_KINDS: Final = _ZONED | _INSTANTS | {"CurrentTime"}


def keep_present(spark: Any, analyzed: Any, refusals: Refusals) -> Any:
    """The analyzed plan with every such expression over a stream replaced."""
    # By its whole name: part by part, Java would look into all jars for each.
    pattern = getattr(spark.sparkContext._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
    return _Keeper(spark, pattern.CURRENT_LIKE(), refusals).plan(analyzed)


class _Keeper:
    def __init__(self, spark: Any, pattern: Any, refusals: Refusals) -> None:
        self._spark = spark
        self._jvm = spark.sparkContext._jvm
        self._pattern = pattern
        self._refusals = refusals

    def plan(self, node: Any) -> Any:
        """A plan node and all below it."""
        if not node.containsPattern(self._pattern) or not node.isStreaming():
            return node
        children = [self.plan(child) for child in _seq(node.children())]
        node = node.withNewChildren(self._utils.toSeq(children))
        instead = {}
        for expression in _seq(node.expressions()):
            for found in self._find(expression):
                kept = self._instead_of(found)
                if kept is not None:
                    instead[found] = kept
        if not instead:
            return node
        # A map of Scala's is a partial function, all that a transformation asks for.
        return node.transformExpressions(self._utils.toScalaMap(instead))

    def _find(self, expression: Any) -> Iterator[Any]:
        if not expression.containsPattern(self._pattern):
            return
        if expression.nodeName() in _KINDS:
            yield expression
        else:
            for child in _seq(expression.children()):
                yield from self._find(child)

    def _instead_of(self, expression: Any) -> Any:
        kind = expression.nodeName()
        if kind in _ZONED:
            zone = expression.timeZoneId()
        elif kind in _INSTANTS:
            zone = self._java("scala.Some")(self._spark.conf.get("spark.sql.session.timeZone"))
        else:
            self._refusals.add(
                "the query",
                "current_time(): planning would freeze it",
                "use date_format(current_timestamp(), 'HH:mm:ss')",
            )
            return None
        return self._java(f"{_EXPRESSIONS}.CurrentBatchTimestamp")(0, expression.dataType(), zone)

    @property
    def _utils(self) -> Any:
        return self._java("org.apache.spark.api.python.PythonUtils")

    def _java(self, name: str) -> Any:
        return getattr(self._jvm, name)


def _seq(values: Any) -> list[Any]:
    return [values.apply(index) for index in range(values.length())]
