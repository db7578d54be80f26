"""The simulated disk forgets what it may forget and nothing else; each fault really happens."""

from __future__ import annotations

import errno
from random import Random

import pytest
from harness.disk import (
    ALL_KEPT,
    ALL_LOST,
    ALLOCATE_BYTES,
    SECTOR_BYTES,
    SOME_LOST,
    Odds,
    SimDisk,
    SimFile,
)

from penstock.log.storage.disk import read_whole, replace_file

SEED = 20260801
CRASHES = 300
TORN_ONLY = Odds(lost=0.0, torn=1.0)


def durable_file(disk: SimDisk, name: str, data: bytes) -> SimFile:
    """A file whose bytes and name stay, open for more."""
    file = disk.create(name)
    file.write_at(0, data)
    file.sync()
    disk.sync_dir()
    return disk.open(name, writable=True)


def lost(disk: SimDisk) -> SimDisk:
    """After a crash that takes all that may go."""
    return disk.crash(Random(SEED), ALL_LOST)


def test_synced_bytes_under_a_synced_name_survive_every_crash() -> None:
    disk = SimDisk()
    file = durable_file(disk, "a", b"kept")
    file.append([b"more"])

    for seed in range(CRASHES):
        after = disk.crash(Random(seed))
        assert read_whole(after, "a").startswith(b"kept")


def test_a_synced_file_without_a_synced_name_may_be_gone() -> None:
    disk = SimDisk()
    file = disk.create("a")
    file.write_at(0, b"kept")
    file.sync()

    assert lost(disk).names() == []
    assert disk.crash(Random(SEED), ALL_KEPT).contents() == {"a": b"kept"}


def test_a_file_under_a_synced_name_may_be_empty_until_it_is_synced() -> None:
    disk = SimDisk()
    file = disk.create("a")
    file.write_at(0, b"lost")
    disk.sync_dir()

    assert lost(disk).contents() == {"a": b""}
    assert disk.crash(Random(SEED), ALL_KEPT).contents() == {"a": b"lost"}


def test_a_rename_is_wholly_done_or_not_at_all() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"old")
    durable_file(disk, "a.new", b"new")
    disk.rename("a.new", "a")

    found = {tuple(disk.crash(Random(seed)).contents().items()) for seed in range(CRASHES)}

    assert found == {(("a", b"old"), ("a.new", b"new")), (("a", b"new"),)}


def test_a_removal_may_be_undone_until_the_directory_is_synced() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"old")
    disk.remove("a")

    assert lost(disk).names() == ["a"]
    disk.sync_dir()
    assert lost(disk).names() == []


def test_unsynced_name_changes_are_lost_in_any_combination() -> None:
    disk = SimDisk()
    for name in "abc":
        disk.create(name)

    found = {"".join(disk.crash(Random(seed)).names()) for seed in range(CRASHES)}

    assert found == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_a_replaced_file_is_old_or_new_after_a_crash_at_any_point() -> None:
    disk = SimDisk()
    replace_file(disk, "a", b"old" * 1000)
    replace_file(disk, "a", b"new" * 1000)

    assert lost(disk).contents() == {"a": b"new" * 1000}


def test_a_torn_write_leaves_old_new_zero_and_noisy_sectors_where_nothing_was_durable() -> None:
    disk = SimDisk()
    file = durable_file(disk, "a", b"")
    file.write_at(0, b"n" * 8 * SECTOR_BYTES)

    kinds = set()
    for seed in range(CRASHES):
        data = read_whole(disk.crash(Random(seed), TORN_ONLY), "a")
        for at in range(0, len(data), SECTOR_BYTES):
            sector = data[at : at + SECTOR_BYTES]
            same = len(set(sector)) == 1
            kinds.add({ord("n"): "new", 0: "zeros"}[sector[0]] if same else "noise")
        kinds.add("whole" if len(data) == 8 * SECTOR_BYTES else "short")

    assert kinds >= {"new", "zeros", "noise", "whole"}


def test_a_torn_write_never_damages_durable_bytes_beside_it() -> None:
    disk = SimDisk()
    file = durable_file(disk, "a", b"d" * 700)
    file.write_at(700, b"n" * 3000)

    for seed in range(CRASHES):
        data = read_whole(disk.crash(Random(seed), TORN_ONLY), "a")
        assert data[:700] == b"d" * 700
        # The rest of the half-filled sector came with the new write, or did not come.
        assert set(data[700:1024]) <= {0} or set(data[700:1024]) == {ord("n")}


def test_space_is_allocated_ahead_and_shows_as_zeros_after_reopening() -> None:
    disk = SimDisk()
    file = disk.create("a")
    file.append([b"abc", b"def"])

    assert file.size == 6
    assert disk.open("a").size == ALLOCATE_BYTES
    assert read_whole(disk, "a") == b"abcdef".ljust(ALLOCATE_BYTES, b"\0")
    file.truncate(file.size)
    assert read_whole(disk, "a") == b"abcdef"


def test_a_length_may_survive_without_its_bytes() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"").append([b"abc"])

    found = {read_whole(disk.crash(Random(seed), SOME_LOST), "a") for seed in range(CRASHES)}

    assert found >= {bytes(ALLOCATE_BYTES), b"", b"abc", b"abc".ljust(ALLOCATE_BYTES, b"\0")}


def test_a_kill_loses_nothing_but_the_handles() -> None:
    disk = SimDisk()
    file = disk.create("a")
    file.write_at(0, b"written")
    disk.kill()

    assert read_whole(disk, "a") == b"written"
    for act in (file.sync, lambda: file.write_at(0, b"x"), lambda: file.read_at(0, 1)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            act()


def test_after_a_failed_sync_reads_show_what_no_later_sync_makes_durable() -> None:
    disk = SimDisk()
    file = durable_file(disk, "a", b"old")
    file.write_at(3, b"lost")
    file.drop_unsynced()
    file.sync()

    assert read_whole(disk, "a") == b"oldlost"
    assert read_whole(lost(disk), "a") == b"old\0\0\0\0"
    file.write_at(3, b"lost")
    file.sync()
    assert read_whole(lost(disk), "a") == b"oldlost"


def test_a_file_opened_for_reading_cannot_be_written() -> None:
    disk = SimDisk({"a": b"x"})

    with pytest.raises(OSError) as raised:
        disk.open("a").append([b"y"])

    assert raised.value.errno == errno.EBADF


def test_missing_and_existing_names_raise_what_the_system_raises() -> None:
    disk = SimDisk({"a": b"x"})

    with pytest.raises(FileExistsError):
        disk.create("a")
    for act in (lambda: disk.open("b"), lambda: disk.remove("b"), lambda: disk.rename("b", "c")):
        with pytest.raises(FileNotFoundError):
            act()


def test_a_removed_file_lives_on_for_those_who_hold_it_open() -> None:
    disk = SimDisk({"a": b"x"})
    file = disk.open("a")
    disk.remove("a")

    assert file.read_at(0, 9) == b"x"


def test_the_same_seed_gives_the_same_crash() -> None:
    disk = SimDisk()
    file = disk.create("a")
    disk.sync_dir()
    file.append([bytes(range(256)) * 20])

    prints = [disk.crash(Random(SEED)).fingerprint() for _ in range(2)]

    assert prints[0] == prints[1]
    assert len({disk.crash(Random(seed)).fingerprint() for seed in range(50)}) > 10
