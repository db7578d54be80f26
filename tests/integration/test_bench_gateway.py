"""`penstock bench gateway` runs, and prints every figure and its bar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from penstock_bench.cli.bench import bench
from penstock_bench.nexmark.peers import find_peers


@pytest.mark.soak
def test_a_quick_run_measures_every_figure(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["gateway", "--quick", "--json", "--dir", str(tmp_path)])

    assert done.exit_code in (0, 1), done.output  # 1: the bar was missed, as a busy machine may
    report = json.loads(done.stdout)
    bars = {check["name"]: (check["bar"], check["sense"]) for check in report["checks"]}
    assert bars.pop("json_decode_ratio") == (8.0, "at least")
    assert report["checks"][0]["value"] > 1
    if find_peers()["kafka_streams"].missing is None:
        assert bars.pop("kafka_transaction_ratio") == (4.0, "at least")
        assert bars.pop("kafka_produce_ratio") == (1.0, "at least")
        for name in ("gateway", "kafka"):
            found = report["figures"][f"kafka protocol, {name}"]
            assert found["produced_rows_per_s"] > 0 and found["fetched_rows_per_s"] > 0
            assert found["transaction_ms"]["p50"] > 0 and found["produce_ms"]["p50"] > 0
    assert not bars
    requests = [one for name, one in report["figures"].items() if "rows," in name]
    assert len(requests) == 4
    assert all(one["requests_per_s"] > 0 for one in requests)
    assert not list(tmp_path.iterdir()), "the benchmark leaves nothing behind"
