"""What the sequencer decides of a group: retry, gap, zombie, guard; each against all before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sample_groups import claim, group, retire
from sequencer_bench import Bench

from penstock.errors import (
    BadRequest,
    GuardFailed,
    Refused,
    SeqGap,
    SeqMismatch,
    StaleInstance,
    TooLarge,
)
from penstock.ids import Lsn
from penstock.limits import PRODUCER_RECENT_GROUPS, VALUE_BYTES_MAX
from penstock.log.core.sequencer import Answer, OldDuplicate, decide_duplicate
from penstock.log.core.state import AppendedGroup
from penstock.log.group_format import meta_entry
from penstock.log.records import Appended, Guard, Kind, NewEntry, SetKey, Value


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.outcome(claim())
    yield bench
    bench.core.check()


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
