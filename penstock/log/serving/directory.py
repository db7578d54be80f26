"""A process's data directory: who holds it, where it listens, and its token.

    data_dir/        mode 0700
      lock           flock of the running process; the kernel releases it when the process dies
      token          the secret that everyone who connects proves to know, mode 0600
      server.json    where that process listens (a storage node: node.json)
      log/           a log server's files: storage/
      identity.json  a storage node's name and cookie: node/cookie.py, also in the two below
      journal/       node/journal.py
      segments/      node/segment_store.py

Law: two processes never open the same directory: the lock is taken before anything is read. An
address left by a dead process is recognised by its free lock, never by its age.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.errors import BadConfig, Unavailable
from penstock.log.directories import make_directory, sync_directory
from penstock.wire.token import is_narrowed

#: `is_locked` holds the lock itself for some microseconds: only what stays taken is another's.
LOCK_SECONDS = 0.5
TOKEN_FILE = "token"
SERVER_FILE = "server.json"
NODE_FILE = "node.json"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a process listens."""

    host: str
    port: int
    tls: bool = False


def url_of(found: Address) -> str:
    """Of an HTTP server that listens there."""
    return f"{'https' if found.tls else 'http'}://{host_and_port(found)}"


def host_and_port(found: Address) -> str:
    host = f"[{found.host}]" if ":" in found.host else found.host
    return f"{host}:{found.port}"


class DirectoryLock:
    """An exclusive hold on a data directory."""

    def __init__(self, data_dir: Path, holder: str = "server") -> None:
        """`holder` is what to call whoever holds it already."""
        make_directory(data_dir)
        self._fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_SECONDS
        while not try_flock(self._fd, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                os.close(self._fd)
                raise Unavailable(f"another {holder} has {data_dir} open")
            time.sleep(0.002)

    def release(self) -> None:
        os.close(self._fd)


def is_locked(data_dir: Path) -> bool:
    """A live process holds the directory."""
    try:
        fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def try_flock(fd: int, kind: int) -> bool:
    """Without waiting. It is released when what `fd` opened is closed."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def ensure_token(path: Path) -> str:
    """The token, made on first use. A token that others may read is refused."""
    make_secret(path, secrets.token_hex(32))
    return read_root_token(path, "remove the file to have a new one made")


def make_secret(path: Path, text: str) -> None:
    """A file with a secret for nobody else, unless there is one; durable when this returns."""
    if path.exists():
        return
    # Not by its number: in a container all have the same, and one that was killed left its file.
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(fd)  # before it has its name, or a crash could leave an empty one
    try:
        os.link(temporary, path)  # unlike a rename, this never replaces another's secret
    except FileExistsError:
        pass
    os.unlink(temporary)
    sync_directory(path.parent)


def read_root_token(path: Path, advice: str = "it needs at least 32 letters") -> str:
    """The token of a server of its own."""
    token = read_token(path, advice)
    if is_narrowed(token):
        raise BadConfig(f"the token in {path} was narrowed: a server needs the root token")
    return token


def read_token(path: Path, advice: str = "it needs at least 32 letters") -> str:
    """`advice` is for who has a file that is no token."""
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadConfig(f"cannot read the token file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadConfig(f"the token file {path} is not UTF-8 text: {advice}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadConfig(f"others may read the token file {path}: chmod 600 {path}")
    if len(token) < 32:
        raise BadConfig(f"the token in {path} is too short: {advice}")
    return token


def write_address(path: Path, address: Address, **more: str) -> None:
    """Tell people, and clients on this machine, where the holder of the directory listens."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(json.dumps({**asdict(address), "pid": os.getpid(), **more}))
    os.replace(temporary, path)


def read_address(data_dir: Path) -> Address | None:
    """Where the live server of this directory listens; None if none is alive or ready."""
    if not is_locked(data_dir):
        return None
    try:
        found = json.loads((data_dir / SERVER_FILE).read_text())
        return Address(str(found["host"]), int(found["port"]), bool(found.get("tls")))
    except (OSError, ValueError, KeyError):
        return None


def remove_address(path: Path) -> None:
    """Whoever's it is: for a process that has just taken the lock."""
    path.unlink(missing_ok=True)


def remove_own_address(path: Path) -> None:
    """Only ours: the directory may have been replaced under us, and be another's now."""
    try:
        if json.loads(path.read_text())["pid"] == os.getpid():
            remove_address(path)
    except (OSError, ValueError, KeyError):
        pass  # gone, or not ours
