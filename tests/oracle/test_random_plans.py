"""Random queries over random rows give batch Spark's result, in any chunking, after a restart."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from harness.oracle import arrow_as_from_a_source, ask_spark
from harness.soak import fresh_seeds
from hypothesis import given, seed, settings
from plan_functions import register
from plan_strategies import Case, cases

from penstock.plan.explain import explain
from penstock.spark.frontend import plan
from penstock.testing.oracle import Failed, assert_equal, run_ours, streaming_frames

pytestmark = [
    pytest.mark.filterwarnings("ignore:It is preferred to specify type hints"),
    pytest.mark.filterwarnings("ignore:In Python 3.6"),
]
#: The bar; a few examples more are drawn, because some come out alike.
PLANS_MIN = 120
EXAMPLES = 150
#: So many at a time, until the time is up.
SOAK_EXAMPLES = 250


def check(spark: Any, case: Case, seen: set[str]) -> None:
    """Compare one case, unless its plan was `seen` before: the same plan shows nothing new."""
    spark.conf.set("spark.sql.ansi.enabled", str(case.ansi).lower())
    try:
        build, tables = case.build(spark), case.tables()
        frame = build(streaming_frames(spark, tables))
        planned = plan(frame, mode=case.mode)
        text = explain(planned.query)
        if text in seen:
            return
        expected = ask_spark(spark, build, tables, arrow_as_from_a_source, frame=frame)
        actual = run_ours(planned, tables, random.Random(case.seed))
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    if not (isinstance(expected, Failed) and isinstance(actual, Failed)):
        assert_equal(actual, expected, case.sql)
    # else: of several wrong rows either may be met first; tests per function compare conditions.
    seen.add(text)


@pytest.mark.timeout(900)  # three minutes on two cores if Spark must be asked
def test_random_plans_equal_batch_spark(spark: Any) -> None:
    register(spark)
    plans: set[str] = set()

    @settings(max_examples=int(os.environ.get("PENSTOCK_RANDOM_PLANS", EXAMPLES)))
    @given(cases())
    def run(case: Case) -> None:
        check(spark, case, plans)

    run()
    assert len(plans) >= PLANS_MIN


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_fresh_random_plans_equal_batch_spark(spark: Any) -> None:
    register(spark)

    @settings(max_examples=SOAK_EXAMPLES, derandomize=False, database=None)
    @given(cases())
    def run(case: Case) -> None:
        check(spark, case, set())

    for number in fresh_seeds():
        seed(number)(run)()
