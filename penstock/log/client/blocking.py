"""The blocking client: the asyncio client on a thread of its own, for ordinary code.

Owns the thread, what a fork does to it (a child process starts its own thread, connection and
producer on first use, since sharing the parent's would mix their bytes and seqs), and what Ctrl-C
does: a caller that is interrupted holds nothing that the thread needs. Usable from several threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import uvloop

from penstock.errors import Unavailable
from penstock.ids import Lsn
from penstock.log.api import Bounds, ReadBatch
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import (
    TIMEOUT_SECONDS,
    AsyncLog,
    Endpoint,
    Resolve,
    changes_of,
)
from penstock.log.client.reader import AsyncReader
from penstock.log.records import (
    IMMEDIATE,
    Appended,
    Entry,
    Flush,
    Guard,
    NewEntry,
    SetKey,
    Value,
    meta_tag,
)

T = TypeVar("T")

#: A signal that comes just before a thread falls asleep does not wake it: look up this often.
_ASLEEP_SECONDS_MAX = 0.5


class Asked(Generic[T]):
    """What a coroutine on the loop's thread will have returned or raised.

    Not a `Future`: an interrupt inside `Future.result()` can leave its lock held for ever, and the
    loop's thread waits for it. A `SimpleQueue` has no such place.
    """

    def __init__(self) -> None:
        self._given: tuple[T | None, BaseException | None] | None = None
        self._told: SimpleQueue[None] = SimpleQueue()

    def give(self, done: asyncio.Task[T]) -> None:
        # Not the task itself: its end runs callbacks of weak references, and an interrupt of the
        # one who asked would be lost in them.
        if done.cancelled():
            self._given = (None, asyncio.CancelledError())
        elif (error := done.exception()) is not None:
            self._given = (None, error)
        else:
            self._given = (done.result(), None)
        self._told.put(None)

    def wait(self, timeout: float | None = None) -> T:
        """Raises TimeoutError; then, and after an interrupt, it can be waited for again."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._given is None:
            left = _ASLEEP_SECONDS_MAX if deadline is None else max(deadline - time.monotonic(), 0)
            try:
                self._told.get(timeout=min(left, _ASLEEP_SECONDS_MAX))
            except Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError from None
        result, error = self._given
        if error is not None:
            raise error
        return cast(T, result)


class RunningLoop:
    """An event loop that runs on another thread than its callers'."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._running: set[asyncio.Task[Any]] = set()

    def ask(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Asked[T]:
        asked: Asked[T] = Asked()
        self.loop.call_soon_threadsafe(self._begin, call, asked)
        return asked

    def _begin(self, call: Callable[[], Coroutine[Any, Any, T]], asked: Asked[T]) -> None:
        async def called() -> T:
            return await call()

        task = self.loop.create_task(called())
        self._running.add(task)  # the loop itself keeps no task alive
        task.add_done_callback(self._running.discard)
        task.add_done_callback(asked.give)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)


class LoopThread(RunningLoop):
    """An event loop on a daemon thread of its own."""

    def __init__(self) -> None:
        super().__init__(uvloop.new_event_loop())
        self._thread = threading.Thread(target=self._run, name="penstock-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _end(self) -> None:
        left = list(self._running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self.loop.stop()

    def stop(self) -> None:
        """Ends what is left, too: requests of callers that were interrupted while they waited."""
        self.submit(self._end())
        self._thread.join()
        self.loop.close()


class BlockingLog:
    """`AsyncLog` for code without asyncio: the same methods, each waits for its result."""

    def __init__(self, resolve: Resolve, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self._resolve = resolve
        self._timeout = timeout
        self._locks: dict[int, threading.Lock] = {}
        self._pid = os.getpid()
        self._thread: RunningLoop | None = None
        self._log: AsyncLog | None = None
        self._closed = False
        self._open()

    @classmethod
    def lend(cls, log: AsyncLog, loop: asyncio.AbstractEventLoop) -> BlockingLog:
        """An open log for code that waits, on other threads than its loop's; it stays open."""

        async def resolve() -> Endpoint:
            raise Unavailable("this log was lent by the process that forked: open it again here")

        lent = cls.__new__(cls)
        lent._resolve, lent._timeout, lent._locks = resolve, log.timeout, {}
        lent._pid, lent._closed = os.getpid(), False
        lent._thread, lent._log = RunningLoop(loop), log
        return lent

    @property
    def _lock(self) -> threading.Lock:
        """One per process: at a fork, a thread that the child lacks may hold the parent's."""
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def _open(self) -> AsyncLog:
        with self._lock:
            if self._closed:
                raise Unavailable("this client was closed")
            if self._log is None or self._pid != os.getpid():
                # First use, or first use after a fork: the parent's thread does not exist here.
                self._pid = os.getpid()
                self._log = None  # if we cannot connect now, the next call tries again
                self._thread = thread = LoopThread()
                try:
                    self._log = thread.ask(self._connect).wait()
                except BaseException:
                    thread.stop()
                    raise
            return self._log

    async def _connect(self) -> AsyncLog:
        return await AsyncLog.connect(self._resolve, timeout=self._timeout)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def log_id(self) -> str:
        """Which log it is: positions of one mean nothing in another."""
        return self._open().log_id

    def run(self, call: Callable[[AsyncLog], Coroutine[Any, Any, T]]) -> T:
        """Run `call(log)` on the client's loop and wait."""
        return self.ask(call).wait()

    def ask(self, call: Callable[[AsyncLog], Coroutine[Any, Any, T]]) -> Asked[T]:
        """Like `run`, to wait for later."""
        log = self._open()
        assert self._thread is not None
        return self._thread.ask(lambda: call(log))

    def submit(self, call: Callable[[AsyncLog], Coroutine[Any, Any, T]]) -> Future[T]:
        """Like `ask`, as a future of the standard library."""
        log = self._open()
        assert self._thread is not None
        return self._thread.submit(call(log))

    def close(self) -> None:
        """Finish what was submitted, then close. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed or self._log is None or self._thread is None or self._pid != os.getpid():
            return
        if isinstance(self._thread, LoopThread):
            self._thread.ask(self._log.close).wait()
            self._thread.stop()

    def __enter__(self) -> BlockingLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- the log's methods

    def bounds(self) -> Bounds:
        return self.run(lambda log: log.bounds())

    def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush: Flush = IMMEDIATE,
    ) -> Appended:
        return self.run(lambda log: log.append(entries, guards=guards, sets=sets, flush=flush))

    def append_nowait(
        self, entries: Sequence[NewEntry], *, flush: Flush = IMMEDIATE
    ) -> Future[Appended]:
        """Pipelined: many may be on their way; results come in order."""
        return self.submit(lambda log: log.append(entries, flush=flush))

    def appender(self, producer: str | None = None) -> BlockingAppender:
        return BlockingAppender(self, self.run(lambda log: log.appender(producer)))

    def tail(
        self, tags: Sequence[str] | None = None, *, start: int, end: int | None = None
    ) -> BlockingReader:
        async def open_reader(log: AsyncLog) -> AsyncReader:
            return log.tail(tags, start=start, end=end)

        return BlockingReader(self, self.run(open_reader))

    def read(
        self, tags: Sequence[str] | None = None, *, start: int = 0, end: int | None = None
    ) -> list[Entry]:
        return self.run(lambda log: log.read(tags, start=start, end=end))

    def read_last(self, tag: str, *, end: int | None = None) -> Entry | None:
        return self.run(lambda log: log.read_last(tag, end=end))

    def find_time(self, time_ms: int) -> Lsn:
        return self.run(lambda log: log.find_time(time_ms))

    def trim(self, lsn: int) -> Lsn:
        return self.run(lambda log: log.trim(lsn))

    def get(self, key: str) -> Value | None:
        return self.run(lambda log: log.get(key))

    def list_metadata(self, prefix: str = "") -> dict[str, Value]:
        return self.run(lambda log: log.list_metadata(prefix))

    def compare_and_set(self, key: str, *, expected: bytes | None, value: bytes | None) -> Lsn:
        return self.run(lambda log: log.compare_and_set(key, expected=expected, value=value))

    def watch(self, key: str, *, start: int) -> Iterator[Value | None]:
        with self.tail([meta_tag(key)], start=start) as reader:
            for batch in reader:
                yield from changes_of(key, batch)

    def status(self) -> str:
        return self.run(lambda log: log.status())


class BlockingAppender:
    """An open producer, for one process: a forked child opens its own."""

    def __init__(self, log: BlockingLog, appender: AsyncAppender) -> None:
        self._log = log
        self._appender = appender
        self._pid = os.getpid()

    @property
    def producer(self) -> str:
        return self._appender.producer

    @property
    def instance(self) -> int:
        return self._appender.instance

    @property
    def next_seq(self) -> int:
        return self._appender.next_seq

    def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush: Flush = IMMEDIATE,
    ) -> Appended:
        self._check_process()
        return self._log.run(
            lambda _: self._appender.append(entries, guards=guards, sets=sets, flush=flush)
        )

    def append_nowait(
        self, entries: Sequence[NewEntry], *, flush: Flush = IMMEDIATE
    ) -> Future[Appended]:
        self._check_process()
        return self._log.submit(lambda _: self._appender.append(entries, flush=flush))

    def close(self) -> None:
        if self._pid == os.getpid():
            self._log.run(lambda _: self._appender.close())

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise Unavailable(
                f"producer {self.producer} was opened by process {self._pid}: open it again here"
            )

    def __enter__(self) -> BlockingAppender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingReader:
    """Iterate over it for batches; `next_batch` waits for a bounded time.

    For one process: a forked child opens its own.
    """

    def __init__(self, log: BlockingLog, reader: AsyncReader) -> None:
        self._log = log
        self._reader = reader
        self._pid = os.getpid()
        self._waiting: Asked[ReadBatch | None] | None = None

    def next_batch(self, timeout: float | None = None) -> ReadBatch | None:
        """The next batch; None at the end. Raises TimeoutError; nothing is lost by it."""
        if self._pid != os.getpid():
            raise Unavailable(f"this reader was opened by process {self._pid}: open one here")
        if self._waiting is None:
            self._waiting = self._log.ask(self._next)
        batch = self._waiting.wait(timeout)
        self._waiting = None
        return batch

    async def _next(self, _: AsyncLog) -> ReadBatch | None:
        try:
            return await self._reader.__anext__()
        except StopAsyncIteration:
            return None

    def __iter__(self) -> Iterator[ReadBatch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def close(self) -> None:
        if self._pid == os.getpid() and not self._log.closed:
            self._log.run(lambda _: self._reader.close())

    def __enter__(self) -> BlockingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
