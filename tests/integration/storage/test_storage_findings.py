"""Files of a log while several threads, logs and processes are at them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.disk import SimDisk, SimFile
from harness.driver import LOG_ID, LogDriver
from simulation.log.machine import MemoryColdStore

from penstock.errors import Damaged
from penstock.ids import SegmentId
from penstock.log.core.sequencer import SegmentLimits
from penstock.log.records import NewEntry
from penstock.log.storage import log_storage
from penstock.log.storage.cold import FileSystemColdStore
from penstock.log.storage.disk import File
from penstock.log.storage.manifest import FileManifestStore, Manifest
from penstock.log.storage.recover import snapshot_lsns, snapshot_name
from penstock.log.storage.segment_file import index_name, segment_name
from penstock.log.storage.verify import verify_log

LIMITS = SegmentLimits(bytes=1500, ms=2**40)


def filled(disk: SimDisk, **options: object) -> LogDriver:
    driver = LogDriver(disk, limits=LIMITS, **options)  # type: ignore[arg-type]
    driver.claim()
    for number in range(24):
        driver.append([NewEntry(b"%d." % number * 60, ("all",))])
        driver.keep_house()
    return driver


def flip(disk: SimDisk, name: str) -> SimDisk:
    contents = dict(disk.contents())
    data = bytearray(contents[name])
    data[len(data) // 2] ^= 1
    return SimDisk({**contents, name: bytes(data)})


# ---- cold copies


def test_two_logs_share_a_cold_store_and_keep_out_of_each_others_way(tmp_path: Path) -> None:
    uri = (tmp_path / "cold").as_uri()
    other_id = bytes(reversed(LOG_ID))
    one = filled(SimDisk(), cold=FileSystemColdStore(uri))
    two = filled(SimDisk(), cold=FileSystemColdStore(uri), log_id=other_id)
    assert one.storage.cool(0) and two.storage.cool(0)

    one.trim(one.storage.durable_lsn)

    assert {path.name for path in (tmp_path / "cold").iterdir()} == {LOG_ID.hex(), other_id.hex()}
    two.check()
    one.check()


def test_a_segment_with_an_index_is_walked_before_it_is_copied() -> None:
    driver = filled(SimDisk())
    driver.close()
    cold = MemoryColdStore()
    flipped = flip(driver.disk, segment_name(SegmentId(1)))  # type: ignore[arg-type]
    reopened = LogDriver(flipped, sent=driver.sent, limits=LIMITS, cold=cold)

    with pytest.raises(Damaged, match=segment_name(SegmentId(1))):
        reopened.storage.finish_sealed(SegmentId(1))

    assert not reopened.storage.manifest.segments[1].cold
    with pytest.raises(KeyError):
        cold.open(f"{LOG_ID.hex()}/{segment_name(SegmentId(1))}")


def test_a_missing_cold_copy_does_not_rebuild_an_index_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = filled(SimDisk())
    driver.close()
    reopened = LogDriver(driver.disk, sent=driver.sent, limits=LIMITS, cold=MemoryColdStore())
    rebuilt: list[SegmentId] = []

    def rebuild(file: File, info: log_storage.SegmentInfo, manifest: Manifest) -> object:
        rebuilt.append(info.id)
        return real(file, info, manifest)

    real = log_storage.rebuild_index
    monkeypatch.setattr(log_storage, "rebuild_index", rebuild)
    driver.disk.remove(index_name(SegmentId(2)))
    reopened.keep_house()

    assert rebuilt == [2]
    assert all(info.cold for info in reopened.storage.manifest.segments[:-1])


# ---- trim


class UnwillingStore(MemoryColdStore):
    """Refuses to remove anything."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def remove(self, name: str) -> None:
        self.asked.append(name)
        raise OSError(errno.EIO, "the store is away")


def test_a_trim_goes_on_if_the_cold_store_refuses(caplog: pytest.LogCaptureFixture) -> None:
    cold = UnwillingStore()
    driver = filled(SimDisk(), cold=cold)
    driver.trim(driver.storage.durable_lsn)

    first = driver.storage.manifest.segments[0].id
    assert first >= 3
    assert len(cold.asked) == 2 * first, "each copy is tried"
    assert caplog.text.count("a cold copy is left over") == 2 * first
    local = [name for name in driver.disk.names() if name.startswith("seg-")]
    assert local[0] == index_name(first)


def test_a_trim_waits_for_a_copy_that_is_under_way_and_removes_it() -> None:
    copying, go_on = threading.Event(), threading.Event()

    class SlowStore(MemoryColdStore):
        def put(self, name: str, data: bytes) -> None:
            copying.set()
            assert go_on.wait(30)
            super().put(name, data)

    driver = filled(SimDisk())
    driver.close()
    cold = SlowStore()
    reopened = LogDriver(driver.disk, sent=driver.sent, limits=LIMITS, cold=cold)
    storage = reopened.storage
    finishing = threading.Thread(target=storage.finish_sealed, args=(SegmentId(0),))
    trimming = threading.Thread(target=reopened.trim, args=(storage.durable_lsn,))
    finishing.start()
    assert copying.wait(30)
    trimming.start()
    assert storage._housekeeping_lock.locked()
    assert storage.manifest.segments[0].id == 0, "the trim has not begun"
    go_on.set()
    finishing.join(30)
    trimming.join(30)

    assert storage.manifest.segments[0].id > 0
    with pytest.raises(KeyError):
        cold.open(f"{LOG_ID.hex()}/{segment_name(SegmentId(0))}")


# ---- poison


def test_a_failed_manifest_never_heals_or_hurts_a_concurrent_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = filled(SimDisk())
    storage = driver.storage
    seen: list[bool] = []
    real_read = FileManifestStore.read

    def full(store: FileManifestStore, manifest: Manifest) -> None:
        raise OSError(errno.ENOSPC, "no space")

    def read(store: FileManifestStore) -> Manifest | None:
        seen.append(storage.poisoned)
        storage.poisoned = poison
        return real_read(store)

    monkeypatch.setattr(FileManifestStore, "write", full)
    monkeypatch.setattr(FileManifestStore, "read", read)
    for poison in (False, True):  # True: a write on another thread fails at this moment
        with pytest.raises(OSError, match="no space"):
            storage.trim(storage.durable_lsn)
        assert storage.poisoned is poison

    assert seen == [False, False]


# ---- verify beside a live server


class BusyDisk(SimDisk):
    """Lets a server act at the moment when a file is opened."""

    trigger = ""
    act: Callable[[], object] | None = None

    def open(self, name: str, *, writable: bool = False) -> SimFile:
        if self.act is not None and name == self.trigger:
            act, self.act = self.act, None
            act()
        return super().open(name, writable=writable)


def busy_log(trigger: Callable[[BusyDisk], str]) -> tuple[BusyDisk, LogDriver]:
    """A log whose server acts when verify, past the sizes of all files, opens one of them."""
    disk = BusyDisk()
    driver = filled(disk, cold=MemoryColdStore())
    wanted = trigger(disk)
    disk.trigger = wanted
    return disk, driver


@pytest.mark.parametrize("name", [segment_name(SegmentId(0)), index_name(SegmentId(0))])
@pytest.mark.parametrize("change", ["trim", "cool"])
def test_verify_skips_segments_that_are_given_up_meanwhile(name: str, change: str) -> None:
    disk, driver = busy_log(lambda disk: name)
    storage = driver.storage
    if change == "trim":
        act: Callable[[], object] = lambda: driver.trim(storage.durable_lsn)  # noqa: E731
    else:
        act = lambda: storage.cool(0)  # noqa: E731

    def at_second_opening() -> None:
        disk.act = act  # the first one was for the file's size

    disk.act = at_second_opening
    report = verify_log(disk, durable_bytes=storage.open_bytes)

    assert disk.act is None and segment_name(SegmentId(0)) not in disk.names()
    assert not report.damaged
    notes = [finding.problem for finding in report.findings]
    assert len(notes) == (1 if change == "cool" else 0), notes


def test_verify_skips_a_snapshot_that_is_replaced_meanwhile() -> None:
    disk, driver = busy_log(lambda disk: snapshot_name(snapshot_lsns(disk)[0]))
    oldest = disk.trigger

    def at_second_opening() -> None:
        disk.act = lambda: disk.remove(oldest)

    disk.act = at_second_opening
    report = verify_log(disk, durable_bytes=driver.storage.open_bytes)

    assert oldest not in disk.names()
    assert report.findings == []


def test_verify_still_reports_a_segment_that_is_named_and_missing() -> None:
    driver = filled(SimDisk())
    driver.disk.remove(segment_name(SegmentId(1)))

    [finding] = verify_log(driver.disk, durable_bytes=driver.storage.open_bytes).findings

    assert (finding.file, finding.severity) == (segment_name(SegmentId(1)), "damage")


def test_verify_says_how_many_segments_it_did_not_check() -> None:
    driver = filled(SimDisk(), cold=MemoryColdStore())
    dropped = driver.storage.cool(0)

    report = verify_log(driver.disk, durable_bytes=driver.storage.open_bytes)

    [finding] = report.findings
    assert (finding.severity, report.damaged) == ("note", False)
    assert finding.problem.startswith(f"{dropped} segments are only in the cold store")
