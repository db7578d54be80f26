"""Latencies as counts in buckets, so that those of many tasks add up to true percentiles.

Buckets grow by a tenth: a percentile is right to 5 %, from 0.01 ms to 10 minutes. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

#: Upper bounds of the few buckets that add up over a whole run, for dashboards.
BOUNDS_MS: Final = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0,
                    10_000.0, 60_000.0)  # fmt: skip

_SMALLEST_MS: Final = 0.01
_GROWTH: Final = math.log(1.1)
#: Places of `Histogram`.
BUCKETS: Final = 190


class Histogram:
    """Counts of latencies in milliseconds."""

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        self._counts = dict(counts or {})

    def add(self, ms: float, count: int = 1) -> None:
        place = 0 if ms <= _SMALLEST_MS else int(math.log(ms / _SMALLEST_MS) / _GROWTH) + 1
        place = min(place, BUCKETS - 1)
        self._counts[place] = self._counts.get(place, 0) + count

    def merge(self, others: Iterable[Histogram]) -> Histogram:
        merged = Histogram(self._counts)
        for other in others:
            for place, count in other._counts.items():
                merged._counts[place] = merged._counts.get(place, 0) + count
        return merged

    @property
    def count(self) -> int:
        return sum(self._counts.values())

    def percentile(self, share: float) -> float | None:
        """The latency that this share of all is at or below; None of nothing."""
        total = self.count
        if total == 0:
            return None
        wanted, seen = share * total, 0
        place = 0
        for place in sorted(self._counts):
            seen += self._counts[place]
            if seen >= wanted:
                break
        if place == 0:
            return _SMALLEST_MS
        return _SMALLEST_MS * math.exp((place - 0.5) * _GROWTH)

    def summary(self) -> dict[str, float | None]:
        """p50, p95 and p99 in milliseconds, for progress reports."""
        shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        percentiles = {name: self.percentile(share) for name, share in shares.items()}
        return {name: None if ms is None else round(ms, 2) for name, ms in percentiles.items()}

    def to_json(self) -> dict[str, int]:
        return {str(place): count for place, count in sorted(self._counts.items())}

    @classmethod
    def from_json(cls, counts: dict[str, int]) -> Histogram:
        return cls({int(place): int(count) for place, count in counts.items()})


class RecentHistogram:
    """Latencies of the last one to two windows: what is slow now is not hidden by a good past."""

    def __init__(self, window_seconds: float = 5.0) -> None:
        self._window_seconds = window_seconds
        self._since = 0.0
        self._before = Histogram()
        self._now = Histogram()

    def add(self, ms: float) -> None:
        self._now.add(ms)

    def recent(self, now: float) -> Histogram:
        """All of this window and of the one before; `now` in seconds, ever growing."""
        if now - self._since > self._window_seconds:
            self._since, self._before, self._now = now, self._now, Histogram()
        return self._now.merge([self._before])


@dataclass(slots=True)
class Buckets:
    """Latencies since something began, never forgotten: counts by `BOUNDS_MS`, one more above."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    sum_ms: float = 0.0

    def add(self, ms: float) -> None:
        self.counts[bisect_left(BOUNDS_MS, ms)] += 1
        self.sum_ms += ms

    def add_growth(self, now: Buckets, before: Buckets) -> None:
        """By how much the one has more than the other; never less than nothing."""
        pairs = zip(now.counts, before.counts, strict=True)
        for place, (count, was) in enumerate(pairs):
            self.counts[place] += max(count - was, 0)
        self.sum_ms += max(now.sum_ms - before.sum_ms, 0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "boundsMs": list(BOUNDS_MS),
            "counts": list(self.counts),
            "sumMs": round(self.sum_ms, 3),
            "count": sum(self.counts),
        }
