"""The process that a shipped worker, coordinator or task runs in, simulated (runtime/host.py)."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.runtime.host import Apart, Main
from penstock.state import memory
from penstock.state.checkpoint_store import CheckpointStore
from penstock.state.room import Room
from simulation.kernel import Scheduler, WallClock
from simulation.pipeline.store import SimFolder, WatchedStore

_PARENT_ID = 1
_NO_PARENT_ID = 2
#: How far the wall clocks of two machines may be apart.
_SKEW_MS = 300_000


class Around(Protocol):
    """A world, or a bench."""

    scheduler: Scheduler
    folder: SimFolder

    def count(self, what: str) -> None: ...


class SimHost:
    """One process."""

    def __init__(self, world: Around) -> None:
        self._world = world
        self._random = world.scheduler.random
        self._clock = WallClock(world.scheduler)
        self._clock.jump(self._random.choice((-_SKEW_MS, 0, 0, _SKEW_MS)))
        self._parent_id = _PARENT_ID

    def lose_parent(self) -> None:
        """Whoever started the process has ended."""
        self._parent_id = _NO_PARENT_ID

    def name(self) -> str:
        return "host"

    def process_id(self) -> int:
        return 1

    def parent_id(self) -> int:
        return self._parent_id

    def token(self, size: int) -> str:
        return self._random.randbytes(size).hex()

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def monotonic(self) -> float:
        return self._world.scheduler.now

    def run_apart(self, main: Main, name: str) -> Apart:
        return _Beside(asyncio.ensure_future(main()))

    def open_checkpoints(self, uri: str, log_id: str) -> CheckpointStore:
        return WatchedStore(uri, log_id, self._world.folder, self._world.count)

    def room(self, state_memory: int | None) -> Room:
        """Where tests put state that is given no room (tests/harness/rooms.py)."""
        return memory.IN_MEMORY


class _Beside:
    """In the same event loop: it stands still and dies with the process, as a thread does."""

    def __init__(self, task: asyncio.Future[None]) -> None:
        self._task = task

    def is_alive(self) -> bool:
        return not self._task.done()

    async def wait(self) -> None:
        await asyncio.wait({self._task})
