"""The page: all that is shown, made of facts and of what was a moment ago. Pure.

Owns what is remembered between two updates (history.py). Laws: the same facts, in the same order,
give the same page; what is remembered is bounded, whatever the facts hold.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.ui.view import figures as f
from penstock.ui.view.exposed import Buckets, newer, percentile_ms, read_metrics
from penstock.ui.view.facts import Facts, finite, named, number, sub, things
from penstock.ui.view.health import show_health
from penstock.ui.view.history import SERIES_MAX, Counters, Series
from penstock.ui.view.log import BYTES, ENTRIES, show_cluster, show_log
from penstock.ui.view.queries import (
    name_of,
    progress_of,
    show_line,
    show_query,
    task_counter,
    worst_lag,
)
from penstock.ui.view.streams import show_deliveries, show_streams

#: The log's own series; no query is called so.
LOG: Final = "(log)"
_FSYNC: Final = "penstock_fsync_duration_seconds"


class Book:
    """What is known, and what was."""

    def __init__(self) -> None:
        self._facts: Facts = {}
        self._counters = Counters()
        self._series: dict[str, Series] = {LOG: Series(("entries", "bytes", "p50", "p99"))}
        self._buckets: Buckets = []
        self._fsync: dict[str, float | None] = {}
        #: By query, the report that is in its series already.
        self._reports: dict[str, Any] = {}
        #: Facts that were taken.
        self.count = 0
        #: What all see, and of what it was made.
        self._shared: tuple[object, dict[str, Any]] | None = None

    def take(self, facts: Facts) -> None:
        """Newer facts."""
        self._facts = facts
        self.count += 1
        self._take_log(sub(facts, "log"), number(facts, "at_ms") or 0)
        self._take_queries()

    def _take_log(self, log: Facts, at_ms: float) -> None:
        told = log.get("metrics")
        values, histograms = read_metrics(told if isinstance(told, str) else "")
        self._counters.take(
            at_ms,
            {
                ENTRIES: values.get("penstock_appended_entries_total"),
                BYTES: values.get("penstock_appended_bytes_total"),
            },
        )
        buckets = histograms.get(_FSYNC, [])
        recent = newer(buckets, self._buckets) if self._buckets else []
        if buckets and (not recent or recent[-1][1] > 0):
            self._buckets = buckets
        if recent and recent[-1][1] > 0:
            self._fsync = {
                "p50": percentile_ms(recent, 0.5), "p99": percentile_ms(recent, 0.99)
            }  # fmt: skip
        elif not buckets:
            self._fsync = {}
        self._series[LOG].add(
            round(at_ms / 1000, 1),
            {
                "entries": self._counters.rate(ENTRIES),
                "bytes": self._counters.rate(BYTES),
                **self._fsync,
            },
        )

    def _take_queries(self) -> None:
        queries = things(self._facts, "queries")[: SERIES_MAX - 1]
        names = {name_of(one) for one in queries}
        for gone in [name for name in self._series if name != LOG and name not in names]:
            del self._series[gone]
            self._reports.pop(gone, None)
        counted: list[str] = []
        for query in queries:
            name, progress = name_of(query), progress_of(query)
            at_ms = f.moment_ms(progress.get("timestamp"))
            if at_ms is None:
                continue
            rows = {
                task_counter(name, task): number(one, "rows_in")
                for task, one in named(progress, "tasks")
            }
            self._counters.take(at_ms, rows)
            counted += rows
            if self._reports.get(name) == at_ms:
                continue
            self._reports[name] = at_ms
            series = self._series.get(name)
            if series is None:
                series = self._series[name] = Series(_QUERY_SERIES)
            series.add(round(at_ms / 1000, 1), _points(progress))
        self._counters.keep("task/", counted)

    def page(self, query: str | None, now_ms: float, away: Facts | None = None) -> dict[str, Any]:
        """What is shown to who looks at a query, or at none."""
        made_of = (self.count, now_ms, away)
        if self._shared is None or self._shared[0] != made_of:
            self._shared = (made_of, self._overview(now_ms, away))
        queries = things(self._facts, "queries")
        chosen = next((one for one in queries if name_of(one) == query), None)
        shown = None if chosen is None else show_query(chosen, self._counters, now_ms)
        return {**self._shared[1], "query": shown}

    def _overview(self, now_ms: float, away: Facts | None) -> dict[str, Any]:
        """What all see, whatever they look at."""
        facts = self._facts
        return {
            "at_ms": round(now_ms),
            "number": self.count,
            "away": None if away is None else dict(away),
            "health": show_health(facts, away, self._counters),
            "queries": [show_line(one, now_ms) for one in things(facts, "queries")],
            "streams": show_streams(facts),
            "deliveries": show_deliveries(facts, now_ms),
            "log": show_log(facts, self._counters, self._fsync),
            "cluster": show_cluster(facts),
        }

    def series(self, name: str) -> Series | None:
        return self._series.get(name)


_QUERY_SERIES: Final = ("p50", "p99", "in", "lag", "rows")


def _points(progress: Facts) -> dict[str, float | int | None]:
    _, lag = worst_lag(progress)
    return {
        "p50": number(progress, "latencyMs", "p50"),
        "p99": number(progress, "latencyMs", "p99"),
        "in": number(progress, "processedRowsPerSecond"),
        "lag": number(lag, "seconds"),
        "rows": finite(lag.get("records")),
    }
