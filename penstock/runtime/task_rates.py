"""What the counters of tasks say between two reports: shares of time, rows a second. Pure.

Owns the last report of each task. A task is measured by its own clock (meter.py), so that reports
which come late or twice change nothing. Laws: shares are 0 to 1 and add up to 1, or are not known;
an instance that has just begun has none, and what an older one counted is never mixed with it; of
tasks that are not reported any more nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.protocol.names import TaskId
from penstock.runtime.histogram import Buckets

#: Shorter intervals say little.
_MS_MIN: Final = 100.0


@dataclass(frozen=True, slots=True)
class TaskRate:
    """Of one task, over its last report interval."""

    busy: float
    waiting: float
    back_pressured: float
    #: Rows a second, by input.
    rows: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Counted:
    instance: int
    waiting_ms: float
    busy_ms: float
    blocked_ms: float
    rows: Mapping[str, int]

    @property
    def ms(self) -> float:
        return self.waiting_ms + self.busy_ms + self.blocked_ms


@dataclass(slots=True)
class TaskRates:
    """Of all tasks of a query."""

    _counted: dict[TaskId, _Counted] = field(default_factory=dict)
    _rates: dict[TaskId, TaskRate] = field(default_factory=dict)

    def update(self, reports: Mapping[TaskId, Mapping[str, Any]]) -> Mapping[TaskId, TaskRate]:
        """The newest rates, by task; those that are not known are left out."""
        counted, rates = {}, {}
        for task, report in reports.items():
            now, before = _counted(report), self._counted.get(task)
            if now is None:
                continue
            if before is None or before.instance != now.instance or now.ms < before.ms:
                counted[task] = now
            elif now.ms - before.ms < _MS_MIN:
                counted[task] = before
                if task in self._rates:
                    rates[task] = self._rates[task]
            else:
                counted[task] = now
                rates[task] = _rate(before, now)
        self._counted, self._rates = counted, rates
        return rates


def _counted(report: Mapping[str, Any]) -> _Counted | None:
    """None: it does not run, or its worker does not tell."""
    names = ("instance", "waiting_ms", "busy_ms", "blocked_ms")
    told: list[Any] = [report.get(name) for name in names]
    if not report.get("is_running") or None in told:
        return None
    rows = {name: int(one.get("rows", 0)) for name, one in report.get("inputs", {}).items()}
    instance, waiting_ms, busy_ms, blocked_ms = told
    return _Counted(instance, waiting_ms, busy_ms, blocked_ms, rows)


def _rate(before: _Counted, now: _Counted) -> TaskRate:
    ms = now.ms - before.ms
    parts = (
        max(now.busy_ms - before.busy_ms, 0.0),
        max(now.waiting_ms - before.waiting_ms, 0.0),
        max(now.blocked_ms - before.blocked_ms, 0.0),
    )
    busy, waiting, blocked = (part / sum(parts) for part in parts)
    rows = {
        name: max(count - before.rows.get(name, 0), 0) / ms * 1000
        for name, count in now.rows.items()
    }
    return TaskRate(busy, waiting, blocked, rows)


@dataclass(slots=True)
class LatencyTotals:
    """Latencies of all instances of all tasks of a run, which each tell their own from 0 on."""

    total: Buckets = field(default_factory=Buckets)
    _last: dict[TaskId, tuple[int, Buckets]] = field(default_factory=dict)

    def update(self, reports: Mapping[TaskId, Mapping[str, Any]]) -> Buckets:
        for task, report in reports.items():
            counts, sum_ms = report.get("visible_counts"), report.get("visible_sum_ms")
            instance = report.get("instance")
            if counts is None or sum_ms is None or instance is None:
                continue
            now = Buckets(list(counts), sum_ms)
            before = self._last.get(task)
            is_same = before is not None and before[0] == instance
            self.total.add_growth(now, before[1] if is_same and before is not None else Buckets())
            self._last[task] = (instance, now)
        self._last = {task: last for task, last in self._last.items() if task in reports}
        return self.total
