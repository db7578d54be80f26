"""Measuring: percentiles, the raw disk beside us, the memory of a process, a place to work in."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_REMOVE_SECONDS = 15.0
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summary(values: Sequence[float], *, scale: float = 1.0) -> dict[str, float]:
    """p50, p90, p99, p99.9 and max, each times `scale`."""
    summary = {f"p{percent:g}": percentile(values, percent) * scale for percent in PERCENTILES}
    return {
        name: round(value, 1) for name, value in {**summary, "max": max(values) * scale}.items()
    }


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
