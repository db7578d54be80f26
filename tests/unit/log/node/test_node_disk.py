"""A node's journal and segment files after power cuts, torn writes, bit flips and lost files."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest
from harness.crash_states import CrashState, crash_states, killed_states
from harness.disk import ALL_LOST, SimDisk
from harness.faults import FaultyDisk, TracingDisk
from node_blocks import LocalNode, make_block, old_disk, old_record

from penstock.errors import Fenced
from penstock.log.node.journal import STATE_NAME, journal_name, recover_journal
from penstock.log.node.journal_format import (
    ADD,
    ECHO,
    END,
    FENCE,
    HEAD_BYTES,
    LENGTH,
    NOTE,
    START,
    TRIM,
    RecordHead,
    decode_head,
    find_format,
)
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


def work(disk: TracingDisk, blocks: int = 24) -> tuple[object, ...]:
    """Blocks, fences, rotations, flushes and a tombstone; what is acknowledged is marked."""
    marks: list[object] = []

    def mark(what: object) -> None:
        marks.append(what)
        disk.mark(what)

    node = LocalNode(disk, journal_bytes=1200)
    for block in range(blocks):
        # Some writes hold two blocks; some blocks are another node's.
        keys = [key for key in KEYS if key == A or block % 3 != 2]
        for key in keys:
            node.ensure_loaded(key)
            node.core.add((key, block), key, 50, block_of(key, block))
        for answer in node.pump():
            assert answer.outcome is None
            mark(("block", *answer.cause))  # type: ignore[misc]
        if block in (3, 9, 10, 17):
            node.flush()
        if block in (2, 5, 11):
            assert isinstance(node.fence(A, block), Fence)
            mark(("fence", A, block))
        if block == 7:
            old = SegmentKey("log_b", 0)
            node.add(old, block_of(old, 0), epoch=50)
            node.trim("log_b", 1)
            mark(("trim", "log_b", 1))
        if block == 10:
            node.note()
    return tuple(marks)


@pytest.fixture(scope="module")
def trace() -> TracingDisk:
    disk = TracingDisk(SimDisk())
    work(disk)
    return disk


def check(
    node: LocalNode, marks: tuple[object, ...], unknown: Sequence[tuple[SegmentKey, int]] = ()
) -> None:
    """Everything that was acknowledged is there, and nothing else."""
    assert not node.damage
    acknowledged = {mark[1:] for mark in marks if mark[0] == "block"}  # type: ignore[index]
    for key in KEYS:
        for block in range(25):
            found = node.read(key, block)
            if (key, block) in unknown:
                assert found is Found.UNKNOWN or found == block_of(key, block)
            elif (key, block) in acknowledged:
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


def zeroed(disk: SimDisk, name: str, start: int, end: int) -> SimDisk:
    return changed(disk, name, lambda data: data.__setitem__(slice(start, end), bytes(end - start)))


def used_bytes(disk: SimDisk, name: str) -> int:
    return len(disk.contents()[name].rstrip(b"\0"))


def loses_one_block(node: LocalNode, disk: SimDisk) -> None:
    """One block is unknown, all others are answered; until it is added again."""
    ((key, block),) = node.lost
    for more in range(3):  # also once the journal is dropped, and the file is longer
        found = [node.read(key, at) for at in range(6)]
        assert found[block] is Found.UNKNOWN and node.read(key, 99) is Found.ABSENT
        found[block] = block_of(key, block)
        assert found == [block_of(key, at) for at in range(6)]
        assert node.add(key, block_of(key, 6 + more)) is None
        node.flush()
        disk.kill()
        node = LocalNode(disk, journal_bytes=1)
        assert not node.damage
    assert not node.lost
    assert node.add(key, block_of(key, block)) is None
    node.flush()
    disk.kill()
    assert LocalNode(disk).read(key, block) == block_of(key, block)


def heads_of(disk: SimDisk, name: str) -> dict[int, RecordHead]:
    """By position; the records are whole."""
    data, at = disk.contents()[name], 0
    format, found = find_format(data), {}
    while at < used_bytes(disk, name):
        found[at] = head = decode_head(data, at, format)
        at += head.size
    return found


def vouched_bytes(disk: SimDisk, name: str) -> int:
    return max(head.synced for head in heads_of(disk, name).values())


def test_a_flip_anywhere_but_in_the_last_write_loses_one_block_at_most() -> None:
    """Also in what says where a record ends, whose it is, and how far the file can be trusted."""
    disk = durable_disk()
    losses, name = 0, journal_name(0)
    for position in range(0, vouched_bytes(disk, name), 3):
        damaged = flipped(disk, name, position, 0x10)
        node = LocalNode(damaged)

        assert not node.damage and not node.torn_bytes, position
        if node.lost:
            losses += 1
            loses_one_block(node, damaged)
            continue
        assert [node.read(A, at) for at in range(6)] == [block_of(A, at) for at in range(6)]
        assert node.read(A, 99) is Found.ABSENT
    assert losses > 100


@pytest.mark.parametrize(("blocks", "kinds"), [(9, {FENCE, TRIM}), (24, {LENGTH, END})])
def test_a_flip_leaves_all_fences_tombstones_and_lengths(blocks: int, kinds: set[int]) -> None:
    """In every journal, whichever record is hit: with files, rotations and journals dropped."""
    inner = SimDisk()
    marks = work(TracingDisk(inner), blocks)
    inner.kill()
    names = [name for name in inner.names() if name.startswith("journal-")]
    assert len(names) > 1
    hit = set()
    for name in names:
        end = used_bytes(inner, name) if name != names[-1] else vouched_bytes(inner, name)
        for at, head in heads_of(inner, name).items():
            if at + head.size > end:
                continue
            hit.add(head.kind)
            for position in (at + 2, at + 6, at + 9, at + 14, at + 40, at + head.size - 1):
                node = LocalNode(flipped(inner, name, position, 0x04))
                assert not node.damage, (name, position)
                assert len(node.lost) == (head.kind == ADD)
                check(node, marks, unknown=node.lost)
    assert hit >= {START, ADD, ECHO} | kinds


def test_damage_to_a_record_and_its_echo_is_damage() -> None:
    disk = durable_disk()
    name = journal_name(0)
    heads = heads_of(disk, name)
    adds = [at for at, head in heads.items() if head.kind == ADD]
    for at, following in pairwise(adds):
        damaged = flipped(flipped(disk, name, at + 9), name, following - 1)

        node = LocalNode(damaged)

        assert node.damage and not node.lost
        kept = [block for block in range(6) if isinstance(node.read(A, block), bytes)]
        assert len(kept) == 5
        for block in range(6):
            assert node.read(A, block, trusted=False) in (block_of(A, block), Found.UNKNOWN)


def test_what_the_last_process_wrote_last_is_repeated_by_the_next_one() -> None:
    disk = durable_disk()
    (last, head), *_ = reversed(heads_of(disk, journal_name(0)).items())
    assert head.kind == ADD
    LocalNode(disk).add(A, block_of(A, 6))

    for position in (last, last + 5, last + 9, last + HEAD_BYTES):
        node = LocalNode(flipped(disk, journal_name(0), position))
        assert not node.damage and node.lost == [(A, 5)]
        assert node.read(A, 5) is Found.UNKNOWN and node.read(A, 6) == block_of(A, 6)


def test_a_write_of_very_many_records_is_repeated_in_pieces() -> None:
    disk = SimDisk()
    node = LocalNode(disk, journal_bytes=10**9)
    node.ensure_loaded(A)
    for block in range(8200):
        node.core.add(block, A, 1, make_block(block, b""))
    node.core._write_bytes_max = 10**9
    node.pump()
    node.add(B, block_of(B, 0), epoch=50)
    echoes = [head for head in heads_of(disk, journal_name(0)).values() if head.kind == ECHO]
    assert len(echoes) == 2
    adds = [at for at, head in heads_of(disk, journal_name(0)).items() if head.kind == ADD]

    for block in (0, 8100, 8199):
        assert LocalNode(flipped(disk, journal_name(0), adds[block] + 9)).lost == [(A, block)]


def test_journals_of_an_older_version_are_read_and_go_on() -> None:
    """No echoes, and no blocks in heads: what is not known there is damage, as it was."""
    adds = [old_record(ADD, A.log, body=block_of(A, block), synced=0) for block in range(6)]
    used = old_record(START, synced=0) + b"".join(adds)
    disk = old_disk(used + old_record(NOTE, synced=len(used)))
    name = journal_name(0)
    assert ECHO not in {head.kind for head in heads_of(disk, name).values()}
    block = used.index(block_of(A, 3))

    assert LocalNode(flipped(disk, name, block + 120)).lost == [(A, 3)]
    assert LocalNode(flipped(disk, name, block + 20)).damage
    assert LocalNode(flipped(disk, name, block - 20)).damage
    again = LocalNode(disk)
    assert not again.damage and again.add(A, block_of(A, 6)) is None
    assert [again.read(A, at) for at in range(7)] == [block_of(A, at) for at in range(7)]


def test_a_flip_in_the_last_write_is_a_torn_tail_until_a_note_vouches_for_it() -> None:
    disk = durable_disk()
    position = used_bytes(disk, journal_name(0)) - 20

    torn = LocalNode(flipped(disk, journal_name(0), position))
    assert not torn.damage and torn.torn_bytes
    assert torn.read(A, 5) is Found.ABSENT and torn.read(A, 4) == block_of(A, 4)

    noted, node = filled(range(6), journal_bytes=10**6)
    node.note()
    vouched = LocalNode(flipped(noted, journal_name(0), position))
    assert vouched.lost == [(A, 5)] and not vouched.damage


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
    last_record = max(heads_of(disk, first))

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
    disk = durable_disk()
    adds = [at for at, head in heads_of(disk, journal_name(0)).items() if head.kind == ADD]
    disk = zeroed(disk, journal_name(0), adds[3], adds[4])
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
    told = max(heads_of(disk, name))
    node.journal._bytes_max = 10**6
    for block in (20, 21):
        node.add(A, block_of(A, block))
    heads = heads_of(disk, name)
    echo = next(at for at, head in heads.items() if at > told and head.kind == ECHO)

    after = LocalNode(zeroed(disk, name, told, echo + heads[echo].size))

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
        assert node.read(A, 99) is Found.ABSENT  # it never was here, whatever is damaged
        if wrong:
            # It may be added again, and is whole then, also after a flush.
            assert node.add(A, block_of(A, wrong[0])) is None
            node.flush()
            assert node.read(A, wrong[0]) == block_of(A, wrong[0])


def test_a_segment_file_that_is_cut_denies_nothing() -> None:
    node = LocalNode(cut(flushed_node(), file_name(A), -9))

    found = [node.read(A, block) for block in range(12)]

    assert found[:-1] == [block_of(A, block) for block in range(11)]
    assert found[-1] is Found.UNKNOWN and node.read(A, 12) is Found.ABSENT


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


def shown_stays(disk: SimDisk, blocks: int) -> int:
    """A process has died. What the next one shows is there after a power cut; how much was it?"""
    node = LocalNode(disk)
    shown = [node.read(A, block) for block in range(blocks)]
    assert node.add(B, block_of(B, 0)) is None

    disk.kill()
    after = LocalNode(disk.crash(Random(0), ALL_LOST))

    assert not after.damage and not after.lost
    assert [after.read(A, block) for block in range(blocks)] == shown
    assert after.read(B, 0) == block_of(B, 0)
    return blocks - shown.count(Found.ABSENT)


def test_what_a_failed_fsync_left_in_the_page_cache_is_made_durable_before_it_is_shown() -> None:
    for fail_at in range(12):
        inner = SimDisk()
        LocalNode(inner)
        disk = FaultyDisk(inner, fail_at=None, operations=frozenset({"sync"}))
        node, acknowledged = LocalNode(disk, journal_bytes=600), 0
        disk.fail_after(fail_at)
        with suppress(OSError):
            while acknowledged < 12:
                node.add(A, block_of(A, acknowledged))
                acknowledged += 1
        assert disk.fired
        inner.kill()

        # Some fail before the block is written.
        assert acknowledged <= shown_stays(inner, acknowledged + 1)


def test_an_unsynced_write_that_fills_its_file_is_made_durable_before_it_is_shown() -> None:
    """No zeros follow it that would have to be cut off."""
    disk = TracingDisk(SimDisk())
    assert LocalNode(disk).add(A, make_block(0, bytes(8192))) is None

    states = [state for state in killed_states(disk.trace) if state.disk.exists(STATE_NAME)]

    assert [shown_stays(state.disk, 1) for state in states][-2:] == [1, 1]


def test_an_empty_directory_has_nothing_to_recover() -> None:
    recovered = recover_journal(SimDisk())

    assert (recovered.damage, recovered.numbers, recovered.next_number) == ([], [], 0)
