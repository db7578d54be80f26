"""The server's computer: a disk whose operations fail or kill on request, and a clock that jumps.

Owns what is armed and when it strikes. Law: a process that died does nothing more; what it had
written is then decided by the disk (harness.disk), not here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

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

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk, fail_at=None)
        self.crash_point: CrashPoint | None = None
        #: The n-th fsync of a file or directory from now fails.
        self.fail_sync_after: int | None = None
        #: An fsync has failed in this life of the process.
        self.sync_failed = False

    def step(
        self,
        kind: str,
        act: Callable[[], object],
        *,
        half: Callable[[], object] | None = None,
        undone: Callable[[], object] | None = None,
    ) -> None:
        if kind not in CHANGING:
            act()
            return
        point = self._due_point()
        if point is not None and not point.done:
            raise ProcessDied(f"before {kind}", power_cut=point.power_cut)
        if kind in ("sync", "sync_dir") and self._sync_fails():
            if undone is not None:
                undone()
            raise OSError(errno.EIO, os.strerror(errno.EIO), kind)
        act()
        if point is not None:
            raise ProcessDied(f"after {kind}", power_cut=point.power_cut)

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


class Clock:
    """The wall clock: virtual time plus whatever somebody set it to."""

    def __init__(self, start_ms: int) -> None:
        self._offset_ms = start_ms

    def jump(self, ms: int) -> None:
        self._offset_ms = max(self._offset_ms + ms, 1)

    def wall_ms(self, now_us: int) -> int:
        return self._offset_ms + now_us // 1000
