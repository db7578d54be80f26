"""Watermarks, late rows and idle inputs, through a whole driver."""

from __future__ import annotations

from engine_samples import finals, plain, timed, times

from penstock.ops.api import Delta
from penstock.ops.driver import Driver
from penstock.plan import nodes as n
from penstock.plan.stages import cut


def shown(driver: Driver) -> list[tuple[int, int]]:
    """Seconds, and how many rows were of each."""
    return plain(driver.result())


def counting(child: n.Node, **named: object) -> Driver:
    """Rows per event time, shown when the watermark has passed it."""
    return Driver(cut(finals(child), "append", ("t", "c")), {}, **named)  # type: ignore[arg-type]


def test_a_key_is_shown_once_the_watermark_has_passed_it() -> None:
    driver = counting(timed("s", delay_ms=2000))
    driver.feed("s", times(10, 10, 11))
    assert shown(driver) == []
    driver.feed("s", times(12))
    assert shown(driver) == [(10, 2)]
    driver.finish()
    assert shown(driver) == [(10, 2), (11, 1), (12, 1)]


def test_late_rows_are_counted_and_handed_over() -> None:
    late: list[Delta] = []
    driver = counting(timed("s"), on_late=lambda operator, rows: late.append(rows))
    driver.feed("s", times(10))
    driver.feed("s", times(9, 10, 11))
    assert driver.late == {"aggregate": 2}
    seconds = [row["ts#2"].second for delta in late for row in delta.batch.to_pylist()]
    assert seconds == [9, 10]
    driver.finish()
    assert shown(driver) == [(10, 1), (11, 1)]


def test_rows_of_the_batch_that_moves_the_watermark_are_not_late() -> None:
    driver = counting(timed("s"))
    driver.feed("s", times(100, 5))
    assert not driver.late
    assert shown(driver) == [(5, 1), (100, 1)]


def union() -> n.Node:
    left, right = timed("fast"), timed("slow", 11)
    return n.Union(schema=left.schema, inputs=(left, right))


def test_the_slowest_input_holds_time_back() -> None:
    driver = counting(union())
    driver.feed("fast", times(50))
    driver.feed("fast", times(60))
    assert shown(driver) == [], "the slow stream has said nothing yet"
    driver.feed("slow", times(55))
    assert shown(driver) == [(50, 1), (55, 1)]


def test_an_idle_input_steps_aside_and_time_never_goes_back() -> None:
    driver = counting(union())
    driver.feed("fast", times(50))
    driver.idle = {"slow"}
    driver.feed("fast", times(60))
    assert shown(driver) == [(50, 1), (60, 1)]
    driver.idle = set()
    driver.feed("slow", times(40, 61))
    assert driver.late == {"aggregate": 1}
    driver.finish()
    assert shown(driver) == [(50, 1), (60, 1), (61, 1)]


def test_inputs_that_fall_idle_together_hold_nobody_back() -> None:
    """The time of the one that spoke counts, also if it steps aside as it tells it."""
    driver = counting(union())
    driver.idle = {"fast", "slow"}
    driver.feed("fast", times(50, 60))
    assert shown(driver) == [(50, 1), (60, 1)]


def test_what_passed_is_forgotten_after_a_restart_too() -> None:
    driver = counting(timed("s"))
    driver.feed("s", times(10, 12))
    again = counting(timed("s"), resume=driver.snapshot())
    again.feed("s", times(10, 13))
    assert again.late == {"aggregate": 1}
