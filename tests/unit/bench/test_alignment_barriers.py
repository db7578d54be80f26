"""Barriers: what is before one is taken, what is behind it waits for the others."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_bench.protocols.alignment import Alignment, Step, barrier_entry, decode_barrier

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.runtime.commit_protocol import Cohort

COHORT = Cohort(Lsn(10), {"q.1/0/0": 4, "q.1/0/1": 7})
UPSTREAM = {"q.1/0/0", "q.1/0/1"}


def entry(lsn: int, producer: str, instance: int = 1, barrier: int | None = None) -> Entry:
    kind, payload = Kind.DATA, b"rows"
    if barrier is not None:
        kind, payload = Kind.CONTROL, barrier_entry(barrier, ()).payload
    return Entry(Lsn(lsn), kind, ("k/q.1/0/3",), producer, instance, 0, 0, 1, payload)


def test_behind_a_barrier_a_channel_waits_for_the_others() -> None:
    alignment = Alignment(COHORT, UPSTREAM, ["k/q.1/0/3"])
    assert alignment.step(entry(11, "@q.1/0/0", 4)) is Step.TAKE
    assert alignment.step(entry(12, "@q.1/0/0", 4, barrier=1)) is Step.WAIT
    behind = entry(13, "@q.1/0/0", 4)
    assert alignment.step(behind) is Step.HOLD
    alignment.hold(behind, ())
    assert alignment.step(entry(14, "@q.1/0/1", 7)) is Step.TAKE
    assert alignment.step(entry(15, "@q.1/0/1", 7, barrier=1)) is Step.COMPLETE
    assert (alignment.number, alignment.source_cut) == (1, None)
    assert alignment.release() == [(behind, ())]
    assert alignment.step(entry(16, "@q.1/0/0", 4)) is Step.TAKE


def test_what_older_instances_said_does_not_count() -> None:
    alignment = Alignment(COHORT, UPSTREAM, ["k/q.1/0/3"])
    assert alignment.step(entry(11, "@q.1/0/0", 3)) is Step.DROP
    assert alignment.step(entry(12, "@q.1/0/1", 6, barrier=1)) is Step.DROP
    assert alignment.number is None


def test_the_cut_in_the_sources_is_where_the_coordinators_barrier_stands() -> None:
    alignment = Alignment(COHORT, set(), ["s/bids", "f/q.1/0"])
    assert alignment.step(entry(9, "@q", barrier=3)) is Step.DROP, "meant for an older cohort"
    assert alignment.step(entry(11, "site")) is Step.TAKE
    assert alignment.step(entry(12, "@q", barrier=1)) is Step.COMPLETE
    assert alignment.source_cut == 13


def test_two_checkpoints_at_once_are_a_defect() -> None:
    alignment = Alignment(COHORT, UPSTREAM, ["k/q.1/0/3"])
    alignment.step(entry(11, "@q.1/0/0", 4, barrier=1))
    with pytest.raises(BadFormat, match="barrier 2"):
        alignment.step(entry(12, "@q.1/0/1", 7, barrier=2))


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.booleans()), max_size=60))
def test_exactly_what_is_before_each_barrier_is_taken(events: list[tuple[int, bool]]) -> None:
    """In any order of three channels that one checkpoint at a time allows.

    Two upstream tasks and the sources; True: the channel's next barrier, if it may come.
    """
    alignment = Alignment(COHORT, UPSTREAM, ["k/q.1/0/3", "s/bids"])
    producers = [("@q.1/0/0", 4), ("@q.1/0/1", 7), ("@q", 1)]
    plain = [("@q.1/0/0", 4), ("@q.1/0/1", 7), ("site", 1)]
    number, arrived = 1, set[int]()
    before: list[Entry] = []  # what the checkpoint on its way must have taken
    behind: list[Entry] = []
    taken: list[Entry] = []
    for lsn, (channel, is_barrier) in enumerate(events, 11):
        if is_barrier and channel not in arrived:
            arrived.add(channel)
            step = alignment.step(entry(lsn, *producers[channel], barrier=number))
            assert (step is Step.COMPLETE) == (len(arrived) == 3)
            if step is Step.COMPLETE:
                assert taken == before
                released = [one for one, _ in alignment.release()]
                assert released == behind
                taken += released
                before, behind = list(taken), []
                number, arrived = number + 1, set()
        elif not is_barrier:
            one = entry(lsn, *plain[channel])
            step = alignment.step(one)
            if channel in arrived:
                assert step is Step.HOLD
                alignment.hold(one, ())
                behind.append(one)
            else:
                assert step is Step.TAKE
                taken.append(one)
                before.append(one)


@pytest.mark.parametrize("payload", [b"x", b"{}", b"[]", json.dumps({"barrier": "1"}).encode()])
def test_other_control_entries_are_no_barriers(payload: bytes) -> None:
    found = entry(1, "@q")._replace(kind=Kind.CONTROL, payload=payload)
    with pytest.raises(BadFormat):
        decode_barrier(found)
    assert decode_barrier(found._replace(payload=b"")) is None
