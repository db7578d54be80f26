"""`penstock bench recovery` runs, and its report has every bar; its figures mean nothing here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from penstock_bench.recovery import QUICK, run_bench


@pytest.mark.soak
def test_state_is_built_lost_and_resumed_with_checkpoints_and_without(
    spark: Any, tmp_path: Path
) -> None:
    said: list[str] = []
    report = run_bench(directory=tmp_path, plan=QUICK, say=said.append)

    values = {check.name: check.value for check in report.checks}
    assert values["difference in rows of state"] == 0
    assert values["resume with checkpoints, times faster"] > 0
    assert values["killed worker, new input visible"] > 0
    assert report.figures["state_rows"] > 0
    assert report.figures["change_bytes"] > report.figures["suffix_bytes"] >= 0
    assert report.figures["checkpoint_bytes"] > 0, "no checkpoint was taken"
    assert report.figures["end_to_end"]["without_seconds"] > 0
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"
