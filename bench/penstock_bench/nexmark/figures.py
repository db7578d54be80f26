"""What a run's samples come to: percentiles, lag, slope, and whether a rate was held.

Pure. Owns the rules by which a run is judged; when samples are taken is run.py's matter. Law: a
figure without a sample is None, never a number made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock_bench import measure
from penstock_bench.measure import SECOND_US
from penstock_bench.nexmark.timed import STATELESS
from penstock_bench.report import Check

Floats = npt.NDArray[np.float64]

#: Dense where latencies are of interest: at the end.
CURVE: Final = (
    *(float(percent) for percent in range(5, 95, 5)),
    *(95.0, 96.0, 97.0, 98.0, 99.0, 99.5, 99.9, 99.99, 100.0),
)
#: A rate is held if 99 of 100 rows are visible so soon.
LIMIT_MS: Final = 60.0
LIMIT_STATEFUL_MS: Final = 1_000.0
#: Of what was due in the measured span: so much must have been sent in it.
SENT_SHARE: Final = 0.99
#: Of the rate: a backlog that grows more slowly than this is taken for steady.
SLOPE_SHARE: Final = 0.02
#: Samples of the last half below which nothing is said of how the lag grows.
SAMPLES_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Appended:
    """The log at a moment: its end, and how many events were acknowledged."""

    at_us: int
    tail: int
    events: int


@dataclass(frozen=True, slots=True)
class Position:
    """The query at a moment: it has read all below this LSN, and made so many markers."""

    at_us: int
    lsn: int
    markers: int


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds so far and peak bytes of memory, by kind of process."""

    cpu_s: dict[str, float]
    memory: dict[str, int]


def limit_ms(query: str) -> float:
    """The p99 below which a rate counts as held."""
    return LIMIT_MS if query in STATELESS else LIMIT_STATEFUL_MS


def summary(values: Floats) -> dict[str, float] | None:
    """p50, p90, p99, p99.9 and max; None of nothing."""
    return measure.summary(values, digits=2) if len(values) else None


def curve(values: Floats) -> list[list[float]]:
    """Pairs of percent and value, for a plot."""
    if not len(values):
        return []
    heights = measure.percentiles(values, CURVE)
    return [[percent, round(ms, 2)] for percent, ms in zip(CURVE, heights, strict=True)]


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """How fast values grow: the median over all pairs, so that a few bursts say nothing."""
    when, value = np.asarray(times, np.float64), np.asarray(values, np.float64)
    first, second = np.triu_indices(len(when), 1)
    apart = when[second] - when[first]
    usable = apart > 0
    if not usable.any():
        return 0.0
    return float(np.median((value[second] - value[first])[usable] / apart[usable]))


def growth_ms_per_s(since_us: npt.NDArray[np.int64], latency_ms: Floats) -> float:
    """How fast the latency grows, over the last half: what a growing backlog looks like from here.

    By the median of each second, so that a second with many rows counts once.
    """
    seconds = since_us // SECOND_US
    distinct = np.unique(seconds)
    late = [second for second in distinct if second >= distinct[len(distinct) // 2]]
    medians = [float(np.median(latency_ms[seconds == second])) for second in late]
    return slope([float(second) for second in late], medians)


def growth_check(growth: float) -> Check:
    """Of any stage: lag is known of the first only."""
    return Check("growth of the latency", growth, SLOPE_SHARE * 1_000, "at most", "ms/s")


def events_at(appended: Sequence[Appended], lsn: int) -> float:
    """How many events lie below this LSN, between two looks at the log in proportion."""
    tails = [point.tail for point in appended]
    return float(np.interp(lsn, tails, [point.events for point in appended]))


def sent_at(appended: Sequence[Appended], at_us: int) -> float:
    """How many events were acknowledged by then."""
    times = [point.at_us for point in appended]
    return float(np.interp(at_us, times, [point.events for point in appended]))


@dataclass(frozen=True, slots=True)
class Lags:
    """Events sent and not yet read by the query, over a span."""

    #: Seconds since the span's begin, and events.
    samples: list[tuple[float, float]]
    #: Events read in the span, a second; None: too few samples to say.
    events_per_s: float | None
    markers_per_s: float | None

    @property
    def slope_per_s(self) -> float | None:
        """None: too few samples to say."""
        last_half = self.samples[len(self.samples) // 2 :]
        if len(last_half) < SAMPLES_MIN:
            return None
        return slope([when for when, _ in last_half], [lag for _, lag in last_half])

    def as_json(self) -> dict[str, Any]:
        values = [lag for _, lag in self.samples]
        growth = self.slope_per_s
        return {
            "max": round(max(values)) if values else None,
            "end": round(values[-1]) if values else None,
            "slope_per_s": None if growth is None else round(growth, 1),
            "samples": [[round(when, 2), round(lag)] for when, lag in self.samples],
        }


def find_lags(
    appended: Sequence[Appended], positions: Sequence[Position], from_us: int, to_us: int
) -> Lags:
    """Of the positions that were looked at in [from, to]."""
    inside = [point for point in positions if from_us <= point.at_us <= to_us]
    if len(inside) < 2 or not appended:
        return Lags([], None, None)
    read = [events_at(appended, point.lsn) for point in inside]
    samples = [
        ((point.at_us - from_us) / SECOND_US, max(0.0, sent_at(appended, point.at_us) - events))
        for point, events in zip(inside, read, strict=True)
    ]
    seconds = (inside[-1].at_us - inside[0].at_us) / SECOND_US
    markers = inside[-1].markers - inside[0].markers
    return Lags(samples, (read[-1] - read[0]) / seconds, markers / seconds)


def used_between(before: Usage, after: Usage, events: float) -> dict[str, float]:
    """CPU seconds per million events, by kind and in total."""
    used = {kind: cpu - before.cpu_s.get(kind, 0.0) for kind, cpu in after.cpu_s.items()}
    scale = 1e6 / max(events, 1.0)
    return {
        "total": round(sum(used.values()) * scale, 3),
        **{kind: round(cpu * scale, 3) for kind, cpu in used.items()},
    }


def memory_mib(usage: Usage) -> dict[str, float]:
    """Peaks by kind; their sum is an upper bound of what the run needed at once."""
    return {kind: round(size / 2**20, 1) for kind, size in usage.memory.items()}


def schedule_of(
    query: str, delay_ms: dict[str, float], note: str, *, is_prompt: bool, share: float
) -> dict[str, Any]:
    """Whether the generators kept to their schedule beside the query, which shares their machine.

    Latency counts from when an event was due, so their delay is a part of it, and is held to the
    same limit; what a generator must do by itself (`is_prompt`, pace.py) is stricter. `share` is
    what was sent in the span, of what was due in it.
    """
    late_ms = delay_ms.get("p99", 0.0)
    is_held = late_ms <= limit_ms(query) and share >= SENT_SHARE
    if is_held and not is_prompt:
        note = f"held beside the query: p99 {late_ms:.1f} ms, which is part of the latency"
    elif share < SENT_SHARE:
        note = f"not held: only {share:.1%} of what was due was sent in time; {note}"
    return {"delay_ms": delay_ms, "is_held": is_held, "is_prompt": is_prompt, "note": note}


def limit_check(query: str, latency: dict[str, float] | None) -> Check:
    if latency is None:
        return Check("rows in the measured span", 0.0, 1.0, "at least", "rows")
    return Check("p99 latency", latency["p99"], limit_ms(query), "at most", "ms")


def judge(
    query: str,
    latency: dict[str, float] | None,
    lags: Lags,
    *,
    rate: float,
    is_held: bool,
    growth: float,
) -> list[Check]:
    """The checks that make a rate sustained: all of them."""
    slope_per_s = lags.slope_per_s
    checks = [
        growth_check(growth),
        Check("schedule held", float(is_held), 1.0, "at least", ""),
    ]
    if slope_per_s is None:
        count = float(len(lags.samples))
        checks.append(Check("samples of the lag", count, 2.0 * SAMPLES_MIN, "at least", ""))
    else:
        bar = rate * SLOPE_SHARE
        checks.append(Check("growth of the lag", slope_per_s, bar, "at most", "events/s"))
    return [limit_check(query, latency), *checks]
