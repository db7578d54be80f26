"""The log of the simulation: the shipped server on a simulated disk, and all that it ever held.

Owns the server's lives: it dies with what it was writing lost, kept or torn, and comes back on the
same disk. Keeps a copy of every durable group: what was trimmed cannot be read, but the checkers
still see it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from harness.disk import ALL_KEPT, ALL_LOST, SOME_LOST, SimDisk
from harness.faults import FaultyDisk

from penstock.config import ServerConfig
from penstock.ids import Lsn
from penstock.log.client.client import Endpoint, Resolve
from penstock.log.client.reader import split_records
from penstock.log.core.rights import allow_caveat
from penstock.log.core.sequencer import Write
from penstock.log.core.tails import DurableGroup
from penstock.log.group_format import CLAIM, Body
from penstock.log.record_format import RecordHeader
from penstock.log.records import Entry
from penstock.log.server.server import LogServer
from penstock.log.storage.log_storage import LogStorage
from penstock.log.storage.reader import read_piece
from penstock.runtime.spec import QuerySpec
from penstock.runtime.worker import worker_rights
from penstock.wire.token import make_token
from simulation.kernel import JobPool, JobQueue, Process, Scheduler, WallClock
from simulation.kernel.shipped import changed

#: The simulated network knows machines by the host that a server listens on.
_MACHINE = "127.0.0.1"
_CONFIG = ServerConfig(data_dir=Path("nowhere"), host=_MACHINE)
_TOKEN = "token"
_ALL = 2**62
#: A server that is to die does so in its next write, if that comes within this time.
_DYING_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim that the log ordered, for the checkers."""

    lsn: Lsn
    producer: str
    instance: int


class LogRecord:
    """All that was ever durable, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.claims: list[Claimed] = []
        #: First LSN of every group, in order.
        self.groups: list[Lsn] = []
        #: (tail when it was trimmed, trim point).
        self.trims: list[tuple[Lsn, Lsn]] = []

    @property
    def tail(self) -> Lsn:
        return Lsn(len(self.entries))

    def add(self, header: RecordHeader, body: Body) -> None:
        assert header.first_lsn == self.tail, f"{header.first_lsn} follows {self.tail}"
        self.groups.append(header.first_lsn)
        self.entries += body.entries(header.first_lsn, header.time_ms)
        if body.flags & CLAIM:
            self.claims.append(Claimed(header.first_lsn, body.producer, body.instance))

    def recording(self) -> AbstractContextManager[None]:
        """Of the one log that is open meanwhile, whatever its storage makes durable is kept."""
        init, write, trim = LogStorage.__init__, LogStorage.write, LogStorage.trim

        def opened(storage: LogStorage, *values: Any, **options: Any) -> None:
            init(storage, *values, **options)
            while self.tail < storage.durable_lsn:  # a write that nobody was told of
                piece = read_piece(storage, None, self.tail, _ALL, _ALL)
                for buffer in piece.records:
                    for header, body in split_records(memoryview(buffer)):
                        self.add(header, body)

        def written(storage: LogStorage, batch: Write) -> list[DurableGroup]:
            groups = write(storage, batch)
            for group in groups:
                self.add(group.header, group.body)
            return groups

        def trimmed(storage: LogStorage, lsn: int) -> Lsn:
            point = trim(storage, lsn)
            self.trims.append((self.tail, point))
            return point

        wrapped = {"__init__": opened, "write": written, "trim": trimmed}
        return changed((LogStorage, name, value) for name, value in wrapped.items())


class SimLog(LogRecord):
    """The server, over all its lives."""

    def __init__(self, scheduler: Scheduler, *, fsync_seconds_max: float) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._fsync_seconds_max = fsync_seconds_max
        self._clock = WallClock(scheduler)
        self._disk = SimDisk()
        self._lives = 0
        self._is_dying = False
        self._away_seconds = 0.0
        self._process: Process

    def resolve(self, token: str = _TOKEN) -> Resolve:
        """The way for a client."""

        async def resolve() -> Endpoint:
            return Endpoint(_MACHINE, _CONFIG.port, token)

        return resolve

    def resolve_as_worker(self, spec: QuerySpec) -> Resolve:
        """With what a driver hands to its workers: they are refused whatever else they ask."""
        return self.resolve(make_token(_TOKEN, "5" * 16, [allow_caveat(worker_rights(spec))]))

    @property
    def is_up(self) -> bool:
        return not self._process.dead

    def start(self) -> None:
        self._lives += 1
        self._process = self._scheduler.process(f"log-{self._lives}", _MACHINE)
        self._process.spawn(self._serve(self._process))

    async def _serve(self, process: Process) -> None:
        random = self._scheduler.random
        server = LogServer(_CONFIG, wall_ms=self._clock.wall_ms)
        server.listener.token = _TOKEN
        await server.run_on(
            _DyingDisk(self._disk, self),
            apart=JobQueue(process, lambda: random.uniform(20e-6, self._fsync_seconds_max)),
            pool=JobPool(process),
            clock=process.time,
        )

    def restart(self, away_seconds: float) -> None:
        """Die in the middle of the next write, if one comes soon, or between two; and come back."""
        self._is_dying = True
        self._away_seconds = away_seconds
        self._scheduler.after(_DYING_SECONDS, self.die, self._process)

    @property
    def dies_now(self) -> bool:
        """Asked before a write is made durable."""
        return self._is_dying and self.is_up

    def die(self, process: Process) -> None:
        """A power cut; it decides which of the unsynced bytes are there."""
        if process.dead:
            return
        random = self._scheduler.random
        self._is_dying = False
        process.kill(lose=random.random() < 0.5)
        self._disk = self._disk.crash(random, random.choice((ALL_LOST, SOME_LOST, ALL_KEPT)))
        self._scheduler.after(self._away_seconds, self.start)

    def die_in_a_write(self) -> NoReturn:
        self.die(self._process)
        raise _Died


class _Died(BaseException):
    """Unwinds the step in which the server died."""


class _DyingDisk(FaultyDisk):
    """The server's disk in one life; the server may die before a sync."""

    def __init__(self, disk: SimDisk, log: SimLog) -> None:
        super().__init__(disk, fail_at=None)
        self._log = log

    def step(
        self,
        kind: str,
        act: Callable[[], object],
        *,
        half: Callable[[], object] | None = None,
        undone: Callable[[], object] | None = None,
    ) -> None:
        if kind == "sync" and self._log.dies_now:
            self._log.die_in_a_write()
        act()
