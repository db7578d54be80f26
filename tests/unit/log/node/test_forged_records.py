"""What clients wrote is never taken for what the node wrote, whatever is damaged around it."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from harness.disk import Odds, SimDisk
from node_blocks import LocalNode, make_block, old_disk, old_record

from penstock.errors import Fenced
from penstock.log.node import journal
from penstock.log.node.journal import (
    STATE_NAME,
    LengthRecord,
    journal_name,
    read_state,
    write_state,
)
from penstock.log.node.journal_format import (
    ADD,
    FENCE,
    START,
    START_MARK,
    TRIM,
    Format,
    RecordHead,
    decode_head,
    encode_head,
    find_format,
)
from penstock.log.node.segment_store import file_name
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Found

VICTIM = SegmentKey("victim", 0)
HOSTILE = SegmentKey("hostile", 0)


def new_record(mark: bytes, kind: int, *key: Any, number: int = 0, value: int = 0) -> bytes:
    return encode_head(mark, kind, number, 2**40, *key, value=value)


def trims(marks: Iterable[bytes]) -> bytes:
    """All that a client can say of a log that is not its own, for any file of the journal."""
    forged = [old_record(TRIM, "victim", 10**6, number=number) for number in range(20)]
    forged += [
        new_record(mark, TRIM, "victim", 10**6, number=number)
        for mark in marks
        for number in range(20)
    ]
    return bytes(1024) + b"".join(forged)


GUESSES = [START_MARK, bytes(8), b"PNJ2PNJ2", Random(1).randbytes(8)]


# ---- the journal


def test_no_payload_can_trim_a_log_at_a_power_cut() -> None:
    """The write is not even synced; its first sectors are lost, others are not."""
    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=2000)
    for block in range(20):
        assert node.add(VICTIM, make_block(block)) is None
    node.flush()
    node.flush()
    node.core.add("add", HOSTILE, 1, make_block(0, trims(GUESSES)))
    write = node.core.take_write()
    assert write is not None
    buffers, is_new = node.journal.encode(write.records, node.store.length)
    if is_new:
        node.journal._start_file()
    assert node.journal._file is not None
    node.journal._file.append(buffers)  # and the power fails before the fsync

    for seed in range(60):
        again = LocalNode(disk.crash(Random(seed), Odds(lost=0.0, torn=1.0)))
        again.flush()
        assert again.core.first_segment("victim") == 0, seed
        assert not again.damage and again.read(VICTIM, 3) == make_block(3), seed


def flipped_journal(forged: bytes) -> tuple[SimDisk, bytes]:
    """One bit of the head before somebody's payload is wrong, and one of its echo.

    Returns the key, too.
    """
    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=10**6)
    for block in range(4):
        assert node.add(VICTIM, make_block(block)) is None
    assert node.add(HOSTILE, make_block(0, forged)) is None
    assert node.add(VICTIM, make_block(4)) is None
    node.note()
    disk.kill()
    data = disk.contents()[journal_name(0)]
    key = find_format(data).mark
    record = data.rindex(key, 0, data.index(make_block(0, forged)))
    disk.damage(journal_name(0), record + 20, 1)
    echo = data.index(key, data.index(make_block(0, forged)))
    disk.damage(journal_name(0), echo + 30, 1)
    return disk, key


def test_no_payload_can_trim_a_log_after_flipped_bits() -> None:
    disk, _ = flipped_journal(trims(GUESSES))

    node = LocalNode(disk)

    assert node.damage  # that is told
    assert node.core.first_segment("victim") == 0
    # What is intact, before and behind, is kept.
    assert [node.read(VICTIM, block) for block in range(5)] == [*map(make_block, range(5))]


def test_whoever_knew_the_key_could() -> None:
    """So the test before this one looks at the right place."""
    disk, key = flipped_journal(bytes(2048))
    name = journal_name(0)
    data = disk.contents()[name]
    forged = new_record(key, TRIM, "victim", 10**6)
    at = data.index(bytes(2048)) + 1024
    data = data[:at] + forged + data[at + len(forged) :]

    assert LocalNode(SimDisk(disk.contents() | {name: data})).core.first_segment("victim") == 10**6


def test_a_start_that_is_damaged_takes_no_record_with_it() -> None:
    for position in range(0, 52, 3):
        disk, _ = flipped_journal(trims(GUESSES))
        disk.damage(journal_name(0), position, 4)
        node = LocalNode(disk)

        assert node.damage and node.core.first_segment("victim") == 0
        assert [node.read(VICTIM, block) for block in range(5)] == [*map(make_block, range(5))]


def test_a_payload_of_marks_costs_a_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a torn one: none of them is looked at."""
    looked: list[int] = []

    def counted(data: Any, at: int, format: Format) -> RecordHead:
        looked.append(at)
        return decode_head(data, at, format)

    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=10**6)
    for mark in (b"PNJ1", b"PNJ2"):
        assert node.add(HOSTILE, make_block(mark[3], mark * 16_000)) is None
    disk.kill()
    disk.damage(journal_name(0), len(disk.contents()[journal_name(0)].rstrip(b"\0")) - 9)
    monkeypatch.setattr(journal, "decode_head", counted)

    node = LocalNode(disk)

    assert node.torn_bytes and len(looked) < 20


# ---- segment files


TRUTH, LIE = b"what was acknowledged", b"what the producer of block 1 wants to have been there"


def flushed(*blocks: bytes) -> SimDisk:
    """These blocks in a file, and in no journal any more."""
    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=300)
    for block in blocks:
        assert node.add(VICTIM, block) is None
    for block in range(12):
        assert node.add(SegmentKey("b", 0), make_block(block)) is None
    node.flush()
    node.flush()
    disk.kill()
    return disk


def test_no_payload_can_stand_for_another_block_after_one_flipped_bit() -> None:
    forged = b"".join(
        bytes(64) + mark + make_block(0, LIE) for mark in (b"", b"PNB1", *GUESSES, *GUESSES)
    )
    blocks = [make_block(0, TRUTH), make_block(1, forged), make_block(2)]
    disk = flushed(*blocks)
    name = file_name(VICTIM)
    start = disk.contents()[name].index(blocks[1])
    for position in (0, 5, 9, start - 3, start, start + 9, start + 20):  # also the file's header
        damaged = SimDisk(disk.contents())
        damaged.damage(name, position, 1)

        node = LocalNode(damaged, journal_bytes=300)

        assert node.read(VICTIM, 0) == blocks[0] and node.read(VICTIM, 2) == blocks[2]
        assert node.read(VICTIM, 1) in (blocks[1], Found.UNKNOWN)


def test_a_file_whose_key_is_lost_denies_nothing_and_takes_blocks_again() -> None:
    disk = flushed(*map(make_block, range(3)))
    name = file_name(VICTIM)
    for position in range(40):
        disk.damage(name, position)
    for _ in range(2):
        node = LocalNode(disk, journal_bytes=300)
        assert not node.damage
        assert [node.read(VICTIM, block) for block in range(3)] == [Found.UNKNOWN] * 3
        assert node.read(VICTIM, 99) is Found.ABSENT
        disk.kill()
    node = LocalNode(disk, journal_bytes=300)
    for block in (1, 3):
        assert node.add(VICTIM, make_block(block)) is None
    node.flush()
    disk.kill()

    found = [LocalNode(disk).read(VICTIM, block) for block in range(5)]
    assert found == [Found.UNKNOWN, make_block(1), Found.UNKNOWN, make_block(3), Found.ABSENT]


# ---- files of older versions


OLD_START = old_record(START, synced=0)
OLD_BLOCKS = [old_record(ADD, "victim", body=make_block(block), synced=0) for block in range(3)]
OLD_FENCE = old_record(FENCE, "victim", value=7, synced=400)


def test_a_journal_of_an_older_version_is_read_and_goes_on_in_the_new_one() -> None:
    disk = old_disk(OLD_START + b"".join(OLD_BLOCKS) + OLD_FENCE)
    for _ in range(2):
        node = LocalNode(disk)
        assert not node.damage
        assert [node.read(VICTIM, block) for block in range(3)] == [*map(make_block, range(3))]
        assert isinstance(node.add(VICTIM, make_block(3), epoch=6), Fenced)
        assert node.add(HOSTILE, make_block(0)) is None
        disk.kill()
    state = read_state(disk)
    assert state is not None and list(state.keys) == [1]


def test_behind_damage_nothing_in_a_journal_of_an_older_version_is_believed() -> None:
    """Whether it is a record or somebody's payload cannot be told."""
    trim = old_record(TRIM, "victim", 10**6, synced=400)
    disk = old_disk(OLD_START + b"".join(OLD_BLOCKS) + OLD_FENCE + trim)
    disk.damage(journal_name(0), len(OLD_START) + len(OLD_BLOCKS[0]) + 12, 1)

    node = LocalNode(disk)

    assert node.damage and node.core.first_segment("victim") == 0
    assert node.read(VICTIM, 0) == make_block(0)
    assert not isinstance(node.read(VICTIM, 2), bytes)
    assert not LocalNode(disk).damage  # it is mended


def old_file(*blocks: bytes) -> SimDisk:
    """A file of an older version is its blocks, and nothing else."""
    disk, data = SimDisk(), b"".join(blocks)
    write_state(disk, 0, [], [LengthRecord(VICTIM, len(data), len(blocks))])
    return SimDisk(disk.contents() | {file_name(VICTIM): data})


def test_a_segment_file_of_an_older_version_is_read_and_goes_on() -> None:
    disk = old_file(*map(make_block, range(3)))
    for count in (3, 4, 5):
        node = LocalNode(disk, journal_bytes=1)
        assert [node.read(VICTIM, block) for block in range(count)] == [
            *map(make_block, range(count))
        ]
        assert node.add(VICTIM, make_block(count)) is None
        assert node.add(HOSTILE, make_block(count)) is None
        node.flush()
        disk.kill()
    assert disk.contents()[file_name(VICTIM)] == b"".join(map(make_block, range(6)))


def test_behind_damage_nothing_in_a_segment_file_of_an_older_version_is_believed() -> None:
    disk = old_file(make_block(0, TRUTH), make_block(1, make_block(0, LIE)), make_block(2))
    disk.damage(file_name(VICTIM), len(make_block(0, TRUTH)) + 20, 1)

    node = LocalNode(disk)

    assert node.read(VICTIM, 0) == make_block(0, TRUTH)
    assert [node.read(VICTIM, block) for block in (1, 2)] == [Found.UNKNOWN] * 2
    assert node.read(VICTIM, 3) is Found.ABSENT


# ---- files of the journal that are gone


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_journals_that_have_vanished_are_missed_also_the_newest(kept: int) -> None:
    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=1)
    for block in range(6):
        assert node.add(VICTIM, make_block(block)) is None
    newest = node.journal.number
    assert newest > 3
    disk.kill()

    gone = {journal_name(number) for number in range(kept, newest + 1)}
    left = {name: data for name, data in disk.contents().items() if name not in gone}
    assert LocalNode(SimDisk(left)).damage


def test_the_state_names_a_journal_before_anything_in_it_is_acknowledged() -> None:
    """A power cut at any step leaves a node that has lost nothing."""
    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=1)
    for block in range(4):
        assert node.add(VICTIM, make_block(block)) is None
        state = read_state(SimDisk({STATE_NAME: disk.durable(STATE_NAME)}))
        assert state is not None and node.journal.number in state.keys
    assert file_name(VICTIM) not in disk.names()
