"""A storage node in the cluster's metadata: it registers, and learns which segments were given up.

Owns `/nodes/<name>` and reads `/logs/<name>`. Laws: the node goes on serving while the metadata
cannot be reached; a lost session is followed by another one. A segment is given up only after a
manifest that says so was positively read (R40): one that is missing, unreadable or cannot be
fetched means nothing at all.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from penstock.errors import AlreadyExists, Damaged, NotFound, PenstockError
from penstock.log.meta.api import MetadataStore
from penstock.log.node.owner import NodeOwner
from penstock.log.replication.manifest import decode_log_manifest
from penstock.log.replication.node_api import NodeInfo

logger = logging.getLogger(__name__)

OpenStore = Callable[[], Awaitable[MetadataStore]]
#: Between attempts to reach the metadata, or to register over a session that has not ended yet.
RETRY_SECONDS = 0.5
#: One call of the store.
CALL_SECONDS = 20.0
#: Manifests that are read in one go; the others one by one, with a pause before each.
MANIFESTS_AT_ONCE = 50
PAUSE_SECONDS = 0.02


def encode_node_info(info: NodeInfo) -> bytes:
    return json.dumps(asdict(info), separators=(",", ":")).encode()


class NodeRegistration:
    """Keeps one node registered. `run` goes on until it is cancelled."""

    def __init__(
        self, info: NodeInfo, owner: NodeOwner, open_store: OpenStore, *, trim_seconds: float
    ) -> None:
        self._info = info
        self._owner = owner
        self._open_store = open_store
        self._trim_seconds = trim_seconds
        self.is_registered = asyncio.Event()

    async def run(self, store: MetadataStore | None) -> None:
        """`store`: a session that is open already, if there is one. It is closed at the end."""
        while True:
            try:
                if store is None:
                    store = await self._open_store()
                await self._session(store)
            except (PenstockError, OSError, TimeoutError) as error:
                logger.warning("the metadata cannot be used, trying again cause=%r", error)
            finally:
                self.is_registered.clear()
                if store is not None:
                    await self._close(store)
                store = None
            await asyncio.sleep(RETRY_SECONDS)

    async def _close(self, store: MetadataStore) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await store.close()
        except (PenstockError, OSError, TimeoutError) as error:
            logger.warning("a session could not be ended cause=%r", error)

    async def _session(self, store: MetadataStore) -> None:
        """Be registered until the session is lost."""
        lost = asyncio.Event()
        store.on_session_lost(lost.set)
        await self._register(store, lost)
        if lost.is_set():
            return
        logger.info("registered node=%s", self._info.id)
        self.is_registered.set()
        while not lost.is_set():
            await self._give_up(store)
            try:
                async with asyncio.timeout(self._trim_seconds):
                    await lost.wait()
            except TimeoutError:
                pass
        logger.warning("the session with the metadata was lost node=%s", self._info.id)

    async def _register(self, store: MetadataStore, lost: asyncio.Event) -> None:
        path, data = f"/nodes/{self._info.name}", encode_node_info(self._info)
        while not lost.is_set():
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await store.create(path, data, ephemeral=True)
                return
            except AlreadyExists:
                pass
            await self._remove_former(store, path)

    async def _remove_former(self, store: MetadataStore, path: str) -> None:
        """Somebody is there: our own former session is removed, anybody else's is waited for."""
        found = await store.get(path)
        if found is None:
            return
        try:
            is_ours = json.loads(found.data).get("cookie") == self._info.cookie
        except (ValueError, AttributeError):
            is_ours = False
        if is_ours:
            try:
                await store.delete(path, found.version)
            except NotFound:
                pass
        else:
            logger.warning("another node is registered as %s, waiting", self._info.name)
            await asyncio.sleep(RETRY_SECONDS)

    async def _give_up(self, store: MetadataStore) -> None:
        """Read the manifests of all logs that are here."""
        for count, log in enumerate(self._owner.store.logs()):
            if count >= MANIFESTS_AT_ONCE:
                await asyncio.sleep(PAUSE_SECONDS)  # with many logs it is others' turn, too
            async with asyncio.timeout(CALL_SECONDS):
                found = await store.get(f"/logs/{log}")
            if found is None:
                continue
            try:
                manifest = decode_log_manifest(found.data)
            except Damaged as error:
                logger.error("a manifest cannot be read, nothing is removed log=%s: %s", log, error)
                continue
            if manifest.first_segment > self._owner.core.first_segment(log):
                logger.info("segments given up log=%s first=%d", log, manifest.first_segment)
                await self._owner.trim(log, manifest.first_segment)
