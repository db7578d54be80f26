"""Asyncio tasks that belong to somebody: none is lost, and all end with their owner.

Law: a task that fails unforeseen is told of, never dropped in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TaskSet:
    """`failed` is told of every task that ends with an error."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        #: In a dict: the order in which they are cancelled must not hang on memory addresses (I21).
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    def cancel_nowait(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def cancel(self) -> None:
        """Cancel all, and wait until they have ended."""
        tasks = list(self._tasks)
        self.cancel_nowait()
        await asyncio.gather(*tasks, return_exceptions=True)
