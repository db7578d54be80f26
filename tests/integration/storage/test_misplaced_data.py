"""Valid bytes in the wrong place: never read as something else, never silently missing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from harness.disk import SimDisk
from harness.driver import LogDriver
from sample_log import LIMITS, SampleLog, make_sample_log

from penstock.errors import Damaged, MissingFile
from penstock.ids import SegmentId
from penstock.log.record_format import RECORD_HEADER_BYTES
from penstock.log.records import NewEntry
from penstock.log.storage.manifest import FileManifestStore
from penstock.log.storage.recover import recover
from penstock.log.storage.segment_file import index_name, segment_name

OTHER_LOG = bytes(range(100, 116))


def name_of(segment: int) -> str:
    return segment_name(SegmentId(segment))


def same_size_segments() -> SampleLog:
    """A log whose sealed segments have equal lengths, so that only their contents differ."""
    disk = SimDisk()
    driver = LogDriver(disk, limits=LIMITS)
    driver.claim()
    for number in range(20):
        driver.append([NewEntry(b"%04d" % number * 50, (f"t{number % 2}",))])
        driver.keep_house()
    driver.close()
    disk.kill()
    return SampleLog(disk.contents(), driver.sent)


@pytest.fixture(scope="module")
def log() -> SampleLog:
    return same_size_segments()


def twins(log: SampleLog) -> list[tuple[int, int]]:
    """Neighbouring sealed segments of equal size."""
    sealed = [info for info in log.manifest.segments if info.sealed]
    return [(a.id, b.id) for a, b in pairwise(sealed) if a.bytes == b.bytes]


def assert_never_wrong(driver: LogDriver) -> None:
    """Each read is right or raises Damaged, and at least the full one raises."""
    expected = driver.sent.entries()
    with pytest.raises(Damaged):
        driver.read()
    for tag in ("t0", "t1"):
        try:
            assert driver.read([tag]) == [entry for entry in expected if tag in entry.tags]
        except Damaged:
            pass


def test_swapped_segment_files_are_found_when_they_are_read(log: SampleLog) -> None:
    assert twins(log)

    for left, right in twins(log):
        changes = {
            name_of(left): log.contents[name_of(right)],
            name_of(right): log.contents[name_of(left)],
        }
        assert_never_wrong(log.open(changes))


def test_segment_files_swapped_together_with_their_indexes_are_found(log: SampleLog) -> None:
    for left, right in twins(log):
        names = (name_of, lambda segment: index_name(SegmentId(segment)))
        changes = {}
        for name in names:
            changes[name(left)] = log.contents[name(right)]
            changes[name(right)] = log.contents[name(left)]
        assert_never_wrong(log.open(changes))


def test_a_segment_of_another_log_is_found_when_it_is_read(log: SampleLog) -> None:
    """The twin has the same groups, LSNs and lengths; only its identity differs."""
    disk = SimDisk()
    driver = LogDriver(disk, limits=LIMITS, log_id=OTHER_LOG)
    driver.claim()
    for number in range(20):
        driver.append([NewEntry(b"%04d" % (99 - number) * 50, (f"t{number % 2}",))])
    driver.close()
    other = disk.contents()
    assert len(other[name_of(1)]) == len(log.contents[name_of(1)])

    assert_never_wrong(log.open({name_of(1): other[name_of(1)]}))
    with pytest.raises(Damaged):
        log.open({log.open_segment: other[log.open_segment]})


def test_a_record_copied_over_another_is_found_when_it_is_read(log: SampleLog) -> None:
    (left, right), *_ = pairwise(log.groups(1))
    data = log.contents[name_of(1)]
    assert right[1] - right[0] == left[1] - left[0]

    for source, target in ((left, right), (right, left)):
        copied = data[: target[0]] + data[source[0] : source[1]] + data[target[1] :]
        assert_never_wrong(log.open({name_of(1): copied}))


def test_a_zero_page_in_a_sealed_segment_is_found_when_it_is_read(log: SampleLog) -> None:
    data = log.contents[name_of(1)]
    start = log.records(1)[1][0]

    for at in (start, start + RECORD_HEADER_BYTES, start + 200):
        zeroed = data[:at] + bytes(64) + data[at + 64 :]
        assert_never_wrong(log.open({name_of(1): zeroed}))


def test_a_zero_page_in_the_open_segment_is_damage_even_after_a_kill() -> None:
    """A later note says that what is now zero was durable: this is no torn tail (R46)."""
    log = make_sample_log(stop="kill", groups=13)
    records = log.records(log.manifest.segments[-1].id)
    data = log.contents[log.open_segment]
    assert len(records) >= 3

    for start, _ in records[:-2]:  # the last write is a note and a group
        zeroed = data[:start] + bytes(64) + data[start + 64 :]
        with pytest.raises(Damaged, match="says that it was durable"):
            log.open({log.open_segment: zeroed})


def test_an_old_version_of_the_open_segment_is_found_at_open(log: SampleLog) -> None:
    """A stale block: the file as it was before the last groups, of a log that stopped cleanly."""
    data = log.contents[log.open_segment]
    start, _ = log.records(log.manifest.segments[-1].id)[-2]

    for stale in (data[:start], data[:start].ljust(len(data), b"\0")):
        with pytest.raises(Damaged):
            log.open({log.open_segment: stale})


def test_segments_without_a_manifest_are_refused(log: SampleLog) -> None:
    with pytest.raises(MissingFile, match="manifest is missing"):
        log.open(gone="manifest")


def test_a_single_segment_without_a_manifest_is_refused() -> None:
    log = make_sample_log(groups=1)
    assert len(log.manifest.segments) == 1

    with pytest.raises(MissingFile, match="manifest is missing"):
        log.open(gone="manifest")


def test_a_missing_segment_is_named_at_open(log: SampleLog) -> None:
    for info in log.manifest.segments:
        with pytest.raises(MissingFile, match=name_of(info.id)):
            log.open(gone=name_of(info.id))


def test_a_sealed_segment_of_another_length_is_found_at_open(log: SampleLog) -> None:
    data = log.contents[name_of(1)]

    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(Damaged):
            log.open({name_of(1): wrong})


def test_an_empty_directory_is_no_log() -> None:
    disk = SimDisk()

    with pytest.raises(MissingFile, match="not a log directory"):
        recover(disk, FileManifestStore(disk))


def test_an_index_of_another_segment_or_log_is_rebuilt(log: SampleLog) -> None:
    other = make_sample_log(log_id=OTHER_LOG)
    name = index_name(SegmentId(1))

    for wrong in (log.contents[index_name(SegmentId(2))], other.contents[name], b""):
        driver = log.open({name: wrong})
        driver.check()
        assert isinstance(driver.disk, SimDisk)
        assert driver.disk.contents()[name] == log.contents[name]


def test_a_snapshot_of_another_time_or_log_is_not_used() -> None:
    log = make_sample_log()
    other = make_sample_log(log_id=OTHER_LOG)
    older, newest = log.snapshots
    assert other.snapshots == log.snapshots

    for changes in (
        {newest: log.contents[older]},
        {older: log.contents[newest], newest: log.contents[older]},
        {newest: other.contents[newest]},
        {newest: b""},
    ):
        driver = log.open(changes)
        driver.check()


def test_a_manifest_of_another_log_is_refused() -> None:
    log = make_sample_log()
    other = make_sample_log(log_id=OTHER_LOG)

    with pytest.raises(Damaged):
        log.open({"manifest": other.contents["manifest"]})


def test_an_older_manifest_never_makes_newer_data_disappear() -> None:
    """Whatever version is put back: the log is refused, or nothing is missing from it."""
    disk = SimDisk()
    driver = LogDriver(disk, limits=LIMITS)
    driver.claim()
    manifests = [disk.contents()["manifest"]]
    for number in range(14):
        driver.append([NewEntry(b"%d" % number * 100, ("t",))])
        if number % 5 == 4:
            driver.close()
            manifests.append(disk.contents()["manifest"])
            driver = driver.reopen()
        if disk.contents()["manifest"] != manifests[-1]:
            manifests.append(disk.contents()["manifest"])
    disk.kill()
    log = SampleLog(disk.contents(), driver.sent)
    assert len(manifests) > 8

    refused = 0
    for manifest in manifests:
        try:
            log.open({"manifest": manifest}).check()
        except Damaged:
            refused += 1
    assert refused == len(manifests) - 1


def test_a_record_of_a_later_owner_shows_that_the_manifest_is_old() -> None:
    """It is the only record behind the clean stop: cutting it as a torn tail would lose it."""
    disk = SimDisk()
    driver = LogDriver(disk)
    driver.claim()
    driver.close()
    manifest = disk.contents()["manifest"]
    driver = driver.reopen()
    driver.append([NewEntry(b"acknowledged")])
    disk.kill()
    log = SampleLog(disk.contents(), driver.sent)

    with pytest.raises(Damaged, match="newer than the manifest"):
        log.open({"manifest": manifest})


def test_a_record_of_an_earlier_owner_is_not_taken_for_the_one_that_replaced_it() -> None:
    """1. The first owner writes A and B, and the power cut loses both. 2. The second one writes
    other groups of the same size there. 3. The disk forgets the second of these writes.
    """
    disk = SimDisk()
    driver = LogDriver(disk)
    driver.claim()
    start = driver.storage.open_bytes
    before, sent = disk.contents(), driver.sent.copy()
    for payload in (b"A1", b"B1"):
        driver.append([NewEntry(payload)])
    name = name_of(0)
    stale, old = disk.contents()[name], driver.sent.placed[-1]
    cut = SimDisk({**before, name: before[name][:start]})
    driver = LogDriver(cut, sent=sent)
    for payload in (b"A2", b"B2"):
        driver.append([NewEntry(payload)])
    assert old.time_ms >= driver.sent.placed[-2].time_ms, "the clock must not give it away"
    driver.close()
    log = SampleLog(cut.contents(), driver.sent)
    (_, second), (_, second_end) = log.groups(0)[1:]

    data = log.contents[name]
    changed = data[:second] + stale[second:second_end] + data[second_end:]

    assert changed != data
    with pytest.raises(Damaged, match="does not belong here"):
        log.open({name: changed})
