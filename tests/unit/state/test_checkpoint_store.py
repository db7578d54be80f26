"""Checkpoint files: written, read, swept, and never half visible."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import (
    BadConfig,
    BadFormat,
    BadRequest,
    ChecksumMismatch,
    Damaged,
    MissingFile,
    Unavailable,
)
from penstock.state.api import Change
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.parts import TABLE, VALUE, Part

LOG = "0123456789abcdef" * 2
OTHER_LOG = "f" * 32
TASK = "hot-items.1/0/2"


def _changes(count: int = 100) -> list[Change]:
    rows = pa.record_batch({"k": np.arange(count)})
    value = Change("op/v", "set", pa.record_batch({"value": [count]}))
    return [Change("op/t", "put", rows), value]


_PARTS = {
    "op/t": Part(TABLE, pa.schema([("k", pa.int64())]), (0,), (0,)),
    "op/v": Part(VALUE, pa.schema([("value", pa.int64())]), (), ()),
}


def _write(
    store: CheckpointStore, lsn: int = 10, count: int = 100, task: str = TASK, instance: int = 1
) -> CheckpointRef:
    changes = _changes(count)
    return store.write(
        task, marker_lsn=lsn, instance=instance, fingerprint="f", parts=_PARTS, changes=changes
    )


def _keys(changes: list[Change]) -> list[int]:
    return sorted(k for c in changes if c.kind == "put" for k in c.rows.column("k").to_pylist())


def _files(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


@pytest.fixture(params=["path", "uri", "mock"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    uris = {"path": str(tmp_path / "a b"), "uri": (tmp_path / "c").as_uri(), "mock": "mock:///d"}
    return CheckpointStore(uris[request.param], LOG)


def test_what_was_written_is_read(store: CheckpointStore) -> None:
    ref = _write(store)

    changes = store.read(CheckpointRef.from_json(ref.to_json()))

    assert _keys(changes) == list(range(100))
    assert [c.rows.to_pylist() for c in changes if c.kind == "set"] == [[{"value": 100}]]
    assert (ref.task, ref.marker_lsn, ref.instance) == (TASK, 10, 1)
    assert store.read_meta(ref).fingerprint == "f"
    assert store.read_meta(ref).rows == 100


def test_virtual_nodes_are_read_alone_with_what_is_the_tasks(store: CheckpointStore) -> None:
    ref = _write(store)

    halves = [store.read(ref, nodes=range(first, 64, 2)) for first in (0, 1)]

    assert sorted(_keys(halves[0]) + _keys(halves[1])) == list(range(100))
    assert all(_keys(half) and half[-1].kind == "set" for half in halves)


def test_a_second_write_of_the_same_is_the_same_file(store: CheckpointStore) -> None:
    ref = _write(store)

    assert _write(store) == ref
    assert _keys(store.read(ref)) == list(range(100))
    assert store.sweep_before(TASK, 11) == [ref.path]


def test_instances_do_not_overwrite_each_other(store: CheckpointStore) -> None:
    zombie, ours = _write(store, instance=1, count=50), _write(store, instance=2)

    assert _keys(store.read(zombie)) == list(range(50))
    assert _keys(store.read(ours)) == list(range(100))


def test_sweeping_deletes_what_lies_before_and_nothing_else(store: CheckpointStore) -> None:
    refs = [_write(store, lsn) for lsn in (10, 20, 30)]
    other = _write(store, 10, task="hot-items.1/0/3")

    assert store.sweep_before(TASK, 20) == [refs[0].path]
    assert store.sweep_before(TASK, 20) == []
    with pytest.raises(MissingFile, match="is not in"):
        store.read(refs[0])
    for ref in (*refs[1:], other):
        store.read(ref)
    assert store.sweep_before("nobody.1/0/0", 20) == []


def test_two_logs_with_one_root_leave_each_others_files(tmp_path: Path) -> None:
    """Their queries have one name, and their positions are not comparable."""
    old, young = (CheckpointStore(str(tmp_path), log) for log in (LOG, OTHER_LOG))
    kept = _write(young, 10, count=7)
    refs = [_write(old, lsn) for lsn in (1000, 2000)]

    assert old.sweep_before(TASK, 2000) == [refs[0].path]

    assert _keys(young.read(kept)) == list(range(7))
    assert (kept.task, refs[1].task) == (TASK, TASK)


def test_a_folder_that_is_away_is_not_known_to_have_lost_anything(tmp_path: Path) -> None:
    """As one that was not mounted: nobody may conclude that a checkpoint is gone."""
    root = tmp_path / "mounted"
    store = CheckpointStore(str(root), LOG)
    ref = _write(store)
    root.rename(tmp_path / "unmounted")
    with pytest.raises(Unavailable, match="mounted"):
        store.read(ref)

    (tmp_path / "unmounted").rename(root)

    assert _keys(store.read(ref)) == list(range(100))


def test_files_of_earlier_versions_are_read_and_never_swept(tmp_path: Path) -> None:
    """They had no log in their path, so nobody can tell whose they are."""
    store = CheckpointStore(str(tmp_path), LOG)
    new = _write(store)
    (tmp_path / TASK).mkdir(parents=True)
    path = new.path.removeprefix(f"{LOG}/")
    os.rename(tmp_path / new.path, tmp_path / path)
    ref = CheckpointRef.from_json({**new.to_json(), "path": path})

    assert _keys(store.read(ref)) == list(range(100))
    assert ref.task == TASK
    assert store.sweep_before(TASK, 100) == []
    assert _files(tmp_path) == [path]


def test_sweeping_leaves_what_is_not_ours(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path), LOG)
    ref = _write(store, 10)
    folder = tmp_path / LOG / TASK
    name = Path(ref.path).name
    strange = [
        *("notes.txt", f"x{name}", f"{name}.bak", name.replace(".ckpt", ".CKPT"), name[1:]),
        *("00000000000000000010-1.new", "00000000000000000010-1.zzzzzzzzzzzzzzzz.new"),
    ]
    for value in strange:
        (folder / value).write_bytes(b"x")
    (folder / name.replace("0000010", "0000011")).mkdir()  # a directory with a name like ours
    (folder / name.replace("0000010", "0000012")).symlink_to(folder / "notes.txt")
    mine = folder / "00000000000000000010-1.0123456789abcdef.new"
    newer = folder / "00000000000000000030-1.0123456789abcdef.new"
    mine.write_bytes(b"x")
    newer.write_bytes(b"x")

    deleted = store.sweep_before(TASK, 30)

    assert deleted == sorted([f"{LOG}/{TASK}/{mine.name}", ref.path])
    assert {*strange, newer.name} < set(os.listdir(folder))
    assert len(os.listdir(folder)) == len(strange) + 3


@pytest.mark.parametrize(
    "task",
    [
        *("", "..", "../x.1/0/0", "a.1/0/../0", "/a.1/0/0"),
        *("a.1/0/0/", "a.1/0", "a/0/0", ".a.1/0/0"),
        *("a.1/0/0\n", "a b.1/0/0", "ä.1/0/0", "a.1/0/٣", "a.1/0/0\0", "a..1/0/0", "a.1//0"),
    ],
)
def test_names_that_are_no_tasks_are_refused(tmp_path: Path, task: str) -> None:
    store = CheckpointStore(str(tmp_path / "root"), LOG)
    with pytest.raises(BadRequest, match="is no task"):
        _write(store, task=task)
    with pytest.raises(BadRequest, match="is no task"):
        store.sweep_before(task, 10)
    assert _files(tmp_path) == []


def test_a_reference_leads_nowhere_else(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path), LOG)
    ref = _write(store)
    good = ref.to_json()
    bad: list[Any] = [
        *(None, [], {}, {**good, "more": 1}, {**good, "bytes": "9"}, {**good, "crc": -1}),
        *({**good, "path": "/etc/passwd"}, {**good, "path": f"../{ref.path}"}, {**good, "crc": 1}),
        *({**good, "marker_lsn": 11}, {**good, "instance": True}, {**good, "path": 3}),
    ]
    for one in bad:
        with pytest.raises(BadFormat):
            CheckpointRef.from_json(one)
    with pytest.raises(BadFormat):
        store.read(dataclasses.replace(ref, path=f"../x/{ref.path}"))


def test_damage_and_loss_of_bytes_are_noticed(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path), LOG)
    ref = _write(store)
    path = tmp_path / ref.path
    data = path.read_bytes()

    flipped = bytearray(data)
    flipped[len(data) // 4] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(ChecksumMismatch):
        store.read(ref)
    path.write_bytes(data[:-1])
    with pytest.raises(BadFormat, match="bytes, expected"):
        store.read(ref)
    path.write_bytes(bytes(len(data)))
    with pytest.raises(Damaged):
        store.read(ref)
    others = (_write(store, lsn) for lsn in range(20, 90))
    other = next(other for other in others if other.bytes == ref.bytes)
    path.write_bytes((tmp_path / other.path).read_bytes())
    with pytest.raises(ChecksumMismatch, match="another checkpoint"):
        store.read(ref)


def test_files_and_directories_are_the_owners_alone(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "root"
    mask = os.umask(0)
    try:
        ref = _write(CheckpointStore(str(root), LOG))
    finally:
        os.umask(mask)

    path = root / ref.path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    while path != tmp_path:
        path = path.parent
        if path != tmp_path:
            assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_store_that_nobody_can_open_is_a_bad_setting() -> None:
    with pytest.raises(BadConfig, match="checkpoint store nowhere://x"):
        CheckpointStore("nowhere://x", LOG)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(str(tmp_path), LOG)
    kept = _write(store, 10)

    def refuse(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(Unavailable, match="no space left"):
        _write(store, 20)
    monkeypatch.undo()

    assert _files(tmp_path) == [kept.path]
    assert _keys(store.read(kept)) == list(range(100))


class Crash(BaseException):
    """The process is gone."""


#: Everything that changes a local disk.
_CALLS = ("mkdir", "open", "write", "fsync", "rename", "unlink")


def _crash_at(monkeypatch: pytest.MonkeyPatch, step: int, *, half: bool) -> list[str]:
    """From the given call on nothing happens any more; of a write perhaps a half."""
    done: list[str] = []

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            if len(done) >= step:
                if half and len(done) == step and name == "write":
                    real(given[0], given[1][: len(given[1]) // 2])
                done.append("crash")
                raise Crash
            done.append(name)
            return real(*given)

        return call

    for name in _CALLS:
        monkeypatch.setattr(os, name, wrap(name, getattr(os, name)))
    return done


@pytest.mark.parametrize("half", [False, True])
def test_a_crash_at_any_step_leaves_garbage_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    """Goal: until the last step there is no file that a reference could name. Method: crash at
    every call that changes the disk, then look, sweep, look again."""
    whole = CheckpointStore(str(tmp_path / "whole"), LOG)
    ref = _write(whole, 20)
    for step in range(100):
        root = tmp_path / f"{step}"
        store = CheckpointStore(str(root), LOG)
        kept = _write(store, 5)
        with monkeypatch.context() as patch:
            done = _crash_at(patch, step, half=half)
            try:
                assert _write(store, 20) == ref
            except Crash:
                pass
            else:
                break
        steps = done[: done.index("crash")]
        if "rename" in steps:
            assert _keys(store.read(ref)) == list(range(100))  # whole, though nobody was told
        else:
            with pytest.raises(MissingFile):
                store.read(ref)
        assert _keys(store.read(kept)) == list(range(100))
        newer = _write(store, 30)
        assert store.sweep_before(TASK, 30)[0] == kept.path
        assert _files(root) == [newer.path]
    # Content is durable before its name is given, and the name before anybody is told.
    assert done[-3:] == ["rename", "open", "fsync"]
    assert done[-4] == "fsync" and "write" not in done[-4:]
    assert step == len(done) > 6


def test_new_directories_are_durable_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = _crash_at(monkeypatch, 1000, half=False)

    _write(CheckpointStore(str(tmp_path / "root"), LOG))

    made = [place for place, name in enumerate(done) if name == "mkdir"]
    assert len(made) == 5  # root, log, query, stage, index
    assert all(done[at : at + 3] == ["mkdir", "open", "fsync"] for at in made)
    assert max(made) < done.index("write")
