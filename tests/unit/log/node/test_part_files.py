"""The files of a node's parts: their names, files that cannot be used, and files that are gone."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from harness.disk import SimDisk
from node_blocks import LocalNode, make_block

from penstock.log.node import segment_store
from penstock.log.node.journal import STATE_NAME, read_state, write_state
from penstock.log.node.segment_store import file_name, parse_file_name
from penstock.log.replication.manifest import SegmentKey, check_log_name
from penstock.log.replication.node_api import Found
from penstock.log.replication.node_core import ReadPlan, ReadRequest
from penstock.log.storage.disk import RealDisk

A = SegmentKey("a", 0)
#: Every name of up to five letters of these, and the longest one.
NAMES = [
    first + "".join(rest)
    for size in range(5)
    for first in "a0"
    for rest in product("a0_-", repeat=size)
] + ["a" + "_" * 63]


# ---- names


def test_every_legal_log_has_files_of_its_own_that_a_disk_takes(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    keys = [SegmentKey(check_log_name(log), 7, part) for log in NAMES for part in (0, 1)]
    names = [file_name(key) for key in keys]

    assert len(set(names)) == len(names)
    assert [parse_file_name(name) for name in names] == keys
    assert not any(disk.exists(name) for name in names)


@pytest.mark.parametrize(("log", "name"), [("a_b", "a.b"), ("a", "a"), ("a-0_x", "a-0.x")])
def test_files_are_named_as_they_always_were(log: str, name: str) -> None:
    assert file_name(SegmentKey(log, 12)) == f"{name}.0000000012.0.blocks"


@pytest.mark.parametrize(
    "name",
    [
        "a.12.0.blocks",
        "a.00000000012.0.blocks",
        "a.0000000012.7.blocks",
        "a.0000000012.00.blocks",
        f"{'a' * 65}.0000000012.0.blocks",
        "0000000012.0.blocks",
        "identity.json",
    ],
)
def test_a_file_that_no_part_would_have_is_no_parts(name: str) -> None:
    assert parse_file_name(name) is None


@pytest.mark.parametrize("log", ["a__b", "a_", "a" + "_" * 63])
def test_a_log_of_any_legal_name_is_flushed_and_found_again(tmp_path: Path, log: str) -> None:
    key = SegmentKey(log, 0)
    node = LocalNode(RealDisk(tmp_path), journal_bytes=300)
    for block in range(4):
        assert node.add(key, make_block(block)) is None
    node.flush()

    again = LocalNode(RealDisk(tmp_path))
    assert (tmp_path / file_name(key)).exists()
    assert [again.read(key, block) for block in range(4)] == list(map(make_block, range(4)))


def test_a_recovery_read_outlives_the_closing_of_surplus_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = LocalNode(SimDisk(), journal_bytes=300)
    for block in range(4):
        assert node.add(A, make_block(block)) is None
    node.flush()
    monkeypatch.setattr(segment_store, "PARTS_MAX", 0)

    node.core.read("read", ReadRequest(A, 99, bytes_max=1, fence_epoch=5))
    for old in list(node.store.surplus()):
        if node.core.close_part(old):
            node.store.close_part(old)

    (answer,) = node.pump()
    assert isinstance(answer.outcome, ReadPlan) and answer.outcome.found is Found.ABSENT


# ---- files that are gone, or have become shorter

#: So much of another log that all journals with blocks of A are dropped.
MUCH = range(12)


def node_with_files(disk: SimDisk, *, dropped: bool) -> None:
    """Blocks 0 to 3 of A in a file; of a journal that is there, or not any more."""
    node = LocalNode(disk, journal_bytes=300)
    for block in range(4):
        assert node.add(A, make_block(block)) is None
    node.flush()
    if dropped:
        for block in MUCH:
            assert node.add(SegmentKey("b", 0), make_block(block)) is None
        node.flush()
        node.flush()
        assert not any(b"body of block 3" in data for data in journals(disk))
    disk.kill()


def journals(disk: SimDisk) -> list[bytes]:
    return [data for name, data in disk.contents().items() if name.startswith("journal")]


def without(disk: SimDisk, *names: str) -> SimDisk:
    return SimDisk({name: data for name, data in disk.contents().items() if name not in names})


def cut(disk: SimDisk, name: str, size: int) -> SimDisk:
    contents = disk.contents()
    return SimDisk(contents | {name: contents[name][:size]})


def restarted(disk: SimDisk) -> LocalNode:
    disk.kill()
    return LocalNode(disk, journal_bytes=300)


@pytest.mark.parametrize("dropped", [False, True])
def test_a_part_whose_file_is_gone_denies_nothing_that_was_in_it(dropped: bool) -> None:
    disk = SimDisk()
    node_with_files(disk, dropped=dropped)

    node = LocalNode(without(disk, file_name(A)))

    assert not node.damage
    assert [known.key for known in node.store.missing()] == [A]
    found = [node.read(A, block) for block in range(5)]
    assert Found.ABSENT not in found[:4] and Found.UNKNOWN in found
    assert found[4] is Found.ABSENT


@pytest.mark.parametrize("size", [None, 0, 1, 150, 170])
def test_what_was_lost_with_a_file_is_not_denied_after_the_file_has_grown_again(
    size: int | None,
) -> None:
    disk = SimDisk()
    node_with_files(disk, dropped=True)
    disk = without(disk, file_name(A)) if size is None else cut(disk, file_name(A), size)
    for block in range(5, 15):
        node = restarted(disk)
        assert node.add(A, make_block(block)) is None
        node.flush()
        node.flush()
    node = restarted(disk)
    assert node.add(A, make_block(2)) is None
    for _ in range(2):
        node.flush()
        kept = 1 if size == 170 else 0
        assert [node.read(A, block) for block in range(kept)] == [make_block(0)] * kept
        assert {node.read(A, block) for block in (1, 3)} == {Found.UNKNOWN}
        assert node.read(A, 2) == make_block(2)
        assert [node.read(A, block) for block in range(5, 15)] == [*map(make_block, range(5, 15))]
        assert node.read(A, 15) is Found.ABSENT
        node = restarted(disk)


def test_files_of_an_older_version_are_known_from_the_first_start_on() -> None:
    """It did not write down which files there are."""
    disk = SimDisk()
    node_with_files(disk, dropped=True)
    state = read_state(disk)
    assert state is not None
    write_state(disk, *state[:2])
    contents = disk.contents()
    old = bytes(contents[STATE_NAME])
    node = restarted(disk)
    for block in MUCH:
        assert node.add(SegmentKey("b", 0), make_block(99 + block)) is None
    node.flush()
    node.flush()
    assert disk.contents()[STATE_NAME] != old

    node = LocalNode(without(disk, file_name(A)))

    assert [node.read(A, block) for block in range(4)] == [Found.UNKNOWN] * 4


def test_a_file_that_was_given_up_is_not_missed() -> None:
    disk = SimDisk()
    node_with_files(disk, dropped=True)
    node = restarted(disk)
    node.trim("a", 1)
    node.flush()
    assert not disk.exists(file_name(A))

    assert restarted(disk).store.missing() == []


def test_a_part_that_is_given_up_while_its_file_is_read_stays_given_up() -> None:
    disk = SimDisk()
    node_with_files(disk, dropped=True)
    node = restarted(disk)
    found = node.store.load_index(A)
    node.trim("a", 1)

    node.store.loaded(A, found)
    node.flush()

    assert not node.store.is_here(A) and A not in {known.key for known in node.store.lengths()}
    assert restarted(disk).store.missing() == []
