"""A new data directory is there after a power cut, and so are the new ones above it.

Method: what is made and what is synced is written down. Each directory that was made needs a sync
of the one that holds it, after it was made.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.warm_starts import cold_starts

from penstock.log import embedded
from penstock.log.directories import make_directory
from penstock.log.local_cluster import LocalCluster
from penstock.log.meta.zookeeper_server import ZooKeeperServer
from penstock.log.node.server import NodeDisks
from penstock.log.serving.directory import DirectoryLock, ensure_token
from penstock.log.storage.cold import FileSystemColdStore
from penstock.log.storage.disk import RealDisk


class Record:
    """The directories that were made, and those of them that a power cut would take.

    Only below `top`: threads of other tests may still be at work elsewhere.
    """

    def __init__(self, patch: pytest.MonkeyPatch, top: Path) -> None:
        self.made: list[Path] = []
        self.lost: list[Path] = []
        self.synced: list[Path] = []
        mkdir, fsync = os.mkdir, os.fsync

        def make(path: str | Path, *rest: int) -> None:
            mkdir(path, *rest)
            if Path(path).is_relative_to(top):
                self.made.append(Path(path))
                self.lost.append(Path(path))

        def sync(fd: int) -> None:
            fsync(fd)
            synced = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if synced.is_relative_to(top):
                self.synced.append(synced)
                self.lost = [each for each in self.lost if each.parent != synced]

        patch.setattr(os, "mkdir", make)
        patch.setattr(os, "fsync", sync)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    return Record(monkeypatch, tmp_path)


def start_embedded(path: Path) -> None:
    with cold_starts(), pytest.raises(OSError, match="no process"):
        embedded._start_server(path)


def start_zookeeper(path: Path) -> None:
    with pytest.raises(OSError, match="no process"):
        ZooKeeperServer(path).start()


MAKERS: dict[str, Callable[[Path], object]] = {
    "embedded": start_embedded,
    "a lock": lambda path: DirectoryLock(path).release(),
    "a disk": RealDisk,
    "a cold store": lambda path: FileSystemColdStore(path.as_uri()),
    "a node": NodeDisks.real,
    "cluster up": LocalCluster,
    "zookeeper": start_zookeeper,
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("depth", [1, 3])
def test_what_was_made_survives_a_power_cut(
    tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch, maker: str, depth: int
) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise OSError("no process")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    path = tmp_path.joinpath(*"abc"[:depth])

    MAKERS[maker](path)

    assert path in record.made and path.stat().st_mode & 0o777 == 0o700
    assert record.lost == []


def test_a_directory_that_somebody_made_and_did_not_live_to_sync_is_synced(
    tmp_path: Path, record: Record
) -> None:
    os.mkdir(tmp_path / "a")

    make_directory(tmp_path / "a" / "b")
    assert record.lost == []

    os.mkdir(tmp_path / "c")
    make_directory(tmp_path / "c")
    assert record.lost == []


def test_a_directory_whose_parent_may_not_be_read_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def refuse(path: str | Path, *rest: int, **more: int) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(13, "not for you")
        return real_open(path, *rest, **more)

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(os, "open", refuse)

    make_directory(tmp_path / "a")


def test_a_copy_in_a_cold_store_that_was_removed_meanwhile_survives_a_power_cut(
    tmp_path: Path, record: Record
) -> None:
    store = FileSystemColdStore((tmp_path / "a" / "b").as_uri())
    (tmp_path / "a" / "b").rmdir()
    (tmp_path / "a").rmdir()
    record.made.clear()

    store.put("log/segment", b"x")

    assert record.made == [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "log"]
    assert record.lost == [] and tmp_path / "a" / "b" / "log" in record.synced


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            make_directory(path)


def test_a_new_token_is_synced_before_it_has_its_name(tmp_path: Path, record: Record) -> None:
    ensure_token(tmp_path / "token")

    assert [path.name.split(".")[0] for path in record.synced] == ["token", tmp_path.name]


def test_a_token_is_made_after_a_crash_of_a_process_of_the_same_number(tmp_path: Path) -> None:
    (tmp_path / f"token.{os.getpid()}").touch()

    assert len(ensure_token(tmp_path / "token")) == 64
