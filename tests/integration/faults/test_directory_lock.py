"""One directory, one server: the lock decides, whatever a dead server left behind."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NoReturn

import pytest
from harness.server_process import ServerProcess

from penstock.config import ServerConfig
from penstock.errors import Unavailable
from penstock.log.client.client import AsyncLog
from penstock.log.records import NewEntry
from penstock.log.server.server import LogServer
from penstock.log.serving.directory import DirectoryLock, is_locked, read_address
from penstock.log.serving.process import EXIT_FATAL


async def append_one(server: ServerProcess, payload: bytes) -> list[bytes]:
    """Append through a client of its own, and read everything back."""
    async with await AsyncLog.connect(server.endpoint()) as log:
        await log.append([NewEntry(payload, ("t",))])
        return [entry.payload for entry in await log.read(["t"])]


async def test_a_second_server_of_a_directory_is_refused_and_the_first_goes_on(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "data") as first:
        address = read_address(first.data_dir)
        second = ServerProcess(first.data_dir)
        second.launch()

        assert second.wait() == EXIT_FATAL

        assert "another server has" in first.output()
        assert read_address(first.data_dir) == address
        assert await append_one(first, b"still here") == [b"still here"]


async def test_the_lock_of_a_killed_server_is_recognised_as_stale(server: ServerProcess) -> None:
    assert await append_one(server, b"before") == [b"before"]
    assert is_locked(server.data_dir)

    server.kill()

    assert (server.data_dir / "server.json").exists(), "a killed server cleans nothing up"
    assert not is_locked(server.data_dir)
    assert read_address(server.data_dir) is None
    server.start()
    assert await append_one(server, b"after") == [b"before", b"after"]


async def test_a_dead_servers_address_is_gone_before_its_successor_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port may belong to anybody by now, and the token would be shown to them."""
    with ServerProcess(tmp_path / "data") as dead:
        dead.kill()
    assert (dead.data_dir / "server.json").exists()
    shown = []

    def recover(*_: object, **__: object) -> NoReturn:
        assert is_locked(dead.data_dir)
        shown.append(read_address(dead.data_dir))
        raise Unavailable("seen enough")

    monkeypatch.setattr("penstock.log.server.server.open_storage", recover)
    with pytest.raises(Unavailable, match="seen enough"):
        await LogServer(ServerConfig(dead.data_dir, port=0)).run()

    assert shown == [None]


def test_clients_that_look_for_a_server_never_keep_one_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who looks has the lock for a moment, and may fall asleep in it.
    monkeypatch.setattr("penstock.log.serving.directory.LOCK_SECONDS", 30.0)
    data_dir = tmp_path / "data"
    DirectoryLock(data_dir).release()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            is_locked(data_dir)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(300):
            DirectoryLock(data_dir).release()
    finally:
        done.set()
        for looker in lookers:
            looker.join()


def test_the_lock_is_refused_while_another_holds_it_and_free_right_after(tmp_path: Path) -> None:
    held = DirectoryLock(tmp_path)

    with pytest.raises(Unavailable, match="another server has"):
        DirectoryLock(tmp_path)
    assert is_locked(tmp_path)

    held.release()
    assert not is_locked(tmp_path)
    DirectoryLock(tmp_path).release()
