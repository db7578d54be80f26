"""One simulated process: an asyncio event loop on virtual time that can be paused and killed.

Owns its life. A pause makes everything wait that it would do; a kill makes sure that nothing of it
happens any more. What it gives to an executor is done as one atomic step at a later virtual time.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar
from weakref import ref

from simulation.kernel.mistakes import Watched, is_mistake
from simulation.kernel.scheduler import Scheduler, SimHandle
from simulation.kernel.transport import SimServer, SimTransport

T = TypeVar("T")

#: How long a job of an executor takes before it happens, unless the process says otherwise.
JOB_SECONDS_MAX = 0.0005
#: A coroutine that is let go waits at most so often on its way out.
_WAITS_MAX = 100


class SimTask(asyncio.Task[T]):
    """Hashed by its number: sets of tasks then have the same order in every process (I21)."""

    __slots__ = ("is_gathered", "serial")

    serial: int
    #: `asyncio.gather` looks at it, but may do so only when the others have ended, too.
    is_gathered: bool

    def __hash__(self) -> int:
        return self.serial

    def add_done_callback(self, fn: Any, /, *, context: Any = None) -> None:
        self.is_gathered |= getattr(fn, "__qualname__", "").startswith("gather.")
        super().add_done_callback(fn, context=context)


class SimFuture(asyncio.Future[T]):
    """As `SimTask`."""

    __slots__ = ("serial",)

    serial: int

    def __hash__(self) -> int:
        return self.serial


class JobPool(Executor):
    """An executor whose jobs happen on virtual time, for shells that make a pool of their own."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.jobs: dict[int, Callable[[], None]] = {}

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        raise NotImplementedError("jobs are given to the loop: run_in_executor")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What was given to the pool happens now: nobody can wait inside of a step."""
        while self.jobs:
            self.jobs.pop(next(iter(self.jobs)))()


class JobQueue:
    """A place beside the event loop that does one piece of work after the other, on virtual time.

    It is a `penstock.log.serving.group_commit.Apart`. `seconds` says how long the next piece takes
    before it happens.
    """

    def __init__(self, process: Process, seconds: Callable[[], float] | None = None) -> None:
        self._process = process
        self._seconds = process.job_seconds if seconds is None else seconds
        self._works: deque[Callable[[], None]] = deque()
        self._idle: asyncio.Future[None] | None = None

    def run(self, work: Callable[[], None]) -> None:
        self._works.append(work)
        if len(self._works) == 1:
            self._process.call_later(self._seconds(), self._work)

    def _work(self) -> None:
        self._works[0]()
        self._works.popleft()
        if self._works:
            self._process.call_later(self._seconds(), self._work)
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def close(self) -> None:
        """Returns when all work is done."""
        if self._works:
            self._idle = self._process.create_future()
            await self._idle


class Process(asyncio.BaseEventLoop):
    """The event loop of one process life."""

    def __init__(self, scheduler: Scheduler, name: str, machine: str) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.name = name
        self.machine = machine
        self.dead = False
        self.paused = False
        self.parked: list[SimHandle] = []
        #: Ends of connections that this process has, in the order in which they were made.
        self.sockets: dict[SimTransport, None] = {}
        self._left: list[SimTask[Any]] = []
        #: All that it ever had, oldest first; those that nobody holds any more are gone.
        self._tasks: list[ref[SimTask[Any]]] = []
        #: How long the next job of an executor takes before it happens.
        self.job_seconds: Callable[[], float] = lambda: scheduler.random.random() * JOB_SECONDS_MAX

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
            self.scheduler._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

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

    def create_future(self) -> asyncio.Future[Any]:
        future: SimFuture[Any] = SimFuture(loop=self)
        future.serial = self.scheduler.serial()
        return future

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Any = None,
    ) -> asyncio.Task[T]:
        task = _make_task(self, Watched(coro, self._task_fails))
        self._tasks.append(ref(task))
        return task

    def _living_tasks(self) -> list[SimTask[Any]]:
        """Oldest first."""
        return [task for task in (known() for known in self._tasks) if task is not None]

    def _task_fails(self, error: BaseException) -> None:
        if is_mistake(error):
            self.scheduler.fail(self, error, "in a task")

    def spawn(self, coro: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """A task for which nobody waits: if it fails, the world ends."""
        task = self.create_task(coro)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            if not task.cancelling():
                self.scheduler.fail(self, None, f"{task} gave up, and nobody had asked it to")
        elif (error := task.exception()) is not None:
            self.scheduler.fail(self, error, "in a task")

    def check_forgotten(self) -> None:
        """A task has failed, and nobody has asked how it ended: the world ends. To be called when
        nothing is ready to happen, or those who wait would not have heard yet."""
        for task in self._living_tasks():
            if task.is_gathered or not task.done() or task.cancelled():
                continue
            if task._log_traceback:
                self.scheduler.fail(self, task.exception(), f"in {task}, which nobody looks at")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.scheduler.fail(self, context.get("exception"), str(context.get("message")))

    default_exception_handler = call_exception_handler

    # ---- jobs

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """`func` happens later, at once as a whole; what it returned is told later still."""
        told: asyncio.Future[T] = self.create_future()
        random = self.scheduler.random
        jobs = executor.jobs if isinstance(executor, JobPool) else {}
        number = self.scheduler.serial()

        def work() -> None:
            jobs.pop(number, None)
            if told.cancelled() and random.random() < 0.5:
                return  # it had not begun yet
            try:
                outcome = func(*args)
            except Exception as error:
                self._tell_soon(told, error, None)
            else:
                self._tell_soon(told, None, outcome)

        def due() -> None:
            if number in jobs:
                work()

        jobs[number] = work
        self.call_later(self.job_seconds(), due)
        return told

    def _tell_soon(
        self, told: asyncio.Future[Any], error: Exception | None, outcome: object
    ) -> None:
        def tell() -> None:
            if told.done():
                if is_mistake(error):
                    self.scheduler.fail(self, error, "in a job that nobody waits for")
                return
            if error is None:
                told.set_result(outcome)
            else:
                told.set_exception(error)

        random = self.scheduler.random
        if random.random() < 0.5:
            self.call_soon(tell)
        else:
            self.call_later(random.random() * JOB_SECONDS_MAX, tell)

    # ---- sockets

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], Any],
        host: str,
        port: int,
        *,
        ssl: None = None,
    ) -> tuple[SimTransport, Any]:
        assert self.scheduler.network is not None
        transport = await self.scheduler.network.connect(self, host, port)
        protocol = protocol_factory()
        transport.begin(protocol)
        return transport, protocol

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], Any],
        host: str,
        port: int,
        *,
        backlog: int = 100,
    ) -> SimServer:
        assert self.scheduler.network is not None
        return self.scheduler.network.listen(self, protocol_factory, host, port)

    # ---- what a simulator does to a process

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """All that came due meanwhile happens now, in its order."""
        self.paused = False
        parked, self.parked = self.parked, []
        for handle in parked:
            self.scheduler.soon(handle)

    def kill(self, *, lose: bool = False, silent: bool = False) -> None:
        """Nothing of it happens any more. Its peers are told by a reset, after what it had sent.

        `lose`: what is on its way from it is lost. `silent`: nobody is told anything. Its tasks are
        kept as they are until the world ends.
        """
        if self.dead:
            return
        is_in_a_step = events._get_running_loop() is self
        if not (self.scheduler.is_busy or is_in_a_step or self.paused):
            self.check_forgotten()
        self._left = [task for task in self._living_tasks() if not task.done()]
        self.dead = True
        self.parked.clear()
        if self.scheduler.network is not None:
            self.scheduler.network.process_died(self, lose=lose, silent=silent)

    def discard(self) -> None:
        """Let go of what a killed process was doing."""
        events._set_running_loop(self)  # or what they do at their end would make a real loop
        for task in self._left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        events._set_running_loop(None)
        self._left.clear()
        self.close()

    def close(self) -> None:
        self._closed = True

    def __del__(self) -> None:
        """Nothing to warn of: there is no selector to close."""


def _close(coroutine: Any) -> None:
    """Let go of a coroutine, also of one that would wait for something before it ends."""
    for _ in range(_WAITS_MAX):
        try:
            coroutine.close()
            return
        except RuntimeError:
            continue  # it waits in a `finally`: it is let go there, too


def _make_task(
    process: Process, coro: Generator[Any, None, T] | Coroutine[Any, Any, T]
) -> SimTask[T]:
    # The number comes before the first use of the hash, which is in the constructor.
    task: SimTask[T] = SimTask.__new__(SimTask)
    task.serial = process.scheduler.serial()
    task.is_gathered = False
    task.__init__(coro, loop=process)  # type: ignore[misc]
    return task
