"""A storage node's counters and gauges, and their OpenMetrics text.

Owns names, units and help of every metric of a node. Logs and segments never become labels: their
number is not bounded.
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
class NodeMetrics:
    """Everything that a storage node counts."""

    writes: int = 0
    written_records: int = 0
    written_bytes: int = 0
    refused: int = 0
    fenced: int = 0
    read_bytes: int = 0
    damaged_blocks: int = 0
    damaged_parts: int = 0
    removed_files: int = 0
    unauthorized: int = 0
    bad_frames: int = 0
    fsync_duration: Histogram = field(default_factory=Histogram)

    def text(self, gauges: dict[str, tuple[str, int]]) -> str:
        """OpenMetrics text; `gauges` are name → (help, value) read off the node now."""
        counters = {
            "writes": ("Writes of the journal, one fsync each.", self.writes),
            "written_records": ("Blocks and fences made durable.", self.written_records),
            "written_bytes": ("Bytes of blocks made durable.", self.written_bytes),
            "refused": ("Requests that were refused.", self.refused),
            "fenced": ("Requests of an older owner.", self.fenced),
            "read_bytes": ("Bytes of blocks sent to readers.", self.read_bytes),
            "damaged_blocks": ("Blocks that did not match their CRC.", self.damaged_blocks),
            "damaged_parts": ("Files with damage, each time one is read.", self.damaged_parts),
            "removed_files": ("Files of segments that were given up.", self.removed_files),
            "unauthorized": ("Connections with a missing or wrong token.", self.unauthorized),
            "bad_frames": ("Connections closed for bytes that are no frame.", self.bad_frames),
        }
        lines: list[str] = []
        for name, (text, value) in counters.items():
            full = f"penstock_node_{name}"
            lines += (f"# TYPE {full} counter", f"# HELP {full} {text}", f"{full}_total {value}")
        for name, (text, value) in gauges.items():
            full = f"penstock_node_{name}"
            lines += (f"# TYPE {full} gauge", f"# HELP {full} {text}", f"{full} {value}")
        full = "penstock_node_fsync_duration_seconds"
        lines += (f"# TYPE {full} histogram", f"# UNIT {full} seconds")
        lines += (f"# HELP {full} One write and its fsync.", *self.fsync_duration.lines(full))
        return "\n".join((*lines, "# EOF", ""))
