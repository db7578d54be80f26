"""The search for the highest rate that is held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_bench.nexmark.saturate import RATE_MAX, RATE_MIN, WITHIN, Step, next_rate


def _search(first: float, truth: float) -> list[Step]:
    steps: list[Step] = []
    while (rate := next_rate(first, steps)) is not None:
        steps.append(Step(rate, rate <= truth))
        assert len(steps) < 40
    return steps


@given(first=st.floats(100, 100_000), truth=st.floats(RATE_MIN * 4, RATE_MAX / 4, allow_nan=False))
def test_it_ends_with_a_held_rate_and_a_failed_one_a_tenth_above(
    first: float, truth: float
) -> None:
    steps = _search(first, truth)

    held = max(step.rate for step in steps if step.is_held)
    failed = min(step.rate for step in steps if not step.is_held)
    assert held <= truth < failed <= held * (1 + WITHIN)


def test_it_gives_up_where_nothing_is_held() -> None:
    steps = _search(10_000, 0)

    assert not any(step.is_held for step in steps)
    assert steps[-1].rate >= RATE_MIN


def test_it_stops_at_the_largest_rate() -> None:
    assert max(step.rate for step in _search(10_000, 1e12)) <= RATE_MAX


def test_bad_luck_below_a_held_rate_is_forgotten() -> None:
    steps = [Step(1_000, False), Step(500, True), Step(1_200, True)]

    assert next_rate(1_000, steps) == pytest.approx(2_400)


def test_no_rate_is_tried_twice() -> None:
    rates = [step.rate for step in _search(20_000, 83_000)]

    assert len(rates) == len(set(rates))
