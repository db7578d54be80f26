"""The metadata in memory: one tree, any number of sessions, and faults on request.

For tests and the simulator: no threads, no clock, no randomness; it works on any event loop and the
same calls give the same trace. Versions start at 0 again after a delete, as ZooKeeper's do, so code
that would be fooled by that is fooled here too.

Law: requests of one session are applied in the order in which they were made, however they are
delayed; a change and the watches it wakes are one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import (
    AlreadyExists,
    BadRequest,
    NotFound,
    PenstockError,
    Unavailable,
    Unknown,
    VersionConflict,
)
from penstock.log.meta.api import Versioned
from penstock.log.meta.paths import (
    ROOT,
    check_path,
    check_value,
    name_of,
    parent_of,
    parents_of,
)

_T = TypeVar("_T")


@dataclass(slots=True)
class _Node:
    data: bytes
    version: int = 0
    #: The session that an ephemeral node belongs to.
    owner: MemorySession | None = None


@dataclass(slots=True)
class _Watch:
    path: str
    changed: Callable[[], None]
    loop: asyncio.AbstractEventLoop
    ended: bool = False

    def wake(self) -> None:
        self.loop.call_soon(self._call)

    def _call(self) -> None:
        if not self.ended:
            self.changed()


class MemoryMetadata:
    """The tree that sessions share."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {ROOT: _Node(b"")}
        self._watches: list[_Watch] = []

    def session(self) -> MemorySession:
        """A session of its own, as another process would have."""
        return MemorySession(self)

    def paths(self) -> dict[str, Versioned]:
        """The whole tree, in the order of its paths: for checkers that see everything."""
        nodes = sorted(self._nodes.items())
        return {path: Versioned(node.data, node.version) for path, node in nodes}

    # ---- what sessions do, each in one step

    def _create(self, path: str, data: bytes, owner: MemorySession | None) -> int:
        if path in self._nodes:
            raise AlreadyExists(path)
        for parent in parents_of(path):
            above = self._nodes.get(parent)
            if above is None:
                self._nodes[parent] = _Node(b"")
                self._wake(parent, parent_of(parent))
            elif above.owner is not None:
                raise BadRequest(f"{parent} is ephemeral: nothing can be below it")
        self._nodes[path] = _Node(data, owner=owner)
        self._wake(path, parent_of(path))
        return 0

    def _set(self, path: str, data: bytes, version: int) -> int:
        node = self._at_version(path, version)
        node.data = data
        node.version += 1
        self._wake(path)
        return node.version

    def _delete(self, path: str, version: int | None) -> None:
        self._at_version(path, version)
        if self._below(path):
            raise BadRequest(f"{path} has paths below it")
        del self._nodes[path]
        self._wake(path, parent_of(path))

    def _at_version(self, path: str, version: int | None) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise NotFound(path)
        if version is not None and version != node.version:
            raise VersionConflict(f"{path} is at version {node.version}, not {version}")
        return node

    def _get(self, path: str) -> Versioned | None:
        node = self._nodes.get(path)
        return None if node is None else Versioned(node.data, node.version)

    def _children(self, path: str) -> list[str]:
        if path not in self._nodes:
            raise NotFound(path)
        return self._below(path)

    def _below(self, path: str) -> list[str]:
        return sorted(
            name_of(found) for found in self._nodes if found != ROOT and parent_of(found) == path
        )

    def _end(self, session: MemorySession) -> None:
        """Remove what belongs to a session."""
        for path in [path for path, node in self._nodes.items() if node.owner is session]:
            del self._nodes[path]
            self._wake(path, parent_of(path))

    def _wake(self, *paths: str) -> None:
        for watch in self._watches:
            if watch.path in paths:
                watch.wake()


class MemorySession:
    """One session (a `MetadataStore`), with what a simulator may do to it."""

    def __init__(self, tree: MemoryMetadata) -> None:
        self._tree = tree
        #: Awaited before a request reaches the tree and again before its reply comes back.
        self.delay: Callable[[], Awaitable[None]] | None = None
        #: Every call raises Unavailable, and changes nothing.
        self.is_unavailable = False
        self._lost_replies = 0
        self._lost_requests = 0
        self._ended = False
        self._is_told = False
        self._lost_calls: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._watches: list[_Watch] = []
        self._order = asyncio.Lock()

    # ---- faults

    def lose_replies(self, count: int = 1) -> None:
        """The next changes are made, and raise Unknown."""
        self._lost_replies += count

    def lose_requests(self, count: int = 1) -> None:
        """The next changes are not made, and raise Unknown all the same."""
        self._lost_requests += count

    def expire(self, *, told: bool = True) -> None:
        """End the session: its ephemeral nodes go. If it is not told, it learns of it later."""
        if not self._ended:
            self._ended = True
            self._tree._end(self)
        if told:
            self.tell_lost()

    def tell_lost(self) -> None:
        """Let a session that has expired learn of it. Idempotent."""
        if self._is_told or not self._ended:
            return
        self._is_told = True
        self._forget_watches()
        for loop, lost in self._lost_calls:
            loop.call_soon(lost)

    @property
    def is_ended(self) -> bool:
        return self._ended

    # ---- the interface

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> int:
        check_path(path)
        check_value(path, data)
        owner = self if ephemeral else None
        return await self._change(lambda: self._tree._create(path, data, owner))

    async def get(self, path: str) -> Versioned | None:
        check_path(path, root=True)
        return await self._call(lambda: self._tree._get(path))

    async def set(self, path: str, data: bytes, version: int) -> int:
        check_path(path)
        check_value(path, data)
        return await self._change(lambda: self._tree._set(path, data, version))

    async def delete(self, path: str, version: int | None = None) -> None:
        check_path(path)
        await self._change(lambda: self._tree._delete(path, version))

    async def children(self, path: str) -> list[str]:
        check_path(path, root=True)
        return await self._call(lambda: self._tree._children(path))

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        check_path(path, root=True)
        watch = _Watch(path, changed, asyncio.get_running_loop())
        if not self._ended:
            self._watches.append(watch)
            self._tree._watches.append(watch)

        def end() -> None:
            watch.ended = True
            if watch in self._watches:
                self._watches.remove(watch)
                self._tree._watches.remove(watch)

        return end

    def on_session_lost(self, lost: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._lost_calls.append((loop, lost))
        if self._is_told:
            loop.call_soon(lost)

    async def close(self) -> None:
        self._lost_calls.clear()  # nobody is told of an end that they asked for
        self._forget_watches()
        self.expire()

    # ---- one call

    async def _change(self, step: Callable[[], _T]) -> _T:
        """A change, whose request or reply may be lost on the way."""

        def make() -> _T:
            if self._lost_requests:
                self._lost_requests -= 1
                raise Unknown("the request was lost, as was asked for")
            done = step()
            if self._lost_replies:
                self._lost_replies -= 1
                raise Unknown("the reply was lost, as was asked for")
            return done

        return await self._call(make)

    async def _call(self, step: Callable[[], _T]) -> _T:
        # The lock hands requests on in their order; replies may overtake each other.
        async with self._order:
            if self.delay is not None:
                await self.delay()
            if self._ended:
                raise Unavailable("the metadata session has ended")
            if self.is_unavailable:
                raise Unavailable("the metadata store does not answer, as was asked for")
            done: list[_T] = []
            error: PenstockError | None = None
            try:
                done.append(step())
            except PenstockError as refused:
                error = refused
        if self.delay is not None:
            await self.delay()
        if error is not None:
            raise error
        return done[0]

    def _forget_watches(self) -> None:
        for watch in self._watches:
            watch.ended = True
            self._tree._watches.remove(watch)
        self._watches.clear()
