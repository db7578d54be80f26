"""One flipped bit, in every structure: found out, or survived with the right answers (I17)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from harness.disk import SimDisk
from harness.driver import LogDriver
from sample_log import SampleLog, case, make_sample_log

from penstock.errors import Damaged
from penstock.ids import SegmentId
from penstock.log.record_format import RECORD_HEADER_BYTES
from penstock.log.storage.recover import rebuild_index
from penstock.log.storage.segment_file import SEGMENT_HEADER_BYTES, index_name, segment_name
from penstock.log.storage.verify import verify_log

SEED = 11
#: Random bits of a file beside all bits of its headers.
SAMPLED_BITS = 150
SOAK_BITS = 3_000


@pytest.fixture(scope="module")
def clean() -> SampleLog:
    return make_sample_log(stop="clean")


@pytest.fixture(scope="module")
def noted() -> SampleLog:
    return make_sample_log(stop="note")


def bits_of(start: int, end: int) -> range:
    return range(8 * start, 8 * end)


def sampled(size: int, count: int = SAMPLED_BITS, start: int = 0) -> list[int]:
    bits = bits_of(start, size)
    return sorted(Random(SEED).sample(bits, min(count, len(bits))))


def table_end(log: SampleLog, segment: int, start: int) -> int:
    """First byte of a record's payloads."""
    at = start + RECORD_HEADER_BYTES + 4
    data = log.contents[segment_name(SegmentId(segment))]
    return start + RECORD_HEADER_BYTES + int.from_bytes(data[at : at + 4], "little")


def read_is_right_or_raises(driver: LogDriver) -> bool:
    """Read everything, and by each tag. True: all was right. Anything else raises Damaged."""
    expected = driver.sent.entries()
    tags = sorted({tag for entry in expected for tag in entry.tags})
    damaged = False
    for wanted in (None, *tags):
        matching = [entry for entry in expected if wanted is None or wanted in entry.tags]
        try:
            assert driver.read(None if wanted is None else [wanted]) == matching
        except Damaged:
            damaged = True
    return not damaged


def assert_refused_at_open(log: SampleLog, name: str, bits: Iterator[int] | range) -> None:
    for bit in bits:
        with case(file=name, bit=bit), pytest.raises(Damaged):
            log.open(log.flipped(name, bit))


def test_any_flip_in_the_manifest_is_found_at_open(clean: SampleLog) -> None:
    assert_refused_at_open(clean, "manifest", bits_of(0, len(clean.contents["manifest"])))


def test_any_flip_in_the_open_segment_of_a_cleanly_stopped_log_is_found_at_open(
    clean: SampleLog,
) -> None:
    name = clean.open_segment

    assert len(clean.records(clean.manifest.segments[-1].id)) >= 2
    assert_refused_at_open(clean, name, bits_of(0, len(clean.contents[name])))


def test_after_a_kill_a_flip_in_what_a_note_vouches_for_is_found_at_open(noted: SampleLog) -> None:
    segment = noted.manifest.segments[-1].id
    *groups, note = noted.records(segment)
    name = noted.open_segment
    assert groups

    assert note[1] - note[0] == RECORD_HEADER_BYTES
    assert_refused_at_open(noted, name, bits_of(0, groups[-1][1]))


def test_after_a_kill_a_flip_in_the_note_or_behind_it_loses_nothing(noted: SampleLog) -> None:
    name = noted.open_segment
    note_start, _ = noted.records(noted.manifest.segments[-1].id)[-1]
    end = len(noted.contents[name])
    assert end > note_start + RECORD_HEADER_BYTES, "allocated space follows"

    bits = [*bits_of(note_start, note_start + RECORD_HEADER_BYTES)]
    for bit in bits + sampled(end, 50, note_start + RECORD_HEADER_BYTES):
        driver = noted.open(noted.flipped(name, bit))
        assert driver.read() == driver.sent.entries()


def test_after_a_kill_without_a_note_only_the_last_write_can_pass_for_a_torn_one() -> None:
    killed = make_sample_log(stop="kill")
    *earlier, note, last = killed.records(killed.manifest.segments[-1].id)
    name = killed.open_segment
    assert earlier

    assert_refused_at_open(killed, name, bits_of(0, earlier[-1][1]))
    last_group = killed.sent.placed[-1]
    for bit in sampled(last[1], 100, note[0]):
        sent = killed.sent.copy()
        sent.placed.pop()
        sent.tail -= last_group.body.count
        driver = LogDriver(SimDisk({**killed.contents, **killed.flipped(name, bit)}), sent=sent)
        assert driver.torn_bytes > 0
        assert driver.read() == driver.sent.entries()


def sealed_bits(log: SampleLog, segment: int) -> list[int]:
    """All bits of the segment header and of the first record's header and table; some others."""
    name = segment_name(SegmentId(segment))
    start, _ = log.records(segment)[0]
    head = bits_of(0, SEGMENT_HEADER_BYTES), bits_of(start, table_end(log, segment, start))
    return sorted({*head[0], *head[1], *sampled(len(log.contents[name]))})


def check_sealed_flip(log: SampleLog, segment: int, bit: int) -> None:
    changes = log.flipped(segment_name(SegmentId(segment)), bit)
    driver = log.open(changes)
    read_right = read_is_right_or_raises(driver)
    # Nothing that a reader gets depends on the segment's header: every record names its place.
    assert read_right == (bit < 8 * SEGMENT_HEADER_BYTES)
    info = driver.storage.manifest.segments[segment]
    with pytest.raises(Damaged):
        rebuild_index(driver.disk.open(segment_name(info.id)), info, driver.storage.manifest)


def test_any_flip_in_a_sealed_segment_is_found_when_it_is_read_or_walked(clean: SampleLog) -> None:
    assert len(clean.manifest.segments) >= 4

    for bit in sealed_bits(clean, 1):
        with case(bit=bit):
            check_sealed_flip(clean, 1, bit)


def test_a_damaged_sealed_segment_without_an_index_is_found_when_the_index_is_rebuilt(
    clean: SampleLog,
) -> None:
    name = segment_name(SegmentId(1))

    for bit in sampled(len(clean.contents[name]), 100):
        driver = clean.open(clean.flipped(name, bit), gone=index_name(SegmentId(1)))
        with pytest.raises(Damaged):
            driver.read()


def test_any_flip_in_an_index_is_survived_and_repaired(clean: SampleLog) -> None:
    name = index_name(SegmentId(1))
    size = len(clean.contents[name])

    for bit in sorted({*bits_of(0, 80), *sampled(size)}):
        driver = clean.open(clean.flipped(name, bit))
        assert read_is_right_or_raises(driver)
        assert driver.disk.open(name).read_at(0, size) == clean.contents[name]


def test_any_flip_in_the_newest_snapshot_is_survived_with_the_same_state(clean: SampleLog) -> None:
    name = clean.snapshots[-1]
    size = len(clean.contents[name])
    state = clean.open().sequencer.state

    for bit in sorted({*bits_of(0, 48), *sampled(size)}):
        assert clean.open(clean.flipped(name, bit)).sequencer.state == state


def test_with_every_snapshot_damaged_the_state_comes_from_the_segments(clean: SampleLog) -> None:
    changes: dict[str, bytes] = {}
    for name in clean.snapshots:
        changes |= clean.flipped(name, 100)

    driver = clean.open(changes)

    assert driver.sequencer.state == clean.open().sequencer.state
    driver.check()


def test_with_every_snapshot_damaged_and_a_needed_segment_too_the_log_is_refused(
    clean: SampleLog,
) -> None:
    changes: dict[str, bytes] = {}
    for name in clean.snapshots:
        changes |= clean.flipped(name, 100)
    changes |= clean.flipped(segment_name(SegmentId(1)), 8 * 100)

    with pytest.raises(Damaged):
        clean.open(changes)


def test_with_every_snapshot_damaged_a_trimmed_log_is_refused_and_not_guessed() -> None:
    driver = make_sample_log(stop="clean").open()
    driver.trim(driver.storage.durable_lsn)
    assert driver.storage.manifest.segments[0].base_lsn > 0
    driver.close()
    assert isinstance(driver.disk, SimDisk)
    log = SampleLog(driver.disk.contents(), driver.sent)
    changes: dict[str, bytes] = {}
    for name in log.snapshots:
        changes |= log.flipped(name, 100)

    with pytest.raises(Damaged):
        log.open(changes)


def test_verify_finds_every_flip_in_every_file(clean: SampleLog) -> None:
    assert verify_log(SimDisk(clean.contents)).findings == []

    for name, data in clean.contents.items():
        for bit in sampled(len(data), 100):
            disk = SimDisk({**clean.contents, **clean.flipped(name, bit)})
            assert verify_log(disk).damaged, (name, bit)


@pytest.mark.soak
def test_many_flips_in_every_file(clean: SampleLog) -> None:
    for info in clean.manifest.segments[:-1]:
        for bit in sampled(len(clean.contents[segment_name(info.id)]), SOAK_BITS):
            check_sealed_flip(clean, info.id, bit)
