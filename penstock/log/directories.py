"""Where a log lives if nobody says; and directories that survive a power cut.

Law: what `make_directory` returned from is there after a power cut: an fsync of a file in a
directory says nothing of the directory's own name, which is kept by its parent.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def default_data_dir() -> Path:
    """PENSTOCK_DIR, or the user's data directory."""
    if named := os.environ.get("PENSTOCK_DIR"):
        return Path(named)
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "penstock"


def make_directory(path: Path) -> None:
    """Make it, with mode 0700, and what is missing above it; all of it survives a power cut."""
    path = path.absolute()
    missing = [each for each in (path, *path.parents) if not each.exists()]
    found = missing[-1].parent if missing else path
    if not found.is_mount():
        # Whoever made it may have died before it was durable. Often it is not ours to read.
        with suppress(PermissionError):
            sync_directory(found.parent)
    for each in reversed(missing):
        each.mkdir(mode=0o700 if each == path else 0o777, exist_ok=True)
        sync_directory(each.parent)
    path.mkdir(exist_ok=True)  # FileExistsError if it is something else


def sync_directory(path: Path) -> None:
    """What was made, renamed or removed in it stays so after a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
