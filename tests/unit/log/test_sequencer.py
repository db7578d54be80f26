"""The sequencer: events in, writes and answers out, compared with ==; checked after each event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from sample_groups import claim, group, retire

from penstock.errors import (
    BadRequest,
    GuardFailed,
    PenstockError,
    Refused,
    SeqGap,
    SeqMismatch,
    StaleInstance,
    TooLarge,
)
from penstock.ids import Lsn
from penstock.limits import PRODUCER_RECENT_GROUPS, VALUE_BYTES_MAX
from penstock.log.core.sequencer import (
    Answer,
    OldDuplicate,
    SegmentLimits,
    Sequencer,
    Write,
    decide_duplicate,
)
from penstock.log.core.state import AppendedGroup, LogState
from penstock.log.group_format import RECORD_HEADER_BYTES, Body, meta_entry
from penstock.log.records import (
    IMMEDIATE,
    Appended,
    Flush,
    Guard,
    Kind,
    NewEntry,
    SetKey,
    Value,
)

WIDE = SegmentLimits(bytes=2**30, ms=2**40)


class Bench:
    """A sequencer whose causes are counted and whose invariants are checked after each event."""

    def __init__(self, *, limits: SegmentLimits = WIDE, write_bytes_max: int = 2**20) -> None:
        self.core = Sequencer(LogState(), limits=limits, write_bytes_max=write_bytes_max)
        self.now_ms = 1000
        self.causes = 0

    def append(
        self, body: Body, *, guards: Sequence[Guard] = (), flush: Flush = IMMEDIATE
    ) -> list[Answer]:
        """Answers that are ready at once; the cause is the number of the call."""
        self.core.append(self.causes, body, guards=guards, flush=flush, now_ms=self.now_ms)
        self.causes += 1
        self.core.check()
        return self.core.take_answers()

    def take(self) -> Write | None:
        write = self.core.take_write(self.now_ms)
        self.core.check()
        return write

    def finish(self, write: Write) -> list[Answer]:
        self.core.written(write)
        self.core.check()
        return self.core.take_answers()

    def settle(self) -> list[Answer]:
        """Perform every write that is due."""
        answers = []
        while (write := self.take()) is not None:
            answers += self.finish(write)
        return answers + self.core.take_answers()

    def outcome(self, body: Body, *, guards: Sequence[Guard] = ()) -> object:
        """Append and make durable: the answer, with errors as their class."""
        answers = self.append(body, guards=guards) + self.settle()
        outcome = answers[-1].outcome
        return type(outcome) if isinstance(outcome, PenstockError) else outcome


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


# ---- idempotence: law I7


def test_a_retry_returns_the_first_lsns(bench: Bench) -> None:
    first = bench.outcome(group(seq=0, entries=2))

    assert bench.outcome(group(seq=0, entries=2)) == Appended(Lsn(1), 2, duplicate=True)
    assert first == Appended(Lsn(1), 2)
    assert bench.core.state.next_lsn == 3


def test_a_retry_of_what_is_not_durable_yet_waits_for_it(bench: Bench) -> None:
    bench.append(group(seq=0))

    assert bench.append(group(seq=0)) == []

    assert bench.settle() == [
        Answer(1, Appended(Lsn(1), 1)),
        Answer(2, Appended(Lsn(1), 1, duplicate=True)),
    ]


def test_a_gap_is_refused_not_skipped(bench: Bench) -> None:
    assert bench.outcome(group(seq=1)) is SeqGap
    assert bench.outcome(group(seq=0)) == Appended(Lsn(1), 1)
    assert bench.outcome(group(seq=1)) == Appended(Lsn(2), 1)


@pytest.mark.parametrize(("seq", "entries"), [(1, 1), (1, 2), (0, 2), (0, 4), (2, 5)])
def test_a_seq_used_for_a_group_of_another_shape_is_refused(
    bench: Bench, seq: int, entries: int
) -> None:
    bench.outcome(group(seq=0, entries=3))

    assert bench.outcome(group(seq=seq, entries=entries)) is SeqMismatch
    assert bench.core.state.next_lsn == 4


def test_a_producer_that_was_never_claimed_may_not_write(bench: Bench) -> None:
    assert bench.outcome(group("stranger")) is SeqGap
    assert bench.outcome(group("stranger", seq=7)) is SeqGap


def test_a_retry_older_than_the_table_is_left_to_the_shell(bench: Bench) -> None:
    for seq in range(PRODUCER_RECENT_GROUPS + 1):
        bench.outcome(group(seq=seq))

    assert bench.outcome(group(seq=0)) == OldDuplicate("p", 1, 0, 1)
    assert bench.outcome(group(seq=1)) == Appended(Lsn(2), 1, duplicate=True)


def test_an_old_group_that_was_found_answers_like_a_recent_one() -> None:
    found = AppendedGroup(first_seq=4, count=2, instance=3, first_lsn=Lsn(40))

    assert decide_duplicate(3, 2, found) == Appended(Lsn(40), 2, duplicate=True)
    assert decide_duplicate(4, 2, found) == Appended(Lsn(40), 2, duplicate=True)
    with pytest.raises(SeqMismatch):
        decide_duplicate(3, 1, found)
    with pytest.raises(StaleInstance):
        decide_duplicate(2, 2, found)


# ---- fencing: Impeller 3.4, law I5


def test_a_zombie_is_fenced_by_a_claim_that_is_only_ordered(bench: Bench) -> None:
    """Impeller 3.4: the check is made at ordering time, so no delayed append slips through."""
    bench.append(claim(instance=2, nonce=8))

    bench.append(group(seq=0, instance=1))

    answers = bench.settle()
    assert answers[0].outcome == Appended(Lsn(1), 1)
    assert isinstance(answers[1].outcome, StaleInstance)


def test_what_a_zombie_appended_in_time_is_confirmed_even_after_the_fence(bench: Bench) -> None:
    """Law I22: Fenced would promise that it was never visible."""
    bench.outcome(group(seq=0, instance=1))
    bench.outcome(claim(instance=2, nonce=8))

    assert bench.outcome(group(seq=0, instance=1)) == Appended(Lsn(1), 1, duplicate=True)
    assert bench.outcome(group(seq=1, instance=1)) is StaleInstance


def test_a_seq_that_a_newer_instance_wrote_fences_the_older_one(bench: Bench) -> None:
    bench.outcome(claim(instance=2, nonce=8))
    bench.outcome(group(seq=0, instance=2))

    assert bench.outcome(group(seq=0, instance=1)) is StaleInstance


def test_a_new_instance_goes_on_with_the_seqs_of_the_old_one(bench: Bench) -> None:
    bench.outcome(group(seq=0, entries=5))

    bench.outcome(claim(instance=2, nonce=8))

    assert bench.outcome(group(seq=5, instance=2)) == Appended(Lsn(7), 1)


def test_a_claim_sent_twice_is_one_claim_and_a_rivals_is_refused(bench: Bench) -> None:
    assert bench.outcome(claim(instance=2, nonce=8)) == Appended(Lsn(1), 1)
    assert bench.outcome(claim(instance=2, nonce=8)) == Appended(Lsn(1), 1, duplicate=True)
    assert bench.outcome(claim(instance=2, nonce=9)) is StaleInstance
    assert bench.outcome(claim(instance=1, nonce=7)) is StaleInstance
    assert bench.core.state.next_lsn == 2


def test_a_retired_producer_is_forgotten_and_its_late_groups_are_refused(bench: Bench) -> None:
    bench.outcome(group(seq=0))

    assert bench.outcome(retire(seq=1)) == Appended(Lsn(2), 1)

    assert bench.core.state.producers == {}
    assert bench.outcome(group(seq=0)) is SeqGap
    assert bench.outcome(group(seq=1)) is SeqGap
    assert bench.outcome(retire(seq=1)) is SeqGap


def test_a_zombie_cannot_retire_its_successor(bench: Bench) -> None:
    bench.outcome(claim(instance=2, nonce=8))

    assert bench.outcome(retire(instance=1, seq=0)) is StaleInstance
    assert "p" in bench.core.state.producers


# ---- guards and sets


def test_a_guard_sees_sets_that_are_ordered_but_not_durable(bench: Bench) -> None:
    """R22: the guard is evaluated where the order is made, not where it is read."""
    bench.append(group(seq=0, entries=[], sets=[SetKey("k", b"1")]))
    bench.append(group(seq=1, sets=[SetKey("k", b"2")]), guards=[Guard("k", b"1")])
    bench.append(group(seq=3, sets=[SetKey("k", b"3")]), guards=[Guard("k", b"1")])

    answers = bench.settle()

    assert [type(answer.outcome) for answer in answers] == [Appended, Appended, GuardFailed]
    assert bench.core.state.metadata == {"k": Value(b"2", Lsn(3))}


@pytest.mark.parametrize(
    ("guards", "passes"),
    [
        ([Guard("k", b"v")], True),
        ([Guard("k", b"v"), Guard("absent", None)], True),
        ([Guard("k", b"v"), Guard("absent", b"")], False),
        ([Guard("k", None)], False),
        ([Guard("k", b"")], False),
        ([Guard("k", b"v"), Guard("k", b"w")], False),
    ],
    ids=str,
)
def test_all_guards_must_hold(bench: Bench, guards: list[Guard], passes: bool) -> None:
    bench.outcome(group(seq=0, entries=[], sets=[SetKey("k", b"v")]))

    outcome = bench.outcome(group(seq=1), guards=guards)

    assert outcome == (Appended(Lsn(2), 1) if passes else GuardFailed)


def test_a_group_whose_guard_fails_leaves_no_trace_and_its_seq_free(bench: Bench) -> None:
    before = bench.core.state.copy()

    assert bench.outcome(group(seq=0, sets=[SetKey("k", b"v")]), guards=[Guard("k", b"x")]) is (
        GuardFailed
    )

    assert bench.core.state == before
    assert bench.outcome(group(seq=0)) == Appended(Lsn(1), 1)


def test_a_retry_is_a_duplicate_even_if_its_guard_would_fail_now(bench: Bench) -> None:
    """Lost ack: the group itself made the guard false."""
    guards = [Guard("k", None)]
    body = group(seq=0, sets=[SetKey("k", b"v")])
    first = bench.outcome(body, guards=guards)

    assert first == Appended(Lsn(1), 2)
    assert bench.outcome(body, guards=guards) == Appended(Lsn(1), 2, duplicate=True)


def test_a_set_to_nothing_removes_the_key(bench: Bench) -> None:
    bench.outcome(group(seq=0, entries=[], sets=[SetKey("k", b"v"), SetKey("j", b"")]))
    bench.outcome(group(seq=1, entries=[], sets=[SetKey("k", None)]))

    assert bench.core.state.metadata == {"j": Value(b"", Lsn(1))}


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([NewEntry(b"\x00\x00", ("m/k",), Kind.META)], BadRequest),
        ([NewEntry(meta_entry([SetKey("k", b"v")]).payload, ("m/j",), Kind.META)], BadRequest),
        ([NewEntry(meta_entry([SetKey("k", b"v")]).payload, (), Kind.META)], BadRequest),
        ([meta_entry([SetKey("k", b"1")]), meta_entry([SetKey("k", b"2")])], BadRequest),
        ([meta_entry([SetKey("k", bytes(VALUE_BYTES_MAX + 1))])], TooLarge),
        ([NewEntry(b"nonsense", ("m/k",), Kind.META)], BadRequest),
    ],
    ids=["untouched", "other", "untagged", "twice", "large", "nonsense"],
)
def test_a_metadata_entry_that_lies_is_refused(
    bench: Bench, entries: list[NewEntry], error: type[Refused]
) -> None:
    before = bench.core.state.copy()

    assert bench.outcome(group(seq=0, entries=entries)) is error
    assert bench.core.state == before


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
