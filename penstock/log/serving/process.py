"""A process that serves until it is told to stop: descriptors, signals, exit code.

Owns what it asks of the system and how it ends. Law: one that cannot go on ends with EXIT_FATAL and
one line that says why, even where that line cannot be written.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from penstock.errors import PenstockError
from penstock.plain_text import plain_line

logger = logging.getLogger(__name__)

#: A thread that computes in Python gives way within this time, not Python's 5 ms: the event loop
#: needs Python again after each of its system calls, beside threads that read for who is behind.
SWITCH_SECONDS = 0.0005
#: Exit code after a failed write, so that a supervisor can tell it from a crash.
EXIT_FATAL = 70


class Server(Protocol):
    """What runs in the process."""

    @property
    def descriptors_wanted(self) -> int: ...

    async def run(self) -> None: ...

    def stop(self) -> None: ...


async def run_until_signal(server: Server, config: Sequence[str]) -> None:
    """Run until SIGTERM or SIGINT; `config` is told line by line."""
    raise_descriptor_limit(server.descriptors_wanted)
    set_modules_aside()
    sys.setswitchinterval(SWITCH_SECONDS)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    for line in config:
        logger.info("config %s", line)
    await server.run()


def set_modules_aside() -> None:
    """Let the garbage collector look at less, and less often: it stops the process meanwhile.

    What was imported stays for ever. Most of what a server makes has no cycles and goes by itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def memory_peak_bytes() -> int:
    """Most memory that this process had at once.

    `ru_maxrss` is only a bound: a process begins with that of the one that started it.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # no descriptor is left
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def exit_code(run: Callable[[], None]) -> int:
    """Run to the end; what `main` returns."""
    try:
        run()
    except (PenstockError, OSError) as error:
        try:
            print(f"penstock: {plain_line(str(error))}", file=sys.stderr, flush=True)
        except OSError:
            # Our output is often a file on the very disk that is full. Python would try once more
            # to write it at exit, and end with a code of its own.
            os._exit(EXIT_FATAL)
        return EXIT_FATAL
    return 0


def descriptor_limits() -> tuple[int, int]:
    """Descriptors that this process may have open, and may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return (sys.maxsize if soft == endless else soft, sys.maxsize if hard == endless else hard)


def raise_descriptor_limit(wanted: int) -> None:
    """Many systems grant 1024 until one asks."""
    granted, most = descriptor_limits()
    if granted < wanted:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), hard))
