"""The schedule: every event once, never before it is due; and what counts as held."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_bench.measure import SECOND_US
from penstock_bench.nexmark.pace import Delays, Schedule, growth_ms, held_ms, judge

START_US = 1_700_000_000_000_000

RATES = st.one_of(
    st.floats(0.5, 2_000_000, allow_nan=False), st.sampled_from([1.0, 3.0, 1_000.0, 100_000.0, 1e6])
)


@st.composite
def stripes(draw: st.DrawFn) -> list[Schedule]:
    """The schedules of all generators of one stream; of few ticks, so that all can be looked at."""
    rate = draw(RATES)
    flush_us = draw(st.sampled_from([500, 1_000, 4_700, 5_000, 100_000]))
    count = draw(st.integers(0, max(1, int(min(3_000, rate * 200 * flush_us / SECOND_US)))))
    first = draw(st.sampled_from([0, 1, 49, 1_000_003]))
    generators = draw(st.integers(1, 5))
    return [
        Schedule(START_US, rate, count, first, generator, generators, flush_us)
        for generator in range(generators)
    ]


@given(stripes())
def test_over_all_generators_and_ticks_every_event_comes_once(parts: list[Schedule]) -> None:
    schedule = parts[0]

    sent = [part.ids(tick) for part in parts for tick in range(part.ticks)]

    ids = np.sort(np.concatenate([*sent, np.zeros(0, np.int64)]))
    assert np.array_equal(ids, np.arange(schedule.first, schedule.first + schedule.count))


@given(stripes())
def test_an_event_comes_with_the_first_tick_at_or_after_its_time(parts: list[Schedule]) -> None:
    for part in parts:
        for tick in range(part.ticks):
            due = part.due_us(part.ids(tick))
            assert (due <= part.tick_us(tick)).all()
            assert (due > part.tick_us(tick - 1)).all()


@given(stripes())
def test_the_last_tick_is_the_last_with_events(parts: list[Schedule]) -> None:
    schedule = parts[0]
    last = [part.ids(schedule.ticks - 1) for part in parts] if schedule.ticks else []

    assert (sum(len(ids) for ids in last) > 0) == (schedule.count > 0)
    assert not any(len(part.ids(schedule.ticks)) for part in parts)


@given(stripes(), st.integers(0, 50), st.integers(0, 50))
def test_the_events_of_ticks_together_are_those_of_each(
    parts: list[Schedule], tick: int, more: int
) -> None:
    for part in parts:
        each = [part.ids(number) for number in range(tick, tick + more)]

        together = part.ids(tick, tick + more)

        assert np.array_equal(together, np.concatenate([*each, np.zeros(0, np.int64)]))


def test_a_schedule_says_when_each_event_is_due() -> None:
    schedule = Schedule(START_US, 1_000.0, 100, first=50)

    assert schedule.due_us(np.array([50, 51, 60])).tolist() == [
        START_US,
        START_US + 1_000,
        START_US + 10_000,
    ]
    assert schedule.ids(0).tolist() == [50]
    assert schedule.ids(1).tolist() == [51, 52, 53, 54, 55]
    assert schedule.ticks == 21


@given(st.lists(st.integers(0, 100_000_000), min_size=1, max_size=300), st.integers(0, 300))
def test_percentiles_are_right_to_a_hundredth_however_they_were_added(
    values: list[int], split: int
) -> None:
    first, second = Delays(), Delays()
    first.add(np.array(values[:split], np.int64), 0)
    second.add(np.array(values[split:], np.int64), 1)

    first.merge(second)

    ordered = sorted(values)
    for percent in (50.0, 90.0, 99.0, 99.9):
        true_us = ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
        found_us = first.percentile_ms(percent) * 1_000
        assert true_us - 1 <= found_us <= true_us * 1.011 + 1
    assert first.summary_ms()["max"] == round(max(values) / 1_000, 3)
    assert int(first.counts.sum()) == sum(events for events, _ in first.seconds) == len(values)


def _delays(by_second: list[list[int]]) -> Delays:
    delays = Delays()
    for second, ms in enumerate(by_second):
        delays.add(np.array(ms, np.int64) * 1_000, second)
    return delays


def test_a_schedule_within_the_bar_is_held() -> None:
    is_held, note = judge(_delays([[3, 4, 5]] * 8), _delays([[2, 2, 2]] * 8))

    assert is_held
    assert "within 5.0 ms" in note


def test_lateness_of_the_log_is_told_from_that_of_the_generator() -> None:
    late = _delays([[3, 3]] * 4 + [[40, 45]] * 4)

    log_held, log_note = judge(late, _delays([[2, 3]] * 8))
    own_held, own_note = judge(late, late)

    assert not log_held and not own_held
    assert (
        "on average from second 4 on, of 8" in log_note and "until the log acknowledged" in log_note
    )
    assert "before it was sent" in own_note


def test_a_few_late_events_are_told_by_their_worst_second() -> None:
    late = _delays([[3] * 90, [3] * 90, [3] * 90 + [30] * 10, [3] * 90])

    is_held, note = judge(late, _delays([[2]] * 4))

    assert not is_held
    assert "p99 30" in note and "worst in second 2, of 4" in note


def test_lateness_that_grows_is_not_held_though_few_are_late_yet() -> None:
    # A thousand events in time, then the few of the last second further and further behind.
    growing = _delays([[1] * 500, [1] * 500, [1] * 500, [60]])

    is_held, note = judge(growing, growing)

    assert growing.percentile_ms(99) < 10
    assert not is_held
    assert "later at the end" in note


def test_growth_compares_the_last_quarter_with_the_first() -> None:
    assert growth_ms([1.0, 1.0, 5.0, 9.0, 9.0, 20.0, 30.0, 50.0]) == pytest.approx(39.0)
    assert growth_ms([1.0, 100.0]) == 0.0


@pytest.mark.parametrize(
    ("rate", "tick"), [(206_770.0, 1), (91_995.0, 4), (1_159_010.0, 1), (1_621_080.0, 3)]
)
def test_a_quotient_that_rounds_to_the_wrong_side_moves_no_event(rate: float, tick: int) -> None:
    """Rates at which time divided by the gap, as floats, counts an event too many or too few."""
    schedule = Schedule(START_US, rate, 10_000_000, flush_us=100_000)

    assert (schedule.due_us(schedule.ids(0, tick + 1)) <= schedule.tick_us(tick)).all()
    assert (schedule.due_us(schedule.ids(tick + 1)) > schedule.tick_us(tick)).all()


def test_a_longer_flush_may_be_waited_for() -> None:
    assert [held_ms(us) for us in (1_000, 5_000, 100_000)] == [10.0, 10.0, 105.0]
