"""The player's core: events in, effects out."""

from __future__ import annotations

from delivery_steps import piece, span

from penstock.delivery.messages import Ack, Apply, Bye, Failure, Hello
from penstock.delivery.player_core import (
    BACKOFF_SECONDS,
    BEGIN_SECONDS,
    QUIET_SECONDS,
    Drained,
    Effect,
    End,
    Event,
    FlushAsked,
    Follow,
    Limits,
    Link,
    Opened,
    PlayerCore,
    Read,
    ReadDone,
    ReadFailed,
    SetAside,
    Started,
    Tailed,
    TailTrimmed,
    Ticked,
    WasSetAside,
)
from penstock.delivery.target_queue import State
from penstock.errors import BadRow, Fenced, Refused, Trimmed, Unavailable
from penstock.ids import Lsn

TERM = 4


class Player:
    """A core, its clock, and its invariants after every step."""

    def __init__(self, shards: int = 1, *, sets_aside: bool = False, **limits: int) -> None:
        self.core = PlayerCore(shards, term=TERM, limits=Limits(**limits), sets_aside=sets_aside)
        self.now = 0.0
        self.tell(Started())

    def tell(self, event: Event) -> list[Effect]:
        effects = self.core.handle(event, self.now)
        self.core.check()
        return effects

    def open(
        self, shard: int, position: int, *, tail: int = 100, connection: int = 1
    ) -> list[Effect]:
        return self.tell(Opened(shard, connection, Lsn(position), Lsn(tail)))

    def ack(self, shard: int, position: int, connection: int = 1) -> list[Effect]:
        return self.tell(Ack(shard, connection, Lsn(position)))

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.tell(Ticked())

    def state(self, shard: int = 0) -> State:
        return self.core.facts()[shard].state

    def link(self, shard: int = 0) -> Link:
        return self.core.facts()[shard].link


def apply(shard: int, after: int, upto: int, *rows: int, connection: int = 1) -> Apply:
    """As it is sent for rows that came in one span."""
    pieces = (piece(after, upto, shard, *rows),) if rows else ()
    return Apply(shard, connection, TERM, Lsn(after), Lsn(upto), pieces)


def running(shards: int = 1, **options: int) -> Player:
    """All targets at LSN 10, on the tail."""
    player = Player(shards, **options)
    for shard in range(shards):
        player.open(shard, 10)
    return player


def test_every_target_is_greeted_and_the_tail_begins_at_the_foremost() -> None:
    core = PlayerCore(2, term=TERM, limits=Limits())
    assert core.handle(Started(), 0) == [Hello(0, 1, TERM), Hello(1, 1, TERM)]

    assert core.handle(Opened(0, 1, Lsn(10), Lsn(30)), 0) == []
    effects = core.handle(Opened(1, 1, Lsn(20), Lsn(30)), 0)

    assert effects == [Follow(Lsn(20)), Read(0, 1, Lsn(10), Lsn(20))]


def test_a_target_that_hangs_does_not_keep_the_tail_from_beginning() -> None:
    player = Player(2)
    assert player.open(0, 10) == []
    assert player.core.due == BEGIN_SECONDS

    assert player.wait(BEGIN_SECONDS) == [Follow(Lsn(10))]
    assert player.state(0) is State.NORMAL
    assert player.open(1, 4) == [Read(1, 1, Lsn(4), Lsn(10))]


def test_rows_of_the_tail_are_sent_at_once_and_what_comes_meanwhile_becomes_one_batch() -> None:
    player = running()

    assert player.tell(Tailed(span(10, 12, {11: 0}))) == [apply(0, 10, 12, 11)]
    assert player.tell(Tailed(span(12, 13, {12: 0}))) == []
    assert player.tell(Tailed(span(13, 15, {13: 0}))) == []
    (batch,) = player.ack(0, 12)

    assert isinstance(batch, Apply)
    assert (batch.after, batch.upto, batch.rows) == (12, 15, 2)


def test_a_quiet_shard_is_moved_once_a_second_at_most() -> None:
    player = running(2)
    player.now = 100.0
    player.tell(Tailed(span(10, 12, {11: 0})))
    assert player.core.facts()[1].in_flight == 1, "the first may go at once"
    player.ack(1, 12)

    for lsn in range(12, 20):
        player.tell(Tailed(span(lsn, lsn + 1, {lsn: 0})))

    assert player.core.facts()[1].in_flight == 0
    assert player.core.due == 100.0 + QUIET_SECONDS
    assert player.wait(QUIET_SECONDS) == [apply(1, 12, 20)]


def test_a_log_in_which_only_others_write_moves_nothing() -> None:
    player = running()
    player.now = 100.0

    assert player.tell(Tailed(span(10, 14))) == []
    assert player.core.due is None


def test_a_flush_moves_a_quiet_shard_at_once() -> None:
    player = running()
    player.tell(Tailed(span(10, 14)))

    assert player.tell(FlushAsked(Lsn(14))) == [apply(0, 10, 14)]
    player.ack(0, 14)
    assert player.tell(Tailed(span(14, 15))) == []


def test_a_lost_target_is_tried_again_ever_more_slowly_and_its_own_position_decides() -> None:
    player = running()
    player.tell(Tailed(span(10, 12, {11: 0})))

    assert player.tell(Failure(0, 1, Unavailable("gone"))) == [Bye(0, 1)]
    assert player.core.facts()[0].problem == "gone"
    for connection, seconds in enumerate(BACKOFF_SECONDS[:-1], 2):
        assert player.core.due == player.now + seconds
        assert player.wait(seconds) == [Hello(0, connection, TERM)]
        player.tell(Failure(0, connection, ConnectionError("still gone")))
    facts = player.core.facts()[0]
    assert (facts.problem, facts.problem_since) == ("ConnectionError: still gone", 0.0)
    player.wait(BACKOFF_SECONDS[-1])
    connection = len(BACKOFF_SECONDS) + 1
    effects = player.open(0, 11, connection=connection)

    assert effects == [Read(0, connection, Lsn(11), Lsn(12))]
    assert player.core.facts()[0].problem is None


def test_an_ack_that_was_lost_is_found_in_the_position() -> None:
    player = running()
    player.tell(Tailed(span(10, 12, {11: 0})))
    player.tell(Failure(0, 1, Unavailable("cut")))
    player.wait(1)

    assert player.open(0, 12, connection=2) == []
    assert player.state() is State.NORMAL
    assert player.tell(Tailed(span(12, 13, {12: 0}))) == [apply(0, 12, 13, 12, connection=2)]


def test_a_target_that_was_restored_from_a_backup_gets_everything_since_then() -> None:
    player = running()
    player.tell(Tailed(span(10, 12, {11: 0})))

    assert player.ack(0, 3) == [Bye(0, 1)], "it answers where it stands now"
    assert "LSN 3 where LSN 12" in (player.core.facts()[0].problem or "")
    player.wait(1)
    assert player.open(0, 3, connection=2) == [Read(0, 2, Lsn(3), Lsn(12))]
    effects = player.tell(ReadDone(0, 2, span(3, 12, {4: 0, 11: 0})))

    assert effects == [apply(0, 3, 12, 4, 11, connection=2)]
    assert player.state() is State.NORMAL
    assert player.core.positions == [3]


def test_answers_of_an_earlier_connection_are_not_heard() -> None:
    player = running()
    player.tell(Tailed(span(10, 12, {11: 0})))
    player.tell(Failure(0, 1, Unavailable("cut")))
    player.wait(1)
    player.open(0, 10, connection=2)

    assert player.ack(0, 12, connection=1) == []
    assert player.open(0, 5, connection=1) == []
    assert player.tell(Failure(0, 1, Refused("old"))) == []
    assert player.tell(ReadDone(0, 1, span(5, 12))) == []
    assert player.tell(ReadFailed(0, 1, Trimmed("old"))) == []
    assert player.core.positions == [10]
    assert player.link() is Link.OPEN


def test_a_target_beyond_the_end_of_the_log_is_of_another_log() -> None:
    player = Player(2)
    player.open(1, 10)

    effects = player.open(0, 101)

    assert Bye(0, 1) in effects
    assert player.link(0) is Link.STOPPED
    assert "another log" in str(player.core.errors[0])
    assert player.link(1) is Link.OPEN


def test_a_target_that_is_ahead_waits_for_the_tail_and_no_row_comes_twice() -> None:
    player = Player(2)
    player.open(0, 10)
    player.wait(BEGIN_SECONDS)
    player.open(1, 14)

    player.tell(Tailed(span(10, 13, {11: 1, 12: 0})))
    assert player.core.wants_tail
    effects = player.tell(Tailed(span(13, 16, {13: 1, 15: 1})))
    assert effects == [Read(1, 1, Lsn(14), Lsn(16))]
    effects = player.tell(ReadDone(1, 1, span(14, 16, {15: 1})))

    assert effects == [apply(1, 14, 16, 15)]
    assert player.state(1) is State.NORMAL


def test_one_that_needs_what_was_trimmed_stops_and_the_others_run_on() -> None:
    player = Player(2)
    player.open(0, 10)
    player.open(1, 4)

    assert player.tell(ReadFailed(1, 1, Trimmed("below 8"))) == [Bye(1, 1)]
    assert "stands at LSN 4" in str(player.core.errors[0])
    assert player.tell(Tailed(span(10, 11, {10: 0}))) == [apply(0, 10, 11, 10)]


def test_a_trim_under_the_tail_stops_who_is_on_it() -> None:
    player = running()

    effects = player.tell(TailTrimmed(Trimmed("below 50")))

    assert effects[0] == Bye(0, 1)
    assert isinstance(effects[1], End)


def test_a_tail_that_begins_anew_where_a_target_reads_by_itself_does_not_take_it_on_yet() -> None:
    """Its read would come to a queue that expects none."""
    player = Player(2)
    player.open(0, 10)
    player.open(1, 4)

    effects = player.tell(TailTrimmed(Trimmed("below 50")))
    assert effects == [Bye(0, 1), Follow(Lsn(4))]
    assert player.state(1) is State.READING
    effects = player.tell(ReadDone(1, 1, span(4, 10, {5: 1})))

    assert effects == [apply(1, 4, 10, 5)]
    assert player.core.wants_tail


def test_a_beginning_that_nobody_is_left_for_is_not_waited_for() -> None:
    """A time in the past would be due for ever, and the player would do nothing but look."""
    player = Player(2)
    player.open(0, 10)
    player.tell(Failure(0, 1, Unavailable("gone")))
    player.wait(BACKOFF_SECONDS[0])
    player.wait(BEGIN_SECONDS)
    assert player.core.due is None

    assert player.open(1, 4) == [Follow(Lsn(4))]


def test_refused_by_all_targets_the_player_ends_with_the_cause() -> None:
    player = running(2)

    assert player.tell(Failure(0, 1, Refused("no such schema"))) == [Bye(0, 1)]
    effects = player.tell(Failure(1, 1, Refused("no such user")))

    assert effects[0] == Bye(1, 1)
    assert isinstance(effects[1], End)
    assert str(effects[1].error) == "no such user"
    assert player.wait(100) == []


def test_fenced_by_a_target_the_player_ends() -> None:
    player = running(2)

    (end,) = player.tell(Failure(0, 1, Fenced("term 5 was here")))

    assert isinstance(end, End)
    assert player.tell(Tailed(span(10, 12, {10: 0, 11: 1}))) == []


def test_a_bad_row_stops_its_target_with_lsn_and_row() -> None:
    player = running()
    player.tell(Tailed(span(10, 12, {10: 0, 11: 0})))

    effects = player.tell(Failure(0, 1, BadRow("too long", row=1)))

    assert effects[0] == Bye(0, 1)
    assert "row 0 of LSN 11 is refused: too long" in str(player.core.errors[0])
    assert "dead_letter=" in str(player.core.errors[0])


def test_a_bad_row_that_cannot_be_named_stops_its_target_though_rows_may_be_set_aside() -> None:
    player = running(sets_aside=True)
    player.tell(Tailed(span(10, 12, {10: 0, 11: 0})))

    player.tell(Failure(0, 1, BadRow("one of them")))

    assert "a row of LSN 10 to 11 is refused" in str(player.core.errors[0])


def test_a_bad_row_is_set_aside_and_left_out_of_the_next_batch() -> None:
    player = running(sets_aside=True)
    player.tell(Tailed(span(10, 12, {10: 0, 11: 0})))

    bye, aside = player.tell(Failure(0, 1, BadRow("too long", row=1)))
    assert bye == Bye(0, 1)
    assert isinstance(aside, SetAside)
    assert (aside.number, aside.lsn, aside.row) == (1, 11, 0)
    assert player.wait(100) == [], "not before the row is safe elsewhere"
    assert player.tell(WasSetAside(0, 1)) == [Hello(0, 2, TERM)]
    assert player.open(0, 10, connection=2) == [Read(0, 2, Lsn(10), Lsn(12))]
    (batch,) = player.tell(ReadDone(0, 2, span(10, 12, {10: 0, 11: 0})))

    assert isinstance(batch, Apply)
    assert (batch.after, batch.upto, batch.rows) == (10, 12, 1)
    assert player.ack(0, 12, connection=2) == []
    assert player.core.facts()[0].problem is None


def test_a_slow_target_leaves_the_tail_and_the_others_are_served() -> None:
    player = running(2, queue_bytes_max=100)
    lsn = 10
    while player.state(0) is State.NORMAL:
        player.tell(Tailed(span(lsn, lsn + 2, {lsn: 0, lsn + 1: 1}, bytes=20)))
        player.ack(1, lsn + 2)
        lsn += 2
        assert player.core.wants_tail, "the other one has room"
        assert lsn < 100

    assert player.state(0) is State.READING
    assert player.core.facts()[0].queued_bytes <= 100
    effects = player.ack(0, 12)
    assert [type(effect) for effect in effects] == [Apply]
    effects = player.ack(0, effects[0].upto)  # type: ignore[union-attr]
    assert [type(effect) for effect in effects] == [Read]


def test_the_tail_waits_while_nobody_on_it_has_room() -> None:
    player = running(queue_bytes_max=100)
    player.tell(Tailed(span(10, 11, {10: 0}, bytes=60)))

    assert not player.core.wants_tail
    player.ack(0, 11)
    assert player.core.wants_tail


def test_drained_it_waits_for_what_is_in_flight_and_sends_nothing_new() -> None:
    player = running(2)
    player.tell(Tailed(span(10, 12, {11: 0})))
    player.tell(Tailed(span(12, 13, {12: 0})))

    assert player.tell(Drained()) == []
    assert not player.core.is_drained
    assert player.ack(1, 12) == [Bye(1, 1)]
    assert player.ack(0, 12) == [Bye(0, 1)]
    assert player.core.is_drained
    assert player.core.positions == [12, 12]


def test_since_when_a_target_owes_an_answer_is_known() -> None:
    player = Player()
    assert player.core.facts()[0].asked_at == 0.0
    player.now = 1.0
    player.open(0, 10)
    assert player.core.facts()[0].asked_at is None
    player.tell(Tailed(span(10, 12, {11: 0})))
    player.now = 2.0
    player.tell(Tailed(span(12, 13, {12: 0})))
    assert player.core.facts()[0].asked_at == 1.0
    player.ack(0, 12)
    assert player.core.facts()[0].asked_at == 2.0
    player.tell(Failure(0, 1, Unavailable("gone")))
    assert player.core.facts()[0].asked_at is None


def test_several_batches_may_be_under_way_where_that_helps() -> None:
    player = running(window=2)

    sent = [player.tell(Tailed(span(lsn, lsn + 1, {lsn: 0}))) for lsn in (10, 11, 12)]

    assert sent == [[apply(0, 10, 11, 10)], [apply(0, 11, 12, 11)], []]
    assert player.ack(0, 11) == [apply(0, 12, 13, 12)]
