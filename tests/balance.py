"""How `make test` uses all cores: files of tests go to the next free process, the longest first.

Owns the order, and durations.json: how long each file took when it was last asked. One process
runs all tests of a file, so that what they share (a log, a Spark session) is made once. A file that
is not in the list counts as a short one. PENSTOCK_DURATIONS=write writes the list anew.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

DURATIONS = Path(__file__).with_name("durations.json")


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


def sort_by_duration(items: list[pytest.Item]) -> None:
    """The longest files first; within a file, as they stand there."""
    durations: dict[str, float] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    items.sort(key=lambda item: -durations.get(file_of(item.nodeid), 1.0))


class Clock:
    """A plugin that adds up how long the files take, and writes it down if asked to."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        rounded = {name: round(s, 1) for name, s in sorted(self._seconds.items()) if s >= 0.5}
        DURATIONS.write_text(json.dumps(rounded, indent=1) + "\n")


def configure(config: pytest.Config) -> None:
    options: Any = config.option
    options.loadscopereorder = False  # the order is sort_by_duration's
    is_worker = hasattr(config, "workerinput")
    if os.environ.get("PENSTOCK_DURATIONS") == "write" and not is_worker:
        config.pluginmanager.register(Clock(), "penstock-durations")
