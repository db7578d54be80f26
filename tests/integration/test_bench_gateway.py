"""`penstock bench gateway` runs, and prints every figure and its bar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from penstock_bench.cli.bench import bench


@pytest.mark.soak
def test_a_quick_run_measures_every_figure(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["gateway", "--quick", "--json", "--dir", str(tmp_path)])

    assert done.exit_code in (0, 1), done.output  # 1: the bar was missed, as a busy machine may
    report = json.loads(done.stdout)
    (check,) = report["checks"]
    assert (check["name"], check["bar"], check["sense"]) == ("json_decode_ratio", 8.0, "at least")
    assert check["value"] > 1
    requests = [one for name, one in report["figures"].items() if "rows," in name]
    assert len(requests) == 4
    assert all(one["requests_per_s"] > 0 for one in requests)
    assert not list(tmp_path.iterdir()), "the benchmark leaves nothing behind"
