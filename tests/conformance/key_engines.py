"""Every engine of bytes by key that must behave alike, and how its stored bytes go bad.

As a program it commits for ever, and says each cut once that is durable, until it is killed:
`key_engines.py KIND PLACE NAME`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from harness.redis import RedisServer

from penstock.log.storage.disk import RealDisk
from penstock.state.stores.bytes_api import Engine
from penstock.state.stores.indexed import IndexedEngine


class Engines(Protocol):
    """One place of one kind."""

    def open(self, name: str = "one") -> Engine:
        """A fresh view of what is there under this name."""

    def damage(self, value: bytes) -> None:
        """A bit of this stored value goes bad, of the one named "one"; nothing is open."""

    def arguments(self) -> list[str]:
        """For `writer`."""


class IndexedFiles:
    """Small files: whatever the suite does, some of it lies in full ones."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def open(self, name: str = "one") -> IndexedEngine:
        disk = RealDisk(self._place / name)
        return IndexedEngine(disk, segment_bytes=4096, segment_commits=20)

    def damage(self, value: bytes) -> None:
        assert _flip(self._place.rglob("*.data"), value)

    def arguments(self) -> list[str]:
        return ["indexed", str(self._place)]


class Rocksdb:
    def __init__(self, place: Path) -> None:
        self._place = place

    def open(self, name: str = "one") -> Engine:
        from penstock.state.stores.rocksdb_engine import RocksdbEngine

        return RocksdbEngine(self._place / name)

    def damage(self, value: bytes) -> None:
        import rocksdict

        db = rocksdict.Rdict(str(self._place / "one"), rocksdict.Options(raw_mode=True))
        db.flush()  # from its log to a file of its own
        db.close()
        assert _flip(self._place.rglob("*.sst"), value)

    def arguments(self) -> list[str]:
        return ["rocksdb", str(self._place)]


class Redis:
    def __init__(self, server: RedisServer) -> None:
        self.server = server
        with server.client() as client:
            client.flushall()

    def open(self, name: str = "one") -> Engine:
        from penstock.state.stores.redis_engine import RedisEngine

        return RedisEngine(self.server.url, name)

    def damage(self, value: bytes) -> None:
        with self.server.client() as client:
            for key in client.scan_iter(b"penstock:{one}:???"):
                for field, stored in client.hgetall(key).items():
                    if stored.endswith(value):
                        client.hset(key, field, stored[:-1] + bytes([stored[-1] ^ 4]))

    def arguments(self) -> list[str]:
        return ["redis", self.server.url]


def _flip(paths: Iterator[Path], value: bytes) -> bool:
    done = False
    for path in list(paths):
        data = bytearray(path.read_bytes())
        at = data.find(value)
        while at >= 0:
            data[at + len(value) - 1] ^= 4
            done = True
            at = data.find(value)
        path.write_bytes(data)
    return done


@contextmanager
def writer(engines: Engines) -> Iterator[subprocess.Popen[bytes]]:
    """A process that commits; it is killed at the end if it is not yet."""
    process = subprocess.Popen(
        [sys.executable, __file__, *engines.arguments()],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def rows_at(cut: int) -> dict[bytes, bytes]:
    """What there is once commit `cut` is durable: each has its number in five rows of ten."""
    rows = {}
    for number in range(max(1, cut - 10), cut + 1):
        rows |= commit_of(number)
    return rows


def commit_of(cut: int) -> dict[bytes, bytes]:
    return {b"%03d" % ((cut + 2 * n) % 10): b"%d" % cut * 20 for n in range(5)}


def commit_for_ever(engine: Any) -> None:
    cut = engine.cut()
    while True:
        engine.commit(commit_of(cut + 1), base=cut, cut=cut + 1)
        cut += 1
        print(cut, flush=True)


if __name__ == "__main__":
    kind, place = sys.argv[1:]
    if kind == "redis":
        from penstock.state.stores.redis_engine import RedisEngine

        commit_for_ever(RedisEngine(place, "one"))
    kinds: dict[str, Any] = {"indexed": IndexedFiles, "rocksdb": Rocksdb}
    commit_for_ever(kinds[kind](Path(place)).open())
