"""`penstock bench ui` runs, and prints every figure and its bar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from penstock_bench.cli.bench import bench


@pytest.mark.soak
def test_a_quick_run_measures_every_figure(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["ui", "--quick", "--json", "--dir", str(tmp_path)])

    assert done.exit_code in (0, 1), done.output  # 1: the bar was missed, as a busy machine may
    report = json.loads(done.stdout)
    bars = {check["name"]: (check["bar"], check["sense"]) for check in report["checks"]}
    assert bars == {
        "p50_looked_at_over_alone": (1.05, "at most"),
        "updates_of_pages": (0.8, "at least"),
    }
    assert report["figures"]["updates"] > 0
    assert report["figures"]["scrapes"] > 0
    assert not list(tmp_path.iterdir()), "the benchmark leaves nothing behind"
