"""A storage node's data directory: who holds it, and the token.

    data_dir/           mode 0700
      lock              flock of the running node; the kernel releases it when the process dies
      token             the secret that every proxy shows, mode 0600
      identity.json     name and cookie (cookie.py), also in both directories below
      node.json         where the running node listens; meaningless unless the lock is held
      journal/          journal.py
      segments/         segment_store.py

Law: two nodes never open the same directory: the lock is taken before anything is read.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import time
from pathlib import Path

from penstock.errors import BadConfig, Unavailable

#: Whoever asks whether a directory is locked holds it for some microseconds.
LOCK_SECONDS = 0.5


class DirectoryLock:
    """An exclusive hold on a data directory."""

    def __init__(self, data_dir: Path) -> None:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_SECONDS
        while not self._try():
            if time.monotonic() >= deadline:
                os.close(self._fd)
                raise Unavailable(f"another process has {data_dir} open")
            time.sleep(0.002)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            return False

    def release(self) -> None:
        os.close(self._fd)


def ensure_token(path: Path) -> str:
    """The token, made on first use. A token that others may read is refused."""
    if not path.exists():
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        try:
            os.link(temporary, path)  # unlike a rename, this never replaces another's token
        except FileExistsError:
            pass
        os.unlink(temporary)
    return read_token(path)


def read_token(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        token = path.read_text().strip()
    except OSError as error:
        raise BadConfig(f"cannot read the token file {path}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadConfig(f"others may read the token file {path}: chmod 600 {path}")
    if len(token) < 32:
        raise BadConfig(f"the token in {path} is too short: it needs 32 letters")
    return token


def write_address(data_dir: Path, host: str, port: int, tls: bool) -> None:
    """Tell people and tests where the node listens."""
    temporary = data_dir / "node.json.new"
    temporary.write_text(json.dumps({"host": host, "port": port, "tls": tls, "pid": os.getpid()}))
    os.replace(temporary, data_dir / "node.json")


def remove_address(data_dir: Path) -> None:
    (data_dir / "node.json").unlink(missing_ok=True)
