"""Virtual time, and one asyncio event loop per simulated process.

Owns the order in which everything happens: one queue for all processes, first come first served,
and a heap of timers. A process can be paused (what it would do waits) and killed (what it would do
never happens). No threads, no selector, no clock: time jumps to the next timer.
Law: the same calls give the same order; what differs between seeds are the delays that the world
draws.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")


class SimHandle(asyncio.TimerHandle):
    """Something to do, for one process."""

    __slots__ = ("call", "process", "values")

    def __init__(
        self, when: float, call: Callable[..., Any], values: tuple[Any, ...], process: Process
    ) -> None:
        # Nothing of the base is used but its type, and that it can be cancelled.
        self._when = when
        self._cancelled = False
        self._loop = process
        self.call = call
        self.values = values
        self.process = process

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class Scheduler:
    """Everything that is to happen, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        #: What nobody foresaw: exceptions of callbacks and of tasks that nobody waits for.
        self.errors: list[str] = []
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._pushed = 0
        self._processes: list[Process] = []

    def process(self, name: str) -> Process:
        made = Process(self, name)
        self._processes.append(made)
        return made

    def soon(self, handle: SimHandle) -> None:
        self._ready.append(handle)

    def at(self, handle: SimHandle) -> None:
        self._pushed += 1
        heappush(self._timers, (handle._when, self._pushed, handle))

    def step(self) -> bool:
        """Do one thing; False if there is nothing left to do."""
        while True:
            if self._ready:
                handle = self._ready.popleft()
            elif self._timers:
                when, _, handle = heappop(self._timers)
                if when > self.now and not handle._cancelled:
                    self.now = when
            else:
                return False
            process = handle.process
            if handle._cancelled or process.dead:
                continue
            if process.paused:
                process.parked.append(handle)
                continue
            self.steps += 1
            events._set_running_loop(process)
            try:
                handle.call(*handle.values)
            except Exception as error:
                self.errors.append(f"{process.name}: {error!r} in {handle.call}")
            return True

    def close(self) -> None:
        """End all processes; what their tasks held is let go without a word."""
        events._set_running_loop(None)
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.discard()
        self._ready.clear()
        self._timers.clear()


class Process(asyncio.BaseEventLoop):
    """The event loop of one process life."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.name = name
        self.dead = False
        self.paused = False
        self.parked: list[SimHandle] = []
        self._left: list[asyncio.Task[Any]] = []

    # ---- what asyncio asks of a loop

    def time(self) -> float:
        return self.scheduler.now

    def get_debug(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        handle = SimHandle(self.scheduler.now, callback, args, self)
        if not self.dead:
            self.scheduler.soon(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        return self.call_at(self.scheduler.now + delay, callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        handle = SimHandle(when, callback, args, self)
        if not self.dead:
            self.scheduler.at(handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return None

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Any = None,
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            error = context.get("exception")
            self.scheduler.errors.append(f"{self.name}: {context.get('message')}: {error!r}")

    # ---- what a simulator does to a process

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """All that came due meanwhile happens now, in its order."""
        self.paused = False
        parked, self.parked = self.parked, []
        for handle in parked:
            self.scheduler.soon(handle)

    def kill(self) -> None:
        """Nothing of it happens any more. Its tasks are kept as they are until the world ends."""
        if not self.dead:
            self._left = list(asyncio.all_tasks(self))
            self.dead = True
            self.parked.clear()

    def discard(self) -> None:
        """Let go of what a killed process was doing."""
        for task in self._left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            try:
                coroutine.close()
            except RuntimeError:
                pass  # it would wait once more before it ends: it ends as it is
        self._left.clear()
        self.close()

    def close(self) -> None:
        self._closed = True
