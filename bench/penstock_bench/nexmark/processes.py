"""What the processes of a run use: CPU time and memory, by kind, from /proc.

Kinds: log (the server), generators, harness (this process), driver (Spark's, in Python), jvm (its
child), workers (the JVM's children, where the query's Python runs). Law: a process is counted under
one kind.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from penstock_bench.measure import resident_bytes
from penstock_bench.nexmark.figures import Usage

_TICKS: Final = os.sysconf("SC_CLK_TCK")
#: Fields of /proc/<pid>/stat after the name: parent, and user and system time in ticks.
_PARENT, _USER, _SYSTEM = 1, 11, 12


def _stat(pid: int) -> list[str] | None:
    """None if there is no such process (any more)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def descendants(root: int) -> dict[int, str]:
    """All processes below `root`, each with its name."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))) is not None:
            parents.setdefault(int(stat[_PARENT]), []).append(int(entry))
    commands: dict[int, str] = {}
    waiting = list(parents.get(root, []))
    while waiting:
        pid = waiting.pop()
        commands[pid] = _name(pid)
        waiting += parents.get(pid, [])
    return commands


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def kinds_of(
    *, log: int, generators: Iterable[int], driver: int, harness: int
) -> dict[str, list[int]]:
    """The processes of a run that go on now."""
    below = descendants(driver)
    jvm = [pid for pid, name in below.items() if name == "java"]
    return {
        "workers": [pid for pid in below if pid not in jvm],
        "log": [log],
        "generators": list(generators),
        "jvm": jvm,
        "driver": [driver],
        "harness": [harness],
    }


def forget_peaks(kinds: Mapping[str, Iterable[int]]) -> None:
    """Peaks of memory count from now on; what a run before needed is none of this one's."""
    for pids in kinds.values():
        for pid in pids:
            try:
                Path(f"/proc/{pid}/clear_refs").write_text("5")
            except OSError:
                pass  # ended, or not ours: its peak is then that of its life


def usage(kinds: Mapping[str, Iterable[int]]) -> Usage:
    """What they have used so far; one that has ended counts nothing."""
    cpu: dict[str, float] = {}
    memory: dict[str, int] = {}
    for kind, pids in kinds.items():
        cpu[kind] = memory[kind] = 0
        for pid in pids:
            stat = _stat(pid)
            if stat is None:
                continue
            cpu[kind] += (int(stat[_USER]) + int(stat[_SYSTEM])) / _TICKS
            try:
                memory[kind] += resident_bytes(pid)[1]
            except OSError:
                pass  # ended between the two looks
    return Usage(cpu, memory)
