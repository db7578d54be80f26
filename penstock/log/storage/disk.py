"""The few file operations that the log needs, as an interface, and their real implementation.

Owns nothing but the system calls: one directory, flat names. Everything that decides sits above it,
so that the same code runs on `harness.disk`, which loses unsynced writes and fails on
request. Contract: after `File.sync` returns, the file's bytes and length survive a power cut; after
`sync_dir`, creations, renames and removals do. A failed `sync` says nothing about what is on disk
(ATC'20).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from penstock.errors import BadRequest
from penstock.limits import MIB
from penstock.log.directories import make_directory, sync_directory

#: Names are ours, never a user's: this is the second line of defence against path tricks. There is
#: no slash in it and no dot at its front, so that two dots in a row mean nothing.
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,99}")
_IOV_MAX = 1024
#: Space taken ahead of the writes: an fsync that need not change the file's length is a third
#: cheaper (docs/decisions/0002). What is not used yet reads as zeros and is cut off at a stop.
ALLOCATE_BYTES = 4 * MIB


def check_file_name(name: str) -> str:
    """Raise BadRequest unless it is a name that every disk takes."""
    if not _NAME.fullmatch(name):
        raise BadRequest(f"{name!r} is not a file name of a log")
    return name


class File(Protocol):
    """One open file. Reads and writes are whole: a short one is repeated or raises OSError."""

    @property
    def size(self) -> int:
        """Where `append` writes next. A file that is opened may end in zeros, see `append`."""

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write the buffers, one after the other, at the end. May allocate zeros behind them."""

    def write_at(self, position: int, data: bytes) -> None: ...

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut the file, and what was allocated behind it, to `size` bytes."""

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One directory of files."""

    def create(self, name: str) -> File:
        """A new, empty, writable file; FileExistsError if there is one."""

    def open(self, name: str, *, writable: bool = False) -> File: ...

    def exists(self, name: str) -> bool: ...

    def names(self) -> list[str]:
        """All file names, sorted."""

    def rename(self, old: str, new: str) -> None:
        """Replaces `new` if it exists; atomic."""

    def remove(self, name: str) -> None: ...

    def sync_dir(self) -> None: ...


class RealFile:
    """A file descriptor; closed when the last user lets go, so a reader survives a removal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._allocated = self._size

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        total = sum(map(len, buffers))
        position = self._size
        if position + total > self._allocated:
            grown = max(ALLOCATE_BYTES, total)
            os.posix_fallocate(self._fd, self._allocated, grown)
            self._allocated += grown
        for first in range(0, len(buffers), _IOV_MAX):
            part = buffers[first : first + _IOV_MAX]
            wanted = sum(map(len, part))
            written = os.pwritev(self._fd, part, position)
            if written < wanted:
                rest = memoryview(b"".join(part))[written:]
                self._write_all(rest, position + written)
            position += wanted
        self._size += total

    def _write_all(self, data: memoryview, position: int) -> None:
        while data:
            written = os.pwrite(self._fd, data, position)
            position += written
            data = data[written:]

    def write_at(self, position: int, data: bytes) -> None:
        self._write_all(memoryview(data), position)
        self._size = max(self._size, position + len(data))

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = self._allocated = size

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class RealDisk:
    """A directory of the file system, mode 0700."""

    def __init__(self, directory: Path) -> None:
        make_directory(directory)
        self.directory = directory

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, check_file_name(name))

    def create(self, name: str) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return RealFile(os.open(self._path(name), flags, 0o600))

    def open(self, name: str, *, writable: bool = False) -> RealFile:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
        return RealFile(os.open(self._path(name), flags))

    def exists(self, name: str) -> bool:
        return os.path.exists(self._path(name))

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.directory) if _NAME.fullmatch(name))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))

    def remove(self, name: str) -> None:
        os.unlink(self._path(name))

    def sync_dir(self) -> None:
        sync_directory(self.directory)


def read_whole(disk: Disk, name: str) -> bytes:
    file = disk.open(name)
    try:
        return file.read_at(0, file.size)
    finally:
        file.close()


def replace_file(disk: Disk, name: str, data: bytes) -> None:
    """Give `name` new content atomically: after a crash it is the old or the new, whole (R49)."""
    temporary = name + ".new"
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        file.write_at(0, data)
        file.sync()  # before the rename, or a crash could leave an empty file under the name
    finally:
        file.close()
    disk.rename(temporary, name)
    disk.sync_dir()  # before anybody relies on the new content
