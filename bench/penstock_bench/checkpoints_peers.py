"""What stores of checkpoints are measured beside: a file per key, and a Redis of our own.

A file per key is what S4 shipped with, and the baseline of the thesis about its checkpoints. It is
of no use to anybody else: a commit of several keys is not atomic, and every file is synced.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import Unavailable
from penstock.state.stores.redis_engine import RedisEngine

_START_SECONDS: Final = 30.0


class FilePerKey:
    """Puts and gets as the engines have them; what is durable is each file for itself."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._cut = 0

    def cut(self) -> int:
        """Only of this process."""
        return self._cut

    def commit(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes] = (),
        *,
        base: int | None,
        cut: int,
    ) -> None:
        for key, value in puts.items():
            self.write(key, value, is_durable=True)
        for key in deletes:
            os.unlink(self._directory / key.hex())
        os.fsync(self._folder)  # the names
        self._cut = cut

    def write(self, key: bytes, value: bytes, *, is_durable: bool) -> None:
        """A new file in the place of the old one."""
        path = str(self._directory / key.hex())
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(path + ".new", flags, 0o600)
        try:
            os.write(fd, value)
            if is_durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(path + ".new", path)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [(self._directory / key.hex()).read_bytes() for key in keys]

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for path in self._directory.iterdir():
            key = bytes.fromhex(path.name)
            if key.startswith(prefix):
                yield key, path.read_bytes()

    def close(self) -> None:
        os.close(self._folder)


@contextmanager
def own_redis(directory: Path) -> Iterator[str | None]:
    """The URL of a server that syncs every commit; None if there is no Redis here."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    directory.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": f'"{directory}"',
        "appendonly": "yes",
        "appendfsync": "always",
        "save": '""',
    }
    lines = [f"{name} {value}" for name, value in settings.items()]
    (directory / "redis.conf").write_text("\n".join(lines))
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            [program, str(directory / "redis.conf")], stdout=output, stderr=output
        )
    try:
        url = f"redis://127.0.0.1:{port}/0"
        _await(url)
        yield url
    finally:
        process.terminate()
        process.wait()


def _await(url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            RedisEngine(url, "nobody").close()
            return
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
