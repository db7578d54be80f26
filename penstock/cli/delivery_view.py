"""A running delivery as one line. Pure: a function of its status, its rate and its lag."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.output import NOTHING
from penstock.plain_text import plain

if TYPE_CHECKING:
    from penstock.runtime.lag import Lag

Status = dict[str, Any]

#: Seconds that a rate is taken over.
RATE_SECONDS: Final = 3.0


class RowRate:
    """Rows a second, over the last few seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def take(self, rows: int, now: float) -> float | None:
        """The rate now, of what was applied so far; None before there is one."""
        self._seen.append((now, rows))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_SECONDS:
            self._seen.popleft()
        began, before = self._seen[0]
        return None if now <= began else (rows - before) / (now - began)


def rows_of(status: Status) -> int:
    """Applied by all targets since the player began."""
    return sum(one["rows"] for one in status["targets"])


def delivery_line(status: Status, rate: float | None, lag: Lag | None) -> str:
    """Everything that one looks at first."""
    more = "+" if lag is not None and lag.is_lower_bound else ""
    behind = NOTHING if lag is None else f"{lag.records:,}{more} rows {lag.seconds:.1f} s"
    parts = [
        f"{NOTHING if rate is None else f'{rate:,.0f}'} rows/s",
        f"{rows_of(status):,} rows",
        f"lag {behind}",
        _positions(status),
        _targets(status),
    ]
    return f"{plain(status['name'])}: {', '.join(parts)}"


def problem_words(status: Status) -> str | None:
    """What is wrong; None: nothing."""
    if status["message"].startswith("Waiting for the log"):
        return plain(str(status["message"]))
    troubles = [one for one in status["targets"] if one["problem"] is not None]
    if not troubles:
        return None
    worst = min(troubles, key=lambda one: (one["state"] != "stopped", one["since"], one["shard"]))
    others = "" if len(troubles) == 1 else f"{len(troubles)} targets in trouble; "
    state = "stopped" if worst["state"] == "stopped" else "away"
    problem = plain(worst["problem"])
    return f"{others}target {worst['shard']} {state} since {worst['since']}: {problem}"


def _positions(status: Status) -> str:
    told = [one["position"] for one in status["targets"] if one["position"] is not None]
    if not told:
        return f"at LSN {NOTHING}"
    return f"at LSN {min(told)}" + ("" if min(told) == max(told) else f" to {max(told)}")


def _targets(status: Status) -> str:
    """Like `4 targets on the tail`, or `1 of 4 targets catching up`."""
    states = [one["state"] for one in status["targets"] if one["state"] != "retired"]
    odd = next((state for state in states if state != "on the tail"), "on the tail")
    count = states.count(odd)
    of = "" if count == len(states) else f"{count} of "
    return f"{of}{len(states)} target{'' if len(states) == 1 else 's'} {odd}"
