"""Targets inside the player's process, each on a thread of its own.

Owns those threads. A target may block for as long as it likes: nobody but itself waits for it. Law:
one target is called from one thread, one call at a time. A thread that hangs in a target does not
keep the process from ending.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from operator import index
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import pyarrow as pa

from penstock.delivery.api import Shard, Target
from penstock.delivery.host import Tell
from penstock.delivery.messages import Ack, Apply, At, Bye, Failure, Hello, ToTarget, batch_of
from penstock.ids import Lsn

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A target's messages that wait for it: a player has one batch, one end and one beginning of a
#: connection under way, and waits for answers.
_WAITING_MAX: Final = 8


class TargetThread(Executor):
    """One daemon thread, begun when it is first needed.

    Not a ThreadPoolExecutor: the end of the process would wait for its threads, and so for a
    database that does not answer.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:
                # Of a library that is written in Rust, say: no event loop takes that as an answer.
                future.set_exception(RuntimeError(repr(error)))

        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """The thread ends after what it was given; nobody waits for it."""
        self._jobs.put(None)


class LocalHost:
    """A `TargetHost` of the shards of one delivery."""

    window = 1

    def __init__(
        self, targets: Sequence[Target], shards: Sequence[Shard], schema: pa.Schema
    ) -> None:
        """The stream's schema, `_weight` included."""
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        pairs = zip(targets, shards, strict=True)
        self._targets = {shard.index: _LocalTarget(target, shard, empty) for target, shard in pairs}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, tell: Tell) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(one.serve(tell)) for one in self._targets.values()]

    def send(self, messages: Sequence[ToTarget]) -> None:
        for message in messages:
            self._targets[message.shard].waiting.put_nowait(message)

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.close() for one in self._targets.values()))


def _position(method: str, answer: Any) -> Lsn:
    """What a target answers is its own affair; what goes into acks and the log is a number."""
    try:
        return Lsn(index(answer))
    except TypeError:
        kind = type(answer).__name__
        raise TypeError(f"{method} answered a {kind}: return the position, a number") from None


class _LocalTarget:
    def __init__(self, target: Target, shard: Shard, empty: pa.RecordBatch) -> None:
        self._target = target
        self._shard = shard
        self._empty = empty
        self._thread = TargetThread(f"penstock-{shard.delivery}-{shard.index}")
        self.waiting: asyncio.Queue[ToTarget] = asyncio.Queue(_WAITING_MAX)
        #: The connection on which all went well so far; 0: none.
        self._connection = 0
        self._is_closed = False

    async def serve(self, tell: Tell) -> None:
        while True:
            message = await self.waiting.get()
            try:
                match message:
                    case Hello():
                        await self._let_go()
                        position = await self._call(self._open, message.term)
                        self._connection = message.connection
                        tell(At(message.shard, message.connection, position))
                    case Apply() if message.connection == self._connection:
                        position = await self._call(self._apply, message)
                        tell(Ack(message.shard, message.connection, position))
                    case Bye():
                        await self._let_go()
            except Exception as error:
                # Whatever a target raises is its own affair: the player decides.
                logger.debug("target=%d failed", self._shard.index, exc_info=True)
                self._connection = 0
                tell(Failure(message.shard, message.connection, error))

    def _open(self, term: int) -> Lsn:
        return _position("open", self._target.open(self._shard, term))

    def _apply(self, message: Apply) -> Lsn:
        return _position("apply", self._target.apply(batch_of(message, self._empty)))

    async def _let_go(self) -> None:
        self._connection = 0
        try:
            await self._call(self._target.close)
        except Exception:
            logger.warning("target=%d: close failed", self._shard.index, exc_info=True)

    def _call(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def close(self) -> None:
        """Waits for a call that is under way; who has a deadline cancels it."""
        if not self._is_closed:
            self._is_closed = True
            try:
                await self._let_go()
            finally:
                self._thread.shutdown()
