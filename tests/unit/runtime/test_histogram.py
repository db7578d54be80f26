"""Percentiles are right to a tenth, and those of many tasks are those of all their latencies."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.histogram import Histogram, RecentHistogram

MS = st.floats(0.01, 600_000)
LISTS = st.lists(MS, max_size=30)


def made(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(st.lists(MS, min_size=1, max_size=60), st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_right_to_a_tenth(values: list[float], share: float) -> None:
    found = made(values).percentile(share)
    exact = next(
        value for place, value in enumerate(sorted(values), 1) if place >= share * len(values)
    )
    assert found == pytest.approx(exact, rel=0.051)


@given(LISTS, LISTS, LISTS)
def test_merged_histograms_are_those_of_all_values(
    one: list[float], two: list[float], three: list[float]
) -> None:
    parts = [made(values) for values in (one, two, three)]
    whole = made([*one, *two, *three]).to_json()
    assert parts[0].merge(parts[1:]).to_json() == whole
    assert parts[2].merge([parts[1].merge([parts[0]])]).to_json() == whole
    assert parts[0].to_json() == made(one).to_json(), "merging changes neither"


@given(LISTS)
def test_a_histogram_survives_json(values: list[float]) -> None:
    histogram = made(values)
    text = json.dumps(histogram.to_json())
    assert Histogram.from_json(json.loads(text)).summary() == histogram.summary()
    assert histogram.count == len(values)


def test_nothing_has_no_percentiles() -> None:
    assert Histogram().percentile(0.5) is None
    assert Histogram().summary() == {"p50": None, "p95": None, "p99": None}


@pytest.mark.parametrize("ms", [-5.0, 0.0, 0.001])
def test_what_is_too_short_to_tell_counts_as_the_smallest(ms: float) -> None:
    assert made([ms]).percentile(0.5) == 0.01


def test_what_is_too_long_counts_as_the_largest() -> None:
    assert made([10**12]).percentile(0.5) == made([10**9]).percentile(0.5)
    assert (made([10**9]).percentile(0.5) or 0) > 600_000


def test_many_at_once_are_as_many_one_by_one() -> None:
    histogram = Histogram()
    histogram.add(5.0, 3)
    assert histogram.to_json() == made([5.0] * 3).to_json()


def test_what_is_slow_now_is_not_hidden_by_a_good_past() -> None:
    recent = RecentHistogram(window_seconds=5.0)
    assert recent.recent(100.0).count == 0
    recent.add(1.0)
    assert recent.recent(104.0).count == 1
    assert recent.recent(106.0).count == 1, "of the window before"
    recent.add(50.0)
    assert recent.recent(110.0).count == 2
    assert recent.recent(112.0).percentile(0.0) == pytest.approx(50.0, rel=0.05)
    assert recent.recent(118.0).count == 0
