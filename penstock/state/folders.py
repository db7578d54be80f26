"""Folders on any file system that pyarrow can open, for files that are written once.

Law: what `write` and then `publish` have returned for survives a crash, under its final name and
whole; before `publish` there is no such name. Paths are relative to the folder.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from pyarrow import fs

from penstock.errors import BadConfig
from penstock.limits import MIB
from penstock.log.storage.cold import ColdFile
from penstock.log.storage.disk import File

#: Their paths are names; a folder would be an object more.
_WITHOUT_FOLDERS: Final = ("s3", "gcs", "abfs")
_IN_MEMORY_BYTES: Final = 8 * MIB
_UPLOADED_BYTES: Final = 4 * MIB


class Folder(Protocol):
    #: Whether its files are read about as fast as a disk's.
    @property
    def is_near(self) -> bool: ...

    def look(self) -> None:
        """Raise OSError unless the folder itself is there: else no file is known to be gone."""

    def make_dirs(self, path: str) -> None: ...

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """A new file with these bytes, to be published or deleted."""

    def publish(self, old: str, new: str) -> None:
        """Rename a file of the same directory; on return bytes and name are durable."""

    def open(self, path: str) -> File: ...

    def names(self, path: str) -> list[str]:
        """Files of a directory, none if it is not there."""

    def delete(self, path: str) -> None: ...


def open_folder(uri_or_path: str) -> Folder:
    try:
        if re.match(r"[a-z][a-z0-9+.-]+:", uri_or_path):
            filesystem, root = fs.FileSystem.from_uri(uri_or_path)
        else:
            filesystem, root = fs.LocalFileSystem(), os.path.abspath(uri_or_path)
    except (ValueError, OSError) as error:
        raise BadConfig(f"checkpoint store {uri_or_path}: {error}") from error
    if isinstance(filesystem, fs.LocalFileSystem):
        return LocalFolder(root)
    return _RemoteFolder(filesystem, root.rstrip("/"))


class LocalFolder:
    """Files 0600 and directories 0700, each made durable before anything relies on it."""

    is_near: Final = True

    def __init__(self, root: str) -> None:
        self._root = root
        self._fs = fs.LocalFileSystem()

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path)

    def look(self) -> None:
        os.stat(self._root)

    def make_dirs(self, path: str) -> None:
        missing = []
        folder = self._path(path)
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            with suppress(FileExistsError):  # another task's thread was faster
                os.mkdir(folder, 0o700)
            self._sync_dir(os.path.dirname(folder))

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path(path), flags, 0o600)
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def publish(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))
        self._sync_dir(os.path.dirname(self._path(new)))

    def _sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def open(self, path: str) -> ColdFile:
        return ColdFile(self._fs, self._path(path))

    def names(self, path: str) -> list[str]:
        try:
            with os.scandir(self._path(path)) as entries:
                return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def delete(self, path: str) -> None:
        os.unlink(self._path(path))


class _RemoteFolder:
    """Stores that answer only once they are sure; an object appears whole or not at all.

    What is written waits on this machine, and goes to the store under its final name: stores of
    objects have no rename, only a copy of everything.
    """

    is_near: Final = False

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._fs = filesystem
        self._root = root
        self._waiting: dict[str, _Waiting] = {}

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path

    def look(self) -> None:
        """A prefix without objects is no sign of a store that is away."""

    def make_dirs(self, path: str) -> None:
        if self._fs.type_name not in _WITHOUT_FOLDERS:
            self._fs.create_dir(self._path(path), recursive=True)

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        self._waiting[path] = waiting = _Waiting()
        for piece in pieces:
            waiting.append([piece])

    def publish(self, old: str, new: str) -> None:
        waiting = self._waiting[old]
        with self._fs.open_output_stream(self._path(new)) as output:
            for at in range(0, waiting.size, _UPLOADED_BYTES):
                output.write(waiting.read_at(at, _UPLOADED_BYTES))
        self.delete(old)

    def open(self, path: str) -> File:
        waiting = self._waiting.get(path)
        return ColdFile(self._fs, self._path(path)) if waiting is None else waiting

    def names(self, path: str) -> list[str]:
        selector = fs.FileSelector(self._path(path), allow_not_found=True)
        infos = self._fs.get_file_info(selector)
        return [info.base_name for info in infos if info.type == fs.FileType.File]

    def delete(self, path: str) -> None:
        waiting = self._waiting.pop(path, None)
        if waiting is None:
            self._fs.delete_file(self._path(path))
        else:
            waiting.discard()


class _Waiting:
    """A file without a name: in memory, or on the disk if it is large."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
        self.size = 0

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        self._file.seek(self.size)
        for buffer in buffers:
            self.size += self._file.write(buffer)

    def read_at(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        return self._file.read(size)

    def write_at(self, position: int, data: bytes) -> None:
        raise PermissionError("a file that waits is only appended to")

    def truncate(self, size: int) -> None:
        raise PermissionError("a file that waits is only appended to")

    def sync(self) -> None:
        """It survives nothing."""

    def close(self) -> None:
        """It is read again when it goes to the store."""

    def discard(self) -> None:
        self._file.close()
