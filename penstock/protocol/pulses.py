"""What a coordinator's pulses in the log say of a query: its newest report, and if it runs. Pure.

Owns how a query was last heard of. Four pulses come a second, and every fourth carries a report
(runtime/progress.py); the last of a run says that it is over. Law: nothing asks a driver, so it is
the same from any machine, and also true of a query whose driver died.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

#: A coordinator that was silent for so long is not there, or has no log.
SILENCE_MS: Final = 2_000
#: Pulses to look at for a report; one in four has one.
PULSES_MAX: Final = 16


class State(Enum):
    """How a query was last heard of."""

    RUNNING = "running"
    #: It said so, after its workers had committed what they had.
    STOPPED = "stopped"
    #: It stopped by itself; the final report says why.
    FAILED = "failed"
    #: No pulse for a while, and no goodbye: its driver died, or is cut off.
    LOST = "lost"
    #: Registered; nobody has run it yet.
    NEW = "new"


def report_of(payload: bytes) -> dict[str, Any] | None:
    """The report that a pulse carries, if any; None for bytes that are no pulse."""
    try:
        values: Any = json.loads(payload)
        is_pulse = values.get("kind") == "pulse"
        progress = values.get("progress") if is_pulse else None
    except (ValueError, AttributeError, RecursionError):
        return None
    return progress if type(progress) is dict else None


def judge_state(pulse_ms: int | None, progress: Mapping[str, Any] | None, at_ms: int) -> State:
    """A final report is the last pulse of its run: a pulse after it is of the next run's."""
    if pulse_ms is None:
        return State.NEW
    if progress is not None and progress.get("isActive") is False:
        return State.FAILED if progress.get("exception") else State.STOPPED
    return State.RUNNING if at_ms - pulse_ms <= SILENCE_MS else State.LOST
