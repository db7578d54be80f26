"""The servers that `penstock.connect` starts for tests: their processes, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

from harness.waiting import wait_until

from penstock.log.serving.directory import TOKEN_FILE, is_locked


def server_pid(data_dir: Path) -> int:
    return int(json.loads((data_dir / "server.json").read_text())["pid"])


def kill_server(data_dir: Path) -> int:
    """kill -9, and wait until it is dead, its lock released with it; returns its pid."""
    pid = server_pid(data_dir)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_dead(pid), "the killed server still lives")
    return pid


def is_dead(pid: int) -> bool:
    """The process is gone, or only waits for its parent to notice."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def stop_server(data_dir: Path) -> None:
    """End the server of a directory, if one runs, and wait for it.

    Where several programs raced to start it, the next of theirs may take over: it is ended too.
    """
    told: set[int] = set()

    def is_gone() -> bool:
        if not is_locked(data_dir):
            return True
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may just be leaving
            pid = server_pid(data_dir)
            if pid not in told:
                os.kill(pid, signal.SIGTERM)
                told.add(pid)
        return False

    wait_until(is_gone, "the server did not stop")


def end_log(data_dir: Path) -> None:
    """End the server of a directory for good: the log is wanted no more.

    Processes that Spark keeps are its clients still, and would start the server again, each time
    for nothing. Without a token they give up.
    """
    (data_dir / TOKEN_FILE).write_text("")
    stop_server(data_dir)
