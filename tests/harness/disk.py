"""A disk in memory that forgets: what was not synced may be lost, torn or kept by a power cut.

Owns the difference between what reads return (the page cache) and what survives. It implements
`penstock.log.storage.disk.Disk`, with the same preallocation as `RealFile`, in smaller steps.

    kill()          the process dies: handles are dead, the page cache is whole
    crash(random)   the power fails: a new disk with what happened to survive
    drop_unsynced   what a failed fsync does: reads go on returning bytes that no later sync writes
                    (Rebello et al., ATC'20, "fsyncgate")

Laws: bytes and length of a file survive once `sync` has returned; names survive once `sync_dir`
has. Everything else may be lost in any combination, a rename being wholly done or not at all. The
one promise that is made beyond that is SQLite's "powersafe overwrite": a sector that holds durable
bytes is, after a torn write, the old one or the new one; only virgin sectors come back as noise.
Single-threaded, like the tests that use it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from random import Random

from penstock.log.storage.disk import check_file_name

#: What a disk writes at once: a torn write ends or has holes at multiples of it.
SECTOR_BYTES = 512
#: Space taken ahead of appends; `RealFile` takes 4 MiB, which would hide every edge from a test.
ALLOCATE_BYTES = 4096


class Fate(Enum):
    """What a power cut does to one unsynced change."""

    LOST = "lost"
    TORN = "torn"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Odds:
    """How likely each fate is; what is left of 1 is KEPT."""

    lost: float
    torn: float = 0.0

    def draw(self, random: Random) -> Fate:
        drawn = random.random()
        if drawn < self.lost:
            return Fate.LOST
        return Fate.TORN if drawn < self.lost + self.torn else Fate.KEPT


ALL_LOST = Odds(lost=1.0)
ALL_KEPT = Odds(lost=0.0)
SOME_LOST = Odds(lost=0.4, torn=0.3)


@dataclass(frozen=True, slots=True)
class _Write:
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Resize:
    size: int


@dataclass(slots=True)
class _Inode:
    """One file, whatever its name is."""

    #: What reads return.
    cached: bytearray = field(default_factory=bytearray)
    #: What a power cut leaves for certain.
    durable: bytearray = field(default_factory=bytearray)
    #: Sectors below this hold bytes that were written and synced; above it, zeros at most.
    written: int = 0
    #: Changes since the last sync, oldest first.
    pending: list[_Write | _Resize] = field(default_factory=list)

    def write(self, position: int, data: bytes) -> None:
        end = position + len(data)
        if end > len(self.cached):
            self.resize(end)
        self.cached[position:end] = data
        self.pending.append(_Write(position, data))

    def resize(self, size: int) -> None:
        _resize(self.cached, size)
        self.pending.append(_Resize(size))

    def sync(self) -> None:
        for change in self.pending:
            if isinstance(change, _Resize):
                _resize(self.durable, change.size)
                self.written = min(self.written, change.size)
            else:
                _overwrite(self.durable, change)
                self.written = max(self.written, change.position + len(change.data))
        self.pending.clear()

    def drop_unsynced(self) -> None:
        """Forget the data but not the lengths: those are in a journal, not in the page cache."""
        self.pending = [change for change in self.pending if isinstance(change, _Resize)]

    def after_crash(self, random: Random, odds: Odds) -> bytearray:
        content = bytearray(self.durable)
        for change in self.pending:
            fate = odds.draw(random)
            if fate is Fate.LOST:
                continue
            if isinstance(change, _Resize):
                _resize(content, change.size)
            elif fate is Fate.KEPT:
                _overwrite(content, change)
            else:
                _tear(content, change, random, virgin_from=self.written)
        return content


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _overwrite(content: bytearray, change: _Write) -> None:
    end = change.position + len(change.data)
    if end > len(content):
        _resize(content, end)
    content[change.position : end] = change.data


def _tear(content: bytearray, change: _Write, random: Random, *, virgin_from: int) -> None:
    """Apply a write sector by sector: each is new, old or, if nothing durable is in it, garbage."""
    start, end = change.position, change.position + len(change.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        data = change.data[start - change.position : stop - change.position]
        virgin = start // SECTOR_BYTES * SECTOR_BYTES >= virgin_from
        outcome = random.choice(("new", "old", "zeros", "noise") if virgin else ("new", "old"))
        if outcome == "zeros":
            data = bytes(len(data))
        elif outcome == "noise":
            data = random.randbytes(len(data))
        if outcome != "old":
            _overwrite(content, _Write(start, data))
        start = stop


@dataclass(frozen=True, slots=True)
class _NameChange:
    """`name` leads to `inode` from now on (None: to nothing), and `gone` no longer does."""

    name: str
    inode: _Inode | None
    gone: str | None = None

    def apply(self, names: dict[str, _Inode]) -> None:
        if self.inode is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.inode
        if self.gone is not None:
            names.pop(self.gone, None)


class SimFile:
    """A handle; dead once its process was killed."""

    def __init__(self, disk: SimDisk, inode: _Inode, *, writable: bool) -> None:
        self._disk = disk
        self._life = disk.life
        self._inode = inode
        self._writable = writable
        self._open = True
        self._size = self._allocated = len(inode.cached)

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        self._check(write=True)
        data = b"".join(buffers)
        if self._size + len(data) > self._allocated:
            self._allocated += max(self._disk.allocate_bytes, len(data))
            self._inode.resize(max(self._allocated, len(self._inode.cached)))
        self._inode.write(self._size, data)
        self._size += len(data)

    def write_at(self, position: int, data: bytes) -> None:
        self._check(write=True)
        self._inode.write(position, bytes(data))
        self._size = max(self._size, position + len(data))

    def read_at(self, position: int, size: int) -> bytes:
        self._check()
        return bytes(self._inode.cached[position : position + size])

    def truncate(self, size: int) -> None:
        self._check(write=True)
        self._inode.resize(size)
        self._size = self._allocated = size

    def sync(self) -> None:
        self._check()
        self._inode.sync()

    def drop_unsynced(self) -> None:
        """A sync of this file failed: see the module's docstring."""
        self._check()
        self._inode.drop_unsynced()

    def close(self) -> None:
        self._open = False

    def _check(self, *, write: bool = False) -> None:
        if not self._open or self._life != self._disk.life or (write and not self._writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class SimDisk:
    """A directory of files in memory; see the module's docstring."""

    def __init__(
        self, contents: Mapping[str, bytes] | None = None, *, allocate_bytes: int = ALLOCATE_BYTES
    ) -> None:
        """`contents`: files that are there already, durable under their names."""
        self.allocate_bytes = allocate_bytes
        #: Handles work only in the life that opened them.
        self.life = 0
        self._names: dict[str, _Inode] = {}
        for name, data in (contents or {}).items():
            self._names[name] = _Inode(bytearray(data), bytearray(data), len(data))
        self._durable_names = dict(self._names)
        self._name_changes: list[_NameChange] = []

    # ---- penstock.log.storage.disk.Disk

    def create(self, name: str) -> SimFile:
        if check_file_name(name) in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        inode = _Inode()
        self._change(_NameChange(name, inode))
        return SimFile(self, inode, writable=True)

    def open(self, name: str, *, writable: bool = False) -> SimFile:
        return SimFile(self, self._inode(name), writable=writable)

    def exists(self, name: str) -> bool:
        return name in self._names

    def names(self) -> list[str]:
        return sorted(self._names)

    def rename(self, old: str, new: str) -> None:
        self._change(_NameChange(new, self._inode(old), gone=old))

    def remove(self, name: str) -> None:
        self._inode(name)
        self._change(_NameChange(name, None))

    def sync_dir(self) -> None:
        self._durable_names = dict(self._names)
        self._name_changes.clear()

    # ---- faults

    def kill(self) -> None:
        """The process dies. What it wrote stays in the page cache, synced or not."""
        self.life += 1

    def crash(self, random: Random, odds: Odds = SOME_LOST) -> SimDisk:
        """The disk as the next process finds it after a power cut; this one stays as it is."""
        names = dict(self._durable_names)
        for change in self._name_changes:
            if odds.draw(random) is Fate.KEPT:
                change.apply(names)
        contents = {
            name: bytes(inode.after_crash(random, odds)) for name, inode in sorted(names.items())
        }
        return SimDisk(contents, allocate_bytes=self.allocate_bytes)

    def damage(self, name: str, position: int, mask: int = 0xFF) -> None:
        """Bits of a byte of a file go bad, wherever it is kept."""
        inode = self._inode(name)
        for content in (inode.cached, inode.durable):
            if position < len(content):
                content[position] ^= mask

    # ---- inspection

    def contents(self) -> dict[str, bytes]:
        """Every file as a reader sees it."""
        return {name: bytes(inode.cached) for name, inode in sorted(self._names.items())}

    def durable(self, name: str) -> bytes:
        """What a power cut leaves of a file for certain; nothing if it may leave no file."""
        inode = self._durable_names.get(name)
        return b"" if inode is None else bytes(inode.durable)

    def fingerprint(self) -> bytes:
        """Equal for disks with equal contents."""
        digest = blake2b(digest_size=16)
        for name, data in self.contents().items():
            digest.update(b"%s\0%d\0" % (name.encode(), len(data)))
            digest.update(data)
        return digest.digest()

    @property
    def has_unsynced(self) -> bool:
        """A power cut now could lose something."""
        return bool(self._name_changes) or any(inode.pending for inode in self._names.values())

    def _inode(self, name: str) -> _Inode:
        try:
            return self._names[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None

    def _change(self, change: _NameChange) -> None:
        change.apply(self._names)
        self._name_changes.append(change)
