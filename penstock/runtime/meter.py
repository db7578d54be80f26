"""Where a task's time goes: busy, back-pressured, or waiting. Pure, by the clock that it is given.

    begin ─► busy ─► end          a step: entries are decoded, operators run, a commit is captured
    block ─► back-pressured ─► unblock   so much waits to be committed that nothing more is taken in
    else     waiting              for input, for the log, or for its turn in the worker

Laws: the three add up to the time since it was made; a reading from another thread is whole, for a
turn replaces one tuple. Nothing is awaited between `begin` and `end`. Costs a clock call and a
tuple for each turn, so it is asked per batch and per commit, never per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

WAITING: Final = 0
BUSY: Final = 1
BLOCKED: Final = 2

#: Since when, in which state; seconds spent in each state before.
_At = tuple[float, int, float, float, float]


class Meter:
    """Of one instance of a task; `clock` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: Whether the task takes anything in at all; it is told with the rest, so that a first step
        #: that lasts is known for one.
        self.is_running = False
        self._rests_in = WAITING
        self._at: _At = (clock(), WAITING, 0.0, 0.0, 0.0)
        self._longest = 0.0

    def begin(self) -> None:
        self._turn(BUSY)

    def end(self) -> None:
        self._turn(self._rests_in)

    def block(self) -> None:
        self._rests_in = BLOCKED
        self._turn(BLOCKED)

    def unblock(self) -> None:
        self._rests_in = WAITING
        self._turn(WAITING)

    def take_longest(self) -> float:
        """Seconds that the longest step took of those since the last call."""
        longest, self._longest = self._longest, 0.0
        return longest

    def _turn(self, state: int) -> None:
        now = self._clock()
        if self._at[1] == BUSY:
            self._longest = max(self._longest, now - self._at[0])
        self._at = (now, state, *_spent(self._at, now))

    def report(self) -> dict[str, bool | float | None]:
        """Milliseconds in each state; and how long the step under way lasts by now, if one is."""
        at, now = self._at, self._clock()
        waiting, busy, blocked = _spent(at, now)
        return {
            "is_running": self.is_running,
            "busy_ms": round(busy * 1000, 3),
            "waiting_ms": round(waiting * 1000, 3),
            "blocked_ms": round(blocked * 1000, 3),
            "step_ms": round(max(now - at[0], 0.0) * 1000, 1) if at[1] == BUSY else None,
        }


def _spent(at: _At, now: float) -> tuple[float, float, float]:
    """Seconds of waiting, being busy and being blocked, by now."""
    since, state, waiting, busy, blocked = at
    # Read from another thread, the clock may have been asked before the turn.
    seconds = max(now - since, 0.0)
    return (
        waiting + seconds * (state == WAITING),
        busy + seconds * (state == BUSY),
        blocked + seconds * (state == BLOCKED),
    )
