"""Coroutines on virtual time: one thread, one heap, one order, from one seed.

Owns time and the trace. Shells of the simulation are written as the real ones are, with `await`; a
*process* is a set of their coroutines that dies, or stops and goes on, as one. What is awaited may
thus be interrupted at every `await`, which is where the real shells can be. Law (I21): the same
seed gives the same trace; nothing here looks at a clock, an id or the order of a set.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Then = Callable[[], None]


class Loop:
    """Virtual time, in microseconds, and everything that is to happen."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_us = 0
        self.steps = 0
        self.trace: list[str] = []
        self._digest = blake2b(digest_size=16)
        self._heap: list[tuple[int, int, Then]] = []
        self._pushed = 0
        #: The first error that no shell expects: it ends the world.
        self.error: BaseException | None = None

    def after(self, delay_us: int, action: Then) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._pushed, action))

    def step(self) -> None:
        self.now_us, _, action = heapq.heappop(self._heap)
        self.steps += 1
        action()
        if self.error is not None:
            raise self.error

    def next_us(self) -> int | None:
        """When something happens next; None: never."""
        return self._heap[0][0] if self._heap else None

    def note(self, text: str) -> None:
        """One line of the trace."""
        line = f"{self.now_us} {text}"
        self.trace.append(line)
        self._digest.update(line.encode())

    @property
    def trace_hash(self) -> str:
        return self._digest.hexdigest()


class Promise(Generic[T]):
    """A value, or an error, that comes once; what comes after that is ignored."""

    def __init__(self) -> None:
        self._value: T | None = None
        self._error: BaseException | None = None
        self.is_done = False
        self._waiting: list[Then] = []

    def keep(self, value: T) -> None:
        if not self.is_done:
            self._value = value
            self._settle()

    def fail(self, error: BaseException) -> None:
        if not self.is_done:
            self._error = error
            self._settle()

    def _settle(self) -> None:
        self.is_done = True
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def then(self, then: Then) -> None:
        if self.is_done:
            then()
        else:
            self._waiting.append(then)

    def result(self) -> T:
        assert self.is_done
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def __await__(self) -> Generator[Promise[Any], None, T]:
        if not self.is_done:
            yield self
        return self.result()


class Event:
    """As asyncio's."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Promise[None]] = []

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.keep(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        if not self._is_set:
            promise: Promise[None] = Promise()
            self._waiting.append(promise)
            await promise


class Lock:
    """As asyncio's: who asks first is served first."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: deque[Promise[None]] = deque()

    async def __aenter__(self) -> None:
        if self._is_held:
            promise: Promise[None] = Promise()
            self._waiting.append(promise)
            await promise
        self._is_held = True

    async def __aexit__(self, *_: object) -> None:
        self._is_held = bool(self._waiting)
        if self._waiting:
            self._waiting.popleft().keep(None)


class Fiber:
    """A coroutine at work in a process. Its end is a promise."""

    def __init__(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._process = process
        self._coroutine = coroutine
        self.ended: Promise[Any] = Promise()
        self._is_cancelled = False
        self._is_running = False

    def run(self) -> None:
        process = self._process
        if self._is_cancelled or not process.is_alive:
            return
        if process.is_paused:
            process.deferred.append(self.run)
            return
        self._is_running = True
        try:
            awaited: Promise[Any] = self._coroutine.send(None)
        except StopIteration as end:
            self._end()
            self.ended.keep(end.value)
        except Exception as error:
            self._end()
            self.ended.fail(error)
        else:
            self._is_running = False
            awaited.then(self.run)

    def _end(self) -> None:
        self._is_cancelled = True
        self._process.fibers.pop(self, None)

    def cancel(self) -> None:
        """Nothing more of it happens, or, if it is at work right now, after its next `await`."""
        if self._is_cancelled:
            return
        self._end()
        if self._is_running:
            self._process.loop.after(0, self._coroutine.close)
        else:
            self._coroutine.close()


class Process:
    """What dies, or sleeps, together."""

    def __init__(self, loop: Loop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.deferred: deque[Then] = deque()
        self.fibers: dict[Fiber, None] = {}
        #: What the operating system does when it is gone.
        self.on_death: list[Then] = []

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Fiber:
        fiber = Fiber(self, coroutine)
        if not self.is_alive:
            coroutine.close()
            return fiber
        self.fibers[fiber] = None
        self.loop.after(0, fiber.run)
        return fiber

    def start_main(self, coroutine: Coroutine[Any, Any, Any]) -> Fiber:
        """A fiber whose failure is a mistake of the program: it ends the world."""
        fiber = self.start(coroutine)

        def check() -> None:
            try:
                fiber.ended.result()
            except Exception as error:
                self.loop.error = self.loop.error or error

        fiber.ended.then(check)
        return fiber

    def pause(self) -> None:
        self.is_paused = True

    def wake(self) -> None:
        if self.is_paused:
            self.is_paused = False
            while self.deferred and not self.is_paused:
                self.deferred.popleft()()

    def kill(self) -> None:
        """At once, as kill -9 does: nothing of it runs any more, what it sent is on its way."""
        if not self.is_alive:
            return
        self.is_alive = False
        for fiber in list(self.fibers):
            fiber.cancel()
        self.deferred.clear()
        for then in self.on_death:
            then()

    async def sleep(self, delay_us: int) -> None:
        promise: Promise[None] = Promise()
        self.loop.after(delay_us, lambda: promise.keep(None))
        await promise


async def first_of(promises: Sequence[Promise[Any]]) -> None:
    """Until one of them is kept, or failed."""
    first: Promise[None] = Promise()
    for promise in promises:
        promise.then(lambda: first.keep(None))
    await first
