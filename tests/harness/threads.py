"""Threads that a test leaves behind, in a process that it shares with other tests.

Law: what others left may end or go on meanwhile, and their event loops may ask for a thread to work
in; only what was not there before counts, once it has had the time to end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from harness.waiting import wait_until


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())

    def new() -> list[str]:
        # An event loop that ends waits for its own workers: asyncio's are of loops that go on.
        threads = (thread for thread in threading.enumerate() if thread not in before)
        return [thread.name for thread in threads if not thread.name.startswith("asyncio_")]

    yield
    wait_until(lambda: not new(), f"left behind: {new()}")
