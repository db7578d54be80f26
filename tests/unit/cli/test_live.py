"""A progress report as one line, made from reports of the runtime itself."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from engine_samples import count_by, scan, spec_of, timed

from penstock.cli.live import follow, lag_text, ms_text, progress_line, watermark_text
from penstock.plan import nodes as n
from penstock.protocol.names import TaskId
from penstock.runtime.histogram import Histogram
from penstock.runtime.lag import Lag
from penstock.runtime.progress import Rates, make_progress

NOW_MS = 1_800_000_000_000


def report(
    root: n.Node, *, watermark_ms: int | None = None, lag: Lag | None = None
) -> dict[str, Any]:
    """The second report of a run, so that it has rates."""
    spec = spec_of(root, tasks=1)
    latency = Histogram()
    latency.add(4.0)
    rates = Rates()
    found: dict[str, Any] = {}
    for second, rows in enumerate((1_000, 13_000)):
        reports = {
            task: {
                "rows_in": rows,
                "rows_out": 5,
                "committed_position": 70,
                "settled_position": 70,
                "watermark_ms": watermark_ms,
                "state_rows": 1_234,
                "state_bytes": 5_600_000,
                "visible_ms": latency.to_json(),
            }
            for task in spec.task_ids
        }
        found = make_progress(
            spec, reports, id="i", run_id="r", number=second, now_ms=NOW_MS + 1_000 * second,
            tail=90, lags={} if lag is None else {("in", 0): lag}, workers=2, rates=rates,
        )  # fmt: skip
    return found


def test_the_line_has_rate_lag_age_of_the_watermark_latency_state_and_workers() -> None:
    progress = report(timed(), watermark_ms=NOW_MS - 500, lag=Lag(1_500, 0.25))

    assert progress_line(progress) == (
        "q: 12,000 rows/s, lag 1,500 rows 0.2 s, watermark 1.5 s ago, p50 3.9 ms, "
        "p99 3.9 ms, 2 workers, state 1,234 rows 5.6 MB"
    )


def test_what_is_not_known_yet_is_a_dash() -> None:
    spec = spec_of(count_by(scan(), 0))
    first = make_progress(
        spec, {}, id="i", run_id="r", number=0, now_ms=NOW_MS, tail=0, lags={}, workers=0,
        rates=Rates(),
    )  # fmt: skip

    assert progress_line(first) == (
        "q: - rows/s, lag -, watermark -, p50 -, p99 -, 0 workers, state 0 rows 0 B"
    )


def test_a_lag_that_was_counted_up_to_a_bound_says_so() -> None:
    progress = report(scan(), lag=Lag(9_000, 12.0, is_lower_bound=True))
    assert lag_text(progress) == "9,000+ rows 12.0 s"
    assert watermark_text(progress) == "-"


def test_latencies_have_a_digit_where_it_matters() -> None:
    assert [ms_text(ms) for ms in (None, 0.04, 9.96, 99.94, 1234.5)] == [
        "-", "0.0 ms", "10.0 ms", "99.9 ms", "1,234 ms",
    ]  # fmt: skip


class Running:
    """What `follow` asks of a query that ends at the third look."""

    def __init__(self) -> None:
        self.looks = 0
        self.lastProgress = report(scan(), lag=Lag(3, 0.0))

    def awaitTermination(self, timeout: float) -> bool:
        self.looks += 1
        return self.looks > 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("screen", "shows"), [(Terminal(), True), (io.StringIO(), False)])
def test_follow_keeps_one_line_up_to_date_in_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, shows: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    query: Any = Running()

    assert follow(query) is True
    line = "\r\x1b[2K" + progress_line(query.lastProgress)[:39]
    assert screen.getvalue() == (line * 2 + "\n" if shows else "")


def test_follow_gives_up_at_its_timeout() -> None:
    query: Any = Running()
    assert follow(query, timeout=0) is False
    assert query.looks == 1


def test_the_sample_has_the_task_that_reports() -> None:
    assert list(report(scan())["tasks"]) == [str(TaskId("q", 1, 0, 0))]
