"""`penstock bench log` runs, and prints what the issue asks for."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from penstock_bench.cli.bench import bench

CHECKS = {
    "append_1kib_p50_over_raw",
    "delivery_p50_over_ack",
    "append_narrowed_p50_over_root",
    "append_1kib_pipelined",
    "append_128kib_bandwidth_share",
    "selective_read_share",
    "open_sealed_segments_seconds",
    "server_memory_peak",
}


def test_a_quick_run_measures_every_figure(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["log", "--quick", "--json", "--dir", str(tmp_path)])

    assert done.exit_code in (0, 1), done.output  # 1: a bar was missed, as a tiny run may
    report = json.loads(done.stdout)
    assert {check["name"] for check in report["checks"]} == CHECKS
    assert all(check["value"] > 0 for check in report["checks"])
    assert not list(tmp_path.iterdir()), "the benchmark leaves nothing behind"
