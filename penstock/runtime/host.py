"""What workers, coordinators and tasks ask of the process and the machine that they run in.

Owns the few facts and places that an event loop does not give: who started this process, names and
tokens, the wall clock, a place for beats apart from the tasks, and where checkpoints are kept.
Everything else (timers, sockets, threads for blocking calls) comes from the running event loop. The
simulator gives both.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Protocol

import uvloop

from penstock.state.room import MEMORY, Room
from penstock.state.scratch import Scratch, choose_folder
from penstock.state.stores.api import StateStore
from penstock.state.stores.open import open_store

Main = Callable[[], Coroutine[Any, Any, None]]


class Apart(Protocol):
    """A coroutine at work beside our event loop."""

    def is_alive(self) -> bool: ...

    async def wait(self) -> None:
        """Until it has ended."""


class Host(Protocol):
    """See the module's docstring."""

    def name(self) -> str:
        """Of the machine, for people."""

    def process_id(self) -> int: ...

    def parent_id(self) -> int:
        """Changes when the process that started us has ended."""

    def token(self, size: int) -> str:
        """So many random bytes, as hexadecimal digits."""

    def now_ms(self) -> int:
        """The wall clock."""

    def monotonic(self) -> float:
        """Seconds that never go back, for durations; cheap, and finer than an event loop's."""

    def run_apart(self, main: Main, name: str) -> Apart:
        """Start a coroutine that goes on whatever our event loop is busy with."""

    def open_checkpoints(self, uri: str, log_id: str) -> StateStore: ...

    def room(self, state_memory: int | None) -> Room:
        """Where the state of all tasks of this process is; None: without a bound, in memory."""


class _Thread:
    """With an event loop of its own."""

    def __init__(self, main: Main, name: str) -> None:
        self._main = main
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    async def wait(self) -> None:
        if self.is_alive():
            await asyncio.to_thread(self._thread.join)


class ThisProcess:
    """The real one."""

    def name(self) -> str:
        return socket.gethostname()

    def process_id(self) -> int:
        return os.getpid()

    def parent_id(self) -> int:
        return os.getppid()

    def token(self, size: int) -> str:
        return secrets.token_hex(size)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.perf_counter()

    def run_apart(self, main: Main, name: str) -> Apart:
        return _Thread(main, name)

    def open_checkpoints(self, uri: str, log_id: str) -> StateStore:
        return open_store(uri, log_id)

    def room(self, state_memory: int | None) -> Room:
        return MEMORY if state_memory is None else _scratch(state_memory)


@cache
def _scratch(bound_bytes: int) -> Scratch:
    # Spark tells its workers which disks it has for what is only needed while it runs.
    places = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return Scratch(bound_bytes, choose_folder([*places, tempfile.gettempdir()]))


THIS_PROCESS = ThisProcess()
