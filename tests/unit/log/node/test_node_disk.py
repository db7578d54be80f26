"""A node's journal and segment files after power cuts, torn writes, bit flips and lost files."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from random import Random

import pytest
from harness.crash_states import CrashState, crash_states, killed_states
from harness.disk import ALL_LOST, SimDisk
from harness.faults import FaultyDisk, TracingDisk
from node_blocks import LocalNode, make_block

from penstock.errors import Fenced
from penstock.log.node.journal import JOURNAL_MAGIC, STATE_NAME, journal_name, recover_journal
from penstock.log.node.segment_store import SegmentStore, file_name, parse_file_name
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Fence, Found
from penstock.log.replication.node_core import AddRecord

A = SegmentKey("a", 0)
B = SegmentKey("log_b", 1)
KEYS = (A, B)


def body(key: SegmentKey, block: int) -> bytes:
    """Of different lengths, so that blocks do not end where sectors do."""
    return b"%s %d " % (key.log.encode(), block) * (1 + block * 7 % 23)


def block_of(key: SegmentKey, block: int) -> bytes:
    return make_block(block, body(key, block), segment=key.segment, durable_block=max(block - 1, 0))


def work(disk: TracingDisk) -> None:
    """Blocks, fences, rotations, flushes and a tombstone; what is acknowledged is marked."""
    node = LocalNode(disk, journal_bytes=1200)
    for block in range(24):
        # Some writes hold two blocks; some blocks are another node's.
        keys = [key for key in KEYS if key == A or block % 3 != 2]
        for key in keys:
            node.ensure_loaded(key)
            node.core.add((key, block), key, 50, block_of(key, block))
        for answer in node.pump():
            assert answer.outcome is None
            disk.mark(("block", *answer.cause))  # type: ignore[misc]
        if block in (3, 9, 10, 17):
            node.flush()
        if block in (2, 5, 11):
            assert isinstance(node.fence(A, block), Fence)
            disk.mark(("fence", A, block))
        if block == 7:
            old = SegmentKey("log_b", 0)
            node.add(old, block_of(old, 0), epoch=50)
            node.trim("log_b", 1)
            disk.mark(("trim", "log_b", 1))
        if block == 10:
            node.note()


@pytest.fixture(scope="module")
def trace() -> TracingDisk:
    disk = TracingDisk(SimDisk())
    work(disk)
    return disk


def check(node: LocalNode, marks: tuple[object, ...]) -> None:
    """Everything that was acknowledged is there, and nothing else."""
    assert not node.damage
    acknowledged = {mark[1:] for mark in marks if mark[0] == "block"}  # type: ignore[index]
    for key in KEYS:
        for block in range(25):
            found = node.read(key, block)
            if (key, block) in acknowledged:
                assert found == block_of(key, block), (key, block, found)
            else:
                # One that was not acknowledged may be there, whole.
                assert found in (block_of(key, block), Found.ABSENT)
    for mark in marks:
        kind, at, number = mark  # type: ignore[misc]
        if kind == "fence":
            assert isinstance(node.add(at, block_of(at, 40), epoch=number - 1), Fenced)
        elif kind == "trim":
            gone = SegmentKey(at, number - 1)
            assert isinstance(node.add(gone, block_of(gone, 0), epoch=99), Fenced)


def recovers(state: CrashState) -> None:
    node = LocalNode(state.disk)
    check(node, state.marks)
    early, late = SegmentKey("early", 0), SegmentKey("late", 0)
    assert node.add(early, block_of(early, 0)) is None
    # Once more: what recovery did must not have hurt.
    state.disk.kill()
    node = LocalNode(state.disk, journal_bytes=500)
    check(node, state.marks)
    assert node.read(early, 0) == block_of(early, 0)
    assert node.add(late, block_of(late, 0)) is None
    node.flush()
    again = LocalNode(state.disk.crash(Random(1)))
    check(again, state.marks)
    assert again.read(late, 0) == block_of(late, 0)


def test_every_power_cut_keeps_all_that_was_acknowledged(trace: TracingDisk) -> None:
    count = 0
    for state in crash_states(trace.trace, seed=7, mixtures=12):
        if state.disk.exists(STATE_NAME):
            recovers(state)
            count += 1

    assert count > 150


def test_every_kill_keeps_all_that_was_acknowledged(trace: TracingDisk) -> None:
    for state in killed_states(trace.trace):
        if state.disk.exists(STATE_NAME):
            recovers(state)


def test_a_power_cut_while_a_start_flushes_loses_nothing() -> None:
    first = SimDisk()
    node = LocalNode(first, journal_bytes=700)
    for block in range(8):
        for key in KEYS:
            node.add(key, block_of(key, block), epoch=50)
    marks = tuple(("block", key, block) for block in range(8) for key in KEYS)
    for cut in range(60):
        disk = FaultyDisk(SimDisk(first.contents()), fail_at=cut, lasting=True)
        inner = disk._disk
        try:
            LocalNode(disk, journal_bytes=500).flush()
        except OSError:
            assert isinstance(inner, SimDisk)
            inner.kill()
            check(LocalNode(inner.crash(Random(cut))), marks)
            continue
        break
    else:
        pytest.fail("a start and its flush have more steps than were tried")
    assert cut > 10


# ---- torn tail or damage (R46)


def filled(blocks: Iterable[int], journal_bytes: int = 600) -> tuple[SimDisk, LocalNode]:
    """A node that has acknowledged these blocks."""
    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=journal_bytes)
    for block in blocks:
        assert node.add(A, block_of(A, block)) is None
    return disk, node


def durable_disk() -> SimDisk:
    """After a kill, six blocks in one journal."""
    disk, _ = filled(range(6), journal_bytes=10**6)
    disk.kill()
    return disk


def changed(disk: SimDisk, name: str, change: Callable[[bytearray], None]) -> SimDisk:
    contents = disk.contents()
    data = bytearray(contents[name])
    change(data)
    return SimDisk(contents | {name: bytes(data)})


def flipped(disk: SimDisk, name: str, position: int, mask: int = 1) -> SimDisk:
    return changed(disk, name, lambda data: data.__setitem__(position, data[position] ^ mask))


def cut(disk: SimDisk, name: str, end: int) -> SimDisk:
    return changed(disk, name, lambda data: data.__delitem__(slice(end, None)))


def used_bytes(disk: SimDisk, name: str) -> int:
    return len(disk.contents()[name].rstrip(b"\0"))


def test_a_flip_anywhere_but_in_the_last_write_is_damage() -> None:
    disk = durable_disk()
    name = journal_name(0)
    last = used_bytes(disk, name) - len(block_of(A, 5)) - 48 - len(A.log)
    for position in range(0, last, 5):
        node = LocalNode(flipped(disk, name, position, 0x10))

        assert node.damage, position
        kept = [block for block in range(6) if isinstance(node.read(A, block), bytes)]
        assert len(kept) >= 5, position  # one block at most is hit
        for block in range(6):
            assert node.read(A, block, trusted=False) in (block_of(A, block), Found.UNKNOWN)


def test_a_flip_in_the_last_write_is_a_torn_tail_until_a_note_vouches_for_it() -> None:
    disk = durable_disk()
    position = used_bytes(disk, journal_name(0)) - 20

    torn = LocalNode(flipped(disk, journal_name(0), position))
    assert not torn.damage and torn.torn_bytes
    assert torn.read(A, 5) is Found.ABSENT and torn.read(A, 4) == block_of(A, 4)

    noted, node = filled(range(6), journal_bytes=10**6)
    node.note()
    assert LocalNode(flipped(noted, journal_name(0), position)).damage


def test_a_cut_of_any_length_in_the_last_write_is_a_torn_tail() -> None:
    disk = durable_disk()
    end = used_bytes(disk, journal_name(0))
    for length in range(1, len(block_of(A, 5)), 9):
        node = LocalNode(cut(disk, journal_name(0), end - length))
        assert not node.damage
        assert node.read(A, 4) == block_of(A, 4) and node.read(A, 5) is Found.ABSENT


def test_a_cut_in_a_journal_that_has_a_successor_is_damage() -> None:
    disk, node = filled(range(9))
    assert len(node.journal.numbers) > 2
    first = journal_name(0)
    last_record = disk.contents()[first].rindex(JOURNAL_MAGIC.to_bytes(4, "little"))

    for end in (-30, used_bytes(disk, first) - 10, last_record):
        assert LocalNode(cut(disk, first, end)).damage


def test_a_missing_journal_or_state_is_damage() -> None:
    disk, _ = filled(range(9))
    for name in (journal_name(0), journal_name(1), STATE_NAME):
        contents = disk.contents()
        del contents[name]
        assert LocalNode(SimDisk(contents)).damage, name
    assert LocalNode(flipped(disk, STATE_NAME, 12)).damage


def test_damage_is_mended_once_and_what_was_intact_stays() -> None:
    disk = changed(durable_disk(), journal_name(0), lambda data: data.__setitem__(500, 0xAA))
    node = LocalNode(disk)
    assert node.damage
    kept = [block for block in range(6) if isinstance(node.read(A, block), bytes)]

    again = LocalNode(disk)

    assert not again.damage
    assert [block for block in range(6) if isinstance(again.read(A, block), bytes)] == kept
    assert len(kept) == 5


def test_damage_in_the_journal_hides_no_block_that_a_file_has() -> None:
    """1. blocks are flushed and their journal dropped; 2. the record that says so is damaged."""
    disk, node = filled(range(3), journal_bytes=700)
    while len(node.journal.numbers) < 2:
        node.add(A, block_of(A, 3 + len(node.core.list_blocks(A, 0, 99))))
    before = node.core.list_blocks(A, 0, 99)
    node.flush()
    name = journal_name(node.journal.number)
    told = bytes(disk.contents()[name]).rindex(JOURNAL_MAGIC.to_bytes(4, "little"))
    for block in (20, 21):
        node.add(A, block_of(A, block))

    after = LocalNode(changed(disk, name, lambda data: data.__setitem__(told + 9, 0xEE)))

    assert after.damage
    after.ensure_loaded(A)
    assert after.core.list_blocks(A, 0, 19) == before


# ---- segment files


def flushed_node() -> SimDisk:
    disk, node = filled(range(12))
    node.flush()
    node.flush()
    assert disk.exists(file_name(A))
    disk.kill()
    return disk


def test_a_flip_in_a_segment_file_hides_one_block_and_denies_none() -> None:
    disk = flushed_node()
    size = len(disk.contents()[file_name(A)])
    for position in range(0, size, 7):
        node = LocalNode(flipped(disk, file_name(A), position, 0x04))
        found = [node.read(A, block) for block in range(12)]

        wrong = [block for block in range(12) if found[block] != block_of(A, block)]
        assert len(wrong) <= 1, position
        assert Found.ABSENT not in found
        if wrong:
            assert node.read(A, 99) is Found.UNKNOWN
            # It may be added again, and is whole then, also after a flush.
            assert node.add(A, block_of(A, wrong[0])) is None
            node.flush()
            assert node.read(A, wrong[0]) == block_of(A, wrong[0])


def test_a_segment_file_that_is_cut_denies_nothing() -> None:
    node = LocalNode(cut(flushed_node(), file_name(A), -9))

    found = [node.read(A, block) for block in range(12)]

    assert Found.UNKNOWN in found and Found.ABSENT not in found


def test_blocks_out_of_order_and_with_gaps_are_found() -> None:
    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=600)
    order = [5, 1, 9, 3, 2, 11]
    for block in order:
        assert node.add(A, block_of(A, block)) is None
        node.flush()
    again = LocalNode(disk)

    assert [again.read(A, block) for block in sorted(order)] == [
        block_of(A, block) for block in sorted(order)
    ]
    again.ensure_loaded(A)
    assert again.core.list_blocks(A, 0, 20) == [(1, 4), (5, 6), (9, 10), (11, 12)]
    assert again.core.list_blocks(A, 0, 20) == node.core.list_blocks(A, 0, 20)


def test_durable_block_is_known_again_after_a_restart() -> None:
    """R08, BookKeeper #1527: the last control block tells it."""
    disk, node = filled(range(5))
    node.add(A, make_block(5, b"", durable_block=5))
    for _ in range(2):
        again = LocalNode(SimDisk(disk.contents()))
        assert again.fence(A, 3) == Fence(5, 6)  # type: ignore[arg-type]
        node.flush()


def test_a_flush_is_told_only_when_the_names_of_its_files_stay() -> None:
    disk = SimDisk()
    store = SegmentStore(disk)
    store.put(AddRecord(A, 0, 0, block_of(A, 0)))
    taken = store.take_flush(A)
    assert taken is not None

    store.flush_all([(A, *taken)])

    assert file_name(A) in disk.crash(Random(1), ALL_LOST).names()


def test_only_what_was_given_up_is_removed() -> None:
    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=600)
    keys = [SegmentKey(log, segment) for log in ("a", "b") for segment in range(4)]
    for key in keys:
        for block in range(3):
            node.add(key, block_of(key, block))
    node.flush()
    node.trim("a", 2)
    node.flush()

    left = sorted(key for name in disk.names() if (key := parse_file_name(name)) is not None)
    assert left == [key for key in keys if key.log == "b" or key.segment >= 2]
    again = LocalNode(disk)
    assert isinstance(again.add(keys[0], block_of(keys[0], 0), epoch=99), Fenced)
    assert again.read(keys[0], 0) is Found.UNKNOWN


def test_a_file_that_a_crash_left_below_the_tombstone_is_removed_at_the_next_start() -> None:
    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=600)
    node.add(A, block_of(A, 0))
    node.flush()
    for _ in range(8):
        node.add(B, block_of(B, _))
    node.flush()
    node.trim("a", 1)
    disk.kill()

    again = LocalNode(disk)
    again.flush()

    assert parse_file_name(file_name(A)) == A
    assert file_name(A) not in disk.names() and file_name(B) in disk.names()


# ---- failing disks (R48)


@pytest.mark.parametrize("kind", ["write", "sync", "create", "sync_dir"])
def test_after_a_failed_operation_nothing_is_acknowledged_and_nothing_is_lost(kind: str) -> None:
    for fail_at in range(4):
        inner = SimDisk()
        LocalNode(inner)
        disk = FaultyDisk(
            inner, fail_at=fail_at, operations=frozenset({kind}), error=errno.EIO, lasting=True
        )
        node = LocalNode(disk, journal_bytes=600)
        acknowledged = []
        try:
            for block in range(30):
                node.add(A, block_of(A, block))
                acknowledged.append(block)
                if block % 4 == 3:
                    node.flush()
        except OSError:
            node.core.write_failed()
        assert disk.fired, kind
        assert node.core.take_answers() == []

        inner.kill()
        after = LocalNode(inner.crash(Random(fail_at)))
        assert not after.damage
        assert [after.read(A, block) for block in acknowledged] == [
            block_of(A, block) for block in acknowledged
        ]


def test_an_empty_directory_has_nothing_to_recover() -> None:
    recovered = recover_journal(SimDisk())

    assert (recovered.damage, recovered.numbers, recovered.next_number) == ([], [], 0)
