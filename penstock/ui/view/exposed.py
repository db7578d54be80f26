"""Metrics of a server, read from their OpenMetrics text. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

_SAMPLE: Final = re.compile(r'^([a-z_]+)(?:\{le="([^"]+)"\})? ([0-9.e+-]+)$', re.MULTILINE)
#: Bucket bounds in seconds and how many were at most so long, the last bound infinite.
Buckets = list[tuple[float, float]]


def read_metrics(text: str) -> tuple[dict[str, float], dict[str, Buckets]]:
    """Values by name, and histograms by name."""
    values: dict[str, float] = {}
    histograms: dict[str, Buckets] = {}
    for name, bound, value in _SAMPLE.findall(text):
        try:
            if not bound:
                values[name] = float(value)
            elif name.endswith("_bucket"):
                of = name.removesuffix("_bucket")
                histograms.setdefault(of, []).append((float(bound), float(value)))
        except ValueError:
            continue
    return values, histograms


def newer(now: Sequence[tuple[float, float]], before: Sequence[tuple[float, float]]) -> Buckets:
    """What was counted since, if the server is the same."""
    known: Mapping[float, float] = dict(before)
    grown = [(bound, count - known.get(bound, 0)) for bound, count in now]
    return grown if all(count >= 0 for _, count in grown) else list(now)


def percentile_ms(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """The upper bound of the bucket that it lies in; None: nothing was counted, or beyond all."""
    total = buckets[-1][1] if buckets else 0
    if total <= 0:
        return None
    for bound, count in buckets:
        if count >= share * total:
            return None if bound == float("inf") else bound * 1000
    return None
