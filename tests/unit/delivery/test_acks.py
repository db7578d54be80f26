"""When a player says how far it is, and what."""

from __future__ import annotations

from dataclasses import replace

from penstock.delivery.acks import ACK_SECONDS, Acks
from penstock.delivery.player_core import Link, TargetFacts
from penstock.delivery.target_queue import State
from penstock.ids import Lsn
from penstock.protocol.deliveries import ALIVE_SECONDS, Delivered

FACTS = TargetFacts(0, Link.OPEN, State.NORMAL, Lsn(5), 0, 0, 3, 1, None, 0.0, None)


def test_what_changes_is_said_once_a_second_and_what_does_not_now_and_then() -> None:
    acks = Acks(2, None)
    first = acks.due([FACTS], 0.0, 1_000)
    moved = replace(FACTS, position=Lsn(6))

    assert first is not None and (first.term, first.positions, first.rows) == (2, [5], [3])
    assert acks.due([moved], ACK_SECONDS / 2, 1_500) is None
    second = acks.due([moved], ACK_SECONDS, 2_000)
    assert second is not None and second.positions == [6]
    assert acks.due([moved], ACK_SECONDS * 2, 3_000) is None
    alive = acks.due([moved], ACK_SECONDS + ALIVE_SECONDS, 7_000)
    assert alive == replace(second, time_ms=7_000)


def test_a_target_that_has_not_told_its_position_keeps_the_one_that_was_told_before() -> None:
    before = Delivered(1, [4, None], [None, None], [9, 9], False, None, 500)
    facts = [replace(FACTS, position=None), replace(FACTS, shard=1, position=None)]

    assert Acks(2, before).make(facts, 1_000).positions == [4, None]
    assert Acks(2, None).make(facts, 1_000).positions == [None, None]
