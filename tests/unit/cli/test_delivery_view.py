"""A running delivery as one line, and what the log says of one that may not run any more."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.delivery_facts import SILENCE_MS, State, judge_state
from penstock.cli.delivery_view import RowRate, delivery_line, problem_words
from penstock.protocol.deliveries import Delivered
from penstock.runtime.lag import Lag


def target(shard: int, position: int | None = 7, **more: Any) -> dict[str, Any]:
    """As delivery/status.py describes one."""
    found = {
        "shard": shard, "target": f"sqlite:///{shard}.db", "state": "on the tail",
        "position": position, "rows": 600, "problem": None, "since": None,
    }  # fmt: skip
    return {**found, **more}


def status(*targets: dict[str, Any], message: str = "Delivering") -> dict[str, Any]:
    return {"name": "hot-sqlite-a", "message": message, "targets": list(targets)}


def test_a_line_has_rate_rows_lag_positions_and_how_targets_stand() -> None:
    line = delivery_line(status(target(0)), 1234.4, Lag(0, 0.0))
    assert line == (
        "hot-sqlite-a: 1,234 rows/s, 600 rows, lag 0 rows 0.0 s, at LSN 7, 1 target on the tail"
    )

    several = status(target(0), target(1, 9), target(2, None, state="catching up"))
    assert delivery_line(several, None, Lag(5000, 2.5, is_lower_bound=True)) == (
        "hot-sqlite-a: - rows/s, 1,800 rows, lag 5,000+ rows 2.5 s, at LSN 7 to 9, "
        "1 of 3 targets catching up"
    )
    assert "lag -, at LSN -" in delivery_line(status(target(0, None)), None, None)


def test_what_is_wrong_is_said_in_words_the_worst_first() -> None:
    away = {"problem": "connection\x1b refused", "since": "2026-01-01T12:00:00", "state": "closed"}
    stopped = {"problem": "no such column", "since": "2026-01-01T13:00:00", "state": "stopped"}

    assert problem_words(status(target(0))) is None
    assert problem_words(status(target(0), target(1, **away))) == (
        r"target 1 away since 2026-01-01T12:00:00: connection\x1b refused"
    )
    assert problem_words(status(target(0, **away), target(1, **stopped))) == (
        "2 targets in trouble; target 1 stopped since 2026-01-01T13:00:00: no such column"
    )
    message = "Waiting for the log, which has not answered since 2026-01-01T12:00:00"
    assert problem_words(status(target(0), message=message)) == message


def test_a_rate_is_of_the_last_few_seconds() -> None:
    rate = RowRate()

    assert rate.take(100, 10.0) is None
    assert rate.take(200, 11.0) == 100
    assert [rate.take(1200, 12.0 + second) for second in range(4)][-1] == 0


@pytest.mark.parametrize(
    ("ack", "age_ms", "state"),
    [
        (None, 0, State.NEW),
        ({}, 0, State.RUNNING),
        ({}, SILENCE_MS, State.RUNNING),
        ({}, SILENCE_MS + 1, State.LOST),
        ({"is_running": False}, SILENCE_MS + 1, State.STOPPED),
        ({"is_running": False, "error": "no"}, 0, State.FAILED),
    ],
)
def test_the_last_word_tells_how_a_delivery_stands(
    ack: dict[str, Any] | None, age_ms: int, state: State
) -> None:
    said: dict[str, Any] = {
        "term": 1, "positions": [1], "problems": [None], "rows": [0], "is_running": True,
        "error": None, "time_ms": 1_000,
    }  # fmt: skip
    delivered = None if ack is None else Delivered(**{**said, **ack})

    assert judge_state(delivered, 1_000 + age_ms) is state
