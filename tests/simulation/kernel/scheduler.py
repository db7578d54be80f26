"""Virtual time, and the order in which everything happens.

Owns one queue for all processes, first come first served, a heap of timers, the trace, and the
errors that nobody foresaw. No threads, no selector, no clock: time jumps to the next timer.
Law: the same calls give the same order; what differs between seeds are the delays that are drawn.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from simulation.kernel.network import Network
    from simulation.kernel.process import Process


class Stuck(AssertionError):
    """What had to happen did not: a liveness violation (I16)."""


class Unforeseen(AssertionError):
    """Somebody's exception was handled by nobody."""


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

    def __init__(self, random: Random | None = None) -> None:
        self.random = Random(0) if random is None else random
        self.now = 0.0
        self.steps = 0
        #: What nobody foresaw: exceptions of callbacks and of tasks that nobody waits for.
        self.errors: list[str] = []
        #: The exception behind the first of them, if there is one.
        self.cause: BaseException | None = None
        #: What happened, and when; `trace_lines` makes text of it.
        self.trace: list[tuple[float, str]] = []
        self.network: Network | None = None
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._pushed = 0
        self._serial = 0
        self._processes: list[Process] = []
        self._outside: Process | None = None

    def process(self, name: str, machine: str = "") -> Process:
        """A new process; `machine` is the host name under which it listens."""
        from simulation.kernel.process import Process

        process = Process(self, name, machine or name)
        self._processes.append(process)
        return process

    def serial(self) -> int:
        """A number that nobody had before."""
        self._serial += 1
        return self._serial

    # ---- what is to happen

    def soon(self, handle: SimHandle) -> None:
        self._ready.append(handle)

    def at(self, handle: SimHandle) -> None:
        self._pushed += 1
        heappush(self._timers, (handle._when, self._pushed, handle))

    def after(self, seconds: float, call: Callable[..., Any], *values: Any) -> SimHandle:
        """Something that belongs to no process: it cannot be paused or killed."""
        if self._outside is None:
            self._outside = self.process("outside")
        handle = SimHandle(self.now + seconds, call, values, self._outside)
        self.at(handle)
        return handle

    # ---- running

    def step(self) -> bool:
        """Do one thing; False if there is nothing left to do."""
        return self._run(1)

    def _run(self, count: int) -> bool:
        """Do so many things, or fewer if one fails; False if there is nothing left to do."""
        ready, timers, errors = self._ready, self._timers, self.errors
        while count:
            if ready:
                handle = ready.popleft()
            elif timers:
                when, _, handle = heappop(timers)
                if handle._cancelled:
                    continue
                if when > self.now:
                    self.now = when
            else:
                return False
            process = handle.process
            if handle._cancelled or process.dead:
                continue
            if process.paused:
                process.parked.append(handle)
                continue
            count -= 1
            self.steps += 1
            events._set_running_loop(process)
            try:
                handle.call(*handle.values)
            except Exception as error:
                self.fail(process, error, f"in {handle.call}")
            except BaseException:
                if not process.dead:
                    raise
            if errors:
                break
        return True

    def fail(self, process: Process, error: BaseException | None, place: str) -> None:
        """Something that nobody foresaw has happened to a process."""
        if not process.dead:
            self.fail_all(f"{process.name}: {error!r} {place}", error)

    def fail_all(self, what: str, error: BaseException | None) -> None:
        """The world is broken in a way that nothing explains, whoever did it."""
        self.errors.append(what)
        self.cause = self.cause or error

    def fail_here(self, error: BaseException | None, place: str) -> None:
        """As `fail`, in the process that is at work now."""
        process = events._get_running_loop()
        if process is None:
            self.fail_all(f"{error!r} {place}", error)
        else:
            self.fail(cast("Process", process), error, place)

    def run_until(
        self,
        happened: Callable[[], bool],
        *,
        seconds: float,
        steps: int = 1_000_000,
        at_once: int = 1,
    ) -> None:
        """Go on until something has happened; Stuck if it does not within the time or steps. It is
        looked for after so many steps at once."""
        deadline, steps_max = self.now + seconds, self.steps + steps
        run, errors = self._run, self.errors
        try:
            while not happened():
                if not run(at_once):
                    raise Stuck(f"nothing is left to do at {self.now:.6f} s")
                if errors:
                    self._raise_errors()
                if self.now > deadline or self.steps > steps_max:
                    raise Stuck(f"not after {self.now:.6f} s and {self.steps} steps")
        finally:
            events._set_running_loop(None)

    def run_for(self, seconds: float) -> None:
        """Go on for so long."""
        end = self.now + seconds
        self.after(seconds, lambda: None)  # or time would stand still when nothing is to be done
        self.run_until(lambda: self.now >= end, seconds=seconds + 1.0)

    @property
    def is_busy(self) -> bool:
        """Something is to happen at this very moment."""
        return bool(self._ready)

    def check(self) -> None:
        """At the end: nobody has failed unnoticed."""
        self.run_until(lambda: not self._is_due(), seconds=0.0)
        for process in self._processes:
            if not process.dead:
                process.check_forgotten()
        self._raise_errors()

    def _is_due(self) -> bool:
        """Something is to happen now, and is not called off."""
        ready = self._ready
        while ready:
            process = ready[0].process
            if process.paused and not ready[0]._cancelled:
                process.parked.append(ready[0])
            elif not (ready[0]._cancelled or process.dead):
                return True
            ready.popleft()
        return False

    def _raise_errors(self) -> None:
        if self.errors:
            raise Unforeseen("; ".join(self.errors)) from self.cause

    def close(self) -> None:
        """End all processes; what their tasks held is let go without a word."""
        events._set_running_loop(None)
        for process in self._processes:
            process.kill(silent=True)
        for process in self._processes:
            process.discard()
        self._ready.clear()
        self._timers.clear()

    # ---- the trace

    def note(self, text: str) -> None:
        """One line of the trace."""
        self.trace.append((self.now, text))

    def trace_lines(self, last: int = 0) -> list[str]:
        """The trace as text, or so many lines from its end."""
        return [f"{when:.6f} {text}" for when, text in self.trace[-last:]]

    @property
    def trace_hash(self) -> str:
        """I21: equal for equal seeds, in every process."""
        return blake2b("\n".join(self.trace_lines()).encode(), digest_size=16).hexdigest()
