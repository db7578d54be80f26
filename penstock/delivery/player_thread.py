"""The thread on which a player runs, with an event loop and a connection of its own.

Owns the thread. Other threads talk to the player through the methods here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import uvloop

from penstock.delivery.host import TargetHost
from penstock.delivery.player import MakeHost, Player
from penstock.errors import PenstockError
from penstock.log.client.client import AsyncLog
from penstock.protocol.deliveries import RegisteredDelivery
from penstock.runtime.worker import LogAddress


class PlayerThread:
    """One life of a player. `ended` is set when it is over, `error` says why."""

    def __init__(
        self,
        address: LogAddress,
        delivery: RegisteredDelivery,
        hosts: Sequence[TargetHost | None],
        make_host: MakeHost,
    ) -> None:
        """Returns when the delivery's name is claimed; raises if it cannot be."""
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._name = delivery.name
        opened: Future[tuple[Player, asyncio.AbstractEventLoop]] = Future()

        async def play() -> None:
            try:
                log = await AsyncLog.connect(address.resolve(), name=f"deliver-{delivery.name}")
            except BaseException as error:
                opened.set_exception(error)
                return
            async with log:
                try:
                    player = await Player.open(log, delivery, hosts, make_host=make_host)
                except BaseException as error:
                    opened.set_exception(error)
                    return
                opened.set_result((player, asyncio.get_running_loop()))
                await player.run()

        def run() -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                try:
                    runner.run(play())
                except BaseException as error:
                    self.error = error
                finally:
                    self.ended.set()  # before the loop is closed: nobody submits to it any more

        name = f"penstock-deliver-{delivery.name}"
        threading.Thread(target=run, name=name, daemon=True).start()
        self.player, self._loop = opened.result()

    @property
    def failure(self) -> PenstockError | None:
        """What ended it, or stopped one of its targets, if anything did."""
        if isinstance(self.error, PenstockError):
            return self.error
        if self.error is not None:
            failure = PenstockError(f"delivery {self._name} failed: {self.error!r}")
            failure.__cause__ = self.error
            return failure
        errors = self.player.core.errors
        return errors[0] if errors else None

    def status(self) -> dict[str, Any]:
        return self.player.status()

    # -- submitted to its loop; they return at once

    def stop(self, timeout: float) -> None:
        """Idempotent."""
        if not self.ended.is_set():
            self._loop.call_soon_threadsafe(self.player.stop, timeout)

    def flush(self) -> Future[None]:
        """Done when everything that counts now is applied."""
        return asyncio.run_coroutine_threadsafe(self.player.flush(), self._loop)
