"""A producer's appends: what is sent, sent again, and told; `check()` after each event."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.errors import (
    BadRequest,
    DeadlineExceeded,
    Fenced,
    Overloaded,
    PenstockError,
    Refused,
    SeqGap,
    StaleInstance,
    TooLarge,
    Unavailable,
    Unknown,
)
from penstock.ids import Lsn
from penstock.limits import (
    ENTRY_TAGS_MAX,
    GROUP_BYTES_MAX,
    GROUP_ENTRIES_MAX,
    GUARDS_MAX,
    PAYLOAD_BYTES_MAX,
    PRODUCER_BYTES_MAX,
)
from penstock.log.client.appender_core import (
    COALESCE_BYTES,
    WINDOW_GROUPS,
    AppenderCore,
    Reconnect,
    SendGroup,
    Settle,
    check_submission,
    retire_body,
)
from penstock.log.client.packing import group_bytes
from penstock.log.group_format import RETIRE, check_new_body, decode_body, encode_body
from penstock.log.records import IMMEDIATE, Appended, Flush, Guard, NewEntry

GUARD = (Guard("k", b"v"),)


def core(next_seq: int = 0) -> AppenderCore:
    return AppenderCore(producer="p", instance=3, next_seq=next_seq)


def submit(
    core: AppenderCore,
    ticket: object,
    count: int = 1,
    *,
    guards: Sequence[Guard] = (),
    flush: Flush = IMMEDIATE,
    size: int = 1,
) -> list[Settle]:
    settled = core.submit(ticket, [NewEntry(bytes(size))] * count, guards=guards, flush=flush)
    core.check()
    return settled


def sends(core: AppenderCore) -> list[tuple[int, int]]:
    """What is sent now, as (seq, entries)."""
    taken = core.take_sends()
    core.check()
    return [(send.seq, decode_body(send.body).count) for send in taken]


def answer(
    core: AppenderCore, seq: int, outcome: Appended | PenstockError
) -> list[Settle | Reconnect]:
    effects = core.answered(seq, outcome)
    core.check()
    return effects


# ---- sending


def test_appends_that_wait_together_travel_as_one_group_and_are_told_apart() -> None:
    appender = core(next_seq=10)
    submit(appender, "a", 2)
    submit(appender, "b", 1)
    submit(appender, "c", 3)

    [send] = appender.take_sends()
    body = decode_body(send.body)
    assert (body.producer, body.instance, body.first_seq, body.count) == ("p", 3, 10, 6)
    assert send == SendGroup(10, send.body, (), IMMEDIATE)
    assert answer(appender, 10, Appended(Lsn(50), 6)) == [
        Settle("a", Appended(Lsn(50), 2)),
        Settle("b", Appended(Lsn(52), 1)),
        Settle("c", Appended(Lsn(53), 3)),
    ]
    assert appender.next_seq == 16
    assert appender.is_idle


def test_at_most_a_window_of_groups_is_unanswered() -> None:
    appender = core()
    for ticket in range(WINDOW_GROUPS + 3):
        submit(appender, ticket)
        sends(appender)
    assert appender.in_flight == WINDOW_GROUPS

    answer(appender, 0, Appended(Lsn(0), 1))

    assert sends(appender) == [(WINDOW_GROUPS, 3)]


def test_groups_are_not_coalesced_beyond_their_size_or_count() -> None:
    appender = core()
    for ticket in range(3):
        submit(appender, ticket, size=COALESCE_BYTES // 2)
    assert sends(appender) == [(0, 1), (1, 1), (2, 1)]

    other = core()
    submit(other, "a", GROUP_ENTRIES_MAX // 2)
    submit(other, "b", GROUP_ENTRIES_MAX // 2)
    submit(other, "c", 1)
    assert next(count for _, count in sends(other)) <= GROUP_ENTRIES_MAX


def test_groups_with_other_flush_policies_are_not_mixed() -> None:
    appender = core()
    submit(appender, "a")
    submit(appender, "b", flush=Flush(10))
    submit(appender, "c", flush=Flush(10))
    submit(appender, "d")

    taken = appender.take_sends()

    assert [(send.seq, send.flush) for send in taken] == [
        (0, IMMEDIATE),
        (1, Flush(10)),
        (3, IMMEDIATE),
    ]


def test_coalesced_groups_never_hold_more_tags_than_a_group_may() -> None:
    """Each of these is allowed; both together would be beyond GROUP_TAGS_MAX."""
    appender = core()
    for ticket, first in (("a", 0x4E00), ("b", 0xAC00)):
        tags = [tuple(chr(first + 64 * i + j) for j in range(64)) for i in range(170)]
        entries = [NewEntry(b"", each) for each in tags]
        check_submission(entries, ())
        appender.submit(ticket, entries)

    taken = appender.take_sends()

    for send in taken:
        check_new_body(decode_body(send.body))
    assert sum(decode_body(send.body).count for send in taken) == 340


# ---- lost connections: R20, law I7


def test_a_late_answer_after_a_resend_settles_once() -> None:
    appender = core()
    submit(appender, "a")
    appender.take_sends()
    appender.disconnected()
    appender.take_sends()

    done = Appended(Lsn(4), 1, duplicate=True)
    assert answer(appender, 0, done) == [Settle("a", done)]
    assert answer(appender, 0, done) == []


@pytest.mark.parametrize("error", [Overloaded("full"), Unavailable("stopping")])
def test_a_server_that_cannot_take_it_now_means_reconnect_and_send_again(
    error: PenstockError,
) -> None:
    appender = core()
    submit(appender, "a")
    [send] = appender.take_sends()

    assert answer(appender, 0, error) == [Reconnect(str(error))]

    appender.disconnected()
    assert appender.take_sends() == [send]


# ---- the end of a producer


@pytest.mark.parametrize("error", [StaleInstance("2 is newer"), SeqGap("gap"), BadRequest("no")])
def test_a_refused_group_ends_the_producer_with_that_error(error: PenstockError) -> None:
    appender = core()
    submit(appender, "a")
    sends(appender)
    submit(appender, "never sent", guards=GUARD)

    assert answer(appender, 0, error) == [Settle("a", error), Settle("never sent", error)]

    assert appender.broken is error
    assert submit(appender, "late") == [Settle("late", error)]
    assert sends(appender) == []
    assert appender.pending_bytes == 0


def test_groups_sent_behind_a_refused_one_are_settled_by_their_own_answers() -> None:
    appender = core()
    for ticket in "ab":
        submit(appender, ticket)
        sends(appender)
    refused, gap = TooLarge("group"), SeqGap("0 is missing")

    assert answer(appender, 0, refused) == [Settle("a", refused)]
    assert not appender.is_idle
    assert answer(appender, 1, gap) == [Settle("b", gap)]

    assert appender.is_idle
    assert appender.broken is refused


@pytest.mark.parametrize("why", ["nobody answers", "the answer is unknown"])
def test_what_was_sent_may_be_unknown_and_the_rest_was_never_sent(why: str) -> None:
    """Law I22: three outcomes only."""
    appender = core()
    submit(appender, "sent")
    sends(appender)
    submit(appender, "waiting", guards=GUARD)

    settled: Sequence[Settle | Reconnect]
    if why == "nobody answers":
        settled = appender.give_up(why)
    else:
        settled = answer(appender, 0, Unknown("it may have been trimmed"))
    appender.check()

    assert [(s.ticket, type(s.outcome)) for s in settled if isinstance(s, Settle)] == [
        ("sent", Unknown),
        ("waiting", DeadlineExceeded),
    ]
    assert isinstance(appender.broken, Unknown)
    assert answer(appender, 0, Appended(Lsn(0), 1)) == []


def test_a_retirement_is_a_control_group_at_the_next_seq() -> None:
    body = decode_body(retire_body("p", 3, 17))

    check_new_body(body)
    assert (body.flags, body.instance, body.first_seq) == (RETIRE, 3, 17)


# ---- what is refused before a seq is spent on it


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [NewEntry(b"")] * (GROUP_ENTRIES_MAX + 1),
        [NewEntry(bytes(PAYLOAD_BYTES_MAX + 1))],
        [NewEntry(bytes(PAYLOAD_BYTES_MAX))] * 4,
        [NewEntry(b"", tuple(map(str, range(ENTRY_TAGS_MAX + 1))))],
        [NewEntry(b"", ("a", "a"))],
        [NewEntry(b"", ("a\n",))],
        [NewEntry(b"", ("",))],
        [NewEntry(b"", (str(3 * i), str(3 * i + 1), str(3 * i + 2))) for i in range(7000)],
        [NewEntry(b"", rows=-1)],
        [NewEntry(b"", rows=2**32)],
        [NewEntry(b"", kind=7)],  # type: ignore[arg-type]
    ],
    ids=[
        *("none", "many", "payload", "group", "tags", "twice"),
        *("newline", "empty", "different", "rows", "rows32", "kind"),
    ],
)
def test_entries_that_no_server_takes_are_refused_at_once(entries: list[NewEntry]) -> None:
    with pytest.raises(Refused):
        check_submission(entries, ())


def test_too_many_guards_are_refused_at_once() -> None:
    with pytest.raises(TooLarge, match="guards"):
        check_submission([NewEntry(b"")], [Guard(str(i), None) for i in range(GUARDS_MAX + 1)])
    check_submission([NewEntry(b"")], [Guard(str(i), None) for i in range(GUARDS_MAX)])


@pytest.mark.parametrize("delay_ms", [-1, 2**64])
def test_a_flush_delay_that_cannot_be_is_refused_where_it_is_made(delay_ms: int) -> None:
    with pytest.raises(BadRequest):
        Flush(delay_ms)


@pytest.mark.parametrize("count", [1, 4, 5, 6, 100])
def test_what_was_accepted_can_always_be_encoded(count: int) -> None:
    """Around the limit of a group, for the longest producer name: accepted means sent."""
    for spare in range(0, 700, 13):
        total = GROUP_BYTES_MAX - spare
        size = total // count
        sizes = [size] * (count - 1) + [total - size * (count - 1)]
        if max(sizes) > PAYLOAD_BYTES_MAX:
            continue
        entries = [NewEntry(bytes(size)) for size in sizes]
        try:
            check_submission(entries, ())
        except TooLarge:
            continue
        encode_body(producer="p" * PRODUCER_BYTES_MAX, instance=1, first_seq=0, entries=entries)


def test_the_estimate_of_a_group_is_not_below_its_bytes() -> None:
    entries = [NewEntry(b"x" * i, tuple(f"é{j}" for j in range(i % 7))) for i in range(9)]
    overhead = 48 + PRODUCER_BYTES_MAX

    data = encode_body(producer="p" * PRODUCER_BYTES_MAX, instance=1, first_seq=0, entries=entries)

    assert len(data) <= group_bytes(entries) + overhead


def test_fenced_and_refused_are_different_classes() -> None:
    assert not issubclass(StaleInstance, Refused)
    assert issubclass(StaleInstance, Fenced)
