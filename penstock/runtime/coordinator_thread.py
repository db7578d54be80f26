"""The thread of the driver on which a query's coordinator runs.

Owns the thread and its event loop. The driver's other threads talk to the coordinator through the
methods here, which submit to that loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from penstock.errors import PenstockError
from penstock.protocol.names import TaskId
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.spec import QuerySpec
from penstock.runtime.worker import LogAddress

T = TypeVar("T")


class CoordinatorThread:
    """One run of one query. `ended` is set when it is over, `error` says why."""

    def __init__(
        self,
        address: LogAddress,
        spec: QuerySpec,
        *,
        id: str,
        workers: int,
        trims: bool,
        balances: bool = False,
    ) -> None:
        """Returns when the query is claimed; raises if it cannot be."""
        self.ended = threading.Event()
        opened: Future[tuple[Coordinator, asyncio.AbstractEventLoop]] = Future()

        async def coordinate() -> None:
            try:
                coordinator = await Coordinator.open(
                    address.resolve(), spec, id=id, workers=workers, trims=trims, rescales=True,
                    keeps_image=True, balances=balances,
                )  # fmt: skip
            except BaseException as error:
                opened.set_exception(error)
                return
            opened.set_result((coordinator, asyncio.get_running_loop()))
            await coordinator.run()

        def run() -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                try:
                    runner.run(coordinate())
                finally:
                    self.ended.set()  # before the loop is closed: nobody submits to it any more

        threading.Thread(target=run, name=f"penstock-{spec.name}", daemon=True).start()
        self._coordinator, self._loop = opened.result()

    @property
    def is_over(self) -> bool:
        """Nothing more will be processed."""
        return self._coordinator.core.is_over or self.ended.is_set()

    @property
    def error(self) -> PenstockError | None:
        return self._coordinator.error

    @property
    def is_suspended(self) -> bool:
        """It was rescaled to no workers."""
        return self._coordinator.is_suspended

    @property
    def spec(self) -> QuerySpec:
        """With the layout of now."""
        return self._coordinator.spec

    def when_rescaled(self, resize: Callable[[int], None]) -> None:
        """What starts and ends workers, told how many are wanted from then on."""
        self._coordinator.on_workers = resize

    @property
    def run_id(self) -> str:
        return self._coordinator.run_id

    @property
    def recent(self) -> deque[dict[str, Any]]:
        """The last progress reports, oldest first."""
        return self._coordinator.recent

    def hellos(self, slot: int) -> int:
        """How many workers have started in this slot so far."""
        return self._coordinator.core.hellos.get(slot, 0)

    def set_cores(self, cores: dict[str, Any]) -> None:
        """How the driver's Spark stands, for the next progress report."""
        self._coordinator.cores = cores

    # -- submitted to its loop; they return at once

    def finish(self) -> None:
        """Tell the workers to commit what they have and to leave. Idempotent."""
        if not self.ended.is_set():
            self._submit(self._coordinator.finish())

    def fail(self, message: str) -> None:
        """End the run with this error."""
        if not self.ended.is_set():
            self._submit(self._coordinator.fail(message))

    def job_lost(self, slot: int, attempts: int | None = None) -> None:
        """Spark's word: what ran in the slot has ended, or only attempts below a number."""
        if not self.ended.is_set():
            self._submit(self._coordinator.job_lost(slot, attempts))

    def vacate(self, slot: int) -> None:
        """Spark's word: the executor of this slot is about to go."""
        if not self.ended.is_set():
            self._submit(self._coordinator.vacate(slot))

    def move(self, task: TaskId, worker: str) -> Future[None]:
        """Done when the move was asked for."""
        return self._submit(self._coordinator.move(task, worker))

    def rescale(self, workers: int) -> Future[None]:
        """Done when it was asked for."""
        return self._submit(self._coordinator.rescale(workers))

    def balance(self) -> Future[None]:
        """Done when it was asked for."""
        return self._submit(self._coordinator.balance())

    def flush(self) -> Future[None]:
        """Done when everything that was in the sources now is processed, committed, visible."""
        return self._submit(self._coordinator.flush())

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)
