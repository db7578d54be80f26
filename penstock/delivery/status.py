"""How a delivery stands, in words and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from penstock.delivery.player_core import Link, TargetFacts
from penstock.delivery.target_queue import State
from penstock.protocol.deliveries import Delivered, RegisteredDelivery, needed_from

_OPEN_STATES = {
    State.NORMAL: "on the tail",
    State.READING: "catching up",
    State.JOINING: "joining the tail",
}
#: All states that a target can be in.
STATES: Final = (
    *_OPEN_STATES.values(),
    *(link.value for link in Link if link is not Link.OPEN),
)

#: A target that owes an answer for so long is told about.
SLOW_SECONDS: Final = 5.0


def state_of(target: TargetFacts) -> str:
    """How a target stands."""
    return _OPEN_STATES[target.state] if target.link is Link.OPEN else target.link.value


@dataclass(frozen=True, slots=True)
class Clock:
    """What a time of the event loop is by the wall clock."""

    now: float
    now_ms: int

    def text(self, at: float) -> str:
        """As ISO text."""
        seconds = self.now_ms / 1000 - (self.now - at)
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def describe(
    delivery: RegisteredDelivery,
    ack: Delivered,
    facts: Sequence[TargetFacts],
    *,
    message: str,
    clock: Clock,
) -> dict[str, Any]:
    """Everything about it; `ack` is what would be written now."""
    targets = []
    for one in facts:
        problem, since = trouble_of(one, clock.now)
        found = {
            "shard": one.shard,
            "target": delivery.targets[one.shard],
            "state": state_of(one),
            "position": ack.positions[one.shard],
            "rows": one.rows,
            "batches": one.batches,
            "queued_bytes": one.queued_bytes,
            "in_flight": one.in_flight,
            "problem": problem,
            "since": None if problem is None else clock.text(since),
        }
        targets.append(found)
    return {
        "name": delivery.name,
        "stream": delivery.stream,
        "query": delivery.query,
        "table": delivery.table,
        "term": ack.term,
        "message": message,
        "position": needed_from(delivery, ack),
        "targets": targets,
    }


def trouble_of(target: TargetFacts, now: float) -> tuple[str | None, float]:
    """What is wrong with a target, in words, and since when; None: nothing."""
    if target.problem is not None:
        return target.problem, target.problem_since
    if target.asked_at is None or now < target.asked_at + SLOW_SECONDS:
        return None, 0.0
    what = "it was opened" if target.link is Link.OPENING else "it was sent a batch"
    return f"it has not answered since {what}", target.asked_at


def words(facts: Sequence[TargetFacts], *, has_tail: bool, now: float) -> str:
    """One line for people, of a player that has its log."""
    stopped = sum(one.link is Link.STOPPED for one in facts)
    away = sum(trouble_of(one, now)[0] is not None for one in facts) - stopped
    if stopped or away:
        troubles = [f"{stopped} stopped"] * bool(stopped) + [f"{away} in trouble"] * bool(away)
        count = sum(one.link is not Link.RETIRED for one in facts)
        return f"Delivering; of {count} targets {' and '.join(troubles)}"
    if not has_tail:
        return "Starting: waiting for the targets"
    is_busy = any(one.in_flight or one.queued_bytes for one in facts)
    return "Delivering" if is_busy else "Waiting for rows to arrive"
