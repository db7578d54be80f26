"""Result objects as files: their names, and that none is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

from penstock_bench.nexmark.keep import keep

RESULT = {"system": "penstock", "variant": "marker", "query": "q5", "rate": 50_000.0}


def test_a_second_result_of_the_same_run_gets_the_next_number(tmp_path: Path) -> None:
    first = keep(RESULT, tmp_path / "results")
    second = keep(RESULT | {"seed": 7}, tmp_path / "results")

    assert [path.name for path in (first, second)] == [
        "penstock-marker-q5-50000-1.json",
        "penstock-marker-q5-50000-2.json",
    ]
    assert json.loads(first.read_text()) == RESULT
