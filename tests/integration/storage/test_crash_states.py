"""Power cuts and kills at every operation of a recorded trace: every state opens and is right."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from random import Random

import pytest
from harness.crash_states import CrashState, crash_states, draw_odds, killed_states
from harness.disk import ALL_LOST, SimDisk
from harness.driver import LOG_ID, Attempt, LogDriver, Sent
from harness.faults import CHANGING, FaultyDisk, Mark, Operation, TracingDisk
from sample_log import case

from penstock.log.core.sequencer import SegmentLimits
from penstock.log.records import NewEntry, SetKey
from penstock.log.storage.manifest import FileManifestStore
from penstock.log.storage.recover import create_log, recover

LIMITS = SegmentLimits(bytes=6000, ms=2**40)
SEED = 5
GROUPS = 22
#: Random states per point of the trace, beside "all lost" and "all kept".
MIXTURES = 30
#: Points of each recovery at which the power fails.
CUTS_IN_RECOVERY = 2
SOAK_GROUPS = 60
SOAK_MIXTURES = 40


@dataclass(frozen=True, slots=True)
class TrimAsked:
    lsn: int


@dataclass(frozen=True, slots=True)
class TrimDone:
    lsn: int


@dataclass(frozen=True, slots=True)
class GroupSent:
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class GroupAcked:
    attempt: Attempt


def record_trace(groups: int) -> list[Operation | Mark]:
    """A log that is created, filled over several segments, trimmed, stopped and reopened."""
    disk = TracingDisk(SimDisk())

    def listen(event: str, attempt: Attempt) -> None:
        disk.mark(GroupSent(attempt) if event == "sent" else GroupAcked(attempt))

    driver = LogDriver(disk, limits=LIMITS, listener=listen)
    driver.claim()
    for number in range(groups):
        size = (5, 500, 2000, 3500)[number % 4]
        driver.send([NewEntry(bytes([number]) * size, ("all", f"n{number % 3}"))])
        if number % 5 == 2:
            driver.send([NewEntry(b"same write")] * 3, sets=[SetKey("k", b"%d" % number)])
        driver.pump()
        if number % 6 == 3:
            driver.keep_house()
        if number % 11 == 9:
            driver.storage.note()
            disk.mark(TrimAsked(number // 2))
            driver.trim(number // 2)
            disk.mark(TrimDone(number // 2))
        if number == groups // 2:
            driver.close()
            driver = driver.reopen()
            driver.claim()
    driver.close()
    return disk.trace


@pytest.fixture(scope="module")
def trace() -> list[Operation | Mark]:
    return record_trace(GROUPS)


def sent_by(marks: tuple[object, ...]) -> Sent:
    """What was known to the outside when the power failed."""
    sent = Sent()
    for mark in marks:
        match mark:
            case GroupSent(attempt):
                sent.doubtful.append(attempt)
            case GroupAcked(attempt):
                assert sent.doubtful.pop(0) is attempt
                sent.place(attempt)
            case TrimAsked(lsn):
                sent.trim_asked = lsn
            case TrimDone(lsn):
                sent.trim_confirmed = lsn
    return sent


def reopen(state: CrashState) -> LogDriver:
    return LogDriver(state.disk, sent=sent_by(state.marks), limits=LIMITS)


def check_and_go_on(driver: LogDriver) -> None:
    driver.check()
    driver.claim()
    driver.append([NewEntry(b"after the crash", ("all",))])
    driver.keep_house()


def test_the_trace_is_long_and_holds_every_operation(trace: list[Operation | Mark]) -> None:
    kinds = Counter(step.kind for step in trace if isinstance(step, Operation))

    assert kinds.total() >= 200
    assert set(kinds) == CHANGING | {"open"}


def test_every_state_that_a_power_cut_can_leave_opens_and_is_right(
    trace: list[Operation | Mark],
) -> None:
    manners: Counter[str] = Counter()

    for state in crash_states(trace, seed=SEED, mixtures=MIXTURES):
        manners[state.manner] += 1
        with case(seed=SEED, state=manners.total(), after=state.after, manner=state.manner):
            driver = reopen(state)
            check_and_go_on(driver)
            if manners.total() % 4 == 0:
                driver.reopen(state.disk.crash(Random(SEED), ALL_LOST)).check()

    assert manners.total() >= 400
    assert set(manners) == {"lost", "kept", "mixed"}


def test_a_power_cut_after_the_log_recovered_from_a_kill_loses_nothing(
    trace: list[Operation | Mark],
) -> None:
    """At each operation: kill, recover on what the page cache holds, show it, then lose power."""
    random = Random(SEED)

    for state in killed_states(trace):
        with case(seed=SEED, after=state.after):
            driver = reopen(state)
            odds = random.choice((ALL_LOST, draw_odds(random)))
            driver.reopen(state.disk.crash(random, odds)).check()


def test_a_power_cut_within_the_recovery_from_a_kill_loses_nothing(
    trace: list[Operation | Mark],
) -> None:
    """As before, but the recovery gets only so far. Some steps of it must not run ahead of others:
    a segment may be removed only once the manifest that disowns it is durable (R40).
    """
    random = Random(SEED)
    fired: Counter[str] = Counter()

    for state in killed_states(trace):
        steps = recovery_steps(deepcopy(state.disk))
        for _ in range(CUTS_IN_RECOVERY):
            disk, fail_at = deepcopy(state.disk), random.randrange(steps)
            with case(seed=SEED, after=state.after, fail_at=fail_at):
                faulty = FaultyDisk(disk, fail_at=fail_at, operations=CHANGING, lasting=True)
                with pytest.raises(OSError):
                    LogDriver(faulty, sent=sent_by(state.marks), limits=LIMITS)
                fired[faulty.fired[0]] += 1
                after = disk.crash(random, random.choice((ALL_LOST, draw_odds(random))))
                LogDriver(after, sent=sent_by(state.marks), limits=LIMITS).check()

    assert set(fired) == CHANGING


def recovery_steps(disk: SimDisk) -> int:
    """How many changing operations it takes to open the log."""
    counting = FaultyDisk(disk, fail_at=None, operations=CHANGING)
    store = FileManifestStore(counting)
    if store.read() is None:
        create_log(counting, store, log_id=LOG_ID, now_ms=0)
    recover(counting, store)
    return sum(counting.counts[kind] for kind in CHANGING)


def test_a_segment_is_removed_only_after_a_durable_manifest_disowned_it() -> None:
    """1. A trim renames its manifest and is killed before the directory is synced. 2. The next
    recovery reads that manifest and removes the trimmed segment. 3. The power fails: the removal
    survives, the rename does not. The old manifest names a segment that is gone (R40).
    """
    disk = SimDisk()
    driver = LogDriver(disk, limits=LIMITS)
    driver.claim()
    for number in range(12):
        driver.append([NewEntry(b"x" * 1500, (f"n{number % 3}",))])
        driver.keep_house()
    sent = driver.sent
    sent.trim_asked = 8
    disk.kill()
    faulty = FaultyDisk(disk, fail_at=1, operations=frozenset({"sync_dir"}))
    driver = driver.reopen(faulty)
    segments = len(driver.storage.manifest.segments)
    with pytest.raises(OSError):
        driver.trim(8)
    assert faulty.fired == ["sync_dir"]
    disk.kill()

    removed = 0
    for seed in range(100):
        random = Random(seed)
        after_kill = deepcopy(disk)
        recovering = FaultyDisk(
            after_kill, fail_at=random.randrange(14), operations=CHANGING, lasting=True
        )
        try:
            LogDriver(recovering, sent=sent.copy(), limits=LIMITS)
        except OSError:
            pass
        removed += recovering.counts["remove"] > 0
        after_cut = after_kill.crash(random, draw_odds(random))
        with case(seed=seed):
            reopened = LogDriver(after_cut, sent=sent.copy(), limits=LIMITS)
            assert len(reopened.storage.manifest.segments) <= segments
            reopened.check()
    assert removed > 50


@pytest.mark.soak
def test_many_states_of_a_long_trace() -> None:
    for state in crash_states(record_trace(SOAK_GROUPS), seed=SEED, mixtures=SOAK_MIXTURES):
        check_and_go_on(reopen(state))
