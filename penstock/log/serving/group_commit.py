"""Group commit: one write with its fsync at a time, and what arrives meanwhile goes into the next.

Owns where a write is done. A small one on a fast disk is done on the event loop itself: two thread
switches would cost more than its fsync. Any other is done apart, in a thread of its own, so that a
slow disk does not hold up readers (docs/decisions/0003). What a write contains, and what follows
from it, is up to the log's owner (server/owner.py) or the node's (node/owner.py).
Law: after a failed write none is started any more (R48).
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from penstock.limits import KIB

#: Writes up to this size are done on the event loop while fsyncs take less than INLINE_SECONDS.
INLINE_BYTES = 32 * KIB
INLINE_SECONDS = 0.0005
#: After this much quiet, a note vouches for the last write (see segment_file.py and journal.py).
NOTE_DELAY_MS = 100

W = TypeVar("W")
R = TypeVar("R")


class Apart(Protocol):
    """A place beside the event loop that does one piece of work after the other."""

    def run(self, work: Callable[[], None]) -> None:
        """Do it, soon; `work` raises nothing."""

    async def close(self) -> None:
        """Returns when all work is done."""


class WriterThread:
    """The place in a real process."""

    def __init__(self, name: str) -> None:
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work()

    def run(self, work: Callable[[], None]) -> None:
        self._works.put(work)

    async def close(self) -> None:
        self._works.put(None)
        await asyncio.to_thread(self._thread.join)


class GroupCommit(Generic[W, R]):
    """Does the writes of one owner. All methods are for the event loop.

    `take` gives the next write that is due. `perform` does it and returns once it is durable; it
    may run in a thread. `written` is told on the loop, with the seconds it took and whether it was
    done inline: if it was not, the owner must pump again. `failed` is told of the error once.
    """

    def __init__(
        self,
        *,
        take: Callable[[], W | None],
        is_small: Callable[[W], bool],
        perform: Callable[[W], R],
        written: Callable[[W, R, float, bool], None],
        failed: Callable[[BaseException], None],
        apart: Apart,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._take = take
        self._is_small = is_small
        self._perform = perform
        self._written = written
        self._failed = failed
        self._apart = apart
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        #: A write is on its way, or one has failed.
        self.is_busy = False
        #: Recent duration of a write with its fsync, smoothed.
        self._fsync_seconds = 0.0
        self._quiet_since = clock()

    def pump(self, *, inline: bool = True) -> None:
        """Start what is due, as far as one at a time allows; `inline`: it may be done here."""
        while not self.is_busy:
            write = self._take()
            if write is None:
                return
            self.is_busy = True
            if inline and self._fsync_seconds <= INLINE_SECONDS and self._is_small(write):
                self._write_inline(write)
            else:
                self._apart.run(partial(self._work, write))

    def write_apart(self, write: W) -> None:
        """Start this write now; none may be on its way."""
        assert not self.is_busy
        self.is_busy = True
        self._apart.run(partial(self._work, write))

    def is_quiet(self) -> bool:
        """Nothing was written for a while: the last write may be vouched for."""
        quiet = self._clock() - self._quiet_since
        return not self.is_busy and quiet * 1000 >= NOTE_DELAY_MS

    async def close(self) -> None:
        """Returns when the write that is on its way is done."""
        await self._apart.close()

    def _write_inline(self, write: W) -> None:
        started = self._clock()
        try:
            result = self._perform(write)
        except BaseException as error:
            self._failed(error)
        else:
            self._take_in(write, result, self._clock() - started, True)

    def _work(self, write: W) -> None:
        """In the other thread."""
        started = self._clock()
        try:
            result = self._perform(write)
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._failed, error)
        else:
            seconds = self._clock() - started
            self._loop.call_soon_threadsafe(self._take_in, write, result, seconds, False)

    def _take_in(self, write: W, result: R, seconds: float, inline: bool) -> None:
        self.is_busy = False
        self._fsync_seconds = 0.8 * self._fsync_seconds + 0.2 * seconds
        self._quiet_since = self._clock()
        self._written(write, result, seconds, inline)
