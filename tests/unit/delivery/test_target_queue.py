"""One target's queue: a chain without gaps, whole pieces, a bound in bytes."""

from __future__ import annotations

import pytest
from delivery_steps import piece

from penstock.delivery.messages import Apply
from penstock.delivery.target_queue import QUIET_LSNS, TRANSITIONS, State, TargetQueue
from penstock.errors import InvariantBroken
from penstock.ids import Lsn


def queue(*, bytes_max: int = 100, batch: int = 50, window: int = 1) -> TargetQueue:
    return TargetQueue(bytes_max=bytes_max, batch_bytes_max=batch, window=window)


def opened(at: int = 0, tail: int | None = None, **limits: int) -> TargetQueue:
    found = queue(**limits)
    found.open(Lsn(at))
    found.place(Lsn(at if tail is None else tail))
    return found


def push(to: TargetQueue, after: int, upto: int, *lsns: int, bytes: int = 10) -> None:
    to.push(piece(after, upto, 0, *lsns, bytes=bytes) if lsns else None, Lsn(upto), len(lsns) or 1)
    to.check()


def next_batch(of: TargetQueue) -> Apply | None:
    batch = of.next_batch(0, 1, 1)
    of.check()
    return batch


def test_every_state_can_be_left_and_reached() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {state for states in TRANSITIONS.values() for state in states} == set(State)


def test_a_step_that_is_not_in_the_table_is_a_bug() -> None:
    with pytest.raises(InvariantBroken, match="cannot go from"):
        queue()._become(State.NORMAL)
    with pytest.raises(InvariantBroken, match="opened in state"):
        opened().open(Lsn(3))


def test_a_target_at_the_tail_joins_at_once() -> None:
    assert opened(7).state is State.NORMAL


def test_all_that_waits_becomes_one_batch_up_to_where_was_looked() -> None:
    found = opened()
    push(found, 0, 3, 1)
    push(found, 3, 6, 4, 5)
    push(found, 6, 9)

    batch = next_batch(found)

    assert batch is not None
    assert (batch.after, batch.upto, batch.rows) == (0, 9, 3)
    assert next_batch(found) is None


def test_a_batch_ends_between_pieces_when_it_is_large_enough() -> None:
    found = opened(bytes_max=1000)
    push(found, 0, 3, 1, 2, bytes=20)
    push(found, 3, 6, 4, bytes=20)
    push(found, 6, 9, 7)

    first = next_batch(found)
    assert first is not None
    assert (first.after, first.upto, first.rows) == (0, 3, 2)
    assert next_batch(found) is None, "one batch is in flight, and the window is one"
    assert found.answered(Lsn(3)) == [first]
    second = next_batch(found)

    assert second is not None
    assert (second.after, second.upto, second.rows) == (3, 9, 2)


def test_a_piece_beyond_all_bounds_is_sent_whole() -> None:
    found = opened()
    push(found, 0, 9, *range(9), bytes=100)

    batch = next_batch(found)

    assert batch is not None
    assert (batch.upto, batch.rows) == (9, 9)


def test_a_window_of_several_batches_is_one_chain() -> None:
    found = opened(bytes_max=1000, batch=10, window=3)
    for lsn in range(5):
        push(found, lsn, lsn + 1, lsn)

    batches = [next_batch(found) for _ in range(4)]

    assert [(b.after, b.upto) for b in batches if b] == [(0, 1), (1, 2), (2, 3)]
    assert found.answered(Lsn(2)) == batches[:2], "an answer stands for all before it"
    assert found.answered(Lsn(1)) is None, "a late one means nothing that we expect"


@pytest.mark.parametrize("position", [0, 2, 4])
def test_an_answer_that_was_not_expected_is_told_apart(position: int) -> None:
    found = opened()
    push(found, 0, 3, 1)
    next_batch(found)

    assert found.answered(Lsn(position)) is None
    assert found.position == 0


def test_a_full_queue_leaves_the_tail_and_keeps_what_it_has() -> None:
    found = opened()
    push(found, 0, 1, 0, bytes=60)

    push(found, 1, 2, 1, bytes=60)

    assert found.state is State.READING
    assert found.looked == 1
    batch = next_batch(found)
    assert batch is not None
    assert batch.upto == 1


def test_who_left_reads_by_itself_once_there_is_room_and_joins_behind_its_last_read() -> None:
    found = opened()
    push(found, 0, 1, 0, bytes=60)
    push(found, 1, 2, 1, bytes=60)
    assert found.place(Lsn(8)) is None, "no room"
    next_batch(found)
    found.answered(Lsn(1))

    assert found.place(Lsn(8)) == (1, 8)
    assert found.place(Lsn(9)) is None, "one read at a time"
    found.read(piece(1, 5, 0, 2), Lsn(5), 1)
    assert found.place(Lsn(9)) == (5, 8), "a read that was cut goes on to the same end"
    found.read(None, Lsn(8), 0)
    assert found.place(Lsn(9)) == (8, 9)
    assert found.state is State.JOINING
    push(found, 9, 12, 10)
    found.read(piece(8, 9, 0, 8), Lsn(9), 1)

    assert found.state is State.NORMAL
    found.check()
    batch = next_batch(found)
    assert batch is not None
    assert (batch.after, batch.upto, batch.rows) == (1, 12, 3)


def test_who_is_about_to_join_and_overflows_goes_on_by_itself() -> None:
    found = opened(0, tail=5)
    found.read(None, Lsn(5), 0)
    assert found.place(Lsn(6)) == (5, 6)
    push(found, 6, 7, 6, bytes=90)

    push(found, 7, 8, 7, bytes=90)

    assert found.state is State.READING
    found.read(piece(5, 6, 0, 5), Lsn(6), 1)
    found.check()
    assert (found.looked, found.bytes) == (6, 10)


def test_who_is_about_to_join_reads_on_however_much_waits_behind_its_read() -> None:
    found = opened(tail=5)
    found.read(None, Lsn(5), 0)
    assert found.place(Lsn(7)) == (5, 7)
    push(found, 7, 9, 8, bytes=80)
    found.read(piece(5, 6, 0, 5), Lsn(6), 1)
    assert found.place(Lsn(9)) is None, "no room"
    next_batch(found)
    found.answered(Lsn(6))

    assert found.place(Lsn(9)) == (6, 7), "nothing else would ever make room"
    found.read(None, Lsn(7), 0)

    assert found.state is State.NORMAL
    found.check()


def test_a_target_that_is_ahead_waits_for_the_tail() -> None:
    found = opened(10, tail=4)

    assert found.state is State.READING
    assert found.place(Lsn(9)) is None
    assert found.place(Lsn(12)) == (10, 12), "the tail has passed it by"


def test_suspended_it_holds_nothing_and_takes_nothing() -> None:
    found = opened()
    push(found, 0, 1, 0)
    next_batch(found)
    push(found, 1, 2, 1)

    found.suspend()
    push(found, 2, 3, 2)

    assert (found.state, found.bytes, found.in_flight) == (State.SUSPENDED, 0, 0)
    assert next_batch(found) is None


def test_only_commits_of_others_or_many_entries_make_a_position_worth_moving() -> None:
    found = opened()
    found.push(None, Lsn(QUIET_LSNS - 1), 0)
    assert not found.is_quiet
    found.push(None, Lsn(QUIET_LSNS), 0)
    assert found.is_quiet

    batch = found.empty_batch(0, 1, 1)
    assert batch is not None
    assert (batch.after, batch.upto, batch.pieces) == (0, QUIET_LSNS, ())
    found.answered(batch.upto)
    assert found.empty_batch(0, 1, 1) is None
    found.push(None, Lsn(QUIET_LSNS + 1), 1)

    assert found.is_quiet
