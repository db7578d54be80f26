"""Giving up old data, and moving it to a cold store, on real files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from harness.disk import ALL_LOST, SOME_LOST, SimDisk, SimFile
from harness.driver import LogDriver
from harness.faults import CHANGING, FaultyDisk
from harness.files import flip_bit

from penstock.errors import BadConfig, Damaged, MissingFile, Trimmed
from penstock.ids import SegmentId
from penstock.log.core.sequencer import SegmentLimits
from penstock.log.records import NewEntry, SetKey
from penstock.log.storage.cold import FileSystemColdStore
from penstock.log.storage.disk import RealDisk, RealFile
from penstock.log.storage.reader import find_time, read_last, read_piece
from penstock.log.storage.recover import snapshot_lsns, snapshot_name
from penstock.log.storage.segment_file import index_name, segment_name

LIMITS = SegmentLimits(bytes=1500, ms=2**40)
GROUPS = 24


def fill(driver: LogDriver, groups: int = GROUPS) -> LogDriver:
    driver.claim()
    for number in range(groups):
        entries = [NewEntry(b"%d." % number * 60, ("all", f"n{number % 4}"))]
        driver.append(entries, sets=[SetKey(f"k{number % 3}", b"%d" % number)])
        driver.keep_house()
    return driver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[LogDriver]:
    """A log of several sealed segments on a real disk."""
    driver = fill(LogDriver(RealDisk(tmp_path / "log"), limits=LIMITS))
    assert len(driver.storage.manifest.segments) >= 6
    yield driver
    driver.abandon()


@pytest.fixture
def cold(tmp_path: Path) -> FileSystemColdStore:
    return FileSystemColdStore((tmp_path / "cold").as_uri())


@pytest.fixture
def cold_driver(tmp_path: Path, cold: FileSystemColdStore) -> Iterator[LogDriver]:
    """The same, with a copy of each sealed segment in a cold store."""
    driver = fill(LogDriver(RealDisk(tmp_path / "log"), limits=LIMITS, cold=cold))
    assert all(info.cold for info in driver.storage.manifest.segments[:-1])
    yield driver
    driver.abandon()


def copies(driver: LogDriver, tmp_path: Path) -> Path:
    """The log's folder in the cold store."""
    return tmp_path / "cold" / driver.storage.manifest.log_id.hex()


def segment_files(disk: object) -> list[str]:
    assert isinstance(disk, RealDisk | SimDisk)
    return [name for name in disk.names() if name.startswith("seg-")]


# ---- trim


def test_a_trim_hides_all_below_it_and_keeps_all_above(driver: LogDriver) -> None:
    for lsn in (1, 2, 9, 9, 20, 5):
        point = driver.trim(lsn)
        assert point == driver.sent.trim_confirmed, "the trim point never goes back"
        driver.check()
        with pytest.raises(Trimmed):
            read_piece(driver.storage, None, point - 1, point + 1, 1000)

    driver.close()
    reopened = driver.reopen()
    assert reopened.trim_point == 20
    reopened.check()
    reopened.close()


def test_a_trim_in_the_middle_of_a_group_hides_its_first_entries_only(tmp_path: Path) -> None:
    driver = LogDriver(RealDisk(tmp_path), limits=LIMITS)
    driver.claim()
    driver.append([NewEntry(b"%d" % n, ("t",)) for n in range(6)])
    driver.trim(4)

    assert [entry.payload for entry in driver.read()] == [b"3", b"4", b"5"]
    assert [entry.payload for entry in driver.read(["t"])] == [b"3", b"4", b"5"]
    driver.close()


def test_a_trim_removes_files_but_keeps_what_the_older_snapshot_needs(driver: LogDriver) -> None:
    before = segment_files(driver.disk)
    oldest, _ = snapshot_lsns(driver.disk)
    driver.trim(driver.storage.durable_lsn)

    manifest = driver.storage.manifest
    assert manifest.segments[0].base_lsn == oldest
    assert len(segment_files(driver.disk)) < len(before)
    assert segment_files(driver.disk)[0] == index_name(manifest.segments[0].id)


def test_a_trim_beyond_the_tail_stops_at_the_tail(driver: LogDriver) -> None:
    tail = driver.storage.durable_lsn

    assert driver.trim(tail + 1000) == tail
    assert driver.read() == []
    assert read_last(driver.storage, "all", tail) is None
    assert find_time(driver.storage, 0) == tail
    driver.append([NewEntry(b"after", ("all",))])
    driver.check()


def test_metadata_and_producers_outlive_the_entries_that_made_them(driver: LogDriver) -> None:
    state = driver.sequencer.state.copy()
    driver.trim(driver.storage.durable_lsn)
    driver.close()

    reopened = driver.reopen()

    assert reopened.sequencer.state == state
    reopened.check()
    reopened.close()


def test_segments_that_are_not_finished_are_not_trimmed(tmp_path: Path) -> None:
    """Whatever the order in which they are finished: a trim never skips a segment."""
    driver = LogDriver(SimDisk(), limits=LIMITS)
    driver.claim()
    for number in range(GROUPS):
        driver.append([NewEntry(b"%d." % number * 60, ("all",))])
    assert len(driver.storage.unfinished()) >= 5
    for segment in driver.storage.unfinished()[1:]:
        driver.storage.finish_sealed(segment)

    driver.trim(driver.storage.durable_lsn)

    assert driver.storage.manifest.segments[0].id == 0
    driver.keep_house()
    driver.trim(driver.storage.durable_lsn)
    assert driver.storage.manifest.segments[0].id > 0
    driver.check()


def test_a_snapshot_that_a_kill_prevented_is_made_by_the_next_housekeeping() -> None:
    disk = SimDisk()
    driver = fill(LogDriver(disk, limits=LIMITS))
    newest = driver.storage.manifest.segments[-2]
    driver.close()
    for lsn in snapshot_lsns(disk):
        disk.remove(snapshot_name(lsn))

    driver = driver.reopen()
    assert driver.storage.unfinished() == [newest.id]
    driver.keep_house()

    assert snapshot_lsns(disk) == [newest.end_lsn]
    assert driver.storage.unfinished() == []
    driver.check()


def test_a_reader_that_is_overtaken_by_a_trim_is_told_so() -> None:
    """R39: the segment was chosen, then trimmed, then opened: that is no damage."""

    class TrimmingDisk(SimDisk):
        driver: LogDriver | None = None

        def open(self, name: str, *, writable: bool = False) -> SimFile:
            if self.driver is not None and name == segment_name(SegmentId(0)):
                self.driver.trim(self.driver.storage.durable_lsn)
            return super().open(name, writable=writable)

    disk = SimDisk()
    driver = fill(LogDriver(disk, limits=LIMITS))
    driver.close()
    trimming = TrimmingDisk(disk.contents())
    trimming.driver = driver = driver.reopen(trimming)

    with pytest.raises(Trimmed):
        read_piece(driver.storage, None, 0, 5, 1000)
    assert segment_name(SegmentId(0)) not in trimming.names()


def test_a_reader_that_holds_a_segment_reads_on_after_its_removal(driver: LogDriver) -> None:
    view = driver.storage.segment_at(0)
    start = view.index.span(0).start
    before = view.file.read_at(start, 100)

    driver.trim(driver.storage.durable_lsn)

    assert segment_name(SegmentId(0)) not in segment_files(driver.disk)
    assert view.file.read_at(start, 100) == before


# ---- TTL


def test_expiry_takes_whole_sealed_segments_that_are_older(driver: LogDriver) -> None:
    segments = driver.storage.manifest.segments
    sealed = segments[:-1]

    for info in sealed:
        assert driver.storage.expired_lsn(info.last_ms) == info.base_lsn
        assert driver.storage.expired_lsn(info.last_ms + 1) == info.end_lsn
    assert driver.storage.expired_lsn(0) == 0
    assert driver.storage.expired_lsn(2**50) == sealed[-1].end_lsn, "the open segment stays"


def test_expiry_after_a_trim_never_goes_back(driver: LogDriver) -> None:
    driver.trim(10)

    assert driver.storage.expired_lsn(0) == 10
    driver.trim(driver.storage.expired_lsn(2**50))
    driver.check()


# ---- cold store


def test_cold_copies_equal_the_local_files(cold_driver: LogDriver, tmp_path: Path) -> None:
    for info in cold_driver.storage.manifest.segments[:-1]:
        for name in (segment_name(info.id), index_name(info.id)):
            local = (tmp_path / "log" / name).read_bytes()
            assert (copies(cold_driver, tmp_path) / name).read_bytes() == local


def test_cold_copies_are_for_nobody_else(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    before = os.umask(0)
    try:
        for root in (tmp_path / "new" / "root", shared):
            store = FileSystemColdStore(f"file://{root}")
            (root / "left").mkdir()
            (root / "left" / "over.new").write_bytes(b"half")
            for name in ("one/seg", "one/seg", "left/over", "plain"):
                store.put(name, b"rows of somebody")
    finally:
        os.umask(before)

    def mode(path: Path) -> int:
        return path.stat().st_mode & 0o777

    for root in (tmp_path / "new" / "root", shared):
        assert mode(root / "one") == 0o700
        for name in ("one/seg", "left/over", "plain"):
            assert mode(root / name) == 0o600
    assert mode(tmp_path / "new" / "root") == 0o700
    assert mode(shared) == 0o755, "what is there is the user's"


def test_copies_that_an_earlier_version_left_open_to_others_are_closed(
    cold_driver: LogDriver, tmp_path: Path
) -> None:
    folder = copies(cold_driver, tmp_path)
    found = sorted(folder.iterdir())
    strange, elsewhere = folder / "notes", tmp_path / "cold" / "else" / "seg-1"
    elsewhere.parent.mkdir()
    link = folder / "seg-link"
    link.symlink_to(elsewhere)
    for path in (strange, elsewhere):
        path.write_text("somebody's")
    for path in (*found, strange, elsewhere):
        path.chmod(0o644)

    FileSystemColdStore((tmp_path / "cold").as_uri())

    assert len(found) >= 4
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (strange, elsewhere)} == {0o644}, "not ours"


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAKEY:ses/ame@bucket/p",
        "s3://AKIAKEY:ses%2Fame@bucket/p?nonsense=sesame",
        "nothing://AKIAKEY:sesame@bucket/p",
    ],
)
def test_a_cold_store_that_cannot_be_used_shows_no_secret(uri: str) -> None:
    with pytest.raises(BadConfig, match=r"cold store \w+://") as caught:
        FileSystemColdStore(uri)

    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    for secret in ("AKIAKEY", "ses"):
        assert secret not in str(caught.value)


def test_after_the_local_files_are_dropped_reads_come_from_the_cold_store(
    cold_driver: LogDriver,
) -> None:
    dropped = cold_driver.storage.cool(0)

    assert dropped >= 3
    local = segment_files(cold_driver.disk)
    assert segment_name(SegmentId(0)) not in local
    assert index_name(SegmentId(0)) not in local
    cold_driver.check()


def test_local_files_are_kept_up_to_the_given_bytes_and_while_a_snapshot_needs_them(
    cold_driver: LogDriver,
) -> None:
    storage = cold_driver.storage
    sealed = storage.manifest.segments[:-1]
    total = sum(info.bytes for info in sealed)

    assert storage.cool(total) == 0
    assert storage.cool(total - 1) == 1
    storage.cool(0)
    oldest = snapshot_lsns(cold_driver.disk)[0]
    assert [info.local for info in storage.manifest.segments] == [
        info.end_lsn > oldest for info in sealed
    ] + [True]


def test_a_cooled_log_reopens_and_reads_its_cold_segments(cold_driver: LogDriver) -> None:
    cold_driver.storage.cool(0)
    cold_driver.close()

    reopened = cold_driver.reopen()
    reopened.append([NewEntry(b"more", ("all",))])
    reopened.check()
    reopened.close()


def test_a_kill_between_the_manifest_and_the_removal_leaves_no_local_files_for_ever(
    cold_driver: LogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_driver.storage, "_remove_local", lambda segment: None)
    dropped = cold_driver.storage.cool(0)
    assert dropped and segment_name(SegmentId(0)) in segment_files(cold_driver.disk)
    cold_driver.abandon()

    reopened = cold_driver.reopen()

    assert segment_name(SegmentId(0)) not in segment_files(reopened.disk)
    reopened.check()
    reopened.close()


def test_an_error_at_any_step_of_dropping_local_files_leaves_a_log_that_opens(
    cold: FileSystemColdStore,
) -> None:
    disk = SimDisk()
    fill(LogDriver(disk, limits=LIMITS, cold=cold)).close()
    sent = fill(LogDriver(SimDisk(), limits=LIMITS)).sent
    fired = 0
    fail_at = 0

    while fired == fail_at:
        under = SimDisk(disk.contents())
        driver = LogDriver(under, sent=sent.copy(), limits=LIMITS, cold=cold)
        driver.abandon()
        faulty = FaultyDisk(under, fail_at=None, operations=CHANGING)
        driver = driver.reopen(faulty)
        faulty.fail_after(fail_at)
        try:
            driver.storage.cool(0)
        except OSError:
            fired += 1
        fail_at += 1
        for odds in (ALL_LOST, SOME_LOST):
            driver.reopen(under.crash(Random(fail_at), odds)).check()
    assert fired > 10


def test_a_trim_removes_cold_copies_too(cold_driver: LogDriver, tmp_path: Path) -> None:
    cold_driver.storage.cool(0)
    before = len(os.listdir(copies(cold_driver, tmp_path)))
    cold_driver.trim(cold_driver.storage.durable_lsn)

    first = cold_driver.storage.manifest.segments[0].id
    left = sorted(os.listdir(copies(cold_driver, tmp_path)))
    assert len(left) < before
    assert left[0] == index_name(first)
    cold_driver.check()


def test_a_cold_copy_that_is_damaged_is_never_read_as_data(
    cold_driver: LogDriver, tmp_path: Path
) -> None:
    cold_driver.storage.cool(0)
    path = copies(cold_driver, tmp_path) / segment_name(SegmentId(1))
    flip_bit(path)

    with pytest.raises(Damaged):
        cold_driver.read()


def test_a_cold_index_that_is_lost_or_damaged_is_rebuilt(
    cold_driver: LogDriver, tmp_path: Path
) -> None:
    cold_driver.storage.cool(0)
    (copies(cold_driver, tmp_path) / index_name(SegmentId(0))).unlink()
    (copies(cold_driver, tmp_path) / index_name(SegmentId(1))).write_bytes(b"nonsense")

    cold_driver.check()


def test_a_damaged_segment_is_not_copied_to_the_cold_store(
    tmp_path: Path, cold: FileSystemColdStore, driver: LogDriver
) -> None:
    driver.close()
    path = tmp_path / "log" / segment_name(SegmentId(1))
    flip_bit(path)
    reopened = LogDriver(driver.disk, sent=driver.sent, limits=LIMITS, cold=cold)

    with pytest.raises(Damaged):
        reopened.keep_house()

    copied = sorted(os.listdir(copies(reopened, tmp_path)))
    assert copied == [index_name(SegmentId(0)), segment_name(SegmentId(0))]
    assert not reopened.storage.manifest.segments[1].cold
    reopened.abandon()


def test_cold_segments_without_a_cold_store_are_named(cold_driver: LogDriver) -> None:
    cold_driver.storage.cool(0)
    cold_driver.close()
    reopened = LogDriver(cold_driver.disk, sent=cold_driver.sent, limits=LIMITS)

    with pytest.raises(MissingFile, match="none is configured"):
        reopened.read()
    reopened.close()


def test_a_cold_copy_is_synced_before_it_counts(
    tmp_path: Path, cold: FileSystemColdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place, the file, then its name: only then may the local file go."""
    synced: list[str] = []
    real_fsync = os.fsync

    def recording(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_relative_to(tmp_path):  # not what a thread of another test syncs
            synced.append(path.name)
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", recording)
    cold.put("copy", b"content")

    assert synced == [tmp_path.name, "copy.new", "cold"]
    assert (tmp_path / "cold" / "copy").read_bytes() == b"content"


def test_cold_copies_are_read_by_position_and_never_written(cold: FileSystemColdStore) -> None:
    cold.put("copy", b"0123456789")
    file = cold.open("copy")

    assert (file.size, file.read_at(3, 4), file.read_at(8, 9), file.read_at(20, 1)) == (
        10, b"3456", b"89", b"",
    )  # fmt: skip
    for act in (
        lambda: file.append([b"x"]),
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(0),
        file.sync,
    ):
        with pytest.raises(PermissionError):
            act()
    file.close()
    cold.remove("copy")
    cold.remove("copy")


def test_a_wrong_cold_uri_is_a_configuration_error() -> None:
    with pytest.raises(BadConfig, match="nosuch"):
        FileSystemColdStore("nosuch://bucket/folder")


# ---- real files


def test_a_real_file_shows_its_allocated_space_as_zeros_until_it_is_cut(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    file = disk.create("a")
    file.append([b"abc", b"def"])

    assert isinstance(file, RealFile)
    other = disk.open("a")
    assert file.size == 6
    assert other.size > 6
    assert other.read_at(0, 10) == b"abcdef\0\0\0\0"
    file.truncate(6)
    assert os.path.getsize(tmp_path / "a") == 6
    file.close()
    other.close()
