"""The process of a player, simulated: the shipped shell on virtual time (delivery/player.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from penstock.delivery.deliver import shard_of
from penstock.delivery.local_host import LocalHost
from penstock.delivery.player import Player
from penstock.errors import Fenced, PenstockError, Trimmed
from penstock.log.client.client import AsyncLog
from penstock.protocol.deliveries import RegisteredDelivery
from simulation.delivery.tables import SimTarget
from simulation.kernel import Process, Scheduler, WallClock


class Around(Protocol):
    """A world."""

    scheduler: Scheduler
    delivery: RegisteredDelivery

    def start_process(self, name: str) -> Process: ...
    def targets(self) -> Sequence[SimTarget]: ...
    def target(self, delivery: RegisteredDelivery, shard: int) -> SimTarget: ...
    @property
    def schema(self) -> pa.Schema: ...
    def count(self, what: str) -> None: ...
    def note(self, text: str) -> None: ...
    async def connect(self, name: str) -> AsyncLog: ...


class SimPlayer:
    """One life of a player."""

    def __init__(self, world: Around, number: int) -> None:
        self._world = world
        self.process = world.start_process(f"player-{number}")
        #: Once it has claimed the delivery's name.
        self.player: Player | None = None
        #: What ended it, if it was not told to stop.
        self.error: PenstockError | None = None
        self.is_over = False
        self.process.spawn(self._play())

    @property
    def is_running(self) -> bool:
        return not self.is_over and not self.process.dead

    def kill(self) -> None:
        """As kill -9 does: calls of targets that are under way are done, or not."""
        self._world.note(f"{self.process.name} is killed")
        self.process.kill()
        self.is_over = True

    async def _play(self) -> None:
        delivery = self._world.delivery
        schema = self._world.schema
        shards = [shard_of(delivery, shard, schema) for shard in range(delivery.shards)]
        host = LocalHost(self._world.targets(), shards, schema)

        def make_host(delivery: RegisteredDelivery, shard: int) -> LocalHost:
            target = self._world.target(delivery, shard)
            return LocalHost([target], [shard_of(delivery, shard, schema)], schema)

        clock = WallClock(self._world.scheduler)
        async with await self._world.connect(self.process.name) as log:
            self.player = await Player.open(
                log,
                delivery,
                [host] * delivery.shards,
                make_host=make_host,
                now_ms=clock.wall_ms,
            )
            # A task of its own: the end of a killed process lets go of each task by itself.
            running = asyncio.ensure_future(self.player.run())
            await asyncio.wait({running})
            self.is_over = True
            try:
                running.result()
            except (Fenced, Trimmed) as error:
                self._world.count(f"player ended by {type(error).__name__}")
                self.error = error
