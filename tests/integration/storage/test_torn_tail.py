"""A log whose last write was cut, at every byte: what was acknowledged before it is untouched."""

from __future__ import annotations

import secrets
from random import Random

import pytest
from harness.disk import SECTOR_BYTES, SimDisk
from harness.driver import ONE_SEGMENT, LogDriver, Sent
from sample_log import case

from penstock.errors import Damaged
from penstock.ids import SegmentId
from penstock.log.record_format import RECORD_HEADER_BYTES, encode_note
from penstock.log.records import NewEntry, SetKey
from penstock.log.storage import segment_file
from penstock.log.storage.segment_file import segment_name

OPEN_SEGMENT = segment_name(0)
SEED = 7
#: Torn variants of each last group; the cuts are exhaustive.
TORN_VARIANTS = 60


def payload_for_record(size: int) -> bytes:
    """A payload that makes a one-entry, one-tag record of exactly `size` bytes."""
    probe = LogDriver(SimDisk())
    probe.claim()
    overhead = RECORD_HEADER_BYTES + len(probe.send([NewEntry(b"", ("t",))]).body.data)
    return bytes(index % 251 for index in range(size - overhead))


#: The last group, by name: its entries and the metadata that it sets.
LAST_GROUPS: dict[str, tuple[list[NewEntry], list[SetKey]]] = {
    "minimal": ([NewEntry(b"")], []),
    "100 bytes": ([NewEntry(b"z" * 100, ("t",))], []),
    "4095 bytes": ([NewEntry(payload_for_record(4095), ("t",))], []),
    "4096 bytes": ([NewEntry(payload_for_record(4096), ("t",))], []),
    "4097 bytes": ([NewEntry(payload_for_record(4097), ("t",))], []),
    "many entries and tags": (
        [NewEntry(b"e%d" % n * n, tuple(f"t{k}" for k in range(n))) for n in range(6)],
        [SetKey("key", b"value"), SetKey("k", None)],
    ),
}


class Scene:
    """A killed log: some acknowledged groups, then the last one; with its bytes in the file."""

    def __init__(self, entries: list[NewEntry], sets: list[SetKey]) -> None:
        disk = SimDisk()
        driver = LogDriver(disk, limits=ONE_SEGMENT)
        driver.claim()
        driver.append([NewEntry(b"first", ("a", "t"))], sets=[SetKey("k", b"1")])
        driver.append([NewEntry(b"second", ("b",)), NewEntry(b"third", ("t",))])
        self.sent_before = driver.sent.copy()
        self.start = driver.storage.open_bytes
        driver.append(entries, sets=sets)
        self.end = driver.storage.open_bytes
        self.last = driver.sent.placed[-1]
        disk.kill()
        self.contents = disk.contents()

    def cut(self, size: int) -> SimDisk:
        contents = dict(self.contents)
        contents[OPEN_SEGMENT] = contents[OPEN_SEGMENT][:size]
        return SimDisk(contents)

    def overwritten(self, data: bytes) -> SimDisk:
        contents = dict(self.contents)
        file = contents[OPEN_SEGMENT]
        contents[OPEN_SEGMENT] = file[: self.start] + data + file[self.start + len(data) :]
        return SimDisk(contents)

    def sent(self) -> Sent:
        """As if the last group had not been answered."""
        sent = self.sent_before.copy()
        sent.doubtful = [self.last]
        return sent


def reopen_and_append(disk: SimDisk, sent: Sent, *, whole: bool) -> LogDriver:
    groups_before = len(sent.placed)
    driver = LogDriver(disk, sent=sent, limits=ONE_SEGMENT)
    assert len(driver.sent.placed) == groups_before + whole
    driver.append([NewEntry(b"after the cut", ("a", "new"))], sets=[SetKey("k2", b"2")])
    return driver


def reopen_and_check(driver: LogDriver) -> None:
    groups = len(driver.sent.placed)
    assert isinstance(driver.disk, SimDisk)
    driver.disk.kill()
    driver = driver.reopen()
    assert len(driver.sent.placed) == groups
    driver.check()


@pytest.mark.parametrize("name", LAST_GROUPS)
def test_a_cut_at_any_byte_of_the_last_group_loses_that_group_only(name: str) -> None:
    scene = Scene(*LAST_GROUPS[name])

    for size in range(scene.start, scene.end + 1):
        with case(cut=size):
            whole = size == scene.end
            driver = reopen_and_append(scene.cut(size), scene.sent(), whole=whole)
            if size % 16 == scene.end % 16:  # reading all back 16 times less often is enough
                reopen_and_check(driver)


@pytest.mark.parametrize("name", LAST_GROUPS)
def test_a_last_group_of_which_a_tail_reads_as_zeros_is_cut_at_any_byte(name: str) -> None:
    """The length survived, the bytes did not: as with preallocated space."""
    scene = Scene(*LAST_GROUPS[name])
    record = scene.contents[OPEN_SEGMENT][scene.start : scene.end]
    step = 1 if len(record) < 1000 else 7

    for kept in range(0, len(record), step):
        torn = record[:kept].ljust(len(record), b"\0")
        driver = reopen_and_append(scene.overwritten(torn), scene.sent(), whole=torn == record)
        if kept % 16 == 0:
            reopen_and_check(driver)


@pytest.mark.parametrize("name", LAST_GROUPS)
def test_a_last_group_with_torn_sectors_is_gone_or_whole(name: str) -> None:
    scene = Scene(*LAST_GROUPS[name])
    record = scene.contents[OPEN_SEGMENT][scene.start : scene.end]
    first_sector = scene.start // SECTOR_BYTES * SECTOR_BYTES

    for seed in range(TORN_VARIANTS):
        random = Random(SEED * 1000 + seed)
        torn = bytearray(record)
        for sector in range(first_sector, scene.end, SECTOR_BYTES):
            left = max(sector, scene.start) - scene.start
            right = min(sector + SECTOR_BYTES, scene.end) - scene.start
            fate = random.choice(("new", "zeros", "noise"))
            if fate == "zeros":
                torn[left:right] = bytes(right - left)
            elif fate == "noise":
                torn[left:right] = random.randbytes(right - left)
        disk = scene.overwritten(bytes(torn))
        driver = reopen_and_append(disk, scene.sent(), whole=torn == record)
        if seed % 8 == 0:
            reopen_and_check(driver)


def test_groups_of_one_write_survive_up_to_the_first_torn_one() -> None:
    disk = SimDisk()
    driver = LogDriver(disk, limits=ONE_SEGMENT)
    driver.claim()
    before = driver.sent.copy()
    start = driver.storage.open_bytes
    ends = []
    for number in range(3):
        attempt = driver.send([NewEntry(b"n" * 300, (f"t{number}",))])
        size = RECORD_HEADER_BYTES + len(attempt.body.data)
        ends.append(start + RECORD_HEADER_BYTES + (number + 1) * size)  # behind a note
    driver.pump()
    groups = driver.sent.placed[-3:]
    disk.kill()
    contents = disk.contents()

    for size in range(start, ends[-1] + 1):
        sent = before.copy()
        sent.doubtful = list(groups)
        cut = SimDisk({**contents, OPEN_SEGMENT: contents[OPEN_SEGMENT][:size]})
        reopened = LogDriver(cut, sent=sent, limits=ONE_SEGMENT)
        assert len(reopened.sent.placed) == len(before.placed) + sum(end <= size for end in ends)


def test_a_middle_group_that_was_lost_takes_the_later_ones_of_its_write_with_it() -> None:
    """None was acknowledged; the third one is intact, but nothing vouches for the second."""
    disk = SimDisk()
    driver = LogDriver(disk, limits=ONE_SEGMENT)
    driver.claim()
    before = driver.sent.copy()
    start = driver.storage.open_bytes
    attempts = [driver.send([NewEntry(b"n" * 300)]) for _ in range(3)]
    driver.pump()
    disk.kill()
    contents = disk.contents()
    size = RECORD_HEADER_BYTES + len(attempts[0].body.data)
    file = bytearray(contents[OPEN_SEGMENT])
    second = start + RECORD_HEADER_BYTES + size
    file[second : second + size] = bytes(size)

    sent = before.copy()
    sent.doubtful = list(attempts)
    reopened = LogDriver(
        SimDisk({**contents, OPEN_SEGMENT: bytes(file)}), sent=sent, limits=ONE_SEGMENT
    )

    assert len(reopened.sent.placed) == len(before.placed) + 1
    assert reopened.torn_bytes > 0
    reopened.check()


def forged_notes(driver: LogDriver) -> bytes:
    """All that a client can say of the log: it knows the log's id, and no key."""
    mark = driver.storage.manifest.log_mark
    marks = [mark, 0, SEED, 2**64 - 1]
    notes = [
        encode_note(lsn=2**40, epoch=epoch, segment=0, time_ms=0, log_mark=mark)
        for mark in marks
        for epoch in (1, 2**40)
    ]
    return b"".join(notes) + b"PGR1" * 100


def test_no_payload_makes_damage_of_a_torn_tail() -> None:
    """Else a server that was killed in the middle of that write would never start again."""
    disk = SimDisk()
    driver = LogDriver(disk, limits=ONE_SEGMENT)
    driver.claim()
    driver.append([NewEntry(b"acknowledged", ("t",))])
    before = driver.sent.copy()
    start = driver.storage.open_bytes
    driver.append([NewEntry(forged_notes(driver) + bytes(2000), ("t",))])
    end = driver.storage.open_bytes
    disk.kill()
    contents = disk.contents()

    for size in range(start, end, 97):
        sent = before.copy()
        sent.doubtful = [driver.sent.placed[-1]]
        cut = SimDisk({**contents, OPEN_SEGMENT: contents[OPEN_SEGMENT][:size]})
        reopened = LogDriver(cut, sent=sent, limits=ONE_SEGMENT)
        assert reopened.torn_bytes == size - start - (
            RECORD_HEADER_BYTES if size - start >= 64 else 0
        )
        reopened.check()


def test_what_a_key_vouches_for_is_damage_whatever_stands_before_it() -> None:
    disk = SimDisk()
    driver = LogDriver(disk, limits=ONE_SEGMENT)
    driver.claim()
    start = driver.storage.open_bytes + RECORD_HEADER_BYTES
    driver.append([NewEntry(forged_notes(driver), ("t",))])
    driver.append([NewEntry(b"acknowledged after it")])
    disk.kill()
    disk.damage(OPEN_SEGMENT, start + 20)

    with pytest.raises(Damaged, match="says that it was durable"):
        driver.reopen()


def old_log(monkeypatch: pytest.MonkeyPatch) -> LogDriver:
    """A killed log of an older version: no key, and no notes but in quiet moments."""
    disk = SimDisk()
    with monkeypatch.context() as patch:
        patch.setattr(segment_file, "SEGMENT_MAGIC", segment_file._OLD_MAGIC)
        patch.setattr(secrets, "token_bytes", bytes)
        driver = LogDriver(disk, limits=ONE_SEGMENT)
        driver.claim()
        for number in range(3):
            driver.storage._noted = True
            driver.append([NewEntry(b"n%d" % number, ("t",))])
    assert disk.contents()[OPEN_SEGMENT].startswith(b"PSG1")
    assert disk.contents()[OPEN_SEGMENT][56:64] == bytes(8)
    disk.kill()
    return driver


def test_a_segment_of_an_older_version_is_read_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = old_log(monkeypatch).reopen()

    assert driver.storage.is_outdated  # as a server does, the next write begins another segment
    driver.append([NewEntry(b"more", ("t",))])
    driver.append([NewEntry(b"and more", ("t",))])
    driver.check()
    assert driver.disk.open(segment_name(SegmentId(1))).read_at(0, 4) == b"PSG2"
    assert not driver.storage.is_outdated
    reopen_and_check(driver)


def test_in_a_segment_of_an_older_version_any_later_record_vouches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = old_log(monkeypatch)
    assert isinstance(driver.disk, SimDisk)
    driver.disk.damage(OPEN_SEGMENT, driver.disk.contents()[OPEN_SEGMENT].index(b"n1") - 100)

    with pytest.raises(Damaged, match="says that it was durable"):
        driver.reopen()


def test_a_cleanly_stopped_log_that_is_cut_is_damaged_and_not_repaired() -> None:
    disk = SimDisk()
    driver = LogDriver(disk, limits=ONE_SEGMENT)
    driver.claim()
    driver.append([NewEntry(b"x" * 100, ("t",))])
    driver.close()
    contents = disk.contents()
    whole = contents[OPEN_SEGMENT]

    for size in range(len(whole)):
        cut = SimDisk({**contents, OPEN_SEGMENT: whole[:size]})
        with pytest.raises(Damaged):
            LogDriver(cut, sent=driver.sent.copy())
        assert cut.contents()[OPEN_SEGMENT] == whole[:size], "damaged files are left as they are"


def test_a_log_that_was_never_written_opens_after_any_cut_of_its_creation() -> None:
    disk = SimDisk()
    driver = LogDriver(disk, limits=ONE_SEGMENT)
    disk.kill()

    reopened = driver.reopen()

    assert reopened.storage.durable_lsn == 0
    reopened.claim()
    reopened.check()
