"""The comparison of commit protocols: its order, its figures, its verdict."""

from __future__ import annotations

from typing import Any

import pytest
from penstock_bench.nexmark.protocols import PROTOCOLS, ProtocolComparison, make_report, turned

PLAN = ProtocolComparison(rates={"q1": 1000.0}, intervals_ms=(10, 100), rounds=3)


def run(protocol: str, interval: int, p50: float, *, oracle: str = "skipped") -> dict[str, Any]:
    return {
        "query": "q1", "variant": protocol, "commit_interval_ms": interval,
        "latency_ms": {"p50": p50, "p99": 10 * p50}, "emitted_latency_ms": None,
        "bytes_appended_per_event": 300.0, "cpu_s_per_million_events": {"total": 20.0},
        "is_sustained": True, "oracle": oracle,
    }  # fmt: skip


def runs(**p50s: float) -> list[dict[str, Any]]:
    """Three rounds, of which the last is far off."""
    return [
        run(protocol, interval, p50 * factor)
        for protocol, p50 in p50s.items()
        for interval in (10, 100)
        for factor in (1.0, 1.1, 50.0)
    ]


def test_every_round_begins_with_another_protocol() -> None:
    orders = [turned(PROTOCOLS, number) for number in range(4)]
    assert {order[0] for order in orders} == set(PROTOCOLS)
    assert all(sorted(order) == sorted(PROTOCOLS) for order in orders)


def test_the_median_of_the_rounds_counts() -> None:
    report = make_report(PLAN, runs(marker=10, transaction=20, aligned=30, unsafe=5))
    figures = report.figures["q1, 10 ms"]["transaction"]
    assert (figures["p50_ms"], figures["p99_ms"]) == (22.0, 220.0)
    assert figures["p50_ms_rounds"] == [20, 22.0, 1000]


def test_the_papers_order_is_a_check_that_can_fail() -> None:
    assert make_report(PLAN, runs(marker=10, transaction=20, aligned=30, unsafe=5)).ok
    report = make_report(PLAN, runs(marker=10, transaction=9, aligned=30, unsafe=5))
    assert [check.name for check in report.checks if not check.ok] == [
        "q1, 10 ms, p50 transaction over marker"
    ]
    report = make_report(PLAN, runs(marker=10, transaction=20, aligned=30, unsafe=11))
    assert [check.name for check in report.checks if not check.ok] == [
        "q1, 10 ms, p50 marker over unsafe"
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_wrong_result_is_a_failure_whatever_was_promised(protocol: str) -> None:
    fine = runs(marker=10, transaction=20, aligned=30, unsafe=5)
    assert make_report(PLAN, fine).ok
    assert not make_report(PLAN, [*fine, run(protocol, 10, 10, oracle="different")]).ok
