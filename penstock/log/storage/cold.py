"""The cold store: copies of sealed segments on any `pyarrow.fs` file system, and reads from there.

Owns nothing about segments: it keeps named, immutable byte strings; a name may have a folder.
Laws: `put` returns only after the copy is durable and was read back and found equal; `open` reads
by position, so a tag read fetches what it needs. Copies on this machine are for nobody else, and no
error shows what is secret in the store's address.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from crc32c import crc32c
from pyarrow import fs

from penstock.config import hide_secrets, masked_uri
from penstock.errors import BadConfig, ChecksumMismatch
from penstock.limits import MIB
from penstock.log.directories import make_directory
from penstock.log.storage.disk import File

#: Copies lie in a folder that is named by the id of their log.
_LOG_FOLDER = re.compile("[0-9a-f]{32}")
_COPY_MODE = 0o600
_OTHERS = 0o077


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


def _tighten(root: Path) -> None:
    """Earlier versions left copies, in the folders of their logs, to the mask of the process."""
    for path in root.glob("*/seg-*"):
        if not _LOG_FOLDER.fullmatch(path.parent.name):
            continue
        with suppress(OSError):  # another user's, on a disk without modes, or gone meanwhile
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and mode & _OTHERS:
                path.chmod(_COPY_MODE)


class FileSystemColdStore:
    """A folder on any file system that pyarrow can open: file, s3, gs, hdfs, …"""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        try:
            self._fs, self._root = fs.FileSystem.from_uri(uri)
            self._make_dir(self._root)
            if self._is_local:
                _tighten(Path(self._root))
        except (ValueError, OSError) as error:
            words = hide_secrets(str(error), uri)
            raise BadConfig(f"cold store {masked_uri(uri)}: {words}") from None

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @property
    def _is_local(self) -> bool:
        return isinstance(self._fs, fs.LocalFileSystem)

    @contextmanager
    def _hiding(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            words = hide_secrets(str(error), self._uri)
            if words == str(error):
                raise
            raise type(error)(words) from None

    def _make_dir(self, path: str) -> None:
        """What is there keeps its mode: it may be shared on purpose."""
        if self._is_local:
            make_directory(Path(path))  # durable, or a power cut would take the copies with it
        else:
            self._fs.create_dir(path, recursive=True)

    def put(self, name: str, data: bytes) -> None:
        with self._hiding():
            self._put(name, data)

    def _put(self, name: str, data: bytes) -> None:
        path, temporary = self._path(name), self._path(name + ".new")
        folder = path.rpartition("/")[0]
        self._make_dir(folder)
        if self._is_local:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _COPY_MODE)
            try:
                os.fchmod(fd, _COPY_MODE)  # it may be of an earlier put that did not end
            finally:
                os.close(fd)
        with self._fs.open_output_stream(temporary) as output:
            for start in range(0, len(data), MIB):
                output.write(data[start : start + MIB])
        self._sync(temporary)  # before the move, or a crash could leave an empty file
        self._fs.move(temporary, path)
        self._sync(folder)  # before the local file is given up
        copy = ColdFile(self._fs, path)
        if copy.size != len(data) or crc32c(copy.read_at(0, copy.size)) != crc32c(data):
            raise ChecksumMismatch(f"the cold copy of {name} differs from what was written")

    def _sync(self, path: str) -> None:
        """Make a local file or folder durable; other stores answer only once they have done so."""
        if self._is_local:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def open(self, name: str) -> ColdFile:
        with self._hiding():
            return ColdFile(self._fs, self._path(name))

    def remove(self, name: str) -> None:
        with self._hiding(), suppress(FileNotFoundError):
            self._fs.delete_file(self._path(name))
