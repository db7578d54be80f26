"""Proxies in the simulation: lives of the shipped proxy server.

Owns when a process starts and ends. Law: whatever ends a log or a proxy, other than a newer owner
or an unreachable cluster, is a bug, and fails the world.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from penstock.errors import NotFound, PenstockError, Unavailable, Unknown
from penstock.log.proxy.claims import owner_path
from penstock.log.proxy.config import ProxyConfig
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.proxy.server import ProxyServer, ProxyWork
from simulation.cluster.metadata import LOG
from simulation.cluster.nodes import TOKEN
from simulation.kernel import Process

if TYPE_CHECKING:
    from simulation.cluster.world import ClusterWorld

PORT = 6000
#: How long it takes until a proxy that gave up is started again.
RESTART_SECONDS = 0.2
#: What clients and proxies show, in the one real file of the simulation.
_TOKEN_FILE = NamedTemporaryFile("w")  # noqa: SIM115
_TOKEN_FILE.write(TOKEN)
_TOKEN_FILE.flush()


class SimProxy:
    """One proxy with its lives; `process` is None while it is down."""

    def __init__(self, world: ClusterWorld, number: int, *, region: str) -> None:
        self._world = world
        self.name = f"p{number}"
        self.machine = f"127.0.2.{number + 1}"
        self._region = region
        self.process: Process | None = None
        self.server: ProxyServer | None = None
        self._lives = 0
        self.id = ""

    def start(self) -> None:
        if self.process is None:
            self._lives += 1
            self.id = f"{self.name}-{self._lives}"
            self.process = self._world.scheduler.process(self.id, self.machine)
            self.process.spawn(self._run(self.process))

    async def _run(self, process: Process) -> None:
        world = self._world
        token_file = Path(_TOKEN_FILE.name)
        config = ProxyConfig(
            "in memory",
            token_file,
            token_file,
            host=self.machine,
            port=PORT,
            region=self._region,
            replication=world.swarm.replication,
        )
        self.server = ProxyServer(
            config,
            lambda: world.metadata.open(self.machine),
            id=self.id,
            wall_ms=lambda: world.wall_ms(self.name),
        )
        try:
            await self.server.run()
        except (Unavailable, Unknown) as error:
            if error.__cause__ is not None:
                world.fail(f"{self.id} ended: {error!r}", error)
            # Else the metadata failed it before it served anybody.
            self.kill()
            world.after(RESTART_SECONDS, self.start)

    def kill(self) -> None:
        process, self.process = self.process, None
        self.server = None
        if process is not None:
            process.kill()
            self._world.metadata.process_died(self.machine, self._world.swarm.session_seconds)

    @property
    def work(self) -> ProxyWork | None:
        """None while it does not serve."""
        return None if self.server is None else self.server._work

    @property
    def nodes_count(self) -> int:
        """How many storage nodes it knows."""
        return 0 if self.work is None else len(self.work.nodes.alive())

    # ---- the log

    @property
    def owned(self) -> OwnedLog | None:
        return None if self.work is None else self.work.logs.owned.get(LOG)

    async def take(self) -> OwnedLog:
        """Own the log, whoever may have it: nobody is asked."""
        assert self.work is not None
        if self.owned is None:
            session = self._world.metadata.session()
            try:
                await session.delete(owner_path(LOG))
            except NotFound:
                pass
            await session.close()
        return await self.work.logs.own(LOG)

    async def rival(self) -> None:
        """What only a confused proxy would do."""
        try:
            await self.take()
            self._world.count("rival opened")
        except PenstockError as error:
            self._world.note(f"{self.id} could not take the log: {error!r}")

    async def let_go(self) -> None:
        """As an operator would have it: what is in flight is finished first."""
        assert self.work is not None
        await self.work.logs._let_go(LOG, clean=True)
