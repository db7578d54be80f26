"""One form for every benchmark: a table for people, one JSON object for tools.

Owns `Check` (a figure that an issue asks for, with its bar) and `Report`. Law: a figure is measured
in this run or it is absent; `ok` is computed here from value and bar, nowhere else.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Sense = Literal["at most", "at least"]
#: What is told while a benchmark runs.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Check:
    """`value` must be at most, or at least, `bar`."""

    name: str
    value: float
    bar: float
    sense: Sense
    unit: str
    #: What was compared with what.
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.value <= self.bar if self.sense == "at most" else self.value >= self.bar

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "value": round(self.value, 4), "ok": self.ok}


@dataclass(slots=True)
class Report:
    """The result of one benchmark run."""

    bench: str
    checks: list[Check] = field(default_factory=list)
    #: Everything measured, by name: percentiles, rates, sizes.
    figures: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def judge(self, check: Check, say: Say) -> None:
        """Add it, and say how it stands."""
        self.checks.append(check)
        say(f"{check.name}: {check.value:.3g} {check.unit} ({check.sense} {check.bar:g})")

    def as_json(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "ok": self.ok,
            "checks": [check.as_json() for check in self.checks],
            "figures": self.figures,
            "parameters": self.parameters,
            "commit": commit(),
            "machine": machine_class(),
        }


def commit() -> str:
    """The commit of the source tree that runs; "unknown" outside of one."""
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()


def machine_class() -> dict[str, Any]:
    """What a reader must know to compare: not which machine, but which kind."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "arch": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
    }
