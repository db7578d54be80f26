"""Checkpoint files of tasks, in a folder on any file system that pyarrow can open.

    <root>/<log>/<query>.<version>/<stage>/<index>/<marker_lsn, 20 digits>-<instance>-<seal>.ckpt
                                             the same with .<nonce>.new while it is being written

Owns names, durability and deletion; the bytes are checkpoint_format.py's. A name holds the seal of
its content, so no two writers, be they instances of which one is a zombie, ever write different
bytes under one name. It holds the log's id as well: queries of two logs may have one name and one
root, and positions of the one say nothing of files of the other.

Law: a file has its final name only when it is whole and durable; before that last step there is
garbage at most. `read` returns what the reference stands for or raises. `sweep` deletes what its
caller knows to be unused, by the positions in names of our own and of our log, and never because
something is missing elsewhere (R38, R40). Files without a log in their path, as earlier versions
wrote them, are read and never deleted: nothing says whose they are.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from pyarrow import fs

from penstock.errors import BadConfig, BadFormat, BadRequest, MissingFile, Unavailable
from penstock.limits import POSITION_MAX
from penstock.log.storage.cold import ColdFile
from penstock.log.storage.disk import File
from penstock.state.api import Change
from penstock.state.checkpoint_format import (
    CheckpointMeta,
    encode_checkpoint,
    read_checkpoint,
    read_meta,
    seal_of,
)

_LOG: Final = re.compile(r"[0-9a-f]{32}")
#: query.version/stage/index: neither "..", nor an absolute path, nor a hidden file can match.
_TASK: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}\.[0-9]{1,10}/[0-9]{1,6}/[0-9]{1,6}")
_FILE: Final = re.compile(r"(?P<lsn>[0-9]{20})-[0-9]{1,20}(-[0-9a-f]{8}\.ckpt|\.[0-9a-f]{16}\.new)")


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """Where a checkpoint is, and what its bytes must be."""

    #: Relative to the store.
    path: str
    marker_lsn: int
    instance: int
    bytes: int
    #: The seal of checkpoint_format.py: it stands for every byte.
    crc: int

    def to_json(self) -> dict[str, object]:
        return {
            "path": self.path,
            "marker_lsn": self.marker_lsn,
            "instance": self.instance,
            "bytes": self.bytes,
            "crc": self.crc,
        }

    @classmethod
    def from_json(cls, value: object) -> CheckpointRef:
        """The inverse of to_json; raises BadFormat for anything else."""
        if not isinstance(value, dict) or set(value) != set(cls.__dataclass_fields__):
            raise BadFormat(f"not a reference to a checkpoint: {value!r}")
        path, *numbers = (value[name] for name in cls.__dataclass_fields__)
        if not isinstance(path, str) or any(type(n) is not int or n < 0 for n in numbers):
            raise BadFormat(f"not a reference to a checkpoint: {value!r}")
        ref = cls(path, *numbers)
        ref.check()
        return ref

    @property
    def task(self) -> str:
        folder = self.path.rpartition("/")[0]
        log, _, task = folder.partition("/")
        return task if _LOG.fullmatch(log) else folder  # earlier versions had no log in it

    def check(self) -> None:
        """Raise BadFormat unless the path is one that `write` makes for these numbers."""
        name, wanted = self.path.rpartition("/")[2], _name(self.marker_lsn, self.instance, self.crc)
        if not _TASK.fullmatch(self.task) or name != wanted:
            raise BadFormat(f"{self.path!r} is no path of this checkpoint")


def _name(marker_lsn: int, instance: int, seal: int) -> str:
    return f"{marker_lsn:020}-{instance}-{seal:08x}.ckpt"


class CheckpointStore:
    """Blocking; may be used by several threads at once."""

    def __init__(self, uri_or_path: str, log_id: str, folder: Folder | None = None) -> None:
        """`folder`: to use instead of opening what the URI or path names."""
        assert _LOG.fullmatch(log_id), f"{log_id!r} is no log's id"
        self._shown = uri_or_path
        self._log_id = log_id
        self._folder = folder or _open_folder(uri_or_path)

    def write(
        self,
        task: str,
        *,
        marker_lsn: int,
        instance: int,
        fingerprint: str,
        changes: Sequence[Change],
    ) -> CheckpointRef:
        """Make the frozen state of a task durable; on return it is.

        Raises Unavailable if the file system does not take it: what was there before still is.
        """
        _check_task(task)
        if not (0 <= marker_lsn < POSITION_MAX and 0 <= instance < POSITION_MAX):
            raise BadRequest(f"a checkpoint at marker {marker_lsn} of instance {instance}")
        meta = CheckpointMeta(task, marker_lsn, instance, fingerprint)
        home = f"{self._log_id}/{task}"
        temporary = f"{home}/{marker_lsn:020}-{instance}.{secrets.token_hex(8)}.new"
        with self._reaching(f"checkpoint of {task}"):
            self._folder.make_dirs(home)
            try:
                pieces = _Counted(encode_checkpoint(meta, changes))
                self._folder.write(temporary, pieces)
                seal = seal_of(pieces.last)
                path = f"{home}/{_name(marker_lsn, instance, seal)}"
                self._folder.publish(temporary, path)
            except BaseException:
                with suppress(OSError):  # a full disk must not stay full; sweep gets what is left
                    self._folder.delete(temporary)
                raise
        return CheckpointRef(path, marker_lsn, instance, pieces.bytes, seal)

    def read(self, ref: CheckpointRef, *, nodes: Collection[int] | None = None) -> list[Change]:
        """The state, or what virtual nodes have of it and what is the task's; apply in any order.

        Raises Damaged if it is not what `ref` stands for (MissingFile if there is none): another
        checkpoint must be used. Raises Unavailable if the file system does not answer.
        """
        with self._open(ref) as file:
            meta, changes = read_checkpoint(file.read_at, file.size, seal=ref.crc, nodes=nodes)
        _check_meta(meta, ref)
        return changes

    def read_meta(self, ref: CheckpointRef) -> CheckpointMeta:
        """What it is a checkpoint of; raises as `read` does, but does not look at the rows."""
        with self._open(ref) as file:
            meta = read_meta(file.read_at, file.size, seal=ref.crc)
        _check_meta(meta, ref)
        return meta

    def sweep(self, task: str, keep_from_lsn: int) -> list[str]:
        """Delete a task's files, whole or half made, of markers before keep_from_lsn.

        To be called with the marker of a checkpoint that a committed marker names. Returns the
        paths of what was deleted, sorted.
        """
        _check_task(task)
        home = f"{self._log_id}/{task}"
        deleted = []
        with self._reaching(f"checkpoints of {task}"):
            for name in sorted(self._folder.names(home)):
                match = _FILE.fullmatch(name)
                if match is None or int(match["lsn"]) >= keep_from_lsn:
                    continue
                with suppress(FileNotFoundError):  # somebody else sweeps too
                    self._folder.delete(f"{home}/{name}")
                    deleted.append(f"{home}/{name}")
        return deleted

    @contextmanager
    def _open(self, ref: CheckpointRef) -> Iterator[File]:
        ref.check()
        with self._reaching(ref.path):
            try:
                file = self._folder.open(ref.path)
            except FileNotFoundError as error:
                self._folder.look()
                raise MissingFile(f"checkpoint {ref.path} is not in {self._shown}") from error
            with closing(file):
                if file.size != ref.bytes:
                    raise BadFormat(f"{ref.path} has {file.size} bytes, expected {ref.bytes}")
                yield file

    @contextmanager
    def _reaching(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(f"{what} in {self._shown}: {error}; try again later") from error


def _check_task(task: str) -> None:
    if not _TASK.fullmatch(task):
        raise BadRequest(f"{task!r} is no task: expected query.version/stage/index")


def _check_meta(meta: CheckpointMeta, ref: CheckpointRef) -> None:
    if (meta.task, meta.marker_lsn, meta.instance) != (ref.task, ref.marker_lsn, ref.instance):
        raise BadFormat(f"{ref.path} is a checkpoint of {meta.task} at {meta.marker_lsn}")


class _Counted:
    """Passes pieces on; knows their bytes and the last one."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.bytes = 0
        self.last = b""

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.bytes += len(piece)
            self.last = piece
            yield piece


# -- file systems; paths are relative to a root


class Folder(Protocol):
    def look(self) -> None:
        """Raise OSError unless the folder itself is there: else no file is known to be gone."""

    def make_dirs(self, path: str) -> None: ...

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """A new file with these bytes; on return they are durable, their name need not be."""

    def publish(self, old: str, new: str) -> None:
        """Rename a file of the same directory; on return the name is durable."""

    def open(self, path: str) -> File: ...

    def names(self, path: str) -> list[str]:
        """Files of a directory, none if it is not there."""

    def delete(self, path: str) -> None: ...


def _open_folder(uri_or_path: str) -> Folder:
    try:
        if re.match(r"[a-z][a-z0-9+.-]+:", uri_or_path):
            filesystem, root = fs.FileSystem.from_uri(uri_or_path)
        else:
            filesystem, root = fs.LocalFileSystem(), os.path.abspath(uri_or_path)
    except (ValueError, OSError) as error:
        raise BadConfig(f"checkpoint store {uri_or_path}: {error}") from error
    if isinstance(filesystem, fs.LocalFileSystem):
        return _LocalFolder(root)
    return _RemoteFolder(filesystem, root.rstrip("/"))


class _LocalFolder:
    """Files 0600 and directories 0700, each made durable before anything relies on it."""

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
    """Stores that answer only once they are sure; an object appears whole or not at all."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._fs = filesystem
        self._root = root

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path

    def look(self) -> None:
        """A prefix without objects is no sign of a store that is away."""

    def make_dirs(self, path: str) -> None:
        self._fs.create_dir(self._path(path), recursive=True)

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        with self._fs.open_output_stream(self._path(path)) as output:
            for piece in pieces:
                output.write(piece)

    def publish(self, old: str, new: str) -> None:
        self._fs.move(self._path(old), self._path(new))

    def open(self, path: str) -> ColdFile:
        return ColdFile(self._fs, self._path(path))

    def names(self, path: str) -> list[str]:
        selector = fs.FileSelector(self._path(path), allow_not_found=True)
        infos = self._fs.get_file_info(selector)
        return [info.base_name for info in infos if info.type == fs.FileType.File]

    def delete(self, path: str) -> None:
        self._fs.delete_file(self._path(path))
