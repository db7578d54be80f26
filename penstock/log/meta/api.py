"""The cluster's metadata: a small tree of versioned values, with watches and ephemeral nodes.

Three stores implement it (memory, a directory, ZooKeeper) and one suite tests them. Paths are like
`/nodes/n1`; parents are made as needed.

Laws: a value is replaced only by whoever names its version, so of two rivals one is refused
(`VersionConflict`). `Unknown` means that the change may have been made: read again before deciding
(R16). A listing of what does not exist raises `NotFound`: nobody may take it for an empty one
(R40). Correctness never rests on ephemeral nodes or watches, only on versions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value and its version; versions of one path only grow while it exists."""

    data: bytes
    version: int


class MetadataStore(Protocol):
    """One session with the store. All methods are for the event loop."""

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> int:
        """Make a path, durably; returns its version. Raises AlreadyExists, Unknown, Unavailable.

        An ephemeral one disappears when this session ends.
        """

    async def get(self, path: str) -> Versioned | None:
        """The newest value; None: it surely does not exist. Raises Unavailable."""

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Replace that version; returns the next. Raises VersionConflict, NotFound, Unknown."""

    async def delete(self, path: str, version: int | None = None) -> None:
        """Remove it (if it is at that version). Raises VersionConflict, NotFound, Unknown."""

    async def children(self, path: str) -> list[str]:
        """Names directly below a path, sorted. Raises NotFound if the path does not exist."""

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` on the loop after every change of the value, existence or children.

        Changes may be joined and calls may come without one. Returns what ends the watch.
        """

    def on_session_lost(self, lost: Callable[[], None]) -> None:
        """Call `lost` on the loop when this session's ephemeral nodes are, or may be, gone.

        The session cannot be used again then: open another store.
        """

    async def close(self) -> None:
        """End the session: its ephemeral nodes are removed. Idempotent."""
