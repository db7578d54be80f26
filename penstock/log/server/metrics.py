"""The server's counters and gauges, and their OpenMetrics text.

Owns names, units and help of every metric of the log server. Tags, keys and producers never become
labels: their number is not bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

#: Upper bounds in seconds; from one fsync of a fast disk to a stalled one.
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0)


@dataclass(slots=True)
class Histogram:
    """A cumulative histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str) -> list[str]:
        lines = []
        seen = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            seen += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {seen}')
        return [*lines, f"{name}_sum {self.total:.6f}", f"{name}_count {seen}"]


@dataclass(slots=True)
class ServerMetrics:
    """Everything the log server counts."""

    appended_entries: int = 0
    appended_bytes: int = 0
    appended_groups: int = 0
    duplicates_dropped: int = 0
    refused_appends: int = 0
    fenced_appends: int = 0
    delivered_bytes: int = 0
    unauthorized: int = 0
    bad_frames: int = 0
    append_duration: Histogram = field(default_factory=Histogram)
    fsync_duration: Histogram = field(default_factory=Histogram)

    def text(self, gauges: dict[str, tuple[str, int]]) -> str:
        """OpenMetrics text; `gauges` are name → (help, value) read off the server now."""
        lines: list[str] = []
        counters = {
            "appended_entries": ("Entries made durable.", self.appended_entries),
            "appended_bytes": ("Bytes of groups made durable.", self.appended_bytes),
            "appended_groups": ("Groups made durable.", self.appended_groups),
            "duplicates_dropped": ("Retried groups that were there.", self.duplicates_dropped),
            "refused_appends": ("Groups refused by guard, seq or limit.", self.refused_appends),
            "fenced_appends": ("Groups refused to an older instance.", self.fenced_appends),
            "delivered_bytes": ("Bytes of records sent to readers.", self.delivered_bytes),
            "unauthorized": ("Connections with a missing or wrong token.", self.unauthorized),
            "bad_frames": ("Connections closed for bytes that are no frame.", self.bad_frames),
        }
        for name, (text, value) in counters.items():
            full = f"penstock_{name}"
            lines += (f"# TYPE {full} counter", f"# HELP {full} {text}", f"{full}_total {value}")
        for name, (text, number) in gauges.items():
            full = f"penstock_{name}"
            lines += (f"# TYPE {full} gauge", f"# HELP {full} {text}", f"{full} {number}")
        for name, text, histogram in (
            ("append_duration_seconds", "From request to answer.", self.append_duration),
            ("fsync_duration_seconds", "One write and its fsync.", self.fsync_duration),
        ):
            full = f"penstock_{name}"
            lines += (f"# TYPE {full} histogram", f"# UNIT {full} seconds")
            lines += (f"# HELP {full} {text}", *histogram.lines(full))
        return "\n".join((*lines, "# EOF", ""))
