"""Bugs of deliveries, each named after how it happened elsewhere or here, and shown not to happen.

R27 to R31 are of the LogPlayer paper: what its text and its model leave open. The player's core
stands here with targets by hand (unit/delivery has its events one by one); where the bug is in what
surrounds it, the shipped shell runs in a simulated world.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest
from simulation.delivery.players import SimPlayer
from simulation.delivery.swarm import Fault, Swarm
from simulation.delivery.tables import Table
from simulation.delivery.world import DeliveryWorld

from penstock.delivery.api import Batch
from penstock.delivery.messages import Ack, Apply, At, Failure, Hello, Piece, Places
from penstock.delivery.player_core import (
    FlushAsked,
    Limits,
    Opened,
    PlayerCore,
    Read,
    ReadDone,
    Started,
    Tailed,
    Ticked,
)
from penstock.delivery.routing import Span
from penstock.delivery.target_queue import State
from penstock.errors import Fenced, Unavailable
from penstock.ids import Lsn


def started(world: DeliveryWorld) -> SimPlayer:
    """A player that has claimed the delivery, and all of whose targets are open."""
    player = world.running_player()
    world.run_until(lambda: player.player is not None, 5.0)
    assert player.player is not None
    core = player.player.core
    world.run_until(lambda: all(at is not None for at in core.positions), 5.0)
    return player


def span(after: int, upto: int, row: int) -> Span:
    """With one row of shard 1."""
    rows = pa.RecordBatch.from_pydict({"row": [row]})
    piece = Piece(Lsn(after), Lsn(upto), (rows,), 1, Places((Lsn(row),), (0,)))
    return Span(Lsn(after), Lsn(upto), {1: piece}, 1)


# ---- R27: LogPlayer 2.2 counts terms from 1, in memory


def test_r27_two_lives_of_a_player_never_have_one_term() -> None:
    """There a player that restarts, or a second one beside it, begins with term 1 again: what the
    first has sent is taken for the second's. Here the log gives the term, and gives none twice."""
    world = DeliveryWorld(1, swarm=Swarm(commits=6, safety_ms=100))
    with world.open():
        world.populate()
        terms = []
        for _ in range(3):
            player = started(world)
            assert player.player is not None
            terms.append(player.player.term)
            world.start_player() if len(terms) == 1 else player.kill()
            world.run_for(0.1)
        world.heal()
        world.catch_up()
        world.stop()
        world.check()

    assert terms == sorted(set(terms))
    assert world.counts["player ended by Fenced"] >= 1


# ---- R28: LogPlayer alg. 4 sets last_acks to whatever ack comes


def test_r28_an_ack_of_the_connection_before_does_not_lower_what_is_known() -> None:
    """There, an ack of the old stream that is handled after the reconnect lowers last_ack, and what
    the target has is sent once more. All orders of what is late: test_delivery_search.py."""
    core = PlayerCore(1, term=1, limits=Limits())
    core.handle(Started(), 0.0)
    core.handle(Opened(0, 1, Lsn(0), Lsn(9)), 0.0)
    core.handle(Tailed(Span(Lsn(0), Lsn(5))), 0.0)
    core.handle(FlushAsked(Lsn(5)), 0.0)
    core.handle(Failure(0, 1, Unavailable("cut, with an ack on its way")), 0.0)
    assert core.handle(Ticked(), 1.0) == [Hello(0, 2, 1)]
    core.handle(Opened(0, 2, Lsn(5), Lsn(9)), 1.0)

    assert core.handle(Ack(0, 1, Lsn(2)), 1.0) == []
    assert core.positions == [5]


# ---- R29: LogPlayer alg. 1, fetchingCompleted


def test_r29_a_read_that_ends_beside_an_idle_tail_sends_what_waits_behind_it() -> None:
    """There, fetchingCompleted with an empty catch-up queue only sets the state: what waits in the
    normal queue is sent with the next entry, and if none comes, never. Text and PlusCal disagree on
    which branch sends."""
    core = PlayerCore(2, term=1, limits=Limits())
    core.handle(Started(), 0.0)
    core.handle(Opened(0, 1, Lsn(6), Lsn(9)), 0.0)
    effects = core.handle(Opened(1, 1, Lsn(0), Lsn(9)), 0.0)
    assert Read(1, 1, Lsn(0), Lsn(6)) in effects
    core.handle(Tailed(span(6, 7, row=6)), 0.0)
    effects = core.handle(ReadDone(1, 1, Span(Lsn(0), Lsn(6))), 0.0)
    assert effects == [Read(1, 1, Lsn(6), Lsn(7))]
    core.handle(Tailed(span(7, 8, row=7)), 0.0)
    assert core.facts()[1].state is State.JOINING

    (batch,) = core.handle(ReadDone(1, 1, span(6, 7, row=6)), 0.0)

    assert isinstance(batch, Apply)
    assert (batch.after, batch.upto, batch.rows) == (0, 8, 2)
    assert core.facts()[1].state is State.NORMAL


# ---- R30: LogPlayer 2.6, dummy entries


def test_r30_a_batch_without_rows_never_passes_rows_that_wait() -> None:
    """There, a dummy entry gets the current index, which may be that of an entry that the queue
    still holds: the target's index is then beyond rows that it does not have."""
    core = PlayerCore(2, term=1, limits=Limits(batch_bytes_max=1))
    core.handle(Started(), 0.0)
    core.handle(Opened(0, 1, Lsn(0), Lsn(9)), 0.0)
    core.handle(Opened(1, 1, Lsn(0), Lsn(9)), 0.0)
    core.handle(Tailed(span(0, 4, row=3)), 10.0)
    core.handle(Tailed(span(4, 8, row=7)), 10.0)

    effects = core.handle(FlushAsked(Lsn(8)), 20.0)

    assert [effect for effect in effects if isinstance(effect, Apply) and effect.shard == 1] == []
    (batch,) = core.handle(Ack(1, 1, Lsn(4)), 20.0)
    assert isinstance(batch, Apply)
    assert (batch.after, batch.upto, batch.rows) == (4, 8, 1)


# ---- R31: LogPlayer 2.1, "the targets must make sure …"


class TornTable(Table):
    """Rows first, the position in a transaction of its own; it crashes in between."""

    def apply(self, batch: Batch) -> Lsn:
        before = self.contents.position
        position = super().apply(batch)
        if self.life == 0 and batch.rows.num_rows and position > before:
            self.contents = replace(self.contents, position=before)
            self.life += 1
            raise Unavailable("it crashed")
        return position


def test_r31_rows_without_their_position_are_seen_as_rows_that_came_twice() -> None:
    """There it is a duty of targets, which nobody checks. Here it is the law of every world."""
    world = DeliveryWorld(1, swarm=Swarm(commits=10, safety_ms=100, shards=1, trims=False))
    world.tables = [TornTable(0, world.oracle, knows_terms=True, refuses=False, count=world.count)]
    with pytest.raises(AssertionError, match="I14"):
        world.run()


def test_r31_a_target_that_crashes_anywhere_has_both_or_none() -> None:
    odds = {Fault.ERROR: 0.2, Fault.ANSWER: 0.3, Fault.FLIGHT: 0.2}
    for seed in range(4):
        DeliveryWorld(seed, swarm=Swarm({Fault.CRASH: 30}, odds, safety_ms=300)).run()


# ---- found here


def test_a_target_that_answers_while_its_player_ends_is_not_heard() -> None:
    """Seed 29: the player's tasks end because one of them failed, the player was fenced; then a
    target says that it is open. A task for that was made where none are taken any more."""
    world = DeliveryWorld(1, swarm=Swarm(commits=6, safety_ms=100))
    with world.open():
        world.populate()
        player = started(world)
        shell = player.player
        assert shell is not None

        async def fail() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.add_done_callback(lambda _: shell._hear(At(0, 1, Lsn(0))))
            raise Fenced("another was started")

        player.process.call_soon(lambda: shell._spawn(fail()))
        world.run_until(lambda: player.is_over, 30.0)

    assert isinstance(player.error, Fenced)


def test_a_player_ends_though_a_target_opens_meanwhile_and_the_log_is_away() -> None:
    """What was begun for the target then waited for the log, and the player for that, for ever."""
    world = DeliveryWorld(1, swarm=Swarm(commits=6, safety_ms=100))
    with world.open():
        world.populate()
        player = started(world)
        shell = player.player
        assert shell is not None
        world.log.restart(away_seconds=1000.0)
        world.run_for(0.1)

        def end() -> None:
            for task in shell._tasks:
                task.add_done_callback(lambda _: shell._hear(At(0, 1, Lsn(0))))
            shell._hear(Failure(0, 1, Fenced("a newer player was here")))

        player.process.call_soon(end)
        world.run_until(lambda: player.is_over, 30.0)

    assert isinstance(player.error, Fenced)
