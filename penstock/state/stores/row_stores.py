"""Stores of rows by their URI: which database has which task, and what is wrong with an address.

    indexed:///path          append-only files with an index in memory, a folder per task
    rocksdb:///path          RocksDB, a database per task
    redis://host:port/0      Redis, keys that begin with the log and the task (rediss:// with TLS)

Law: two logs, and two tasks of one log, never see each other's rows. An address that cannot be used
raises BadConfig, or Unavailable where the server does not answer, before anything runs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.config import masked_uri
from penstock.errors import BadConfig, BadRequest, Damaged, Unavailable
from penstock.log.directories import make_directory
from penstock.log.storage.disk import RealDisk
from penstock.state.stores.bytes_api import Engine
from penstock.state.stores.indexed import IndexedEngine
from penstock.state.stores.rows import RowStore

SCHEMES: Final = ("indexed", "rocksdb", "redis", "rediss")
_LOG: Final = re.compile(r"[0-9a-f]{32}")
_TASK: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}\.[0-9]{1,10}/[0-9]{1,6}/[0-9]{1,6}")


def open_row_store(uri: str, log_id: str) -> RowStore:
    """Raises BadConfig for an address that is none; asks nobody."""
    assert _LOG.fullmatch(log_id), f"{log_id!r} is no log's id"
    scheme = urlsplit(uri).scheme
    if scheme in ("redis", "rediss"):
        return RowStore("redis", _OfRedis(uri, log_id))
    root = _root_of(uri) / log_id
    if scheme == "rocksdb":
        return RowStore(scheme, _InFolders(root, _open_rocksdb))
    if scheme == "indexed":
        return RowStore(scheme, _InFolders(root, _open_indexed))
    raise BadConfig(f"{masked_uri(uri)}: no store of rows has this scheme")


def check_row_store(uri: str) -> None:
    """Whether it can be used now: the extra is there, the server answers, the folder is ours."""
    scheme = urlsplit(uri).scheme
    if scheme in ("redis", "rediss"):
        from penstock.state.stores.redis_engine import RedisEngine  # an extra

        RedisEngine(uri, "nobody").close()
        return
    if scheme == "rocksdb":
        from penstock.state.stores.rocksdb_engine import import_rocksdict  # an extra

        import_rocksdict()
    root = _root_of(uri)
    try:
        make_directory(root)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(f"{root} cannot be written to")
    except OSError as error:
        raise BadConfig(f"{uri}: {error}") from error


def _root_of(uri: str) -> Path:
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or parts.query or parts.fragment:
        raise BadConfig(f"{uri}: expected {parts.scheme}:///path, an absolute path")
    return Path(path)


def _check_task(task: str) -> str:
    if not _TASK.fullmatch(task):
        raise BadRequest(f"{task!r} is no task: expected query.version/stage/index")
    return task


class _OfRedis:
    def __init__(self, uri: str, log_id: str) -> None:
        self._uri = uri
        self._log_id = log_id

    def __call__(self, task: str, *, writes: bool, anew: bool) -> Engine:
        from penstock.state.stores.redis_engine import RedisEngine  # an extra

        return RedisEngine(self._uri, f"{self._log_id}/{_check_task(task)}")


class _InFolders:
    """A folder per task."""

    def __init__(self, root: Path, open: Callable[[Path, bool], Engine]) -> None:
        self._root = root
        self._open = open

    def __call__(self, task: str, *, writes: bool, anew: bool) -> Engine:
        folder = self._root / _check_task(task)
        try:
            if not writes and not folder.is_dir():
                # Unknown is not no: a root that is not mounted says nothing of what is in it.
                os.stat(self._root.parent)
                raise Damaged(f"{folder} is not there")
            return self._open(folder, writes)
        except Damaged:
            if not (writes and anew):
                raise
        except OSError as error:
            raise Unavailable(f"{folder}: {error}") from error
        self._clear(folder)
        return self._open(folder, writes)

    def _clear(self, folder: Path) -> None:
        """What cannot be read is deleted, by somebody who has all of it."""
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise Unavailable(f"{folder}: {error}") from error


def _open_rocksdb(folder: Path, writes: bool) -> Engine:
    from penstock.state.stores.rocksdb_engine import RocksdbEngine  # an extra

    return RocksdbEngine(folder, writes=writes)


def _open_indexed(folder: Path, writes: bool) -> Engine:
    shown = f"indexed://{folder}"
    if not writes:
        return IndexedEngine(RealDisk(folder), shown=shown, writes=False)
    lock = _Lock(folder, shown)
    try:
        return _Locked(IndexedEngine(RealDisk(folder), shown=shown), lock)
    except BaseException:
        lock.close()
        raise


class _Lock:
    """One process writes to a folder; the lock ends with it."""

    def __init__(self, folder: Path, shown: str) -> None:
        make_directory(folder)
        self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise Unavailable(f"{shown} is written to by another process ({error})") from None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


@dataclass(slots=True)
class _Locked:
    """An engine whose folder is locked as long as it is open."""

    engine: Engine
    lock: _Lock

    def cut(self) -> int:
        return self.engine.cut()

    def commit(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes] = (),
        *,
        base: int | None,
        cut: int,
    ) -> None:
        self.engine.commit(puts, deletes, base=base, cut=cut)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.engine.get(keys)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.engine.scan(prefix)

    def close(self) -> None:
        self.engine.close()
        self.lock.close()
