"""A query's progress as one line, and lines that are kept up to date in a terminal.

`progress_line` is a pure function of a progress report (runtime/progress.py), so what it prints is
the same for a running query, for one of another machine, and for a report of last week.
"""

from __future__ import annotations

import shutil
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.output import NOTHING, bytes_text
from penstock.plain_text import plain

if TYPE_CHECKING:
    from penstock.spark.query import StreamingQuery

_CLEAR_LINE: Final = "\r\x1b[2K"
_REFRESH_SECONDS: Final = 0.5

Progress = dict[str, Any]


def progress_line(progress: Progress) -> str:
    """Everything that one looks at first: rate, lag, age of the watermark, latency, size."""
    latency = progress.get("latencyMs") or {}
    states = progress.get("stateOperators") or []
    rows = sum(one["numRowsTotal"] for one in states)
    size = sum(one["memoryUsedBytes"] for one in states)
    rate = progress.get("inputRowsPerSecond")
    return (
        f"{plain(progress['name'])}: {NOTHING if rate is None else f'{rate:,.0f}'} rows/s, "
        f"lag {lag_text(progress)}, watermark {watermark_text(progress)}, "
        f"p50 {ms_text(latency.get('p50'))}, p99 {ms_text(latency.get('p99'))}, "
        f"{progress['workers']} workers, state {rows:,} rows {bytes_text(size)}"
    )


def lag_text(progress: Progress) -> str:
    """Over all sources: rows add up, the oldest counts."""
    lags = [one["lag"] for one in progress.get("sources", ()) if "lag" in one]
    if not lags:
        return NOTHING
    more = "+" if any(lag.get("isLowerBound") for lag in lags) else ""
    records = sum(lag["records"] for lag in lags)
    return f"{records:,}{more} rows {max(lag['seconds'] for lag in lags):.1f} s"


def watermark_text(progress: Progress) -> str:
    """How far event time is behind the report's own time."""
    watermark = (progress.get("eventTime") or {}).get("watermark")
    if watermark is None:
        return NOTHING
    age = datetime.fromisoformat(progress["timestamp"]) - datetime.fromisoformat(watermark)
    return f"{age.total_seconds():,.1f} s ago"


def ms_text(ms: float | None) -> str:
    """A latency for people."""
    if ms is None:
        return NOTHING
    return f"{ms:.1f} ms" if ms < 100 else f"{ms:,.0f} ms"


def balance_text(told: str | None, moved: dict[str, Any] | None) -> str:
    """What moved last, why and how long it took; or why nothing did."""
    if moved is None:
        return told or NOTHING
    count = moved["count"]
    return (
        f"{count} virtual node{'' if count == 1 else 's'} moved at {moved['at']}, cut in "
        f"{ms_text(moved['cutMs'])}, {moved['why']}"
    )


def hot_nodes(progress: Progress, most: int = 3) -> str | None:
    """Of each stage, the virtual nodes that get most of its rows; None: they are not known."""
    told = []
    for stage, rates in progress.get("nodes", {}).items():
        total = sum(rates.values())
        if total:
            hot = [f"{node} {rate / total:.0%}" for node, rate in list(rates.items())[:most]]
            told.append(f"stage {stage}: {', '.join(hot)} of {total:,.0f} rows/s")
    return "; ".join(told) or None


class LiveLine:
    """One line on standard error, kept up to date; where that is no terminal, nothing."""

    def __init__(self) -> None:
        self.is_shown = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self.is_shown:
            # A line that wraps could not be cleared as one.
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(_CLEAR_LINE + plain(text)[:width])
            sys.stderr.flush()

    def clear(self) -> None:
        """Make room for a line that stays."""
        if self.is_shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()

    def end(self) -> None:
        if self.is_shown:
            sys.stderr.write("\n")


def follow(query: StreamingQuery, timeout: float | None = None) -> bool:
    """Wait for the query's end, with one line on standard error that is kept up to date.

    Like `query.awaitTermination(timeout)`, whose errors it raises; says whether the query ended.
    Where standard error is no terminal, nothing is printed.
    """
    line = LiveLine()
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while True:
            left = _REFRESH_SECONDS if deadline is None else deadline - time.monotonic()
            if query.awaitTermination(max(0.0, min(left, _REFRESH_SECONDS))):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            progress = query.lastProgress
            if progress is not None:
                line.show(progress_line(progress))
    finally:
        line.end()
