"""`penstock bench reports` runs, and has every figure; they mean nothing here."""

from __future__ import annotations

from pathlib import Path

from penstock_bench import reports


def test_calls_are_counted_and_timed_and_a_log_is_scraped(tmp_path: Path) -> None:
    said: list[str] = []
    report = reports.run_bench(reports.QUICK, said.append, tmp_path)

    assert [check.name for check in report.checks] == [
        "meter_and_counters_over_busy_time",
        "reports_over_wall_time",
        "append_p50_scraped_over_quiet",
    ]
    assert all(check.value > 0 for check in report.checks)
    assert set(report.figures["calls"]) == set(report.figures["call, ns"])
    assert report.figures["scrape, bytes"] > 1_000
