"""Operators on state in mapped files of which everything is let go all the time.

A part of what is asked of state in memory; `make soak` asks all of it (PENSTOCK_STATE=mapped).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from harness.rooms import Forgetful, states_are
from nexmark_events import Events, generated
from test_nexmark_matches_spark import run
from test_sessions_match_spark import (
    test_sessions_merge_in_any_order_of_rows as test_sessions,
)
from test_sessions_match_spark import (
    test_what_was_open_before_a_restart_closes_in_time as test_sessions_after_a_restart,
)
from test_top_n_matches_spark import (
    test_top_n_over_rows_that_are_taken_back_equals_spark as test_top_n,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "test_sessions",
    "test_sessions_after_a_restart",
    "test_top_n",
]


@pytest.fixture(scope="module", autouse=True)
def room() -> Iterator[Forgetful]:
    with states_are(made := Forgetful()):
        yield made


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> Iterator[Events]:
    with generated(spark, 20_000, 1_000) as made:
        yield made


@pytest.mark.parametrize("name", ["q4", "q5", "q8", "q18"])
def test_nexmark(events: Events, room: Forgetful, name: str) -> None:
    df = events.build(name, events.streams)

    ours = run(events, df, "update")

    assert room.bytes
    events.assert_equals_spark(name, df, ours)
