"""`penstock bench ops`, `small` and `start` run, and have every figure; they mean nothing here."""

from __future__ import annotations

from typing import Any

import pytest
from penstock_bench import group_functions, small, start
from penstock_bench.ops import BATCH_SIZES, SCENARIOS, OpsBenchSizes, run_bench


@pytest.mark.soak
def test_every_scenario_is_measured_beside_spark(spark: Any) -> None:
    said: list[str] = []
    report = run_bench(OpsBenchSizes(rows=10_000, rounds=1, memory_keys=10_000), said.append)
    named = [scenario.name for scenario in SCENARIOS if scenario.bar]
    assert [check.name for check in report.checks] == [*named, group_functions.NAME]
    assert all(check.value > 0 for check in report.checks)
    for scenario in SCENARIOS:
        for size in BATCH_SIZES:
            assert f"{scenario.name}, {size} rows a batch, rows/s" in report.figures
        assert f"{scenario.name}, Spark batch local[1], rows/s" in report.figures
    assert report.figures["peak memory per million keys, MiB"] > 0
    assert len(said) == len(SCENARIOS) + 2


@pytest.mark.soak
def test_every_query_is_measured_in_small_batches(spark: Any) -> None:
    report = small.run_bench(small.QUICK, lambda _: None)
    assert list(report.figures) == ["q1, 50 events a batch", "q8, 50 events a batch"]
    for figures in report.figures.values():
        assert all(value > 0 for value in figures.values())


def test_every_command_is_measured() -> None:
    report = start.run_bench(start.QUICK, lambda _: None)
    assert [check.name for check in report.checks] == [f"penstock {one}" for one in start.COMMANDS]
    assert all(check.value > 0 for check in report.checks)
    assert {check.bar for check in report.checks} == {0.4}
