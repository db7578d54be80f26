"""What a player counts, and how its targets stand, as metrics; their text is openmetrics.py's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.delivery.player_core import Link, TargetFacts
from penstock.delivery.status import STATES, state_of, trouble_of
from penstock.log.serving.openmetrics import (
    Counts,
    Family,
    Gauges,
    Histogram,
    counter,
    histogram,
)
from penstock.runtime.lag import Lag


@dataclass(slots=True)
class DeliveryMetrics(Counts):
    """Of one player, over all its targets."""

    PREFIX: ClassVar[str] = "penstock_deliver_"
    rows: int = counter("Rows sent to targets.")
    batches: int = counter("Batches sent to targets, those without rows too.")
    bytes: int = counter("Bytes of rows sent to targets, as they are in the log.")
    connections: int = counter("Openings of targets.")
    dead_letters: int = counter("Rows set aside because a target refused them.")
    apply_duration: Histogram = histogram("From a batch to its answer.")


def player_text(
    metrics: DeliveryMetrics,
    facts: Sequence[TargetFacts],
    *,
    position: int,
    now: float,
    lag: Lag | None,
) -> str:
    """Everything; `now` is of the player's clock."""
    troubles = [trouble_of(one, now) for one in facts]
    ages = [0.0 if problem is None else max(0.0, now - since) for problem, since in troubles]
    gauges: Gauges = {
        "targets": ("Targets.", sum(one.link is not Link.RETIRED for one in facts)),
        "targets_in_trouble": (
            "Targets that are away, slow or stopped.",
            sum(problem is not None for problem, _ in troubles),
        ),
        "problem_seconds": ("Age of the oldest problem that lasts.", round(max(ages), 3)),
        "queued_bytes": ("Bytes of rows that wait.", sum(one.queued_bytes for one in facts)),
        "position": ("LSN below which all is applied by every target.", position),
    }
    if lag is not None:
        gauges["lag_rows"] = ("Rows of the stream from the position on.", lag.records)
        gauges["lag_seconds"] = ("Age of the oldest of them.", round(lag.seconds, 3))
    return metrics.text(gauges, _by_shard(facts, ages))


def _by_shard(facts: Sequence[TargetFacts], ages: Sequence[float]) -> dict[str, Family]:
    def family(kind: str, help: str, value: Callable[[TargetFacts], float | None]) -> Family:
        values = {
            f'shard="{one.shard}"': found for one in facts if (found := value(one)) is not None
        }
        return Family(kind, help, values)

    states = {
        f'shard="{one.shard}",penstock_deliver_shard_state="{state}"': float(state == state_of(one))
        for one in facts
        for state in STATES
    }
    return {
        "shard_rows": family("counter", "Rows that the target applied.", lambda one: one.rows),
        "shard_batches": family("counter", "Transactions of the target.", lambda one: one.batches),
        "shard_position": family(
            "gauge", "LSN below which the target has applied all.", lambda one: one.position
        ),
        "shard_problem_seconds": family(
            "gauge", "Age of its problem; 0: it has none.", lambda one: round(ages[one.shard], 3)
        ),
        "shard_state": Family("stateset", "How the target stands.", states),
    }
