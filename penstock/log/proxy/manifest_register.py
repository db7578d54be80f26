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
    """See the module's docstring. Make one with `take`: it is its owner's, for one epoch."""

    def __init__(
        self, store: Callable[[], MetadataStore], log: str, manifest: LogManifest, version: int
    ) -> None:
        """`manifest`: as its owner took it, and which version of it that was."""
        self._store = store
        self._path = manifest_path(log)
        self._log = log
        self._writer = manifest.owner
        self._epoch = manifest.epoch
        self._lock = asyncio.Lock()
        self.manifest = manifest
        self._version = version

    @classmethod
    async def take(
        cls, store: Callable[[], MetadataStore], log: str, writer: str, new_log_id: bytes
    ) -> ManifestRegister:
        """Take the next epoch; the log is made if it does not exist.

        `writer` is unique to this attempt at ownership.
        """
        path = manifest_path(log)
        while True:
            try:
                found = await store().get(path)
                if found is None:
                    first = LogManifest(new_log_id, Epoch(1), writer, Lsn(0), SegmentId(0), ())
                    await store().create(path, encode_log_manifest(first))
                    continue
                manifest = decode_log_manifest(found.data)
                if manifest.owner == writer:
                    return cls(store, log, manifest, found.version)
                taken = replace(manifest, epoch=Epoch(manifest.epoch + 1), owner=writer)
                await store().set(path, encode_log_manifest(taken), found.version)
            except (AlreadyExists, VersionConflict):
                continue
            except Unknown:
                await asyncio.sleep(RETRY_SECONDS)

    async def update(self, change: Change, *, leave_room: bool = False) -> LogManifest:
        """Make a change as the owner; raises Fenced if another took a newer epoch.

        BadRequest: it has no room for that. See `encode_log_manifest`.
        """
        async with self._lock:
            while True:
                wanted = change(self.manifest)
                if wanted == self.manifest:
                    return wanted
                try:
                    await self._set(wanted, leave_room)
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

    async def _set(self, wanted: LogManifest, leave_room: bool) -> None:
        data = encode_log_manifest(wanted, leave_room=leave_room)
        self._version = await self._store().set(self._path, data, self._version)
        self.manifest = wanted
