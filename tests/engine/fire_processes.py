"""Processes under fire, as /proc shows them: whose they are, and what they are.

Law: nothing is killed or stopped that does not descend from a process that the test itself started.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

_EXECUTOR = b"CoarseGrainedExecutorBackend"


def parents() -> dict[int, int]:
    """Parent by process, of all that live now."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_text()
            except OSError:
                continue  # gone meanwhile
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(name)] = int(parent)
    return found


def descendants(root: int) -> list[int]:
    """Everything that `root` started, directly or not, and that lives."""
    known = parents()
    found = [root]
    for pid in found:
        found += [child for child, parent in known.items() if parent == pid]
    return found[1:]


def executors(driver: int) -> list[int]:
    return [pid for pid in descendants(driver) if _EXECUTOR in command_line(pid)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def send(pid: int, number: signal.Signals, *, root: int) -> bool:
    """Signal a descendant of `root`; False if it is none, or gone."""
    if pid not in descendants(root):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def born(pid: int) -> int | None:
    """When the process was started, in the kernel's ticks: with it, a number means one process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """Which of them still live after so long at most."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = [pid for pid in pids if pid in parents()]
        if not alive:
            return []
        time.sleep(0.05)
    return [pid for pid in pids if pid in parents()]


def kill_all(pids: list[int]) -> None:
    """SIGKILL for processes that are known to be ours."""
    signal_all(pids, signal.SIGKILL)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """To processes that are known to be ours; some may be gone."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
