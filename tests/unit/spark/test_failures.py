"""What a Java trace of Spark's optimizer tells, without Spark."""

from __future__ import annotations

from penstock.spark.failures import read_trace

TRACE = """java.lang.ClassCastException: class org.apache.spark.sql.catalyst.expressions.\
AttributeReference cannot be cast to class org.apache.spark.sql.catalyst.expressions.SortOrder \
(org.apache.spark.sql.catalyst.expressions.AttributeReference is in unnamed module of loader 'app')
\tat org.apache.spark.sql.catalyst.expressions.aggregate.ListAgg.$anonfun$with$1(collect.scala:988)
\tat scala.collection.immutable.Vector1.map(Vector.scala:2141)
\tat org.apache.spark.sql.catalyst.expressions.Alias.mapChildren(Expression.scala:5)
\tat org.apache.spark.sql.catalyst.expressions.aggregate.ListAgg.with(collect.scala:605)
\tat org.apache.spark.sql.catalyst.optimizer.RewriteDistinctAggregates$.patch$1(Rewrite.scala:262)
\tat org.apache.spark.sql.catalyst.optimizer.RewriteDistinctAggregates$$anonfun$apply$1.a(R.scala:3)
\tat org.apache.spark.sql.catalyst.rules.RuleExecutor.$anonfun$execute$2(RuleExecutor.scala:248)
\tat org.apache.spark.sql.catalyst.expressions.Cast.eval(Cast.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


def test_the_rule_the_expressions_and_the_cause_are_read_from_the_trace() -> None:
    failure = read_trace(TRACE)

    assert failure.rule == "RewriteDistinctAggregates"
    assert failure.kinds == ("ListAgg",)
    expected = "ClassCastException: class AttributeReference cannot be cast to class SortOrder"
    assert failure.cause == expected


def test_a_trace_without_a_rule_has_its_cause_in_one_short_line() -> None:
    failure = read_trace(
        "java.lang.StackOverflowError\n" + "\tat scala.Option.map(Option.scala:1)\n"
    )
    assert failure == ("StackOverflowError", None, ())

    long = read_trace("java.lang.IllegalStateException: " + "x" * 1000 + "\nsecond line")
    assert long.cause.startswith("IllegalStateException: xxx") and len(long.cause) == 200
    assert read_trace("").cause
