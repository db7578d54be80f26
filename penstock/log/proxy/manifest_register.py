"""The manifest of one log, changed by compare-and-set only.

Owns what an unclear answer means (R16): after `Unknown` the manifest is read again, and since every
change is a function that does nothing the second time, it is seen whether it was made. Law: whoever
took a newer epoch ends this owner: its next change raises `Fenced` and was not made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from penstock.errors import AlreadyExists, Fenced, NotFound, Unavailable, Unknown, VersionConflict
from penstock.ids import Epoch, Lsn, SegmentId
from penstock.log.meta.api import MetadataStore
from penstock.log.replication.manifest import (
    LogManifest,
    check_log_name,
    decode_log_manifest,
    encode_log_manifest,
)

#: Pause before an unanswered question is asked again.
RETRY_SECONDS = 0.05

#: Returns the manifest as it should be; given such a one, it returns the same.
Change = Callable[[LogManifest], LogManifest]


def manifest_path(log: str) -> str:
    return f"/logs/{check_log_name(log)}"


class ManifestRegister:
    """See the module's docstring. `writer` is unique to this attempt at ownership."""

    def __init__(self, store: Callable[[], MetadataStore], log: str, writer: str) -> None:
        self._store = store
        self._path = manifest_path(log)
        self._log = log
        self._writer = writer
        self._lock = asyncio.Lock()
        self._version = -1
        #: The epoch that was taken; 0 before.
        self._epoch = Epoch(0)
        self.manifest: LogManifest

    async def load(self) -> LogManifest | None:
        """The newest manifest; None if the log does not exist."""
        found = await self._store().get(self._path)
        if found is None:
            return None
        self.manifest, self._version = decode_log_manifest(found.data), found.version
        return self.manifest

    async def take(self, new_log_id: bytes) -> LogManifest:
        """Take the next epoch; the log is made if it does not exist."""
        while True:
            try:
                if await self.load() is None:
                    first = LogManifest(
                        new_log_id, Epoch(1), self._writer, Lsn(0), SegmentId(0), ()
                    )
                    await self._store().create(self._path, encode_log_manifest(first))
                elif self.manifest.owner != self._writer:
                    epoch = Epoch(self.manifest.epoch + 1)
                    await self._set(replace(self.manifest, epoch=epoch, owner=self._writer))
            except (AlreadyExists, VersionConflict):
                continue
            except Unknown:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if await self.load() is not None and self.manifest.owner == self._writer:
                self._epoch = self.manifest.epoch
                return self.manifest

    async def update(self, change: Change) -> LogManifest:
        """Make a change as the owner; raises Fenced if another took a newer epoch."""
        async with self._lock:
            while True:
                wanted = change(self.manifest)
                if wanted == self.manifest:
                    return wanted
                try:
                    await self._set(wanted)
                    return wanted
                except (Unknown, Unavailable, NotFound):
                    # Nothing is known: it must be read before it is decided again.
                    await asyncio.sleep(RETRY_SECONDS)
                except VersionConflict:
                    pass
                await self._reload()

    async def refresh(self) -> None:
        """Read it again; raises Fenced if another took a newer epoch."""
        async with self._lock:
            await self._reload()

    async def _reload(self) -> None:
        """What is read is ours only if nobody took a newer epoch: then it is not even looked at."""
        while True:
            try:
                found = await self._store().get(self._path)
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if found is None:
                raise Fenced(f"the manifest of log {self._log} is gone")
            manifest = decode_log_manifest(found.data)
            if manifest.epoch != self._epoch or manifest.owner != self._writer:
                raise Fenced(f"log {self._log} has a newer owner: {manifest.owner}")
            self.manifest, self._version = manifest, found.version
            return

    async def _set(self, wanted: LogManifest) -> None:
        data = encode_log_manifest(wanted)
        self._version = await self._store().set(self._path, data, self._version)
        self.manifest = wanted
