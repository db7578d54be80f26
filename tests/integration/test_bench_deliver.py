"""`penstock bench deliver` runs, and prints every figure and bar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from penstock_bench.cli.bench import bench

#: A run that misses one says so, and nobody makes them easier.
BARS = {
    "frames_receipt_p50": 0.32,
    "frames_receipt_p99": 0.78,
    "grpc_receipt_p50": 1.6,
    "one_dead_p99_ratio": 1.1,
    "one_returns_p99_ratio": 2.0,
}
BESIDE_KAFKA = {"kafka_mean_ratio": 4.0, "kafka_p99_ratio": 6.0}


@pytest.mark.soak
def test_a_quick_run_measures_every_figure(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["deliver", "--quick", "--json", "--dir", str(tmp_path)])

    assert done.exit_code in (0, 1), done.output  # 1: a bar was missed, as a tiny run may
    report = json.loads(done.stdout)
    assert report["parameters"]["quick"] is True
    checks = {check["name"]: check for check in report["checks"]}
    beside = {name: checks.pop(name)["bar"] for name in list(checks) if name.startswith("kafka_")}
    assert beside in ({}, BESIDE_KAFKA)  # the peer is there only if somebody asked for it
    assert {name: check["bar"] for name, check in checks.items()} == BARS
    assert all(check["value"] > 0 and check["sense"] == "at most" for check in checks.values())
    figures = report["figures"]["dispatch_to_receipt"]
    assert set(figures) == {"2 targets", "4 targets"}
    assert all(set(found) == {"frames", "grpc"} for found in figures.values())
    assert {"one_dead", "one_returns"} < set(report["figures"])
    assert not list(tmp_path.iterdir()), "the benchmark leaves nothing behind"
