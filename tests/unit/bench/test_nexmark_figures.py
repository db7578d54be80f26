"""What samples come to: percentiles, lag, slope, and when a rate counts as held."""

from __future__ import annotations

import numpy as np
import pytest
from penstock_bench.measure import SECOND_US
from penstock_bench.measure import percentile as plain_percentile
from penstock_bench.nexmark.figures import (
    Appended,
    Lags,
    Position,
    Usage,
    curve,
    find_lags,
    growth_check,
    growth_ms_per_s,
    judge,
    schedule_of,
    slope,
    summary,
    used_between,
)

LATENCY = {"p50": 5.0, "p90": 8.0, "p99": 50.0, "p99.9": 70.0, "max": 90.0}


def test_percentiles_are_by_nearest_rank_as_in_all_benches() -> None:
    values = np.random.default_rng(1).permutation(np.arange(1, 2001)).astype(np.float64)

    percentiles = summary(values)

    assert percentiles == {"p50": 1000, "p90": 1800, "p99": 1980, "p99.9": 1998, "max": 2000}
    assert percentiles["p99"] == plain_percentile(values.tolist(), 99)


@pytest.mark.parametrize(
    ("values", "heights"),
    [([7.0], [7.0] * 5), ([500.0, 8_000.0], [500.0] + [8_000.0] * 4)],
    ids=["a single row is every percentile", "of two rows the median is no maximum"],
)
def test_few_rows_have_percentiles(values: list[float], heights: list[float]) -> None:
    assert summary(np.array(values)) == dict(zip(LATENCY, heights, strict=True))


def test_no_rows_have_no_percentiles() -> None:
    assert summary(np.array([])) is None
    assert curve(np.array([])) == []


def test_the_curve_rises_to_the_maximum() -> None:
    values = [value for _, value in curve(np.arange(1000.0))]

    assert values == sorted(values)
    assert values[-1] == 999.0


def test_a_steady_lag_has_no_slope_whatever_its_bursts() -> None:
    times = [0.5 * look for look in range(40)]
    lags = [1_000.0 + (30_000 if look % 10 == 9 else 0) for look in range(40)]

    assert abs(slope(times, lags)) < 1


def test_a_growing_lag_has_the_slope_of_its_growth() -> None:
    assert slope([0, 1, 2, 4], [10, 60, 110, 210]) == pytest.approx(50)


def test_looks_at_the_same_moment_say_nothing_of_growth() -> None:
    assert slope([1, 1], [5, 9]) == 0
    assert slope([], []) == 0


def _appended(seconds: int, rate: int) -> list[Appended]:
    """The log grows by ten entries a second, besides the events by `rate`."""
    return [Appended(at * SECOND_US, at * 10, at * rate) for at in range(seconds + 1)]


def test_lag_is_what_was_sent_and_not_read() -> None:
    # The query is half a second behind: five entries, 500 events.
    positions = [Position(at * SECOND_US, at * 10 - 5, at * 3) for at in range(1, 11)]

    lags = find_lags(_appended(10, 1_000), positions, 2 * SECOND_US, 10 * SECOND_US)

    assert {round(lag) for _, lag in lags.samples} == {500}
    assert lags.events_per_s == pytest.approx(1_000)
    assert lags.markers_per_s == pytest.approx(3)
    assert lags.slope_per_s == pytest.approx(0)
    assert [at for at, _ in lags.samples] == list(range(9))


def test_a_query_of_half_the_speed_lags_by_half_of_the_rate_more_each_second() -> None:
    positions = [Position(at * SECOND_US, at * 5, at) for at in range(1, 11)]

    lags = find_lags(_appended(10, 1_000), positions, 0, 10 * SECOND_US)

    assert lags.slope_per_s == pytest.approx(500)
    assert lags.events_per_s == pytest.approx(500)


def test_without_two_looks_there_is_no_lag() -> None:
    lags = find_lags(_appended(3, 10), [Position(0, 0, 0)], 0, 3 * SECOND_US)
    assert (lags.samples, lags.events_per_s, lags.slope_per_s) == ([], None, None)
    assert lags.as_json()["max"] is None


def test_a_lag_of_which_too_little_is_known_is_not_held() -> None:
    few = Lags([(0.5 * at, 0.0) for at in range(4)], 1_000.0, 1.0)
    checks = judge("q1", LATENCY, few, rate=1_000, is_held=True, growth=0.0)
    assert [check.name for check in checks if not check.ok] == ["samples of the lag"]


def test_a_latency_that_grows_by_a_fiftieth_of_the_time_is_a_backlog() -> None:
    """Of whatever stage: three per cent too slow is 30 ms more each second."""
    since = np.arange(0, 20 * SECOND_US, SECOND_US // 100)
    growth = growth_ms_per_s(since, 50.0 + since / SECOND_US * 30)
    assert growth == pytest.approx(30)
    assert not growth_check(growth).ok
    assert growth_check(growth_ms_per_s(since, 50.0 + (since % 7919) / 100)).ok
    bursts = np.where(np.arange(200) % 7 == 0, 500.0, 100.0)
    assert growth_ms_per_s(since[::10], bursts) == pytest.approx(0, abs=1)
    assert growth_ms_per_s(since[:0], np.array([])) == 0.0


def test_cpu_is_counted_per_million_events_of_the_span() -> None:
    before = Usage({"workers": 10.0, "log": 1.0}, {})
    after = Usage({"workers": 12.0, "log": 1.5}, {})

    assert used_between(before, after, 500_000) == {"total": 5.0, "workers": 4.0, "log": 1.0}


def _is_held(query: str = "q1", p99: float = 50.0, growth: float = 0.0, held: bool = True) -> bool:
    lags = Lags([(float(at), at * growth) for at in range(10)], 1_000.0, 1.0)
    checks = judge(query, LATENCY | {"p99": p99}, lags, rate=1_000, is_held=held, growth=0.0)
    return all(check.ok for check in checks)


def test_a_rate_is_held_only_if_everything_is() -> None:
    assert _is_held()
    assert not _is_held(p99=61)
    assert _is_held(growth=19)
    assert not _is_held(growth=21)
    assert not _is_held(held=False)


def test_queries_with_state_may_take_a_second() -> None:
    assert _is_held("q5", p99=999)
    assert not _is_held("q5", p99=1_001)


def test_a_run_without_rows_is_not_held() -> None:
    lags = Lags([(float(at), 0.0) for at in range(10)], 1_000.0, 1.0)
    checks = judge("q8", None, lags, rate=1_000, is_held=True, growth=0.0)

    assert [check.name for check in checks if not check.ok] == ["rows in the measured span"]


def _schedule(query: str = "q1", p99: float = 30.0, share: float = 1.0) -> bool:
    held = schedule_of(query, {"p99": p99}, "", is_prompt=False, share=share)["is_held"]
    assert isinstance(held, bool)
    return held


def test_generators_may_be_as_late_as_the_result_may_be() -> None:
    assert _schedule(p99=60)
    assert not _schedule(p99=61)
    assert _schedule("q5", p99=999)
    assert not _schedule("q5", p99=1_001)


def test_generators_that_send_less_than_was_due_do_not_hold_their_schedule() -> None:
    assert _schedule(share=0.995)
    assert not _schedule(share=0.985)
