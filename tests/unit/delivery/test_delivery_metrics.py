"""How a player and its targets stand, as OpenMetrics text."""

from __future__ import annotations

from penstock.delivery.metrics import DeliveryMetrics, player_text
from penstock.delivery.player_core import Link, TargetFacts
from penstock.delivery.target_queue import State
from penstock.ids import Lsn
from penstock.runtime.lag import Lag


def samples(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return dict(line.rsplit(" ", 1) for line in lines)


def test_counters_lag_and_every_shard_are_there() -> None:
    well = TargetFacts(0, Link.OPEN, State.NORMAL, Lsn(9), 10, 1, 3, 2, None, 0.0, None)
    away = TargetFacts(1, Link.CLOSED, State.SUSPENDED, None, 0, 0, 4, 1, "away", 20.0, None)
    gone = TargetFacts(2, Link.RETIRED, State.NORMAL, Lsn(3), 0, 0, 0, 0, None, 0.0, None)
    metrics = DeliveryMetrics(rows=7)

    text = player_text(metrics, [well, away, gone], position=5, now=32.5, lag=Lag(12, 1.5))

    assert text.endswith("# EOF\n")
    found = samples(text)
    expected = {
        "rows_total": 7, "targets": 2, "targets_in_trouble": 1, "problem_seconds": 12.5,
        "queued_bytes": 10, "position": 5, "lag_rows": 12, "lag_seconds": 1.5,
        'shard_rows_total{shard="0"}': 3, 'shard_rows_total{shard="1"}': 4,
        'shard_batches_total{shard="0"}': 2, 'shard_position{shard="0"}': 9,
        'shard_problem_seconds{shard="0"}': 0, 'shard_problem_seconds{shard="1"}': 12.5,
        'shard_state{shard="0",penstock_deliver_shard_state="on the tail"}': 1,
        'shard_state{shard="1",penstock_deliver_shard_state="on the tail"}': 0,
        'shard_state{shard="1",penstock_deliver_shard_state="closed"}': 1,
    }  # fmt: skip
    assert {name: float(found[f"penstock_deliver_{name}"]) for name in expected} == expected
    assert 'penstock_deliver_shard_position{shard="1"}' not in found, "it never told one"
    assert "lag" not in player_text(metrics, [well], position=5, now=0.0, lag=None)
