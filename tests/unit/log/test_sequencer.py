"""The sequencer's order: events in, writes and answers out, compared with ==. Rolls too.

What it decides about producers and metadata is in test_sequencer_decisions.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sample_groups import claim, group
from sequencer_bench import Bench

from penstock.errors import GuardFailed, SeqGap
from penstock.ids import Lsn
from penstock.log.core.sequencer import Answer, SegmentLimits, Write
from penstock.log.record_format import RECORD_HEADER_BYTES
from penstock.log.records import Appended, Flush, Guard, NewEntry, SetKey, Value


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.outcome(claim())
    yield bench
    bench.core.check()


def lsns(write: Write | None) -> list[int]:
    return [] if write is None else [group.first_lsn for group in write.groups]


# ---- order and durability: Impeller 3.1, DistributedLog II-D and III-A


def test_groups_get_dense_lsns_in_the_order_of_their_arrival(bench: Bench) -> None:
    """Impeller 3.1: one total order; the LSN of a record never changes."""
    assert bench.outcome(group(seq=0, entries=3)) == Appended(Lsn(1), 3)
    assert bench.outcome(group(seq=3, entries=2)) == Appended(Lsn(4), 2)
    assert bench.core.state.next_lsn == 6


def test_nothing_is_answered_before_its_write_is_durable(bench: Bench) -> None:
    """DistributedLog III-A: a record is confirmed only once it is durable."""
    assert bench.append(group()) == []
    write = bench.take()
    assert write is not None
    assert bench.core.take_answers() == []
    assert bench.core.durable_lsn == 1

    assert bench.finish(write) == [Answer(1, Appended(Lsn(1), 1))]
    assert bench.core.durable_lsn == 2


def test_what_arrives_during_a_write_shares_the_next_one(bench: Bench) -> None:
    """Group commit: one fsync for all that collected meanwhile."""
    bench.append(group(seq=0))
    first = bench.take()
    assert first is not None
    for seq in (1, 2, 3):
        bench.append(group(seq=seq))
    assert bench.take() is None

    bench.finish(first)
    second = bench.take()

    assert (lsns(first), lsns(second)) == ([1], [2, 3, 4])


def test_a_write_says_what_was_durable_when_it_began(bench: Bench) -> None:
    """DistributedLog III-A: every entry carries the LAC as its writer knew it."""
    bench.append(group(seq=0))
    first = bench.take()
    assert first is not None
    bench.append(group(seq=1))
    bench.finish(first)
    second = bench.take()
    assert second is not None

    assert (first.durable_lsn, second.durable_lsn) == (1, 2)


def test_a_write_stops_growing_at_its_size_and_the_rest_follows_at_once() -> None:
    bench = Bench(write_bytes_max=400)
    bench.outcome(claim())
    body = group(entries=[NewEntry(bytes(150))])
    assert len(body.data) < 300 < 2 * len(body.data)
    for seq in range(5):
        bench.append(group(seq=seq, entries=[NewEntry(bytes(150))]))

    taken = []
    while (write := bench.take()) is not None:
        taken.append(lsns(write))
        bench.finish(write)

    assert taken == [[1, 2], [3, 4], [5]]


def test_answers_come_in_the_order_of_the_requests_refusals_too(bench: Bench) -> None:
    bench.append(group(seq=0))
    bench.append(group(seq=5))
    bench.append(group(seq=1))
    assert bench.core.take_answers() == []

    answers = bench.settle()

    assert [answer.cause for answer in answers] == [1, 2, 3]
    assert isinstance(answers[1].outcome, SeqGap)


def test_a_refusal_waits_for_what_it_rests_on(bench: Bench) -> None:
    """Law I22: "your guard failed" is told only once the value that made it fail is durable."""
    bench.append(group(seq=0, entries=[], sets=[SetKey("k", b"new")]))

    assert bench.append(group(seq=1), guards=[Guard("k", None)]) == []

    answers = bench.settle()
    assert [type(answer.outcome) for answer in answers] == [Appended, GuardFailed]


def test_a_refusal_that_rests_on_durable_state_is_told_at_once(bench: Bench) -> None:
    answers = bench.append(group(seq=9))

    assert [type(answer.outcome) for answer in answers] == [SeqGap]


def test_asking_is_answered_when_all_that_was_ordered_before_is_durable(bench: Bench) -> None:
    bench.append(group(seq=0))
    bench.core.ask("question")
    bench.append(group(seq=1))

    first = bench.take()
    assert first is not None
    answers = bench.finish(first)

    assert answers == [
        Answer(1, Appended(Lsn(1), 1)),
        Answer("question", Appended(Lsn(2), 0)),
        Answer(2, Appended(Lsn(2), 1)),
    ]


def test_after_a_failed_write_nothing_is_written_or_answered_any_more(bench: Bench) -> None:
    """R48: what was in flight is unknown for ever."""
    bench.append(group(seq=0))
    assert bench.take() is not None

    bench.core.write_failed()
    bench.append(group(seq=1))
    bench.core.ask("question")

    assert bench.take() is None
    assert bench.core.take_answers() == []


def test_append_times_never_go_back_though_the_clock_does(bench: Bench) -> None:
    bench.append(group(seq=0))
    bench.now_ms = 400
    bench.append(group(seq=1))

    write = bench.take()

    assert write is not None
    assert [group.time_ms for group in write.groups] == [1000, 1000]


# ---- periodic flush: DistributedLog II-D


def test_a_periodic_group_waits_and_then_shares_one_write(bench: Bench) -> None:
    """DistributedLog II-D: flush periodically to trade latency for throughput."""
    bench.append(group(seq=0), flush=Flush(10))
    bench.now_ms += 4
    bench.append(group(seq=1), flush=Flush(10))
    assert bench.take() is None
    assert bench.core.due_ms() == 1010

    bench.now_ms = 1009
    assert bench.take() is None
    bench.now_ms = 1010
    assert lsns(bench.take()) == [1, 2]


def test_an_immediate_group_takes_the_waiting_ones_along(bench: Bench) -> None:
    bench.append(group(seq=0), flush=Flush(1000))
    assert bench.take() is None

    bench.append(group(seq=1))

    assert lsns(bench.take()) == [1, 2]


def test_a_full_write_does_not_wait_for_its_time() -> None:
    bench = Bench(write_bytes_max=400)
    bench.outcome(claim())
    bench.append(group(seq=0, entries=[NewEntry(bytes(200))]), flush=Flush(1000))
    assert bench.take() is None

    bench.append(group(seq=1, entries=[NewEntry(bytes(200))]), flush=Flush(1000))

    assert lsns(bench.take()) == [1, 2]


def test_nothing_is_due_while_a_write_is_in_flight_or_nothing_waits(bench: Bench) -> None:
    assert bench.core.due_ms() is None
    bench.append(group(seq=0))
    assert bench.core.due_ms() == 1000
    write = bench.take()
    assert write is not None
    bench.append(group(seq=1))
    assert bench.core.due_ms() is None
    bench.finish(write)
    assert bench.core.due_ms() == 1000
    assert not bench.core.is_idle


# ---- rolls


def test_a_roll_starts_a_write_and_copies_the_state_below_it() -> None:
    size = RECORD_HEADER_BYTES + len(group().data)
    bench = Bench(limits=SegmentLimits(bytes=3 * size + 30, ms=2**40))
    bench.outcome(claim())
    for seq in range(5):
        bench.append(group(seq=seq))

    writes = []
    while (write := bench.take()) is not None:
        writes.append((lsns(write), None if write.roll is None else write.roll.next_lsn))
        bench.finish(write)

    assert writes == [([1, 2], None), ([3, 4, 5], 3)]


def test_the_state_of_a_roll_is_that_below_its_first_group() -> None:
    bench = Bench(limits=SegmentLimits(bytes=1, ms=2**40))
    bench.outcome(claim())
    bench.outcome(group(seq=0, sets=[SetKey("k", b"old")]))
    bench.append(group(seq=2, sets=[SetKey("k", b"new")]))

    write = bench.take()

    assert write is not None
    assert write.roll is not None
    assert write.roll.metadata == {"k": Value(b"old", Lsn(2))}
    assert write.roll.producers["p"].next_seq == 2
    assert bench.core.state.metadata == {"k": Value(b"new", Lsn(4))}


def test_a_segment_rolls_by_age_counted_from_its_first_group() -> None:
    bench = Bench(limits=SegmentLimits(bytes=2**30, ms=100))
    rolled = []
    bench.outcome(claim())
    for seq, now_ms in enumerate((1099, 1100, 1150, 1199, 1200, 5000)):
        bench.now_ms = now_ms
        bench.append(group(seq=seq))
        write = bench.take()
        assert write is not None
        rolled.append(write.roll is not None)
        bench.finish(write)

    assert rolled == [False, True, False, False, True, True]


def test_a_group_larger_than_a_segment_gets_one_of_its_own() -> None:
    bench = Bench(limits=SegmentLimits(bytes=500, ms=2**40))
    bench.outcome(claim())
    rolls = []
    for seq, size in enumerate((10, 5000, 10)):
        bench.append(group(seq=seq, entries=[NewEntry(bytes(size))]))
        write = bench.take()
        assert write is not None
        rolls.append(write.roll is not None)
        bench.finish(write)

    assert rolls == [False, True, True]
