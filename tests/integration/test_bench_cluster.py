"""`penstock bench cluster` runs, and prints every figure and bar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from penstock_bench.cli.bench import bench

#: A run that misses one says so, and nobody makes them easier.
BARS = {
    "append_p50_over_one_machine_one_in_flight": 3.0,
    "append_p50_over_one_machine_at_rate": 3.0,
    "node_bytes_of_40_tails_over_one": 2.0,
    "slow_node_append_p99_over_healthy": 1.3,
}
FIGURES = {
    "append_us_one_in_flight": {"one", "cluster", "p50_ratio_rounds"},
    "append_us_at_rate": {"one", "cluster", "p50_ratio_rounds"},
    "tails_node_bytes_over_appended": {"1 tails", "40 tails"},
    "catch_up": {"append_mb_per_second", "full_mb_per_second", "tag_mb_per_second"},
    "slow_node_us": {
        "healthy",
        "slow",
        "p50_ratio_rounds",
        "p99_ratio_rounds",
        "blocks_on_slow_node",
        "fsync_ms_of_slow_node",
    },
    "many_logs_us": {"1 logs", "5 logs", "seconds_to_open_all"},
    "failover_seconds": {"kill_to_next_ack", "session_end_to_next_ack"},
}


@pytest.mark.soak
def test_a_quick_run_measures_every_figure(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["cluster", "--quick", "--json", "--dir", str(tmp_path)])

    assert done.exit_code in (0, 1), done.output  # 1: a bar was missed, as a tiny run may
    report = json.loads(done.stdout)
    assert report["parameters"]["quick"] is True
    checks = {check["name"]: check for check in report["checks"]}
    assert {name: check["bar"] for name, check in checks.items()} == BARS
    assert all(check["value"] > 0 and check["sense"] == "at most" for check in checks.values())
    assert {name: set(found) for name, found in report["figures"].items()} == FIGURES
    assert report["figures"]["slow_node_us"]["fsync_ms_of_slow_node"] > 45
    assert not list(tmp_path.iterdir()), "the benchmark leaves nothing behind"
