"""Servers as processes that start at once: forked from one that has imported what they need.

Most of a start is Python's imports, and tests start hundreds. Stands in for `launch.start_module`:
same program, options, environment, session and output; only its command line in /proc is that of
warm_parent.py. Law: a process from here is used like a `subprocess.Popen`, and is as much one's
own: its pid is nobody else's before `wait` or `poll` has told how it ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.log.serving import launch

#: What warm_parent.py has imported. Anything else is started as ever.
MODULES = ("penstock.log.server", "penstock.log.node", "penstock.log.proxy")
_START_SECONDS = 60.0
_start_cold = launch.start_module


@contextmanager
def warm_starts() -> Iterator[None]:
    """Here all servers start like this ..."""
    with _starting(start_module):
        yield


@contextmanager
def cold_starts() -> Iterator[None]:
    """... and here, within, none: for tests that look at a process as an operator would."""
    with _starting(_start_cold):
        yield


@contextmanager
def _starting(how: Any) -> Iterator[None]:
    before, launch.start_module = launch.start_module, how
    try:
        yield
    finally:
        launch.start_module = before


class WarmProcess:
    """A started server, with what is used of a `Popen`."""

    def __init__(self, parent: WarmParent, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent
        self._lock = threading.Lock()
        self._descriptor = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self._descriptor)

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(None if timeout is None else timeout * 1000)
        if code is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0)
        return code

    def _look(self, milliseconds: float | None) -> int | None:
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        if self.returncode is None and ended.poll(milliseconds):
            with self._lock:
                if self.returncode is None:
                    self.returncode = self._parent.ask({"reap": self.pid})
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens to a process that has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmParent:
    """The process that forks; it ends when we do."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair()
        self._requests.settimeout(_START_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.warm_parent", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # One thread, so that what is forked lacks none.
                env={**os.environ, "PYTHONPATH": import_path(), "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def ask(self, request: dict[str, object]) -> int:
        with self._lock:
            self._requests.sendall(json.dumps(request).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                more = self._requests.recv(100)
                assert more, f"it ended: {self._process.wait()}"
                answer += more
        return int(answer)


_parent: WarmParent | None = None
_parent_lock = threading.Lock()


def start_module(
    module: str, options: Sequence[str], output: Path, *, cwd: str | None = None
) -> WarmProcess | subprocess.Popen[bytes]:
    """As `penstock.log.serving.launch.start_module`."""
    global _parent
    if module not in MODULES:
        return _start_cold(module, options, output, cwd=cwd)
    with _parent_lock:
        if _parent is None or _parent.owner != os.getpid():
            _parent = WarmParent()
        parent = _parent
    output.touch()  # one that cannot be written is our caller's news, not the server's
    request = {
        "module": module,
        "options": list(options),
        "output": str(output),
        "cwd": cwd or os.getcwd(),
        "umask": current_umask(),
        "environment": {**os.environ, "PYTHONPATH": import_path()},
    }
    return WarmProcess(parent, parent.ask(request))


def import_path() -> str:
    return os.pathsep.join(path for path in sys.path if path)


def current_umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)
