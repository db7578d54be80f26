"""Measuring: the clock, percentiles, the raw disk beside us, memory of a process, a place."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock_bench.report import Say

SECOND_US = 1_000_000
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_REMOVE_SECONDS = 15.0
_BUSY_LOAD = 0.7


def now_us() -> int:
    """The wall clock: the one clock that all processes and all events share."""
    return time.time_ns() // 1_000


def next_second(after_us: int) -> int:
    return (after_us // SECOND_US + 1) * SECOND_US


def percentiles(values: Any, percents: Sequence[float]) -> list[float]:
    """By nearest rank, of numbers in any order."""
    ordered = np.sort(values)
    places = [max(0, math.ceil(len(ordered) * percent / 100) - 1) for percent in percents]
    return [float(ordered[place]) for place in places]


def percentile(values: Any, percent: float) -> float:
    return percentiles(values, [percent])[0]


def summary(values: Any, *, scale: float = 1.0, digits: int = 1) -> dict[str, float]:
    """p50, p90, p99, p99.9 and max, each times `scale`."""
    names = [*(f"p{percent:g}" for percent in PERCENTILES), "max"]
    figures = percentiles(values, [*PERCENTILES, 100.0])
    return {name: round(value * scale, digits) for name, value in zip(names, figures, strict=True)}


class RawDisk:
    """`write` + `fdatasync` of the same bytes, appended to a file of its own: the floor."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "raw"
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    def write(self, data: bytes, count: int) -> list[float]:
        """Seconds of each of `count` durable writes."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            os.write(self._fd, data)
            os.fdatasync(self._fd)
            seconds.append(time.perf_counter() - started)
        return seconds

    def close(self) -> None:
        os.close(self._fd)
        self._path.unlink()


@contextlib.contextmanager
def scratch(prefix: str, parent: Path | None) -> Iterator[Path]:
    """A directory for a log and whatever else a bench writes, gone afterwards.

    The server of a log ends soon after its last client, and may still write.
    """
    root = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield root
    finally:
        deadline = time.monotonic() + _REMOVE_SECONDS
        while root.exists() and time.monotonic() < deadline:
            shutil.rmtree(root, ignore_errors=True)
            if root.exists():
                time.sleep(0.1)


def busy_load(say: Say) -> float:
    """Load of the last minute, told where other programs will be seen in the figures."""
    busy = os.getloadavg()[0]
    if busy > _BUSY_LOAD:
        say(f"the machine is busy (load {busy:.1f}): the figures will say more about that")
    return round(busy, 2)


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken so far; 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> tuple[int, int]:
    """Anonymous memory of a process, now and (all resident memory) at its peak."""
    now = peak = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            now = int(value.split()[0]) * 1024
        elif name == "VmHWM":
            peak = int(value.split()[0]) * 1024
    return now, peak
