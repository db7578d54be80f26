"""`penstock bench checkpoints` runs, and has every figure; they mean nothing here."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from penstock_bench import checkpoints
from penstock_bench.checkpoints_charts import CHARTS, write_charts


@pytest.mark.soak
def test_every_store_is_measured_beside_a_file_per_key(spark: Any, tmp_path: Path) -> None:
    said: list[str] = []
    report = checkpoints.run_bench(checkpoints.QUICK, said.append)

    has_redis = shutil.which("redis-server") is not None
    recovered = ["resume_without_its_store", "resume_with_a_slow_store"]
    assert [check.name for check in report.checks] == [
        "one_put_of_indexed_over_file_per_key",
        "commit_of_100_of_indexed_over_file_per_key",
        "slowest_over_fastest_by_keys",
        "index_made_again",
        "first_keys_after_opening",
        *recovered * has_redis,
    ]
    assert all(check.value > 0 for check in report.checks)
    stores = ["file per key", "indexed", "rocksdb", *["redis"] * has_redis]
    if "redis" in stores:  # the charts have all of them
        written = write_charts(report.as_json(), tmp_path)
        assert [path.stem for path in written] == list(CHARTS)
        first = written[0].read_text()
        assert write_charts(report.as_json(), tmp_path)[0].read_text() == first
    for store in stores:
        assert report.figures[store]["puts/s, 100 per commit"] > 0
    assert set(report.figures["index made again, ms"]) == set(checkpoints.QUICK.keys)
