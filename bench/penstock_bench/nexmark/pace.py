"""Which events are due when, and what it means to be late. Pure: no clock, no log, no process.

Owns the schedule: event n of a phase is due at `start + (n - first) / rate`, whatever happened to
the events before it, and is sent by the first tick at or after that moment. Generator g of G takes
the events n with n mod G = g. Laws: over all generators and all ticks every event comes once; no
tick has an event that is not due at it; how late an event was is counted from when it was due, so a
log that stalls shows as delay and never as events that were not sent (no coordinated omission).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from penstock_bench.measure import PERCENTILES, SECOND_US
from penstock_bench.nexmark.draws import Ints

#: What the benchmark asks of a generator that flushes every 5 ms: 99 of 100 events in the log so
#: soon after they were due.
HELD_MS: Final = 10.0

#: Delays are counted in buckets that grow by a hundredth: from 1 us to ten hours.
_GROWTH: Final = 1.01
_BUCKETS: Final = 2_450


@dataclass(frozen=True, slots=True)
class Schedule:
    """Events [first, first + count) of one stream, and the stripe of them that is ours."""

    start_us: int
    rate: float
    count: int
    first: int = 0
    generator: int = 0
    generators: int = 1
    flush_us: int = 5_000

    def __post_init__(self) -> None:
        assert self.rate > 0 and self.flush_us > 0 and self.count >= 0 and self.first >= 0
        assert 0 <= self.generator < self.generators

    @property
    def ticks(self) -> int:
        """How many ticks until everything was sent."""
        if self.count == 0:
            return 0
        last_us = self._due_after_us(self.count - 1)
        return -(-last_us // self.flush_us) + 1

    def tick_us(self, tick: int) -> int:
        """When the tick is; tick 0 is the start."""
        return self.start_us + tick * self.flush_us

    def ids(self, tick: int, end_tick: int | None = None) -> Ints:
        """Our events that became due after the tick before, up to this one (or before the end)."""
        begin = self.first + self._due_before(tick)
        end = self.first + self._due_before(tick + 1 if end_tick is None else end_tick)
        ours = begin + (self.generator - begin) % self.generators
        return np.arange(ours, max(end, ours), self.generators, dtype=np.int64)

    def due_us(self, ids: Ints) -> Ints:
        """When each of these events is due."""
        due: Ints = self.start_us + np.ceil((ids - self.first) * self._gap_us).astype(np.int64)
        return due

    @property
    def _gap_us(self) -> float:
        return SECOND_US / self.rate

    def _due_after_us(self, position: int) -> int:
        return math.ceil(position * self._gap_us)

    def _due_before(self, tick: int) -> int:
        """How many events, of all generators, the ticks before this one have."""
        if tick <= 0:
            return 0
        until_us = (tick - 1) * self.flush_us
        # The float may be off by one at a whole number; due_us alone decides.
        count = int(until_us / self._gap_us) + 1
        while count > 0 and self._due_after_us(count - 1) > until_us:
            count -= 1
        while self._due_after_us(count) <= until_us:
            count += 1
        return min(count, self.count)


@dataclass(slots=True)
class Delays:
    """How late events were, each counted once, in buckets; and how it went second by second."""

    counts: Ints = field(default_factory=lambda: np.zeros(_BUCKETS, np.int64))
    max_us: int = 0
    #: By second of the schedule: events, and the sum of their delays in microseconds.
    seconds: list[list[int]] = field(default_factory=list)

    def add(self, delays_us: Ints, second: int) -> None:
        """Count these delays, all of one batch, whose tick was in this second."""
        if not len(delays_us):
            return
        late = np.maximum(delays_us, 0)
        buckets = np.minimum(np.log1p(late) / math.log(_GROWTH), _BUCKETS - 1).astype(np.int64)
        low = int(buckets.min())
        per_bucket = np.bincount(buckets - low)
        self.counts[low : low + len(per_bucket)] += per_bucket
        self.max_us = max(self.max_us, int(late.max()))
        while len(self.seconds) <= second:
            self.seconds.append([0, 0])
        self.seconds[second][0] += len(late)
        self.seconds[second][1] += int(late.sum())

    def merge(self, other: Delays) -> None:
        self.counts = self.counts + other.counts
        self.max_us = max(self.max_us, other.max_us)
        while len(self.seconds) < len(other.seconds):
            self.seconds.append([0, 0])
        for ours, theirs in zip(self.seconds, other.seconds, strict=False):
            ours[0] += theirs[0]
            ours[1] += theirs[1]

    def percentile_ms(self, percent: float) -> float:
        """The upper end of the bucket that this share of all events reaches."""
        total = int(self.counts.sum())
        if not total:
            return 0.0
        wanted = min(math.floor(total * percent / 100) + 1, total)
        bucket = int(np.searchsorted(np.cumsum(self.counts), wanted))
        return min(_GROWTH ** (bucket + 1) - 1, float(self.max_us)) / 1_000

    def summary_ms(self) -> dict[str, float]:
        summary = {f"p{percent:g}": self.percentile_ms(percent) for percent in PERCENTILES}
        summary["max"] = self.max_us / 1_000
        return {name: round(value, 3) for name, value in summary.items()}

    def means_ms(self) -> list[float]:
        """The mean delay of the events of each second; 0 for one without events."""
        return [total / events / 1_000 if events else 0.0 for events, total in self.seconds]


def judge(delays: Delays, own: Delays, *, bar_ms: float = HELD_MS) -> tuple[bool, str]:
    """Whether a schedule was held, and a sentence.

    `own` are the parts of the delays that passed before the append was sent: what the generator
    itself, or a machine that did not let it run, is to blame for.
    """
    late_ms, own_ms = delays.percentile_ms(99), own.percentile_ms(99)
    grown_ms = growth_ms(delays.means_ms())
    if late_ms <= bar_ms and grown_ms <= bar_ms:
        return True, (
            f"held: 99 % of the events were acknowledged within {late_ms:.1f} ms of their time"
        )
    means = delays.means_ms()
    worst = max(range(len(means)), key=means.__getitem__, default=0)
    since = next((second for second, mean in enumerate(means) if mean > bar_ms), None)
    when = f"worst in second {worst}" if since is None else f"on average from second {since} on"
    cause = (
        f"most of it before it was sent (p99 {own_ms:.1f} ms): more generators, a lower rate, or "
        "a machine that is less busy would help"
        if own_ms > late_ms / 2
        else f"most of it until the log acknowledged (it was sent by p99 {own_ms:.1f} ms)"
    )
    growing = (
        f", and was {grown_ms:.1f} ms later at the end than at the start"
        if grown_ms > bar_ms
        else ""
    )
    return False, (
        f"not held: p99 {late_ms:.1f} ms after its time (at most {bar_ms:g} ms), "
        f"{when}, of {len(means)}{growing}; {cause}"
    )


def held_ms(flush_us: int) -> float:
    """How late 99 of 100 events may be: the intended wait for their tick, and 5 ms more."""
    return max(HELD_MS, flush_us / 1_000 + HELD_MS / 2)


def growth_ms(means: Sequence[float]) -> float:
    """How much later the last quarter of the seconds was than the first; 0 if that is too few."""
    quarter = len(means) // 4
    if not quarter:
        return 0.0
    return statistics.fmean(means[-quarter:]) - statistics.fmean(means[:quarter])
