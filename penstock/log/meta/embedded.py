"""The metadata in a directory of one machine, shared by its processes: a cluster without ZooKeeper.

    directory/          mode 0700
      lock              flock of whoever changes something (exclusive) or reads (shared); holds
                        whether a change may not have reached the disk, and how many there were
      new               the next content of a node, before it is renamed
      nodes/logs,main   a file per path, `/` written as `,`: magic, crc, version, owner, data
      sessions/<id>     flock of a living session; owner of its ephemeral nodes

Laws: nobody sees a change before it is on disk (R49); a file that cannot be read right is damage
and never a missing node (R40); an ephemeral node exists as long as its owner's session is locked.
The kernel unlocks it when the process ends, however it ends. So a process that is only paused keeps
its ephemeral nodes for as long as it is paused, and so does one whose forked child lives on:
nothing here detects that, and owners are told apart by their epochs. Watches look every 50 ms.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import crc32c

from penstock.errors import (
    AlreadyExists,
    BadConfig,
    BadFormat,
    BadRequest,
    ChecksumMismatch,
    Damaged,
    NotFound,
    PenstockError,
    Unavailable,
    Unknown,
    VersionConflict,
)
from penstock.log.meta.api import Versioned
from penstock.log.meta.paths import (
    ROOT,
    VALUE_BYTES_MAX,
    check_path,
    check_value,
    is_part,
    name_of,
    parents_of,
)

POLL_SECONDS = 0.05
#: A change takes two fsyncs. Whoever holds the lock for so long is paused, or its disk is.
LOCK_SECONDS = 10.0
_MAGIC = b"PSMETA01"
#: magic, crc of all that follows, version, owner (zeros: nobody)
_HEAD = struct.Struct("<8sIq16s")
_CRC_FROM = 12
_NOBODY = bytes(16)
#: In the lock file: a change may not be on disk; number of changes so far.
_STATE = struct.Struct("<?q")
_SEPARATOR = ","

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Node:
    version: int
    owner: bytes
    data: bytes


class _Tree:
    """The files. Every method blocks; changes and reads only inside `locked`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._nodes = directory / "nodes"
        self._sessions = directory / "sessions"
        #: The lock file, while this process holds it to change something.
        self._lock_fd = -1
        try:
            for made in (directory, self._nodes, self._sessions):
                made.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync_directory(directory)
        except OSError as error:
            raise BadConfig(f"cannot keep metadata in {directory}: {error.strerror}") from error

    # ---- steps under the lock

    def read(self, step: Callable[[], _T]) -> _T:
        """Raises Unavailable."""
        try:
            with self._locked(fcntl.LOCK_SH, LOCK_SECONDS):
                return step()
        except OSError as error:
            raise Unavailable(f"the metadata in {self._directory}: {error}") from error

    def change(self, step: Callable[[], _T], lock_seconds: float | None = None) -> _T:
        """What the step changed is on disk when this returns. Raises Unavailable, Unknown."""
        try:
            with self._locked(fcntl.LOCK_EX, lock_seconds or LOCK_SECONDS) as fd:
                self._lock_fd = fd
                try:
                    return step()
                finally:
                    self._make_durable(fd)
        except OSError as error:
            raise Unknown(f"the metadata in {self._directory}: {error}") from error

    @contextmanager
    def _locked(self, kind: int, seconds: float) -> Iterator[int]:
        fd = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(fd, kind, seconds)
            if _read_state(fd)[0]:
                # Somebody died between a change and its sync: nobody sees it before it is durable.
                self._take(fd, fcntl.LOCK_EX, seconds)
                self._make_durable(fd)
            yield fd
        finally:
            os.close(fd)

    def _note_change(self) -> None:
        """Before each change, so that whoever dies after it leaves both notes."""
        _, count = _read_state(self._lock_fd)
        os.pwrite(self._lock_fd, _STATE.pack(True, count + 1), 0)

    def _make_durable(self, fd: int) -> None:
        is_dirty, count = _read_state(fd)
        if is_dirty:
            _sync_directory(self._nodes)
            os.pwrite(fd, _STATE.pack(False, count), 0)

    def _take(self, fd: int, kind: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = 0.0005
        while not _try_flock(fd, kind):
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"the metadata in {self._directory} was locked by another process for "
                    f"{seconds:g} s: is it paused?"
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.01)

    # ---- nodes

    def create(self, path: str, data: bytes, owner: bytes) -> int:
        if owner != _NOBODY and not self.is_alive(owner):
            raise Unavailable("the metadata session was lost: open another one")
        if self.find(path) is not None:
            raise AlreadyExists(path)
        for parent in parents_of(path):
            above = self.find(parent)
            if above is None:
                self._write(parent, 0, _NOBODY, b"")
            elif above.owner != _NOBODY:
                raise BadRequest(f"{parent} is ephemeral: nothing can be below it")
        self._write(path, 0, owner, data)
        return 0

    def set(self, path: str, data: bytes, version: int) -> int:
        node = self._at_version(path, version)
        self._write(path, version + 1, node.owner, data)
        return version + 1

    def delete(self, path: str, version: int | None) -> None:
        self._at_version(path, version)
        if self.below(path):
            raise BadRequest(f"{path} has paths below it")
        self._note_change()
        os.unlink(self._file(path))

    def children(self, path: str) -> list[str]:
        if self.find(path) is None:
            raise NotFound(path)
        return self.below(path)

    def find(self, path: str) -> _Node | None:
        """Also None: an ephemeral node whose owner has gone. Raises Damaged."""
        if path == ROOT:
            return _Node(0, _NOBODY, b"")
        try:
            raw = _read_file(self._file(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"cannot read the metadata of {path}: {error}") from error
        node = _decode(path, raw)
        return node if node.owner == _NOBODY or self.is_alive(node.owner) else None

    def below(self, path: str) -> list[str]:
        """Names directly below a path, sorted."""
        above = path.rstrip("/")
        children = [child for child in self._paths() if child.rpartition("/")[0] == above]
        return sorted(name_of(child) for child in children if self.find(child) is not None)

    def look(self, paths: list[str]) -> tuple[int, dict[str, object]]:
        """How many changes there were, and what is there. Without the lock: whoever is told by a
        difference takes it.

        The count tells what went and came back between two looks; only the death of an owner is
        not counted, and that is never undone.
        """
        fd = os.open(self._directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = _read_state(fd)[1]
        finally:
            os.close(fd)
        return count, {path: self._look_at(path) for path in paths}

    def _look_at(self, path: str) -> object:
        try:
            return self.find(path) is not None, self.below(path)
        except PenstockError as error:
            return str(error)  # a reader will meet it, and it is for them to say

    def _at_version(self, path: str, version: int | None) -> _Node:
        node = self.find(path)
        if node is None:
            raise NotFound(path)
        if version is not None and version != node.version:
            raise VersionConflict(f"{path} is at version {node.version}, not {version}")
        return node

    def _write(self, path: str, version: int, owner: bytes, data: bytes) -> None:
        new = self._directory / "new"
        try:
            _write_file(new, _encode(version, owner, data))
        except OSError as error:
            raise Unavailable(f"{path} was not changed: {error}") from error
        self._note_change()
        os.rename(new, self._file(path))

    def _file(self, path: str) -> Path:
        # The separator is no letter of a path, so no two paths share a file.
        return self._nodes / path[1:].replace("/", _SEPARATOR)

    def _paths(self) -> list[str]:
        names = [name.split(_SEPARATOR) for name in sorted(os.listdir(self._nodes))]
        return ["/" + "/".join(parts) for parts in names if all(map(is_part, parts))]

    # ---- sessions

    def begin(self) -> tuple[bytes, int]:
        """A new session: its id, and the descriptor that holds it."""
        self.sweep()
        session = secrets.token_bytes(16)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(self._session_file(session), flags, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)  # under the tree's lock: nobody takes it for a dead one
        return session, fd

    def end(self, session: bytes, fd: int) -> None:
        """From the first step on, its nodes are gone for everybody."""
        self._session_file(session).unlink(missing_ok=True)
        os.close(fd)
        try:
            self.change(self.sweep, lock_seconds=1.0)
        except PenstockError:
            pass  # the next session sweeps

    def sweep(self) -> None:
        """Remove what dead sessions left."""
        for path in self._paths():
            try:
                if self.find(path) is None:
                    self._note_change()
                    self._file(path).unlink(missing_ok=True)
            except Damaged:
                pass  # never removed: whoever asks for it is told
        for name in os.listdir(self._sessions):
            if not self._is_locked(self._sessions / name):
                (self._sessions / name).unlink(missing_ok=True)

    def is_alive(self, session: bytes) -> bool:
        return self._is_locked(self._session_file(session))

    def _session_file(self, session: bytes) -> Path:
        return self._sessions / session.hex()

    def _is_locked(self, file: Path) -> bool:
        try:
            fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:  # too many open files, say: that is no answer
            raise Unavailable(f"cannot see who lives in {self._directory}: {error}") from error
        try:
            # Shared: those who look do not take each other for the owner.
            return not _try_flock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)


class DirectoryMetadata:
    """One session (a `MetadataStore`); made by `open`. Its files are touched in threads."""

    def __init__(self, tree: _Tree, session: bytes, fd: int) -> None:
        self._tree = tree
        self._session = session
        self._fd = fd
        self._end_reason = ""
        self._is_lost = False
        self._lost_calls: list[Callable[[], None]] = []
        #: What was seen last; None: not looked at yet.
        self._seen: dict[object, tuple[str, Callable[[], None], object]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, directory: Path) -> DirectoryMetadata:
        """The directory is made if it does not exist. Raises BadConfig, Unavailable."""

        def begin() -> tuple[_Tree, bytes, int]:
            tree = _Tree(directory.absolute())
            return tree, *tree.change(tree.begin)

        return cls(*await asyncio.to_thread(begin))

    # ---- the interface

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> int:
        check_path(path)
        check_value(path, data)
        owner = self._session if ephemeral else _NOBODY
        return await self._change(lambda: self._tree.create(path, data, owner))

    async def get(self, path: str) -> Versioned | None:
        check_path(path, root=True)
        node = await self._read(lambda: self._tree.find(path))
        return None if node is None else Versioned(node.data, node.version)

    async def set(self, path: str, data: bytes, version: int) -> int:
        check_path(path)
        check_value(path, data)
        return await self._change(lambda: self._tree.set(path, data, version))

    async def delete(self, path: str, version: int | None = None) -> None:
        check_path(path)
        await self._change(lambda: self._tree.delete(path, version))

    async def children(self, path: str) -> list[str]:
        check_path(path, root=True)
        return await self._read(lambda: self._tree.children(path))

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        check_path(path, root=True)
        key = object()
        if not self._end_reason:
            self._seen[key] = (path, changed, None)
            self._ensure_polling()

        def end() -> None:
            self._seen.pop(key, None)

        return end

    def on_session_lost(self, lost: Callable[[], None]) -> None:
        if self._is_lost:
            asyncio.get_running_loop().call_soon(lost)
        else:
            self._lost_calls.append(lost)
            self._ensure_polling()

    async def close(self) -> None:
        if self._closing is None:
            self._end("the metadata session is closed")
            ending = asyncio.to_thread(self._tree.end, self._session, self._fd)
            self._closing = asyncio.ensure_future(ending)
        await asyncio.shield(self._closing)

    # ---- calls

    async def _read(self, step: Callable[[], _T]) -> _T:
        self._check_alive()
        return await asyncio.to_thread(self._tree.read, step)

    async def _change(self, step: Callable[[], _T]) -> _T:
        self._check_alive()
        return await asyncio.to_thread(self._tree.change, step)

    def _check_alive(self) -> None:
        if self._end_reason:
            raise Unavailable(self._end_reason)

    def _end(self, reason: str) -> None:
        self._end_reason = reason
        self._seen.clear()
        self._lost_calls.clear()
        if self._polling is not None:
            self._polling.cancel()

    # ---- watches

    def _ensure_polling(self) -> None:
        if self._polling is None and not self._end_reason:
            self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            paths = sorted({path for path, _, _ in self._seen.values()})
            try:
                is_alive, count, found = await asyncio.to_thread(self._look, paths)
            except (OSError, Unavailable):
                is_alive, count, found = True, 0, {}  # nothing was seen: look again
            if not is_alive:
                self._lost()
                return
            for key, (path, changed, seen) in list(self._seen.items()):
                # What was added or ended meanwhile, also by one of these calls, is left alone.
                if path in found and key in self._seen and (count, found[path]) != seen:
                    self._seen[key] = (path, changed, (count, found[path]))
                    changed()
            await asyncio.sleep(POLL_SECONDS)

    def _look(self, paths: list[str]) -> tuple[bool, int, dict[str, object]]:
        """In a thread."""
        return self._tree.is_alive(self._session), *self._tree.look(paths)

    def _lost(self) -> None:
        calls = list(self._lost_calls)
        self._polling = None
        self._is_lost = True
        self._end("the metadata session was lost: open another one")
        for lost in calls:
            lost()


def _encode(version: int, owner: bytes, data: bytes) -> bytes:
    rest = _HEAD.pack(_MAGIC, 0, version, owner)[_CRC_FROM:] + data
    return _MAGIC + struct.pack("<I", crc32c.crc32c(rest)) + rest


def _decode(path: str, raw: bytes) -> _Node:
    if len(raw) < _HEAD.size or raw[: len(_MAGIC)] != _MAGIC:
        raise BadFormat(f"the metadata of {path} is not ours, or cut")
    _, crc, version, owner = _HEAD.unpack_from(raw)
    if crc32c.crc32c(raw[_CRC_FROM:]) != crc:
        raise ChecksumMismatch(f"the metadata of {path} is damaged")
    return _Node(version, owner, raw[_HEAD.size :])


def _read_state(fd: int) -> tuple[bool, int]:
    raw = os.pread(fd, _STATE.size, 0)
    # It is not synced: after a power cut it may be old or empty, and everything else is on disk.
    is_dirty, count = _STATE.unpack(raw) if len(raw) == _STATE.size else (True, 0)
    return is_dirty, count


def _read_file(file: Path) -> bytes:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(fd, "rb") as opened:
        return opened.read(_HEAD.size + VALUE_BYTES_MAX)


def _write_file(file: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(file, flags, 0o600), "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())  # before the rename, or a crash could leave an empty node


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _try_flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
