"""Shares of time and rows a second, from two reports of a task."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.names import TaskId
from penstock.runtime.histogram import BOUNDS_MS, Buckets
from penstock.runtime.task_rates import LatencyTotals, TaskRates

ONE, TWO = TaskId("q", 1, 0, 0), TaskId("q", 1, 0, 1)


def report(
    busy: float, waiting: float, blocked: float = 0.0, rows: int = 0, instance: int = 1
) -> dict[str, Any]:
    return {
        "instance": instance, "is_running": True, "busy_ms": busy, "waiting_ms": waiting,
        "blocked_ms": blocked, "inputs": {"source:in": {"rows": rows}},
    }  # fmt: skip


def test_one_report_says_nothing_and_two_say_it() -> None:
    rates = TaskRates()
    assert rates.update({ONE: report(500, 500)}) == {}
    found = rates.update({ONE: report(800, 1000, 200, rows=300)})[ONE]
    assert (found.busy, found.waiting, found.back_pressured) == (0.3, 0.5, 0.2)
    assert found.rows == {"source:in": 300.0}


def test_a_report_that_comes_twice_changes_nothing() -> None:
    rates = TaskRates()
    rates.update({ONE: report(0, 0)})
    first = rates.update({ONE: report(900, 100, rows=10)})
    assert rates.update({ONE: report(900, 100, rows=10)}) == first
    then = rates.update({ONE: report(900, 1100, rows=30)})[ONE]
    assert (then.busy, then.rows["source:in"]) == (0.0, 20.0)


def test_what_an_older_instance_counted_is_not_mixed_with_a_newer_one() -> None:
    rates = TaskRates()
    rates.update({ONE: report(0, 1000)})
    assert rates.update({ONE: report(5000, 5000, instance=2)}) == {}
    assert rates.update({ONE: report(10, 10, instance=2)}) == {}, "it counts from 0 again"


def test_who_does_not_run_or_does_not_tell_has_no_shares() -> None:
    rates = TaskRates()
    rates.update({ONE: report(0, 0), TWO: report(0, 0)})
    found = rates.update(
        {ONE: {**report(1000, 0), "is_running": False}, TWO: {"instance": 1, "is_running": True}}
    )
    assert found == {}


def test_of_tasks_that_are_gone_nothing_is_kept() -> None:
    rates = TaskRates()
    rates.update({ONE: report(0, 0), TWO: report(0, 0)})
    rates.update({ONE: report(1000, 0)})
    assert list(rates._counted) == [ONE]


def counts(*some: int) -> list[int]:
    return [*some, *[0] * (len(BOUNDS_MS) + 1 - len(some))]


def test_latencies_of_all_instances_add_up() -> None:
    totals = LatencyTotals()

    def told(instance: int, sum_ms: float, *some: int) -> dict[str, Any]:
        counted = counts(*some)
        return {"instance": instance, "visible_counts": counted, "visible_sum_ms": sum_ms}

    totals.update({ONE: told(1, 1.0, 1), TWO: told(1, 9.0, 0, 0, 1)})
    totals.update({ONE: told(1, 3.0, 2), TWO: {}})
    found = totals.update({ONE: told(2, 5.0, 0, 1), TWO: told(1, 9.0, 0, 0, 1)})
    assert found.counts[:3] == [2, 1, 1]
    assert found.sum_ms == pytest.approx(17.0)


def test_a_latency_is_in_the_bucket_of_the_bound_above_it() -> None:
    buckets = Buckets()
    for ms in (0.5, 1.0, 1.1, 10**9):
        buckets.add(ms)
    assert buckets.counts == [2, 1, *[0] * (len(BOUNDS_MS) - 2), 1]
    assert buckets.to_json()["count"] == 4
