"""The page: all that is shown, made of facts and of what was a moment ago. Pure.

Owns what is remembered between two updates (history.py). Laws: the same facts, in the same order,
give the same page; what is remembered is bounded, whatever the facts hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.ui.view import figures as f
from penstock.ui.view.exposed import Buckets, newer, percentile_ms, read_metrics
from penstock.ui.view.facts import Facts, finite, named, number, sub, things
from penstock.ui.view.health import age_ms, show_health
from penstock.ui.view.history import SERIES_MAX, Counters, Series, Value
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
_LOG_SERIES: Final = ("entries", "bytes", "p50", "p99")
_QUERY_SERIES: Final = ("p50", "p99", "in", "lag", "rows")
#: So many times without an fsync, and what it took is not known any more.
_QUIET_MAX: Final = 10


class Book:
    """What is known, and what was."""

    def __init__(self) -> None:
        self._facts: Facts = {}
        self._counters = Counters()
        self._series: dict[str, Series] = {LOG: Series(_LOG_SERIES)}
        self._buckets: Buckets = []
        self._fsync: dict[str, float | None] = {}
        self._quiet = 0
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
            self._quiet = 0
        elif not buckets or self._quiet == _QUIET_MAX:
            self._fsync = {}
        else:
            self._quiet += 1
        self._add_point(
            LOG,
            at_ms,
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
            self._add_point(name, at_ms, _points(progress))
        self._counters.keep("task/", counted)

    def _add_point(self, name: str, at_ms: float, values: Mapping[str, Value]) -> None:
        series, at_s = self._series.get(name), round(at_ms / 1000, 1)
        if series is None or series.is_of_another_clock(at_s):
            # Who looks is told all of it anew.
            series = self._series[name] = Series(_LOG_SERIES if name == LOG else _QUERY_SERIES)
        series.add(at_s, values)

    def page(self, query: str | None, now_ms: float, away: Facts | None = None) -> dict[str, Any]:
        """What is shown to who looks at a query, or at none."""
        made_of = (self.count, now_ms, away)
        if self._shared is None or self._shared[0] != made_of:
            self._shared = (made_of, self._overview(now_ms, away))
        queries = things(self._facts, "queries")
        chosen = next((one for one in queries if name_of(one) == query), None)
        shown = (
            None
            if chosen is None
            else show_query(chosen, self._counters, now_ms, number(self._facts, "at_ms"))
        )
        return {**self._shared[1], "query": shown}

    def _overview(self, now_ms: float, away: Facts | None) -> dict[str, Any]:
        """What all see, whatever they look at."""
        facts = self._facts
        idle_lags = sub(facts, "idle_lags")
        return {
            "at_ms": round(now_ms),
            "age_ms": age_ms(facts, now_ms),
            "number": self.count,
            "away": None if away is None else dict(away),
            "health": show_health(facts, away, self._counters, now_ms, self._fsync.get("p99")),
            "queries": [show_line(one, idle_lags) for one in things(facts, "queries")],
            "streams": show_streams(facts),
            "deliveries": show_deliveries(facts, now_ms),
            "log": show_log(facts, self._counters, self._fsync),
            "cluster": show_cluster(facts),
        }

    def series(self, name: str) -> Series | None:
        return self._series.get(name)


def _points(progress: Facts) -> dict[str, float | int | None]:
    _, lag = worst_lag(progress)
    return {
        "p50": number(progress, "latencyMs", "p50"),
        "p99": number(progress, "latencyMs", "p99"),
        "in": number(progress, "processedRowsPerSecond"),
        "lag": number(lag, "seconds"),
        "rows": finite(lag.get("records")),
    }
