"""Retries that come very late: the group is found in the log, whatever its age (I7, R18)."""

from __future__ import annotations

import pytest
from harness.disk import SimDisk
from harness.driver import LogDriver

from penstock.errors import NotFound, SeqMismatch, StaleInstance
from penstock.limits import PRODUCER_RECENT_GROUPS
from penstock.log.core.producers import AppendedGroup
from penstock.log.core.sequencer import OldDuplicate, SegmentLimits, decide_duplicate
from penstock.log.records import NewEntry
from penstock.log.storage.reader import find_group

LIMITS = SegmentLimits(bytes=2000, ms=2**40)
#: Well beyond what the producer table remembers, over many segments.
GROUPS = 4 * PRODUCER_RECENT_GROUPS


def fill() -> LogDriver:
    """Two producers take turns; the first is opened three times."""
    driver = LogDriver(SimDisk(), limits=LIMITS)
    driver.claim("p")
    driver.claim("q")
    for number in range(GROUPS):
        producer = "q" if number % 3 == 0 else "p"
        driver.append(
            [NewEntry(b"x" * 50, (f"n{number % 5}",))] * (1 + number % 4), producer=producer
        )
        if number % 20 == 19:
            driver.keep_house()
        if number in (40, 80):
            driver.claim("p")
    assert len(driver.storage.manifest.segments) > 10
    return driver


@pytest.fixture(scope="module")
def driver() -> LogDriver:
    return fill()


def test_every_group_of_every_producer_is_found_by_its_first_seq(driver: LogDriver) -> None:
    old = 0
    for lsn, attempt in driver.sent.placed_at():
        body = attempt.body
        if not body.flags:
            found = find_group(driver.storage, body.producer, body.first_seq)
            assert found == AppendedGroup(body.first_seq, body.count, body.instance, lsn)
            known = driver.sequencer.state.producers[body.producer]
            old += body.first_seq < known.recent[0].first_seq
    assert old > PRODUCER_RECENT_GROUPS, "most are beyond the producer table"


def test_a_retry_of_any_age_answers_the_first_lsn_after_a_crash_too(driver: LogDriver) -> None:
    driver.check()
    assert isinstance(driver.disk, SimDisk)
    reopened = LogDriver(SimDisk(driver.disk.contents()), sent=driver.sent.copy(), limits=LIMITS)
    reopened.check()


def test_the_producer_table_sends_only_forgotten_seqs_to_the_log(driver: LogDriver) -> None:
    oldest = driver.sent.placed[2]
    assert oldest.body.first_seq == 0

    driver.sequencer.append("late", oldest.body, now_ms=driver.now_ms)
    (answer,) = driver.sequencer.take_answers()

    body = oldest.body
    assert answer.outcome == OldDuplicate(body.producer, body.instance, 0, body.count)


def test_a_seq_inside_an_old_group_is_not_taken_for_a_group(driver: LogDriver) -> None:
    inside = next(a.body for a in driver.sent.placed if not a.body.flags and a.body.count > 1)

    with pytest.raises(NotFound):
        find_group(driver.storage, inside.producer, inside.first_seq + 1)


def test_an_old_seq_with_another_shape_or_an_older_instance_is_refused(driver: LogDriver) -> None:
    newest = [a.body for a in driver.sent.placed if a.body.producer == "p" and not a.body.flags][-1]
    group = find_group(driver.storage, "p", newest.first_seq)

    assert newest.instance == 3
    with pytest.raises(SeqMismatch):
        decide_duplicate(newest.instance, newest.count + 1, group)
    with pytest.raises(StaleInstance):
        decide_duplicate(newest.instance - 1, newest.count, group)


def test_an_unknown_producer_and_a_future_seq_are_not_found(driver: LogDriver) -> None:
    next_seq = driver.sequencer.state.producers["p"].next_seq

    for producer, seq in (("nobody", 0), ("p", next_seq)):
        with pytest.raises(NotFound):
            find_group(driver.storage, producer, seq)


def test_a_trimmed_group_is_not_found_and_the_others_still_are() -> None:
    driver = fill()
    driver.keep_house()
    point = driver.trim(driver.storage.durable_lsn // 2)
    assert driver.storage.manifest.segments[0].id > 0

    found = lost = 0
    for lsn, attempt in driver.sent.placed_at():
        body = attempt.body
        if body.flags:
            continue
        try:
            assert find_group(driver.storage, body.producer, body.first_seq).first_lsn == lsn
            found += 1
        except NotFound:
            assert lsn < point
            lost += 1
    assert found and lost
    driver.check()
