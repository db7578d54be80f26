"""The cold store: copies of sealed segments on any `pyarrow.fs` file system, and reads from there.

Owns nothing about segments: it keeps named, immutable byte strings; a name may have a folder.
Law: `put` returns only after the copy is durable and was read back and found equal; `open` reads by
position, so a tag read fetches what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from crc32c import crc32c
from pyarrow import fs

from penstock.errors import BadConfig, ChecksumMismatch
from penstock.limits import MIB
from penstock.log.storage.disk import File


class ColdStore(Protocol):
    """Immutable named byte strings."""

    def put(self, name: str, data: bytes) -> None: ...

    def open(self, name: str) -> File: ...

    def remove(self, name: str) -> None:
        """Remove it; no error if it is not there."""


class ColdFile:
    """A read-only `File` on a pyarrow file system."""

    def __init__(self, filesystem: fs.FileSystem, path: str) -> None:
        self._input = filesystem.open_input_file(path)
        self._size: int = self._input.size()

    @property
    def size(self) -> int:
        return self._size

    def read_at(self, position: int, size: int) -> bytes:
        wanted = max(min(size, self._size - position), 0)
        data: bytes = self._input.read_at(wanted, position)
        return data

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        raise PermissionError("a cold copy is never written")

    def write_at(self, position: int, data: bytes) -> None:
        raise PermissionError("a cold copy is never written")

    def truncate(self, size: int) -> None:
        raise PermissionError("a cold copy is never written")

    def sync(self) -> None:
        raise PermissionError("a cold copy is never written")

    def close(self) -> None:
        self._input.close()


class FileSystemColdStore:
    """A folder on any file system that pyarrow can open: file, s3, gs, hdfs, …"""

    def __init__(self, uri: str) -> None:
        try:
            self._fs, self._root = fs.FileSystem.from_uri(uri)
            self._fs.create_dir(self._root, recursive=True)
        except (ValueError, OSError) as error:
            raise BadConfig(f"cold store {uri}: {error}") from error

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def put(self, name: str, data: bytes) -> None:
        path, temporary = self._path(name), self._path(name + ".new")
        folder = path.rpartition("/")[0]
        self._fs.create_dir(folder, recursive=True)
        with self._fs.open_output_stream(temporary) as output:
            for start in range(0, len(data), MIB):
                output.write(data[start : start + MIB])
        self._sync(temporary)  # before the move, or a crash could leave an empty file
        self._fs.move(temporary, path)
        self._sync(folder)  # before the local file is given up
        if "/" in name:
            self._sync(self._root)  # the folder may be new
        copy = ColdFile(self._fs, path)
        if copy.size != len(data) or crc32c(copy.read_at(0, copy.size)) != crc32c(data):
            raise ChecksumMismatch(f"the cold copy of {name} differs from what was written")

    def _sync(self, path: str) -> None:
        """Make a local file or folder durable; other stores answer only once they have done so."""
        if isinstance(self._fs, fs.LocalFileSystem):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def open(self, name: str) -> ColdFile:
        return ColdFile(self._fs, self._path(name))

    def remove(self, name: str) -> None:
        try:
            self._fs.delete_file(self._path(name))
        except FileNotFoundError:
            pass
