"""Disks around a disk: one that fails on request, one that writes down what it is asked to do.

Owns no files: both pass everything on to the disk that they wrap. Law: a fault fires at most at the
operations that were asked for, and `fired` says which it was, so that a test can prove that it did.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from harness.disk import SimFile
from penstock.log.storage.disk import Disk, File

Buffers = Sequence[bytes | bytearray | memoryview]

#: Operations that change files or names; a recorded trace holds these.
CHANGING: Final = frozenset({"create", "write", "truncate", "sync", "rename", "remove", "sync_dir"})
#: Operations that can fail.
ALL: Final = CHANGING | {"open", "read"}


class FaultyDisk:
    """Passes operations on until the `fail_at`-th (from 0) of the chosen kinds raises OSError.

    `partly`: the failing operation is done before it raises, a write by half; otherwise it is not
    done at all. A sync that fails undone drops what it should have written, see `SimFile`.
    `lasting`: every later chosen operation fails too (a full disk), not just one (a bad sector).
    """

    def __init__(
        self,
        disk: Disk,
        *,
        fail_at: int | None,
        error: int = errno.EIO,
        operations: frozenset[str] = ALL,
        partly: bool = False,
        lasting: bool = False,
    ) -> None:
        if unknown := operations - ALL:
            raise ValueError(f"not operations of a disk: {sorted(unknown)}")
        self._disk = disk
        self._fail_at = fail_at
        self._error = error
        self._operations = operations
        self._partly = partly
        self._lasting = lasting
        #: Operations asked for so far, by kind.
        self.counts: Counter[str] = Counter()
        #: Kinds of the operations that were made to fail, in order.
        self.fired: list[str] = []
        self._chosen = 0

    def fail_after(self, operations: int) -> None:
        """From now on, so many of the chosen operations work; the next one fails."""
        self._fail_at = self._chosen + operations

    def step(
        self,
        kind: str,
        act: Callable[[], object],
        *,
        half: Callable[[], object] | None = None,
        undone: Callable[[], object] | None = None,
    ) -> None:
        """Count one operation and do it; or fail, having done `half` of it or left it `undone`."""
        self.counts[kind] += 1
        if kind not in self._operations or not self._is_due():
            act()
            return
        self.fired.append(kind)
        if self._partly:
            (half or act)()
        elif undone is not None:
            undone()
        raise OSError(self._error, os.strerror(self._error), kind)

    def _is_due(self) -> bool:
        at = self._chosen
        self._chosen += 1
        if self._fail_at is None or at < self._fail_at:
            return False
        return at == self._fail_at or self._lasting

    # ---- penstock.log.storage.disk.Disk

    def create(self, name: str) -> FaultyFile:
        self.step("create", lambda: self._disk.create(name).close())
        return FaultyFile(self, self._disk.open(name, writable=True))

    def open(self, name: str, *, writable: bool = False) -> FaultyFile:
        self.step("open", lambda: None)
        return FaultyFile(self, self._disk.open(name, writable=writable))

    def exists(self, name: str) -> bool:
        return self._disk.exists(name)

    def names(self) -> list[str]:
        return self._disk.names()

    def rename(self, old: str, new: str) -> None:
        self.step("rename", lambda: self._disk.rename(old, new))

    def remove(self, name: str) -> None:
        self.step("remove", lambda: self._disk.remove(name))

    def sync_dir(self) -> None:
        self.step("sync_dir", self._disk.sync_dir)


class FaultyFile:
    """A file of a FaultyDisk."""

    def __init__(self, disk: FaultyDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, buffers: Buffers) -> None:
        self._disk.step(
            "write",
            lambda: self._file.append(buffers),
            half=lambda: self._file.append([_half(b"".join(buffers))]),
        )

    def write_at(self, position: int, data: bytes) -> None:
        self._disk.step(
            "write",
            lambda: self._file.write_at(position, data),
            half=lambda: self._file.write_at(position, _half(data)),
        )

    def read_at(self, position: int, size: int) -> bytes:
        self._disk.step("read", lambda: None)
        return self._file.read_at(position, size)

    def truncate(self, size: int) -> None:
        self._disk.step("truncate", lambda: self._file.truncate(size))

    def sync(self) -> None:
        self._disk.step("sync", self._file.sync, undone=self._drop_unsynced)

    def _drop_unsynced(self) -> None:
        if isinstance(self._file, SimFile):
            self._file.drop_unsynced()

    def close(self) -> None:
        self._file.close()


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


@dataclass(frozen=True, slots=True)
class Operation:
    """One changing operation. `file` numbers the handles of a trace, since names may change."""

    kind: str
    name: str = ""
    file: int = -1
    #: Where a write goes; -1 appends. For a truncation, the new size.
    position: int = -1
    data: bytes = b""
    #: New name of a rename.
    target: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that the test wants to know happened at this point of the trace."""

    value: object


class TracingDisk:
    """Passes everything on and keeps a trace of what changed, with the caller's marks."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.trace: list[Operation | Mark] = []
        self._files = 0

    def mark(self, value: object) -> None:
        self.trace.append(Mark(value))

    def create(self, name: str) -> TracingFile:
        return self._traced("create", name, self._disk.create(name))

    def open(self, name: str, *, writable: bool = False) -> File:
        file = self._disk.open(name, writable=writable)
        return self._traced("open", name, file) if writable else file

    def exists(self, name: str) -> bool:
        return self._disk.exists(name)

    def names(self) -> list[str]:
        return self._disk.names()

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)
        self.trace.append(Operation("rename", old, target=new))

    def remove(self, name: str) -> None:
        self._disk.remove(name)
        self.trace.append(Operation("remove", name))

    def sync_dir(self) -> None:
        self._disk.sync_dir()
        self.trace.append(Operation("sync_dir"))

    def _traced(self, kind: str, name: str, file: File) -> TracingFile:
        number = self._files
        self._files += 1
        self.trace.append(Operation(kind, name, number))
        return TracingFile(self.trace, number, file)


class TracingFile:
    """A writable file of a TracingDisk."""

    def __init__(self, trace: list[Operation | Mark], number: int, file: File) -> None:
        self._trace = trace
        self._number = number
        self._file = file

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, buffers: Buffers) -> None:
        data = b"".join(buffers)
        self._file.append([data])
        self._trace.append(Operation("write", file=self._number, data=data))

    def write_at(self, position: int, data: bytes) -> None:
        self._file.write_at(position, data)
        self._trace.append(Operation("write", file=self._number, position=position, data=data))

    def read_at(self, position: int, size: int) -> bytes:
        return self._file.read_at(position, size)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        self._trace.append(Operation("truncate", file=self._number, position=size))

    def sync(self) -> None:
        self._file.sync()
        self._trace.append(Operation("sync", file=self._number))

    def close(self) -> None:
        self._file.close()
