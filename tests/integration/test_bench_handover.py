"""What `penstock bench handover` says of what it measured; a run of it needs a quiet machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from penstock_bench import handover
from penstock_bench.cli.bench import bench
from penstock_bench.handover import FULL, WAYS, HandoverBenchSizes, WayFigures
from penstock_bench.handover_charts import write_chart
from penstock_bench.report import Report

#: Every bar of the issue, by the name of its check.
BARS = {
    **{f"move_gap_{keys}_keys": 100 for keys in FULL.keys},
    **{f"kill_visible_{keys}_keys": 1000 for keys in FULL.keys},
    **{f"rescale_late_{keys}_keys": 250 for keys in FULL.keys},
    **{f"rescale_p99_after_{keys}_keys": 2 for keys in FULL.keys},
    **{f"copy_cpu_{keys}_keys": 25 for keys in FULL.keys},
    **{f"copy_p50_{keys}_keys": 1 for keys in FULL.keys},
    "move_gap_largest_over_smallest": 1.5,
    "move_below_store_1000000_keys": 10,
    "move_below_store_5000000_keys": 30,
    "kill_below_store_5M_keys": 4,
    "kill_below_restart_5M_keys": 8,
}


def figures(way: str) -> WayFigures:
    slower = {"standby": 1.0, "store": 40.0, "restart": 60.0}[way]
    return WayFigures(
        move_ms=[30 * slower, 40 * slower], kill_ms=[100 * slower], rescale_gap_ms=[50 * slower],
        rescale_late_ms=[60 * slower], rescale_p99_before_ms=[10.0], rescale_p99_after_ms=[15.0],
        rescale_course=[[(-1.0, 8.0), (0.0, 60 * slower), (1.5, 9.0)]],
        cpu_us_per_event=[30.0, 12.0, 11.0] if way == "standby" else [10.0, 9.0, 20.0],
        p50_ms=[4.5] if way == "standby" else [4.0],
    )  # fmt: skip


def judged() -> Report:
    report = Report("handover")
    found = {keys: {way: figures(way) for way in WAYS} for keys in FULL.keys}
    handover._judge(report, found, lambda said: None)
    return report


def test_every_bar_of_the_issue_is_a_check() -> None:
    report = judged()
    assert {check.name: check.bar for check in report.checks} == BARS
    values = {check.name: check.value for check in report.checks}
    assert values["copy_cpu_1000000_keys"] == pytest.approx(20.0)
    assert values["rescale_p99_after_100000_keys"] == 1.5
    assert values["kill_below_restart_5M_keys"] == 60.0
    assert report.ok


def test_the_picture_is_of_what_is_in_the_report(tmp_path: Path) -> None:
    written = write_chart(judged().as_json(), tmp_path)
    drawn = written.read_text()
    assert "with 5,000,000 keys" in drawn and "stopped and started again" in drawn
    assert write_chart(judged().as_json(), tmp_path).read_text() == drawn


def test_fewer_rounds_and_other_sizes_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[HandoverBenchSizes] = []

    def measure(place: Path, keys: int, plan: HandoverBenchSizes, found: Any, say: Any) -> None:
        plans.append(plan)
        found |= {way: figures(way) for way in WAYS}

    monkeypatch.setattr(handover, "_measure_keys", measure)
    options = ["--keys", "7", "--keys", "9", "--rounds", "2", "--rescales", "1", "--loaded"]
    done = CliRunner().invoke(bench, ["handover", "--json", *options])
    assert '"checks"' in done.output, done.output
    asked = {(plan.keys, plan.rounds, plan.rescales, plan.loaded) for plan in plans}
    assert asked == {((7, 9), 2, 1, True)}
