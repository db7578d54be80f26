"""Counters, gauges and histograms, and their OpenMetrics text.

Owns the format. Names, units and help of each metric are with whoever counts it. Law: what has no
bound, such as tags, keys, producers, logs and segments, never becomes a label.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from penstock.plain_text import plain

#: Upper bounds in seconds; from one fsync of a fast disk to a stalled one.
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0)


#: What a name may end with, before `_total`, to say what its values are.
UNITS = ("seconds", "bytes", "ratio")

#: Name → (help, value), read off a process when it is asked.
Gauges = dict[str, tuple[str, float]]


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


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram that somebody else counted: by upper bounds in seconds, and one count more."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    def lines(self, name: str, label: str) -> list[str]:
        lines, seen = [], 0
        comma = "," if label else ""
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            lines.append(f'{name}_bucket{{{label}{comma}le="{bound}"}} {seen}')
        braces = f"{{{label}}}" if label else ""
        return [*lines, f"{name}_sum{braces} {self.total:.6f}", f"{name}_count{braces} {seen}"]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with a value for each of a few things."""

    #: "gauge", "counter", "stateset" or "histogram".
    kind: str
    help: str
    #: By label, such as `shard="0"`; a metric of one thing has an empty one.
    values: Mapping[str, float | Buckets]

    def lines(self, name: str) -> list[str]:
        sample = f"{name}_total" if self.kind == "counter" else name
        unit = name.rsplit("_", 1)[-1]
        lines = [f"# TYPE {name} {self.kind}"]
        lines += [f"# UNIT {name} {unit}"] if unit in UNITS else []
        lines.append(f"# HELP {name} {self.help}")
        for label, value in self.values.items():
            if isinstance(value, Buckets):
                lines += value.lines(name, label)
            else:
                braces = f"{{{label}}}" if label else ""
                lines.append(f"{sample}{braces} {value:.15g}")
        return lines


def escape_label(text: str) -> str:
    """A label's value, on one line, whatever it holds."""
    return plain(text).replace("\\", "\\\\").replace('"', '\\"')


def families_text(families: Mapping[str, Family]) -> str:
    """OpenMetrics text of these alone."""
    lines = [line for name, family in families.items() for line in family.lines(f"penstock_{name}")]
    return "\n".join((*lines, "# EOF", ""))


def join_texts(one: str, other: str) -> str:
    """Two texts of OpenMetrics as one; they share no name."""
    return one.removesuffix("# EOF\n") + other


def counter(help: str) -> int:
    """A field of `Metrics`."""
    made: int = field(default=0, metadata={"help": help})
    return made


def histogram(help: str) -> Histogram:
    """A field of `Metrics`; `_seconds` is added to its name."""
    made: Histogram = field(default_factory=Histogram, metadata={"help": help})
    return made


@dataclass(slots=True)
class Counts:
    """Whatever somebody counts, as fields that `counter` and `histogram` make."""

    PREFIX: ClassVar[str] = "penstock_"

    def text(self, gauges: Gauges, families: Mapping[str, Family] | None = None) -> str:
        """OpenMetrics text."""
        lines: list[str] = []
        for each in fields(self):
            full, value = self.PREFIX + each.name, getattr(self, each.name)
            help = each.metadata["help"]
            if isinstance(value, Histogram):
                full += "_seconds"
                lines += (f"# TYPE {full} histogram", f"# UNIT {full} seconds")
                lines += (f"# HELP {full} {help}", *value.lines(full))
            else:
                lines += (
                    f"# TYPE {full} counter",
                    f"# HELP {full} {help}",
                    f"{full}_total {value}",
                )
        for name, (help, value) in gauges.items():
            full = self.PREFIX + name
            lines += (f"# TYPE {full} gauge", f"# HELP {full} {help}", f"{full} {value}")
        for name, family in (families or {}).items():
            lines += family.lines(self.PREFIX + name)
        return "\n".join((*lines, "# EOF", ""))


@dataclass(slots=True)
class Metrics(Counts):
    """What every server counts; the classes elsewhere add their own counters and histograms."""

    unauthorized: int = counter("Connections with a missing or wrong token.")
    bad_frames: int = counter("Connections closed for bytes that are no frame.")
    crowded_out: int = counter("Connections closed for want of room, mostly without a token.")
