"""Mistakes in a player, made on purpose, and what must notice them.

Mistakes in its core are caught by the search of all orders (simulation/delivery/search.py), those
in its shell and around it by a simulated world.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from mutant_hunt import Mutant
from simulation.delivery.search import Search
from simulation.delivery.small_player import MOVING, MOVING_LOG, NARROW_LOG
from simulation.delivery.small_world import Scope
from simulation.delivery.swarm import Fault, draw_swarm
from simulation.delivery.world import DeliveryWorld

from penstock.delivery import moves, source
from penstock.delivery.claim import Claim
from penstock.delivery.messages import Apply, At, Hello, Piece
from penstock.delivery.player import Player
from penstock.delivery.player_core import (
    Effect,
    Event,
    Opened,
    PlayerCore,
    ReadDone,
    SetAside,
    TargetFacts,
    WasSetAside,
    _Target,
)
from penstock.delivery.routing import Span
from penstock.delivery.source import Reading
from penstock.delivery.target_queue import State, TargetQueue
from penstock.ids import Lsn
from penstock.log.api import ReadBatch
from penstock.log.client.client import AsyncLog
from penstock.log.records import Entry
from penstock.protocol import deliveries
from penstock.protocol.committed import Marked
from penstock.protocol.deliveries import RegisteredDelivery
from penstock.protocol.shards import Shards
from penstock.protocol.trims import TRIM_KEY
from penstock.runtime import trim

#: Both, and two batches in flight, are clean without mutants: test_delivery_search.py.
WIDE = Scope(players=1)
NARROW = Scope(log=NARROW_LOG, queue_bytes_max=3)
MOVES = Scope(
    log=MOVING_LOG,
    layout=MOVING,
    players=1,
    kinds=frozenset({"cut", "crash", "kill", "disorder"}),
)


def run(mutant: Mutant, seed: int) -> None:
    """Raises what is found."""
    if isinstance(mutant.protocol, Scope):
        found = Search(mutant.protocol).run()
        assert not found.problem, f"{found.problem}, after {found.story}"
    else:
        DeliveryWorld(seed, swarm=replace(draw_swarm(Random(seed)), **mutant.swarm)).run()


# ---- in the core


def resume_at_the_last_ack(patch: pytest.MonkeyPatch) -> None:
    """A player that knows a target's position does not listen to what the target says."""
    opened = PlayerCore._opened

    def open(
        self: PlayerCore, target: _Target, position: Lsn, tail: Lsn, now: float
    ) -> list[Effect]:
        known = target.queue.position
        return opened(self, target, position if known is None else known, tail, now)

    patch.setattr(PlayerCore, "_opened", open)


def late_answers_are_heard(patch: pytest.MonkeyPatch) -> None:
    hear = PlayerCore._hear

    def hear_all(self: PlayerCore, event: Any, now: float) -> list[Effect]:
        newest = self._targets[event.shard].connection
        return hear(self, replace(event, connection=newest), now)

    patch.setattr(PlayerCore, "_hear", hear_all)


def connections_have_one_number(patch: pytest.MonkeyPatch) -> None:
    open = PlayerCore._open

    def open_again(self: PlayerCore, target: _Target, now: float) -> Effect:
        number = target.connection
        hello = open(self, target, now)
        assert isinstance(hello, Hello)
        target.connection = number or 1
        return replace(hello, connection=target.connection)

    patch.setattr(PlayerCore, "_open", open_again)


def a_batch_begins_at_the_last_ack(patch: pytest.MonkeyPatch) -> None:
    """Not where the one before it ends, which has no answer yet."""
    send = TargetQueue._send

    def send_after_ack(self: TargetQueue, batch: Apply) -> Apply:
        assert self.position is not None
        return send(self, replace(batch, after=self.position))

    patch.setattr(TargetQueue, "_send", send_after_ack)
    patch.setattr(TargetQueue, "check", lambda self: None)


def a_lost_connection_leaves_its_rows_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    suspend = TargetQueue.suspend

    def suspend_only(self: TargetQueue) -> None:
        pieces, size = list(self._pieces), self.bytes
        suspend(self)
        self._pieces.extend(pieces)
        self.bytes = size

    patch.setattr(TargetQueue, "suspend", suspend_only)
    patch.setattr(TargetQueue, "check", lambda self: None)


def a_read_that_ends_sends_nothing(patch: pytest.MonkeyPatch) -> None:
    handle = PlayerCore.handle

    def handle_quietly(self: PlayerCore, event: Event, now: float) -> list[Effect]:
        if isinstance(event, ReadDone):
            return self._hear(event, now)
        return handle(self, event, now)

    patch.setattr(PlayerCore, "handle", handle_quietly)


def a_full_queue_stays_on_the_tail(patch: pytest.MonkeyPatch) -> None:
    push = TargetQueue.push

    def push_what_fits(self: TargetQueue, piece: Piece | None, upto: Lsn, commits: int) -> None:
        push(self, None if piece is None or not self._fits(piece) else piece, upto, commits)

    patch.setattr(TargetQueue, "push", push_what_fits)


def a_target_joins_the_tail_one_read_too_early(patch: pytest.MonkeyPatch) -> None:
    read = TargetQueue.read

    def read_and_join(self: TargetQueue, piece: Piece | None, upto: Lsn, commits: int) -> None:
        if self.state is State.JOINING:
            self._join = upto
        read(self, piece, upto, commits)

    patch.setattr(TargetQueue, "read", read_and_join)


def a_target_joins_the_tail_one_entry_too_late(patch: pytest.MonkeyPatch) -> None:
    """What waited behind its read is taken to be in it."""
    read = TargetQueue.read

    def read_over(self: TargetQueue, piece: Piece | None, upto: Lsn, commits: int) -> None:
        if self.state is State.JOINING and upto == self._join and self._waiting:
            self.bytes -= self._waiting.popleft().bytes
        read(self, piece, upto, commits)

    patch.setattr(TargetQueue, "read", read_over)


def any_answer_is_an_ack(patch: pytest.MonkeyPatch) -> None:
    answered = TargetQueue.answered

    def answered_anyhow(self: TargetQueue, position: Lsn) -> list[Apply] | None:
        oldest = self.oldest
        return answered(self, position if oldest is None else oldest.upto)

    patch.setattr(TargetQueue, "answered", answered_anyhow)


# ---- seen in worlds


def a_batch_without_rows_passes_those_that_wait(patch: pytest.MonkeyPatch) -> None:
    def is_quiet(self: TargetQueue) -> bool:
        return self.looked > self.sent and all(batch.pieces for batch in self._in_flight)

    def empty_batch(self: TargetQueue, shard: int, connection: int, term: int) -> Apply | None:
        if not is_quiet(self):
            return None
        return self._send(Apply(shard, connection, term, self.sent, self.looked, ()))

    patch.setattr(TargetQueue, "is_quiet", property(is_quiet))
    patch.setattr(TargetQueue, "empty_batch", empty_batch)
    patch.setattr(TargetQueue, "check", lambda self: None)


def a_batch_promises_what_is_still_queued(patch: pytest.MonkeyPatch) -> None:
    next_batch = TargetQueue.next_batch

    def promise(self: TargetQueue, shard: int, connection: int, term: int) -> Apply | None:
        batch = next_batch(self, shard, connection, term)
        if batch is not None and self.state is State.NORMAL:
            batch = self._in_flight[-1] = replace(batch, upto=self.looked)
        return batch

    patch.setattr(TargetQueue, "next_batch", promise)
    patch.setattr(TargetQueue, "check", lambda self: None)


def a_commit_is_cut_in_two(patch: pytest.MonkeyPatch) -> None:
    next_batch = TargetQueue.next_batch

    def cut(self: TargetQueue, shard: int, connection: int, term: int) -> Apply | None:
        first = self._pieces[0] if self._pieces else None
        if first is not None and first.count > 1 and first.upto - first.after > 1:
            (rows, *more), between = first.rows, Lsn(first.upto - 1)
            half = rows.num_rows // 2
            left = replace(first, upto=between, rows=(rows.slice(0, half),), bytes=0)
            right = replace(first, after=between, rows=(rows.slice(half), *more))
            self._pieces[0] = right
            self._pieces.appendleft(left)
        return next_batch(self, shard, connection, term)

    patch.setattr(TargetQueue, "next_batch", cut)


def of_a_commit_only_what_was_kept_is_read(patch: pytest.MonkeyPatch) -> None:
    async def fetch(self: Reading, marked: Marked[Entry]) -> list[Entry]:
        marked.leave_out()
        return marked.entries

    patch.setattr(Reading, "_fetch", fetch)


def a_term_is_counted_in_memory(patch: pytest.MonkeyPatch) -> None:
    open = Claim.open.__func__  # type: ignore[attr-defined]

    async def open_as_first(cls: type[Claim], log: AsyncLog, delivery: RegisteredDelivery) -> Claim:
        claim: Claim = await open(cls, log, delivery)
        claim.term = 1
        return claim

    patch.setattr(Claim, "open", classmethod(open_as_first))


def what_was_sent_is_acked(patch: pytest.MonkeyPatch) -> None:
    facts = PlayerCore.facts

    def boast(self: PlayerCore) -> list[TargetFacts]:
        return [
            replace(one, position=None if one.position is None else target.queue.sent)
            for one, target in zip(facts(self), self._targets, strict=True)
        ]

    patch.setattr(PlayerCore, "facts", boast)


def a_player_begins_where_the_last_ack_was(patch: pytest.MonkeyPatch) -> None:
    tell = Player._tell

    def tell_from_ack(self: Player, event: Event) -> None:
        if isinstance(event, Opened) and event.shard < len(self._acks._before):
            event = replace(event, position=self._acks._before[event.shard] or event.position)
        tell(self, event)

    patch.setattr(Player, "_tell", tell_from_ack)


def trims_know_nothing_of_deliveries(patch: pytest.MonkeyPatch) -> None:
    async def needed(log: AsyncLog) -> list[Lsn]:
        return []

    patch.setattr(trim, "_needed_by_deliveries", needed)


def trims_take_the_foremost_target(patch: pytest.MonkeyPatch) -> None:
    needed_from = trim.deliveries.needed_from

    def needed(registered: RegisteredDelivery, delivered: Any) -> Lsn:
        if delivered is None:
            return needed_from(registered, delivered)
        return Lsn(max(position or 0 for position in delivered.positions))

    patch.setattr(trim.deliveries, "needed_from", needed)


def a_row_is_set_aside_without_a_look_whether_it_was(patch: pytest.MonkeyPatch) -> None:
    append = Claim.append

    async def append_anyhow(
        self: Claim, entries: Sequence[Any], *, guards: Any = (), sets: Any = ()
    ) -> Any:
        is_letter = any(guard.key.startswith("aside/") for guard in guards)
        return await append(self, entries, guards=() if is_letter else guards, sets=sets)

    patch.setattr(Claim, "append", append_anyhow)


def a_row_that_is_set_aside_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    def send(self: PlayerCore, target: _Target, batch: Apply, now: float) -> Apply:
        target.sent_at = now
        return batch

    patch.setattr(PlayerCore, "_send", send)


def a_row_is_left_out_before_it_is_set_aside(patch: pytest.MonkeyPatch) -> None:
    """And if the player dies before that is written, nobody ever hears of it."""
    set_aside = Player._set_aside

    async def go_on_first(self: Player, aside: SetAside) -> None:
        self._tell(WasSetAside(aside.shard, aside.connection))
        await set_aside(self, aside)

    patch.setattr(Player, "_set_aside", go_on_first)


def what_nobody_has_looked_at_counts_as_read(patch: pytest.MonkeyPatch) -> None:
    pieces = source._pieces

    def boast(batch: ReadBatch, size: int) -> Iterator[ReadBatch]:
        return (ReadBatch(piece.entries, batch.looked_up_to) for piece in pieces(batch, size))

    patch.setattr(source, "_pieces", boast)


def who_is_about_to_join_reads_on_only_while_there_is_room(patch: pytest.MonkeyPatch) -> None:
    """What waits behind its read fills the queue, and nothing ever takes that away."""
    patch.setattr(TargetQueue, "_is_starved", property(lambda self: False))


# ---- where rows move to other shards


def resharding_asks_of_no_trim(patch: pytest.MonkeyPatch) -> None:
    """One that was told before the cut, and is done after it."""
    append = AsyncLog.append

    async def append_anyhow(
        self: AsyncLog, entries: Sequence[Any], *, guards: Any = (), **rest: Any
    ) -> Any:
        own = [guard for guard in guards if guard.key != TRIM_KEY]
        return await append(self, entries, guards=own, **rest)

    patch.setattr(AsyncLog, "append", append_anyhow)


def trims_tell_nobody_before(patch: pytest.MonkeyPatch) -> None:
    async def tell(log: AsyncLog, point: Lsn) -> None:
        pass

    patch.setattr(trim, "_tell", tell)


def trims_look_only_before_they_tell(patch: pytest.MonkeyPatch) -> None:
    """Who asked for more of the log in between is not heard."""
    needed = trim._needed_by_deliveries
    tell = trim._tell

    async def tell_last(log: AsyncLog, point: Lsn) -> None:
        await tell(log, point)
        patch.setattr(trim, "_needed_by_deliveries", nothing)

    async def nothing(log: AsyncLog) -> list[Lsn]:
        patch.setattr(trim, "_needed_by_deliveries", needed)
        return []

    patch.setattr(trim, "_tell", tell_last)


def who_takes_rows_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shards, "waits_for", lambda self, shard, cut: ())


def a_target_stays_on_the_tail_over_a_cut(patch: pytest.MonkeyPatch) -> None:
    def take(self: PlayerCore, span: Span) -> None:
        self.tail = span.upto
        for target in self._targets:
            target.queue.push(span.pieces.get(target.shard), span.upto, span.commits)

    patch.setattr(PlayerCore, "_take_span", take)


def a_target_reads_over_a_cut(patch: pytest.MonkeyPatch) -> None:
    def place(self: PlayerCore, target: _Target) -> tuple[Lsn, Lsn] | None:
        return None if self.tail is None else target.queue.place(self.tail)

    patch.setattr(PlayerCore, "_place", place)


def rows_that_move_are_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moves, "_taken_back", lambda rows: rows)


def a_target_that_is_past_a_cut_is_believed_before_the_cut_is_known(
    patch: pytest.MonkeyPatch,
) -> None:
    """An earlier player has brought it there; this one has read what was registered before."""

    async def opened(self: Player, message: At) -> None:
        bounds = await self._claim.patiently(self._source.log.bounds)
        self._tell(Opened(message.shard, message.connection, message.position, bounds.tail))

    patch.setattr(Player, "_opened", opened)


def trims_know_nothing_of_rows_that_are_to_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deliveries, "_bases", lambda registered, position: [position])


DEADLY = {Fault.KILL: 60}
MOVING_WORLD = {"reshards": True, "bad_rows": False}
RESTORED = {"mean_ms": {**DEADLY, Fault.RESTORE: 60}, "trims": False}
CORE: list[tuple[Any, Scope]] = [
    (resume_at_the_last_ack, NARROW),
    (late_answers_are_heard, NARROW),
    (connections_have_one_number, NARROW),
    (a_batch_begins_at_the_last_ack, replace(NARROW, window=2)),
    (a_lost_connection_leaves_its_rows_in_the_queue, NARROW),
    (a_read_that_ends_sends_nothing, WIDE),
    (a_full_queue_stays_on_the_tail, WIDE),
    (a_target_joins_the_tail_one_read_too_early, WIDE),
    (a_target_joins_the_tail_one_entry_too_late, WIDE),
    (any_answer_is_an_ack, NARROW),
    (who_takes_rows_does_not_wait, MOVES),
    (a_target_stays_on_the_tail_over_a_cut, MOVES),
    (a_target_reads_over_a_cut, MOVES),
]
SHELL: list[tuple[Any, dict[str, Any]]] = [
    (a_batch_without_rows_passes_those_that_wait, {}),
    (a_batch_promises_what_is_still_queued, {"batch_bytes": 1}),
    (a_commit_is_cut_in_two, {}),
    (of_a_commit_only_what_was_kept_is_read, {"mean_ms": DEADLY}),
    (a_term_is_counted_in_memory, {"mean_ms": DEADLY}),
    (what_was_sent_is_acked, {}),
    (a_player_begins_where_the_last_ack_was, {"mean_ms": DEADLY}),
    (trims_know_nothing_of_deliveries, {"mean_ms": {}, "trims": True}),
    (trims_take_the_foremost_target, {"mean_ms": {Fault.CRASH: 60}, "trims": True, "shards": 4}),
    (a_row_is_set_aside_without_a_look_whether_it_was, {"bad_rows": True, **RESTORED}),
    (a_row_that_is_set_aside_is_sent_again, {"bad_rows": True}),
    (a_row_is_left_out_before_it_is_set_aside, {"bad_rows": True, "mean_ms": DEADLY}),
    (what_nobody_has_looked_at_counts_as_read, {"entries_at_once": 1}),
    (
        who_is_about_to_join_reads_on_only_while_there_is_room,
        {"mean_ms": {Fault.RESTORE: 60}, "queue_bytes": 1_500, "read_bytes": 1, "trims": False},
    ),
    (rows_that_move_are_not_taken_back, MOVING_WORLD),
    (
        a_target_that_is_past_a_cut_is_believed_before_the_cut_is_known,
        {**MOVING_WORLD, "mean_ms": {Fault.PAUSE: 60, Fault.TAKEOVER: 60}},
    ),
    (
        trims_know_nothing_of_rows_that_are_to_move,
        {**MOVING_WORLD, "mean_ms": {Fault.CRASH: 60}, "trims": True},
    ),
    (resharding_asks_of_no_trim, {**MOVING_WORLD, "mean_ms": {}, "trims": True}),
    (trims_tell_nobody_before, {**MOVING_WORLD, "mean_ms": {}, "trims": True}),
    (trims_look_only_before_they_tell, {**MOVING_WORLD, "mean_ms": {}, "trims": True}),
]
MUTANTS = [
    *(Mutant(apply.__name__.replace("_", " "), apply, scope) for apply, scope in CORE),
    *(
        Mutant(apply.__name__.replace("_", " "), apply, "", {"reshards": False, **swarm})
        for apply, swarm in SHELL
    ),
]
