"""A proxy's session with the metadata: kept open, opened again when it is lost.

Law: whoever held an ephemeral node under the lost session is told before the next one is opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.errors import PenstockError, Unavailable
from penstock.log.meta.api import MetadataStore

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.2


class MetadataSession:
    """`store` is the session that is open now; it raises Unavailable while there is none."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[MetadataStore]],
        *,
        opened: Callable[[MetadataStore], Awaitable[None]],
        lost: Callable[[], None],
    ) -> None:
        self._open_store = open_store
        self._opened = opened
        self._lost = lost
        self._store: MetadataStore | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def store(self) -> MetadataStore:
        if self._store is None:
            raise Unavailable("there is no session with the metadata now")
        return self._store

    async def start(self) -> None:
        """Open the first session; raises what keeps it from being opened."""
        gone = await self._open()
        self._task = asyncio.get_running_loop().create_task(self._keep(gone))

    async def _open(self) -> asyncio.Event:
        store = await self._open_store()
        gone = asyncio.Event()
        store.on_session_lost(gone.set)
        self._store = store
        await self._opened(store)
        return gone

    async def _keep(self, gone: asyncio.Event) -> None:
        while True:
            await gone.wait()
            logger.warning("the session with the metadata was lost")
            self._lost()
            await self._close()
            gone = await self._open_again()

    async def _open_again(self) -> asyncio.Event:
        while True:
            try:
                return await self._open()
            except (PenstockError, OSError, TimeoutError) as error:
                logger.warning("the metadata cannot be used, trying again cause=%r", error)
                if self._store is not None:
                    self._lost()  # it could be used for a moment
                await self._close()
                await asyncio.sleep(RETRY_SECONDS)

    async def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                async with asyncio.timeout(5.0):
                    await store.close()
            except (PenstockError, OSError, TimeoutError) as error:
                logger.warning("a session could not be ended cause=%r", error)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._close()
