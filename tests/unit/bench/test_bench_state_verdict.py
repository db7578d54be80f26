"""`penstock bench state`: its verdict; nothing runs here."""

from __future__ import annotations

from typing import Any

from penstock_bench.report import Report
from penstock_bench.state import QUICK, StateFigures, judge


def _judged(**changes: Any) -> dict[str, tuple[float, bool]]:
    found = StateFigures(
        state_rows=100, resumed_rows=100, whole_bytes=1_000, fill_bytes=4_000,
        turn_bytes=[20, 20, 80], restore_bytes=1_500, still_ms=6.0, usual_ms=2.0,
        files=3, resume_ms=9.0,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(found, name, value)
    report = Report("state")
    judge(report, found, StateFigures(resume_ms=6.0), QUICK, lambda said: None)
    return {check.name: (round(check.value, 3), check.ok) for check in report.checks}


def test_both_copies_of_a_whole_state_are_what_a_turn_is_compared_with() -> None:
    assert _judged() == {
        "checkpoint_pause": (6.0, True),
        "one_percent_writes": (0.01, True),
        "write_amplification": (2.0, True),
        "restore_reads": (1.5, True),
        "resume": (9.0, True),
        "resume_over_few_keys": (1.5, True),
        "rows_lost_by_the_resume": (0, True),
    }


def test_every_bar_can_be_missed() -> None:
    found = _judged(
        still_ms=10.1, fill_bytes=12_000, turn_bytes=[50, 50, 2_000], restore_bytes=2_200,
        resumed_rows=99, resume_ms=251.0,
    )  # fmt: skip

    assert [name for name, (_, ok) in found.items() if ok] == []
