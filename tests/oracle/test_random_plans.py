"""Random queries over random rows give batch Spark's result, in any chunking, after a restart."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from harness.soak import fresh_seeds
from hypothesis import given, seed, settings
from plan_strategies import Case, cases

from penstock.plan.explain import explain
from penstock.testing.oracle import (
    Failed,
    assert_equal,
    plan_streaming,
    run_ours,
    run_spark,
)

#: The bar; a few examples more are drawn, because some come out alike.
PLANS_MIN = 500
EXAMPLES = 590
#: So many at a time, until the time is up.
SOAK_EXAMPLES = 250


def check(spark: Any, case: Case) -> str:
    """Compare one case; returns the text of its plan."""
    spark.conf.set("spark.sql.ansi.enabled", str(case.ansi).lower())
    try:
        build, tables = case.build(spark), case.tables()
        expected = run_spark(spark, build, tables)
        planned = plan_streaming(spark, build, tables, case.mode)
        actual = run_ours(planned, tables, random.Random(case.seed))
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    if isinstance(expected, Failed) and isinstance(actual, Failed):
        # With several wrong rows either may be met first; tests per function compare conditions.
        return explain(planned.query)
    assert_equal(actual, expected, case.sql)
    return explain(planned.query)


@pytest.mark.timeout(900)  # three minutes on two cores
def test_random_plans_equal_batch_spark(spark: Any) -> None:
    plans: set[str] = set()

    @settings(max_examples=int(os.environ.get("PENSTOCK_RANDOM_PLANS", EXAMPLES)))
    @given(cases())
    def run(case: Case) -> None:
        plans.add(check(spark, case))

    run()
    assert len(plans) >= PLANS_MIN


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_fresh_random_plans_equal_batch_spark(spark: Any) -> None:
    @settings(max_examples=SOAK_EXAMPLES, derandomize=False, database=None)
    @given(cases())
    def run(case: Case) -> None:
        check(spark, case)

    for number in fresh_seeds():
        seed(number)(run)()
