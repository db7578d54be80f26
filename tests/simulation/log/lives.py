"""The real log server on the simulated machine, one process life after the other.

Owns the way up and down. Law: an error that the server reports, and that no injected fault
explains, ends the run.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import ServerConfig
from penstock.errors import Unavailable
from penstock.log.server.owner import LogOwner
from penstock.log.server.server import LogServer
from simulation.kernel import JobPool, JobQueue, Process
from simulation.kernel.shipped import causes_of
from simulation.log.machine import CrashPoint, MachineDisk

if TYPE_CHECKING:
    from simulation.log.world import World

#: Where it listens; the name of its machine.
HOST = "127.0.0.1"
PORT = 7070
TOKEN = "a token of the simulated world"
#: How long the pool takes for a read or a piece of housekeeping.
_POOL_SECONDS_MAX = 0.003
#: What a slow disk multiplies the time of an fsync with.
_SLOWNESS = 50
_SEGMENT_SECONDS_MAX = 10_000.0


class ServerLives:
    """One server process at a time; `life` counts them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.life = 0
        self.disk: MachineDisk
        self._process: Process | None = None
        self._server: LogServer | None = None
        self._is_stopping = False

    @property
    def owner(self) -> LogOwner | None:
        """Of the process that serves now, if there is one."""
        server = self._server
        return server.owner if server is not None and server.ready.is_set() else None

    @property
    def is_up(self) -> bool:
        return self.owner is not None and not self._is_stopping

    def start(self) -> None:
        """A new process: create or recover the log, then listen."""
        world = self._world
        self.life += 1
        self._is_stopping = False
        process = self._process = world.scheduler.process(f"server {self.life}", HOST)
        process.job_seconds = lambda: world.random.random() * _POOL_SECONDS_MAX
        self.disk = MachineDisk(world.disk, self._struck)
        world.arm(self.disk)
        process.spawn(self._run(process, self.disk))

    async def _run(self, process: Process, disk: MachineDisk) -> None:
        world, swarm = self._world, self._world.swarm
        config = ServerConfig(
            Path("nowhere"),
            host=HOST,
            port=PORT,
            segment_bytes=swarm.segment_bytes,
            segment_seconds=min(swarm.segment_ms / 1000, _SEGMENT_SECONDS_MAX),
            ttl_seconds=swarm.ttl_ms / 1000,
            local_bytes_max=swarm.local_bytes_max or 0,
        )
        server = self._server = LogServer(config, wall_ms=world.clock.wall_ms)
        server.listener.token = TOKEN
        try:
            await server.run_on(
                disk,
                cold=world.cold,
                apart=JobQueue(process, self._fsync_seconds),
                pool=JobPool(process),
                clock=process.time,
            )
        except (OSError, Unavailable) as error:
            if not disk.sync_failed:
                raise
            self.die(f"{error}", power_cut=False)
        else:
            world.note(f"life {self.life} stopped cleanly")
            self._end(lose=False)
            world.scheduler.after(0.0, world.server_stopped)

    def _fsync_seconds(self) -> float:
        world = self._world
        slowness = _SLOWNESS if world.now < world.slow_until else 1
        return world.random.random() * world.swarm.fsync_us_max * slowness / 1_000_000

    # ---- the way down

    def stop(self) -> None:
        """An operator stops the server."""
        assert self._server is not None and self._process is not None
        self._is_stopping = True
        self._process.call_soon(self._server.stop)

    def crash(self, *, power_cut: bool) -> None:
        """Die now; or, as often, in the middle of the next write."""
        random = self._world.random
        if random.random() < 0.5:
            point = CrashPoint(random.randint(0, 2), power_cut, done=random.random() < 0.5)
            self.disk.crash_point = point
        else:
            self.die("a fault", power_cut=power_cut)

    def _struck(self, place: str, power_cut: bool) -> None:
        self.die(f"at a crash point, {place}", power_cut=power_cut)

    def die(self, cause: str, *, power_cut: bool) -> None:
        """The process is gone, or the whole machine with it; somebody starts it again later."""
        self._world.note(f"life {self.life} dies power_cut={power_cut}: {cause}")
        self._end(lose=power_cut or self._world.random.random() < 0.5)
        # Not from here: what a dead process raises is nobody's, and the disk may be found damaged.
        self._world.scheduler.after(0.0, self._world.server_died, power_cut)

    def _end(self, *, lose: bool) -> None:
        assert self._process is not None
        self._process.kill(lose=lose)
        self._process = self._server = None

    # ---- what it says

    def check_sent_soon(self) -> None:
        """What follows from a write leaves the server by itself: nobody's answer waits until
        somebody else asks for something (I16)."""
        assert self._process is not None
        self._process.call_soon(self._check_sent)

    def _check_sent(self) -> None:
        assert self._server is not None
        listener = self._server.listener
        # A server that stops sends them as it closes its connections.
        will_send = listener._turn_due or listener.stopped.is_set()
        assert not listener.dirty or will_send, "answers wait, and nothing will send them"

    def is_foreseen(self, record: logging.LogRecord) -> bool:
        """Only an injected fault explains an error; anything else is found, not survived."""
        has_failed = self.disk.sync_failed or self.disk.read_failed
        return has_failed and any(isinstance(c, OSError | Unavailable) for c in causes_of(record))
