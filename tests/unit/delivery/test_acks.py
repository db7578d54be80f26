"""When a player says how far it is, and what it says."""

from __future__ import annotations

from dataclasses import replace

from penstock.delivery.acks import ACK_SECONDS, Acks
from penstock.delivery.player_core import Link, TargetFacts
from penstock.delivery.status import SLOW_SECONDS, Clock, describe, trouble_of, words
from penstock.delivery.target_queue import State
from penstock.ids import Lsn
from penstock.protocol.deliveries import ALIVE_SECONDS, Delivered, RegisteredDelivery


def facts(shard: int, position: int | None, problem: str | None = None) -> TargetFacts:
    at = None if position is None else Lsn(position)
    return TargetFacts(shard, Link.OPEN, State.NORMAL, at, 0, 0, 3, 1, problem, 0.0, None)


BEFORE = Delivered(1, [40, 30], [None, None], [0, 0], False, None, 5)


def test_it_is_said_once_a_second_at_most_and_only_what_is_new() -> None:
    acks = Acks(2, None)

    first = acks.due([facts(0, 7)], 10.0, 1)
    assert first == Delivered(2, [7], [None], [3], True, None, 1)
    assert acks.due([facts(0, 8)], 10.0 + ACK_SECONDS / 2, 2) is None
    assert acks.due([facts(0, 7)], 10.0 + ACK_SECONDS, 3) is None, "nothing is new"
    later = acks.due([facts(0, 8)], 10.0 + ACK_SECONDS, 4)
    assert later is not None
    assert later.positions == [8]


def test_what_does_not_change_is_said_now_and_then() -> None:
    acks = Acks(2, None)
    first = acks.due([facts(0, 7)], 10.0, 1)

    assert first is not None
    assert acks.due([facts(0, 7)], 10.0 + ALIVE_SECONDS, 2) == replace(first, time_ms=2)


def test_a_problem_is_news() -> None:
    acks = Acks(2, None)
    acks.due([facts(0, 7)], 10.0, 1)

    told = acks.due([facts(0, 7, "down")], 20.0, 1)

    assert told is not None
    assert told.problems == ["down"]


def test_of_a_target_that_was_not_heard_of_the_position_stays() -> None:
    told = Acks(2, BEFORE).make([facts(0, None), facts(1, 20)], 9)

    assert told.positions == [40, 20], "what a target tells counts, also if it went back"


def test_the_last_word_tells_the_end_and_its_cause() -> None:
    told = Acks(2, None).make([facts(0, None)], 9, is_running=False, error="no target is left")

    assert (told.is_running, told.error, told.positions) == (False, "no target is left", [None])


DELIVERY = RegisteredDelivery(
    name="d", id="i", stream="s", query=None, version=None, key=[], route=[0] * 64, epoch=0,
    start=5, table="t", targets=["sqlite:///a"], strict=False, dead_letter=None, created_ms=1,
)  # fmt: skip


def test_a_status_says_what_is_wrong_and_since_when() -> None:
    down = replace(facts(0, 7, "down"), problem_since=88.0)
    ack = Acks(2, None).make([down], 0)

    found = describe(DELIVERY, ack, [down], message="m", clock=Clock(100.0, 1_000_000_012_000))

    assert found["position"] == 7
    assert found["targets"][0]["state"] == "on the tail"
    assert found["targets"][0]["problem"] == "down"
    assert found["targets"][0]["since"] == "2001-09-09T01:46:40+00:00"


def test_a_target_that_does_not_answer_is_told_about_after_a_while() -> None:
    hanging = replace(facts(0, 7), asked_at=10.0, in_flight=1)

    assert trouble_of(hanging, 10.0 + SLOW_SECONDS / 2) == (None, 0.0)
    assert trouble_of(hanging, 10.0 + SLOW_SECONDS) == (
        "it has not answered since it was sent a batch", 10.0,
    )  # fmt: skip
    opening = replace(hanging, link=Link.OPENING)
    assert trouble_of(opening, 99.0)[0] == "it has not answered since it was opened"
    assert words([hanging], has_tail=True, now=99.0) == "Delivering; of 1 targets 1 in trouble"


def test_one_line_for_people() -> None:
    well = facts(0, 7)
    busy = replace(well, in_flight=1)
    stopped = replace(facts(1, 7, "refused"), link=Link.STOPPED)

    assert words([well], has_tail=False, now=9.0) == "Starting: waiting for the targets"
    assert words([well], has_tail=True, now=9.0) == "Waiting for rows to arrive"
    assert words([well, busy], has_tail=True, now=9.0) == "Delivering"
    assert words([well, stopped], has_tail=True, now=9.0) == "Delivering; of 2 targets 1 stopped"
    assert (
        words([facts(0, 7, "down"), stopped], has_tail=True, now=9.0)
        == "Delivering; of 2 targets 1 stopped and 1 in trouble"
    )
