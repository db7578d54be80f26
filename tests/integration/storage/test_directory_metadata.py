"""The metadata of a directory: what its files bear, and several processes at once."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    BadConfig,
    BadFormat,
    ChecksumMismatch,
    Damaged,
    Refused,
    Unavailable,
    Unknown,
)
from penstock.log.meta import embedded
from penstock.log.meta.api import Versioned
from penstock.log.meta.embedded import DirectoryMetadata

WORKER = """
import asyncio, sys
from pathlib import Path
from penstock.errors import VersionConflict
from penstock.log.meta.embedded import DirectoryMetadata

async def main():
    store = await DirectoryMetadata.open(Path(sys.argv[1]))
    await store.create(f"/workers/{sys.argv[2]}", b"", ephemeral=True)
    print("ready", flush=True)
    for _ in range(int(sys.argv[3])):
        while True:
            found = await store.get("/count")
            try:
                await store.set("/count", str(int(found.data) + 1).encode(), found.version)
                break
            except VersionConflict:
                pass
        print("counted", flush=True)
    if len(sys.argv) > 4:
        await asyncio.Event().wait()
    await store.close()

asyncio.run(main())
"""


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(main())


@contextmanager
def worker(directory: Path, name: str, count: int, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", WORKER, str(directory), name, str(count), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def test_processes_that_count_together_lose_nothing_though_one_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await DirectoryMetadata.open(tmp_path)
        await store.create("/count", b"0")
        with (
            worker(tmp_path, "a", 40) as first,
            worker(tmp_path, "b", 40) as second,
            worker(tmp_path, "c", 100_000) as killed,
        ):
            assert killed.stdout is not None
            acknowledged = 0
            while acknowledged < 10:
                acknowledged += killed.stdout.readline() == b"counted\n"
            killed.kill()
            killed.wait()
            acknowledged += killed.stdout.read().count(b"counted\n")
            assert await asyncio.to_thread(first.wait) == 0
            assert await asyncio.to_thread(second.wait) == 0

        found = await store.get("/count")
        assert found is not None
        assert found.version == int(found.data)
        assert int(found.data) - 80 - acknowledged in (
            0,
            1,
        )  # the last one may have been told or not
        assert await store.children("/workers") == []
        await store.close()

    run(scenario())


def test_a_paused_process_keeps_its_node_and_a_killed_one_loses_it_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await DirectoryMetadata.open(tmp_path)
        with worker(tmp_path, "a", 0, "stay") as process:
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.3)
            assert await store.children("/workers") == ["a"]

            woken = asyncio.Event()
            store.watch("/workers/a", woken.set)
            await woken.wait()
            woken.clear()
            process.kill()
            process.wait()
            killed = time.monotonic()
            await woken.wait()
            assert time.monotonic() - killed < 1.0
            assert await store.children("/workers") == []
            assert await store.get("/workers/a") is None
        await store.close()

    run(scenario())


def test_a_file_that_is_damaged_is_never_a_missing_node(tmp_path: Path) -> None:
    """R40, for each byte of it."""

    async def scenario() -> None:
        store = await DirectoryMetadata.open(tmp_path)
        await store.create("/logs/main", b"manifest")
        file = tmp_path / "nodes" / "logs,main"
        good = file.read_bytes()
        for place in range(len(good)):
            file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(Damaged):
                await store.get("/logs/main")
        for size in range(len(good)):
            file.write_bytes(good[:size])
            with pytest.raises(Damaged):
                await store.get("/logs/main")
        file.write_bytes(good[:-1])
        with pytest.raises(ChecksumMismatch):
            await store.set("/logs/main", b"", 0)
        with pytest.raises(ChecksumMismatch):
            await store.children("/logs")
        with pytest.raises(ChecksumMismatch):
            await store.create("/logs/main", b"")
        with pytest.raises(ChecksumMismatch):
            await store.delete("/logs")

        # Another session, whose opening sweeps, leaves it where it is.
        other = await DirectoryMetadata.open(tmp_path)
        await other.close()
        assert file.read_bytes() == good[:-1]
        file.write_bytes(b"something else entirely, of somebody")
        with pytest.raises(BadFormat):
            await store.get("/logs/main")
        file.write_bytes(good)
        assert await store.get("/logs/main") == Versioned(b"manifest", 0)
        await store.close()

    run(scenario())


def test_a_link_is_not_followed_and_foreign_files_are_not_nodes(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await DirectoryMetadata.open(tmp_path / "m")
        await store.create("/a", b"1")
        nodes = tmp_path / "m" / "nodes"
        (nodes / "a").rename(tmp_path / "elsewhere")
        (nodes / "a").symlink_to(tmp_path / "elsewhere")
        (nodes / "a~").write_bytes(b"an editor's copy")

        with pytest.raises(Unavailable):
            await store.get("/a")
        (nodes / "a").unlink()
        assert await store.children("/") == []
        await store.close()

    run(scenario())


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = os.umask(0)
        try:
            store = await DirectoryMetadata.open(tmp_path / "m")
            await store.create("/a/b", b"", ephemeral=True)
        finally:
            os.umask(before)
        found = [tmp_path / "m", *(tmp_path / "m").rglob("*")]
        assert len(found) >= 7
        assert [path for path in found if path.stat().st_mode & 0o077] == []
        await store.close()

    run(scenario())


def test_a_failure_before_the_change_is_unavailable_and_one_after_it_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R48: after a failed sync nobody claims to know."""

    async def scenario() -> None:
        store = await DirectoryMetadata.open(tmp_path)
        await store.create("/a", b"0")
        (tmp_path / "new").mkdir()
        with pytest.raises(Unavailable):
            await store.set("/a", b"1", 0)
        (tmp_path / "new").rmdir()
        assert await store.get("/a") == Versioned(b"0", 0)

        def fail(_: Path) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(embedded, "_sync_directory", fail)
            with pytest.raises(Unknown):
                await store.set("/a", b"1", 0)
            # Nobody is shown what may not be on disk.
            with pytest.raises(Unavailable):
                await store.get("/a")
        assert await store.get("/a") == Versioned(b"1", 1)
        await store.close()

    run(scenario())


def test_a_change_whose_maker_died_before_its_sync_is_synced_before_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = await DirectoryMetadata.open(tmp_path)
        await store.create("/a", b"0")
        _, count = embedded._STATE.unpack((tmp_path / "lock").read_bytes())
        (tmp_path / "lock").write_bytes(embedded._STATE.pack(True, count))
        synced: list[Path] = []
        really = embedded._sync_directory
        monkeypatch.setattr(
            embedded, "_sync_directory", lambda path: (synced.append(path), really(path))
        )

        assert await store.get("/a") == Versioned(b"0", 0)
        assert await store.get("/a") == Versioned(b"0", 0)

        assert synced == [tmp_path / "nodes"]
        await store.close()

    run(scenario())


def test_a_lock_that_is_not_given_back_makes_it_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_SECONDS", 0.1)

    async def scenario() -> None:
        store = await DirectoryMetadata.open(tmp_path)
        await store.create("/a", b"0")
        with open(tmp_path / "lock", "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(Unavailable, match="is it paused"):
                await store.get("/a")
            with pytest.raises(Unavailable, match="is it paused"):
                await store.set("/a", b"1", 0)
            started = time.monotonic()
            await store.close()
            assert time.monotonic() - started < 3.0
        other = await DirectoryMetadata.open(tmp_path)
        assert await other.get("/a") == Versioned(b"0", 0)
        await other.close()

    run(scenario())


def test_what_dead_sessions_left_is_swept_by_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await DirectoryMetadata.open(tmp_path)
        for number in range(3):
            with worker(tmp_path, str(number), 0, "stay") as process:
                process.kill()
                process.wait()
        assert await store.children("/workers") == []
        await store.create("/workers/0/below", b"")  # the dead node is no parent either
        other = await DirectoryMetadata.open(tmp_path)

        assert sorted(os.listdir(tmp_path / "nodes")) == ["workers", "workers,0", "workers,0,below"]
        assert len(os.listdir(tmp_path / "sessions")) == 2
        await store.close()
        await other.close()
        assert os.listdir(tmp_path / "sessions") == []

    run(scenario())


def test_a_refused_change_wakes_nobody(tmp_path: Path) -> None:
    """Whoever tries again when woken would wake itself, and all others, for ever."""

    async def scenario() -> None:
        store = await DirectoryMetadata.open(tmp_path)
        await store.create("/a", b"")
        calls: list[int] = []
        store.watch("/a", lambda: calls.append(1))
        await asyncio.sleep(0.15)
        calls.clear()

        for call in (store.create("/a", b""), store.set("/a", b"", 9), store.delete("/b")):
            with pytest.raises(Refused):
                await call
        await asyncio.sleep(0.15)

        assert calls == []
        await store.close()

    run(scenario())


def test_whoever_looks_at_a_dead_session_is_not_taken_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await DirectoryMetadata.open(tmp_path)
        before = set(os.listdir(tmp_path / "sessions"))
        with worker(tmp_path, "a", 0, "stay") as process:
            (name,) = set(os.listdir(tmp_path / "sessions")) - before
            process.kill()
            process.wait()
        with open(tmp_path / "sessions" / name, "rb") as looked_at:
            fcntl.flock(looked_at, fcntl.LOCK_SH)
            assert await store.children("/workers") == []
        await store.close()

    run(scenario())


def test_a_place_that_cannot_be_a_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def scenario() -> None:
        with pytest.raises(BadConfig, match="cannot keep metadata in"):
            await DirectoryMetadata.open(tmp_path / "file" / "m")

    run(scenario())
