"""The server's computer: a disk whose operations fail or kill on request, and a cold store.

Owns what is armed and when it strikes. Law: a process that died does nothing more; what it had
written is then decided by the disk (harness.disk), not here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from harness.disk import SimDisk
from harness.faults import CHANGING, FaultyDisk

from penstock.log.storage.disk import File


class ProcessDied(BaseException):
    """The server's process ends here and now. A BaseException: no handler may survive it."""

    def __init__(self, place: str, *, power_cut: bool) -> None:
        super().__init__(place)
        self.power_cut = power_cut


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Die at the n-th changing operation from now, before or after it is done."""

    after: int
    power_cut: bool
    done: bool


class MachineDisk(FaultyDisk):
    """The disk as one process sees it, with what is armed against it."""

    def __init__(
        self, disk: SimDisk, died: Callable[[str, bool], None] = lambda place, power_cut: None
    ) -> None:
        """`died` is told of a crash, before the process learns of it by ProcessDied."""
        super().__init__(disk, fail_at=None)
        self._died = died
        self._death: ProcessDied | None = None
        self.crash_point: CrashPoint | None = None
        #: The n-th fsync of a file or directory from now fails.
        self.fail_sync_after: int | None = None
        #: The next read for a subscription fails (taps.py).
        self.fail_read = False
        #: What has failed in this life of the process.
        self.sync_failed = False
        self.read_failed = False

    def step(
        self,
        kind: str,
        act: Callable[[], object],
        *,
        half: Callable[[], object] | None = None,
        undone: Callable[[], object] | None = None,
    ) -> None:
        if self._death is not None:
            raise self._death
        if kind not in CHANGING:
            act()
            return
        point = self._due_point()
        if point is not None and not point.done:
            self._die(f"before {kind}", point)
        if kind in ("sync", "sync_dir") and self._sync_fails():
            if undone is not None:
                undone()
            raise OSError(errno.EIO, os.strerror(errno.EIO), kind)
        act()
        if point is not None:
            self._die(f"after {kind}", point)

    def _die(self, place: str, point: CrashPoint) -> NoReturn:
        self._death = ProcessDied(place, power_cut=point.power_cut)
        self._died(place, point.power_cut)
        raise self._death

    def _due_point(self) -> CrashPoint | None:
        point = self.crash_point
        if point is None:
            return None
        if point.after > 0:
            self.crash_point = CrashPoint(point.after - 1, point.power_cut, point.done)
            return None
        self.crash_point = None
        return point

    def _sync_fails(self) -> bool:
        if self.fail_sync_after is None:
            return False
        if self.fail_sync_after > 0:
            self.fail_sync_after -= 1
            return False
        self.fail_sync_after = None
        self.sync_failed = True
        return True


class MemoryColdStore:
    """A `ColdStore` somewhere else: it survives whatever happens to the machine."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        self._files[name] = data

    def open(self, name: str) -> File:
        return SimDisk({name: self._files[name]}).open(name)

    def remove(self, name: str) -> None:
        self._files.pop(name, None)
