"""ENOSPC and EIO on every operation of a workload: what was acknowledged stays, the rest is whole
or absent, and after a failed fsync nothing is trusted that only the page cache holds (R48).
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from harness.disk import ALL_LOST, SOME_LOST, SimDisk
from harness.driver import LogDriver, Sent
from harness.faults import ALL, CHANGING, FaultyDisk
from sample_log import case

from penstock.errors import Damaged, PenstockError, Unavailable
from penstock.log.core.sequencer import SegmentLimits
from penstock.log.records import NewEntry, SetKey
from penstock.log.storage import recover as recover_module
from penstock.log.storage.disk import File
from penstock.log.storage.segment_file import SegmentEnd

LIMITS = SegmentLimits(bytes=1200, ms=2**40)
SEED = 3


class Session:
    """A log on a disk that may fail, used step by step."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk
        self.sent = Sent()
        self.driver: LogDriver | None = None

    def open(self) -> None:
        self.driver = LogDriver(self.disk, sent=self.sent, limits=LIMITS)

    def close(self) -> None:
        self._open().close()

    def claim(self) -> None:
        self._open().claim()

    def append(self, number: int) -> None:
        entries = [NewEntry(b"%d." % number * 30, ("all", f"n{number % 3}"))] * (1 + number % 2)
        sets = [SetKey(f"k{number % 4}", b"%d" % number)] if number % 3 == 0 else []
        if self.sent.producer("p") == (0, 0):
            self.claim()  # it did not work the first time
        self._open().append(entries, sets=sets)

    def keep_house(self) -> None:
        self._open().keep_house()

    def note(self) -> None:
        self._open().storage.note()

    def trim(self, lsn: int) -> None:
        self._open().trim(lsn)

    def read(self) -> None:
        driver = self._open()
        expected = [entry for entry in self.sent.entries() if "n1" in entry.tags]
        assert driver.read(["n1"]) == [e for e in expected if e.lsn >= driver.trim_point]

    def _open(self) -> LogDriver:
        if self.driver is None:
            raise Unavailable("the log did not open")
        return self.driver


Step = Callable[[Session], None]


def workload() -> list[Step]:
    """About 150 changing operations: appends, rolls, housekeeping, notes, trims, reopening."""
    steps: list[Step] = [Session.open, Session.claim]

    def appends(numbers: range) -> list[Step]:
        return [lambda session, number=number: session.append(number) for number in numbers]

    steps += [*appends(range(6)), Session.keep_house, Session.note, *appends(range(6, 10))]
    steps += [Session.keep_house, Session.read, lambda session: session.trim(7)]
    steps += [*appends(range(10, 13)), Session.close, Session.open, Session.read]
    steps += [*appends(range(13, 16)), Session.keep_house, lambda session: session.trim(9)]
    steps += [*appends(range(16, 18)), Session.close]
    return steps


def run(disk: FaultyDisk, *, go_on: bool) -> tuple[Session, list[Exception]]:
    """Do the workload; after an error, stop, or `go_on` with the steps that follow."""
    session = Session(disk)
    errors: list[Exception] = []
    for step in workload():
        fired, told = len(disk.fired), len(errors)
        storage = None if session.driver is None else session.driver.storage
        acked = len(session.sent.placed)
        try:
            step(session)
        except (OSError, PenstockError) as error:
            errors.append(error)
            if storage is not None and session.sent.doubtful:
                assert storage.poisoned, "a log goes on after a failed append"
                assert len(session.sent.placed) == acked
        # A reader may find another way; whoever wants to change something is told.
        if {*disk.fired[fired:]} & CHANGING and step is not Session.read:
            assert len(errors) > told, f"{disk.fired[-1]} failed, and nobody was told"
        if errors and not go_on:
            break
    return session, errors


def check_after(under: SimDisk, sent: Sent) -> None:
    """The healthy disk opens with everything that was acknowledged, and goes on working."""
    driver = LogDriver(under, sent=sent, limits=LIMITS)
    driver.check()
    if not sent.producer("p")[0]:
        driver.claim()
    for number in range(100, 104):
        driver.append([NewEntry(b"after" * 30, ("after", f"n{number % 3}"))])
    driver.keep_house()
    driver.close()
    driver = driver.reopen()
    driver.check()


def what_is_left(under: SimDisk, sent: Sent, seed: int) -> SimDisk:
    """The process is killed; or the power fails; or it fails after the next process has opened."""
    random = Random(SEED * 1000 + seed)
    under.kill()
    manner = random.choice(("kill", "cut", "kill, open, cut"))
    if manner == "kill, open, cut":
        LogDriver(under, sent=sent, limits=LIMITS)
    return under if manner == "kill" else under.crash(random, SOME_LOST)


def operation_count(operations: frozenset[str]) -> int:
    disk = FaultyDisk(SimDisk(), fail_at=None)
    session, errors = run(disk, go_on=False)
    assert not errors
    assert len(session.sent.placed) == 19
    return sum(disk.counts[kind] for kind in operations)


def test_the_workload_is_long_enough_and_holds_every_operation() -> None:
    disk = FaultyDisk(SimDisk(), fail_at=None)
    session, errors = run(disk, go_on=False)

    assert not errors
    assert session.driver is not None
    assert len(session.driver.storage.manifest.segments) >= 3
    assert session.driver.trim_point == 9
    assert set(disk.counts) == ALL
    assert sum(disk.counts[kind] for kind in CHANGING) >= 150


@pytest.mark.parametrize(
    ("error", "partly", "lasting"),
    [
        pytest.param(errno.EIO, False, False, id="EIO once"),
        pytest.param(errno.EIO, True, False, id="EIO once, half done", marks=pytest.mark.soak),
        pytest.param(errno.ENOSPC, False, True, id="ENOSPC from then on", marks=pytest.mark.soak),
        pytest.param(errno.ENOSPC, True, True, id="ENOSPC from then on, half done"),
    ],
)
def test_an_error_at_any_operation_loses_nothing_acknowledged(
    error: int, partly: bool, lasting: bool
) -> None:
    fired: Counter[str] = Counter()
    count = operation_count(ALL)

    for fail_at in range(count):
        under = SimDisk()
        disk = FaultyDisk(under, fail_at=fail_at, error=error, partly=partly, lasting=lasting)
        with case(seed=SEED, fail_at=fail_at):
            session, _ = run(disk, go_on=fail_at % 2 == 0)
            assert disk.fired
            fired[disk.fired[0]] += 1
            check_after(what_is_left(under, session.sent, fail_at), session.sent)

    assert set(fired) == ALL
    assert fired.total() == count


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failed_append_poisons_the_log_and_is_never_answered(kind: str) -> None:
    disk = FaultyDisk(SimDisk(), fail_at=None, operations=frozenset({kind}))
    driver = LogDriver(disk)
    driver.claim()
    disk.fail_after(0)

    with pytest.raises(OSError, match=kind):
        driver.append([NewEntry(b"one")])

    assert disk.fired == [kind]
    assert driver.storage.poisoned and driver.sequencer.poisoned
    assert len(driver.sent.doubtful) == 1
    assert driver.pump() == {}, "an answer after a failed write"
    for act in (driver.storage.note, lambda: driver.append([NewEntry(b"two")])):
        with pytest.raises(Unavailable):
            act()
    counts = disk.counts.copy()
    driver.close()
    assert disk.counts == counts, "a poisoned file is not written, synced or cut again"


def test_a_trim_on_a_full_disk_fails_and_may_be_tried_again() -> None:
    disk = FaultyDisk(SimDisk(), fail_at=None, error=errno.ENOSPC, operations=frozenset({"write"}))
    driver = LogDriver(disk)
    driver.claim()
    disk.fail_after(0)

    with pytest.raises(OSError, match="No space left"):
        driver.trim(1)

    assert not driver.storage.poisoned
    assert driver.trim_point == 0
    assert driver.trim(1) == 1
    driver.append([NewEntry(b"one")])
    driver.check()


def test_a_manifest_that_a_power_cut_could_undo_stops_the_log() -> None:
    under = SimDisk()
    disk = FaultyDisk(under, fail_at=None, operations=frozenset({"sync_dir"}))
    driver = LogDriver(disk)
    driver.claim()
    disk.fail_after(0)

    with pytest.raises(OSError):
        driver.trim(1)

    for act in (lambda: driver.trim(1), lambda: driver.append([NewEntry(b"one")])):
        with pytest.raises(Unavailable):
            act()
    under.kill()
    driver.reopen(under).check()


def test_a_reader_gets_its_answer_though_a_rebuilt_index_cannot_be_stored() -> None:
    disk = FaultyDisk(SimDisk(), fail_at=None, error=errno.ENOSPC, operations=CHANGING)
    driver = LogDriver(disk, limits=LIMITS)
    driver.claim()
    for number in range(12):
        driver.append([NewEntry(b"x" * 300, (f"n{number % 3}",))])
    driver.abandon()  # before the housekeeping: no segment has its index yet
    driver = driver.reopen()
    assert driver.storage.unfinished()
    disk.fail_after(0)

    driver.check()

    assert disk.fired == ["create"]


def fail_one_sync_then_lose_power(fail_at: int) -> None:
    """One fsync fails and drops its data; the log is reopened, appended to, and loses power."""
    under = SimDisk()
    disk = FaultyDisk(under, fail_at=fail_at, operations=frozenset({"sync"}))
    session, _ = run(disk, go_on=False)
    assert disk.fired == ["sync"]
    under.kill()
    driver = LogDriver(under, sent=session.sent, limits=LIMITS)
    driver.check()
    driver.claim()
    for number in range(3):
        driver.append([NewEntry(b"later%d" % number, ("later",))])
    under = under.crash(Random(SEED), ALL_LOST)
    driver.reopen(under).check()


def test_what_is_acknowledged_after_a_failed_fsync_and_a_restart_survives_a_power_cut() -> None:
    count = operation_count(frozenset({"sync"}))
    assert count > 40

    for fail_at in range(count):
        with case(fail_at=fail_at):
            fail_one_sync_then_lose_power(fail_at)


def test_without_the_rewrite_of_unvouched_bytes_the_checker_sees_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mutant trusts what it reads back: after fsyncgate that is the page cache only."""

    def trusting(file: File, end: SegmentEnd) -> None:
        file.truncate(end.bytes)
        file.sync()

    monkeypatch.setattr(recover_module, "_make_durable", trusting)
    caught = 0

    for fail_at in range(operation_count(frozenset({"sync"}))):
        try:
            fail_one_sync_then_lose_power(fail_at)
        except (AssertionError, Damaged):
            caught += 1

    assert caught >= 15, "the failed syncs of appends must all show"
