"""Where the page of a data directory is served: told in DIR/ui.json, while its server lives.

Law: a file that a dead server left behind is recognised by its free lock, never by its age. It
holds an address, and no secret.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Final
from urllib.parse import quote

from penstock.log.serving.directory import try_flock

FILE: Final = "ui.json"
#: Names the page of a log that is no directory of this machine.
VARIABLE: Final = "PENSTOCK_UI"


class Place:
    """Tells of a page until it is closed; of several for one directory, the first does."""

    def __init__(self, data_dir: Path, url: str) -> None:
        self._path = data_dir / FILE
        self._fd: int | None = None
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # it may only be read: the page is served all the same
        if try_flock(fd, fcntl.LOCK_EX):
            os.ftruncate(fd, 0)
            os.write(fd, json.dumps({"url": url}).encode())
            self._fd = fd
        else:
            os.close(fd)

    def close(self) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def find_page(target: str) -> str | None:
    """The address of the page of a log; None if none is known to be served."""
    if "://" in target:
        return os.environ.get(VARIABLE) or None
    try:
        fd = os.open(Path(target, FILE), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return os.environ.get(VARIABLE) or None
    try:
        if try_flock(fd, fcntl.LOCK_SH):
            return None  # nobody holds it
        url = json.loads(os.read(fd, 4096) or b"{}").get("url")
    except (ValueError, AttributeError):
        return None
    finally:
        os.close(fd)
    return url if isinstance(url, str) and url.startswith(("http://", "https://")) else None


def page_of_query(target: str, query: str) -> str | None:
    """Where that page shows a query."""
    url = find_page(target)
    return None if url is None else f"{url.rstrip('/')}/#query={quote(query, safe='')}"
